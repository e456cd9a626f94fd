//! The kinds of task heads on token ids: of whole texts, of tokens, of masked tokens.

use candle_attention::checkpoint::{AnySource, WeightSource};
use candle_attention::ops::Linear;
use candle_attention::weights::LinearWeights;
use candle_attention::{AttentionMask, Error, Result};
use candle_core::Tensor;
use serde_json::{Map, Value};

use crate::heads::head_model::{Head, HeadInput, HeadKind, HeadModel, Transform};
use crate::heads::task_head::TaskHead;
use crate::model::config::TextModelConfig;
use crate::model::hidden_states::HiddenStates;
use crate::model::mlp::linear;
use crate::model::places::Places;
use crate::model::table::Table;
use crate::model::text_model::TextModel;

/// A [`TextModel`] with a head that classifies a text: `last(norm(activation(first(x))))`, as the
/// `ForSequenceClassification` of its family in transformers; `x` is the first token or, where ModernBERT's
/// configuration says so, the mean. In decoders the head is `last(x)` of the last token that does not pad.
pub type SequenceClassifier = HeadModel<SequenceHead>;

/// A [`TextModel`] with a head that classifies each token, `last(x)`, as the `ForTokenClassification` of its family in
/// transformers; ModernBERT's is `last(norm(activation(first(x))))`.
pub type TokenClassificationHead = HeadModel<TokenHead>;

/// A [`TextModel`] with a head that predicts the token at a position: `E norm(activation(first(x))) + b`, where `E` are
/// the word embeddings unless `tie_word_embeddings` is false.
pub type MaskedLm = HeadModel<MaskedHead>;

/// The kind of a [`SequenceClassifier`].
#[derive(Debug, Clone)]
pub enum SequenceHead {}

/// The kind of a [`TokenClassificationHead`].
#[derive(Debug, Clone)]
pub enum TokenHead {}

/// The kind of a [`MaskedLm`].
#[derive(Debug, Clone)]
pub enum MaskedHead {}

/// Checks that a checkpoint has a tensor of the head `what`.
fn check_head(source: &AnySource, name: &str, what: &str) -> Result<()> {
    if source.contains(name) {
        return Ok(());
    }
    let name = source.full_name(name);
    let is_below = |other: &String| other.strip_suffix(&name).is_some_and(|prefix| prefix.ends_with('.'));
    let why = match source.root().names().into_iter().flatten().find(is_below) {
        Some(other) => format!("the checkpoint has it as `{other}`: its tensors have to be renamed"),
        None => format!("the checkpoint has no head for {what}"),
    };
    Err(Error::MissingTensor { name, why })
}

impl HeadKind for SequenceHead {
    const NAME: &'static str = "SequenceClassifier";

    fn load(config: &TextModelConfig, places: &Places) -> Result<(Head, TextModel)> {
        let source = &places.root;
        let Some(names) = config.row().classifier else {
            return Err(Error::config("model_type", &config.model_type, "one whose classification head is known"));
        };
        let labels = labels(config, source, names.last, TaskHead::SequenceClassification)?;
        let head = Head {
            input: match names.last_token {
                // Without an entry of the file, the model has none.
                true => HeadInput::LastToken { padding_id: config.key("pad_token_id").map(|_| config.pad_token_id) },
                false if means(config, names.pooling_key)? => HeadInput::MeanOfTokens,
                false => HeadInput::FirstToken,
            },
            first: match names.last_token {
                true => None,
                false => Some(Transform::load(config, &names.first, places, config.hidden_size)?),
            },
            last: linear(source, names.last, labels.len(), config.hidden_size, !names.last_token)?,
            labels,
        };
        Ok((head, TextModel::load_at(config, places, None)?))
    }
}

impl HeadKind for TokenHead {
    const NAME: &'static str = "TokenClassificationHead";

    fn load(config: &TextModelConfig, places: &Places) -> Result<(Head, TextModel)> {
        let source = &places.root;
        let names = config.row().token_classifier;
        let labels = labels(config, source, names.last, TaskHead::TokenClassification)?;
        let first = names.first.map(|first| Transform::load(config, &first, places, config.hidden_size));
        let first = first.transpose()?;
        let last = linear(source, names.last, labels.len(), config.hidden_size, true)?;
        let head = Head { input: HeadInput::EachToken, first, last, labels };
        Ok((head, TextModel::load_at(config, places, None)?))
    }
}

impl HeadKind for MaskedHead {
    const NAME: &'static str = "MaskedLm";

    fn load(config: &TextModelConfig, places: &Places) -> Result<(Head, TextModel)> {
        let source = &places.root;
        let Some(names) = config.row().masked_lm else {
            return Err(Error::config("model_type", &config.model_type, "one whose masked-language head is known"));
        };
        let (what, decoder) = ("masked language modelling", source.child(names.decoder));
        check_head(&source.child(names.first.dense), "weight", what)?;
        let (vocabulary, width) = (config.vocab_size, config.embedding_size());
        let first = Transform::load(config, &names.first, places, width)?;
        let has_none = names.first.optional_bias && config.key_flag("decoder_bias")? == Some(false);
        let bias = match (decoder.contains("bias"), source.contains(names.bias)) {
            // Of two stored ones transformers takes this one: it ties what is missing or equal.
            (true, _) => Some(decoder.get("bias", &[vocabulary])?),
            (false, false) if has_none => None,
            (false, _) => {
                check_head(source, names.bias, what)?;
                Some(source.get(names.bias, &[vocabulary])?)
            }
        };
        let tied = config.key_flag("tie_word_embeddings")?.unwrap_or(true);
        let stored = format!("{}.weight", names.decoder);
        let shared = tied.then_some(stored.as_str());
        let (words, name) = places.word_embeddings(config, shared)?;
        let is_own = !tied || decoder.contains("weight") && words.full_name(&name) != source.full_name(&stored);
        let weight = if is_own { Some(decoder.get("weight", &[vocabulary, width])?) } else { None };
        let model = TextModel::load_at(config, places, shared)?;
        // A decoder that is stored beside the words counts even if they are said to be one.
        let weight = match (weight, &model.embeddings.words) {
            (Some(weight), Table::Tensor(words)) if tied && is_equal(&weight, words)? => None,
            (weight, _) => weight,
        };
        let dense = |weight: Tensor, bias: Option<Tensor>| {
            Linear::new(names.decoder, LinearWeights::new(weight, bias), vocabulary, width)
        };
        let last = match (weight, &model.embeddings.words) {
            (Some(weight), _) => {
                let mut last = dense(weight, bias)?;
                decoder.quantization("weight").map_or(Ok(()), |format| last.quantize(format))?;
                last
            }
            (None, Table::Tensor(words)) => dense(words.clone(), bias)?,
            (None, Table::Quantized(words, _)) => Linear::from_rows(words, bias.as_ref())?,
        };
        Ok((Head { input: HeadInput::EachToken, first: Some(first), last, labels: Vec::new() }, model))
    }
}

impl SequenceClassifier {
    /// Token ids `(b, s)` u32, padded on the right, with `lengths` tokens per sequence → logits `(b, labels)` in f32
    /// (f64 for an f64 model).
    ///
    /// # Errors
    /// The errors of [`TextModel::forward`]; a sequence without tokens.
    pub fn forward(&self, ids: &Tensor, token_type_ids: Option<&Tensor>, lengths: &[usize]) -> Result<Tensor> {
        let tokens = self.model.forward(ids, token_type_ids, &AttentionMask::padding(lengths))?;
        let ids = if let HeadInput::LastToken { .. } = self.head.input { ids.to_vec2()? } else { Vec::new() };
        let texts: Vec<&[u32]> = ids.iter().zip(lengths).map(|(ids, length)| &ids[..ids.len().min(*length)]).collect();
        self.logits_of_texts(&HiddenStates { tokens, lengths: lengths.to_vec() }, &texts)
    }

    /// `(b, labels)`. `ids` are the tokens of each text, which decoders look for padding.
    pub(crate) fn logits_of_texts(&self, hidden: &HiddenStates, ids: &[&[u32]]) -> Result<Tensor> {
        let xs = match self.head.input {
            HeadInput::FirstToken | HeadInput::EachToken => {
                hidden.tokens_at(&(0..hidden.lengths.len()).map(|text| (text, 0)).collect::<Vec<_>>())?
            }
            HeadInput::MeanOfTokens => hidden.means()?,
            HeadInput::LastToken { padding_id } => {
                // Of a text that only pads, the first token.
                let last = |ids: &&[u32]| ids.iter().rposition(|id| Some(*id) != padding_id).unwrap_or(0);
                hidden.tokens_at(&ids.iter().map(last).enumerate().collect::<Vec<_>>())?
            }
        };
        Ok(self.logits(&xs.unsqueeze(1)?)?.squeeze(1)?)
    }
}

impl TokenClassificationHead {
    /// Token ids `(b, s)` u32 under `mask` → logits `(b, s, labels)` in f32 (f64 for an f64 model).
    ///
    /// # Errors
    /// The errors of [`TextModel::forward`].
    pub fn forward(&self, ids: &Tensor, token_type_ids: Option<&Tensor>, mask: &AttentionMask) -> Result<Tensor> {
        self.logits(&self.model.forward(ids, token_type_ids, mask)?)
    }
}

impl MaskedLm {
    /// Token ids `(b, s)` u32 under `mask` → logits `(b, s, vocab_size)` in f32 (f64 for an f64 model).
    ///
    /// # Errors
    /// The errors of [`TextModel::forward`].
    pub fn forward(&self, ids: &Tensor, token_type_ids: Option<&Tensor>, mask: &AttentionMask) -> Result<Tensor> {
        self.logits(&self.model.forward(ids, token_type_ids, mask)?)
    }
}

/// Whether two tensors of one shape have the same elements.
fn is_equal(a: &Tensor, b: &Tensor) -> Result<bool> {
    Ok(a.ne(b)?.flatten_all()?.max(0)?.to_scalar::<u8>()? == 0)
}

/// Whether the head takes the mean of all tokens, by the key that selects it.
fn means(config: &TextModelConfig, key: Option<&'static str>) -> Result<bool> {
    let Some(key) = key else { return Ok(false) };
    match config.key_text(key)? {
        Some("mean") => Ok(true),
        Some("cls") | None => Ok(false),
        Some(other) => Err(Error::config(key, other, "cls or mean")),
    }
}

/// The most labels of a classification head. Without `id2label` their names are made from the header of the checkpoint
/// alone, which may state any number. The largest published heads have some 22,000.
const MAX_LABELS: usize = 1 << 20;

/// The names of the labels of a head that classifies, whose last projection is `last`.
fn labels(config: &TextModelConfig, source: &AnySource, last: &str, head: TaskHead) -> Result<Vec<String>> {
    let (weight, hidden) = (format!("{last}.weight"), config.hidden_size);
    check_head(source, &weight, head.name())?;
    head.check(config)?;
    let stated = match config.key("id2label") {
        None => None,
        Some(Value::Object(stated)) => Some(stated),
        Some(other) => return Err(Error::config("id2label", kind(other), "an object of names by number")),
    };
    let count = match source.shape(&weight)?.as_deref() {
        Some([count, width]) if *width == hidden => *count,
        Some(other) => {
            let (found, expected) = (format!("has shape {other:?}"), format!("[labels, {hidden}]"));
            return Err(Error::Tensor { name: source.full_name(&weight), found, expected });
        }
        // transformers writes no `id2label` for two unnamed labels.
        None => stated.map_or(2, Map::len),
    };
    if !(1..=MAX_LABELS).contains(&count) {
        return Err(Error::value("the number of labels of the head", count, format!("1 to {MAX_LABELS}")));
    }
    let Some(stated) = stated else {
        return Ok((0..count).map(|i| format!("LABEL_{i}")).collect());
    };
    if stated.len() != count {
        let found = format!("{} labels", stated.len());
        let allowed = format!("{count} of them, numbered from 0: the head has as many rows");
        return Err(Error::config("id2label", found, allowed));
    }
    let label = |i: usize| match stated.get(&i.to_string()) {
        Some(Value::String(label)) => Ok(label.clone()),
        Some(other) => Err(Error::config("id2label", format!("{} for label {i}", kind(other)), "a text")),
        None => Err(Error::config("id2label", format!("no label {i}"), format!("all of 0 to {}", count - 1))),
    };
    (0..count).map(label).collect()
}

/// The kind of a JSON value, in words.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
