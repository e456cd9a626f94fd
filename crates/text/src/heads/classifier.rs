//! `SequenceClassifier`: the sequence classification head on token ids.

use candle_attention::checkpoint::{AnySource, WeightSource};
use candle_attention::ops::Linear;
use candle_attention::tensor::{MapTensors, compute_dtype};
use candle_attention::{AttentionMask, Error, Result};
use candle_core::Tensor;
use serde_json::{Map, Value};

use crate::heads::head_model::{Head, HeadModel, Transform};
use crate::heads::task_head::TaskHead;
use crate::model::config::TextModelConfig;
use crate::model::feed_forward::read_linear;
use crate::model::hidden_states::HiddenStates;
use crate::model::text_model::{TextModel, body};

/// A [`TextModel`] with a head that classifies a text: `last(norm(activation(first(x))))`, as the
/// `ForSequenceClassification` of its family in transformers; `x` is the first token or, where ModernBERT's
/// configuration says so, the mean. In decoders the head is `last(x)` of the last token that does not pad.
pub type SequenceClassifier = HeadModel<SequenceHead>;

/// The head of a [`SequenceClassifier`].
#[derive(Clone)]
pub struct SequenceHead {
    input: HeadInput,
    first: Option<Transform>,
    last: Linear,
    labels: Vec<String>,
}

/// The vector of a text that the head classifies.
#[derive(Debug, Clone, Copy)]
enum HeadInput {
    /// The hidden state of the first token.
    FirstToken,
    /// The mean of the hidden states of all tokens.
    MeanOfTokens,
    /// The hidden state of the last token with another id than the padding token, if the model has one.
    LastToken { padding_id: Option<u32> },
}

impl MapTensors for SequenceHead {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let (first, last) = (self.first.map_tensors(f)?, self.last.map_tensors(f)?);
        Ok(Self { input: self.input, first, last, labels: self.labels.clone() })
    }
}

impl Head for SequenceHead {
    const NAME: &'static str = "SequenceClassifier";

    fn load(
        config: &TextModelConfig,
        source: &AnySource,
        model: impl FnOnce() -> Result<TextModel>,
    ) -> Result<(Self, TextModel)> {
        let Some(names) = config.row().classifier else {
            return Err(Error::config("model_type", &config.model_type, "one whose classification head is known"));
        };
        let weight = format!("{}.weight", names.last);
        if !source.contains(&weight) {
            let why = "the checkpoint has no head for sequence classification".to_string();
            return Err(Error::MissingTensor { name: source.full_name(&weight), why });
        }
        TaskHead::SequenceClassification.check(config)?;
        let hidden = config.hidden_size;
        let labels = labels(config, source.full_name(&weight), source.shape(&weight)?, hidden)?;
        let body = body(config, source);
        let first = match (&body, names.pooler) {
            (Some(body), true) => body.child(names.first),
            _ => source.child(names.first),
        };
        let weights = read_linear(&source.child(names.last), labels.len(), hidden, !names.last_token)?;
        let load_first = || {
            let bias = !names.optional_bias || first.contains("bias");
            let dense = Linear::new(&first.full_name(""), read_linear(&first, hidden, hidden, bias)?, hidden, hidden)?;
            let norm = names.norm.map(|name| config.norm(&config.row().block, hidden, &source.child(name)));
            Transform::new(config, dense, names.activation, norm.transpose()?)
        };
        let head = Self {
            input: match names.last_token {
                // Without an entry of the file, the model has none.
                true => HeadInput::LastToken { padding_id: config.key("pad_token_id").map(|_| config.pad_token_id) },
                false if means(config, names.pooling_key)? => HeadInput::MeanOfTokens,
                false => HeadInput::FirstToken,
            },
            first: if names.last_token { None } else { Some(load_first()?) },
            last: Linear::new(names.last, weights, labels.len(), hidden)?,
            labels,
        };
        Ok((head, model()?))
    }

    fn pack(&mut self) -> Result<()> {
        self.first.as_mut().map_or(Ok(()), Transform::pack)?;
        self.last.pack()
    }

    fn labels(&self) -> Option<&[String]> {
        Some(&self.labels)
    }
}

impl SequenceClassifier {
    /// The labels of the logits, in their order: `id2label`, or `LABEL_0`, `LABEL_1`, …
    pub fn labels(&self) -> &[String] {
        &self.head.labels
    }

    /// Token ids `(b, s)` u32, padded on the right, with `lengths` tokens per sequence → logits `(b, labels)` in f32
    /// (f64 for an f64 model).
    ///
    /// # Errors
    /// The errors of [`TextModel::forward`]; a sequence without tokens.
    pub fn forward(&self, ids: &Tensor, token_type_ids: Option<&Tensor>, lengths: &[usize]) -> Result<Tensor> {
        let tokens = self.model.forward(ids, token_type_ids, &AttentionMask::padding(lengths))?;
        let ids = if let HeadInput::LastToken { .. } = self.head.input { ids.to_vec2()? } else { Vec::new() };
        let texts: Vec<&[u32]> = ids.iter().zip(lengths).map(|(ids, length)| &ids[..ids.len().min(*length)]).collect();
        self.logits(&HiddenStates { tokens, lengths: lengths.to_vec() }, &texts)
    }

    /// `(b, labels)`. `ids` are the tokens of each text, which decoders look for padding.
    pub(crate) fn logits(&self, hidden: &HiddenStates, ids: &[&[u32]]) -> Result<Tensor> {
        let xs = match self.head.input {
            HeadInput::FirstToken => hidden.first()?,
            HeadInput::MeanOfTokens => hidden.means()?,
            HeadInput::LastToken { padding_id } => hidden.tokens_at(&last_tokens(ids, padding_id)?)?,
        };
        let xs = xs.unsqueeze(1)?; // (b, 1, hidden)
        let dtype = compute_dtype(xs.dtype());
        let xs = match &self.head.first {
            Some(first) => first.forward(&xs)?,
            None => xs,
        };
        Ok(self.head.last.forward(&xs, dtype)?.squeeze(1)?)
    }
}

/// For each text its number and the place of its last token that does not pad; of one that only pads, the first.
fn last_tokens(ids: &[&[u32]], padding_id: Option<u32>) -> Result<Vec<(usize, usize)>> {
    let place = |(text, ids): (usize, &&[u32])| match ids.is_empty() {
        false => Ok((text, ids.iter().rposition(|id| Some(*id) != padding_id).unwrap_or(0))),
        true => Err(Error::value(format!("the number of tokens of text {text}"), 0, "at least 1")),
    };
    ids.iter().enumerate().map(place).collect()
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

/// The names of the labels of a head whose last weight has `shape`, if the source knows it, for `hidden` features.
pub(super) fn labels(
    config: &TextModelConfig,
    name: String,
    shape: Option<Vec<usize>>,
    hidden: usize,
) -> Result<Vec<String>> {
    let stated = match config.key("id2label") {
        None => None,
        Some(Value::Object(stated)) => Some(stated),
        Some(other) => return Err(Error::config("id2label", kind(other), "an object of names by number")),
    };
    let count = match shape.as_deref() {
        Some([count, width]) if *width == hidden => *count,
        Some(other) => {
            let (found, expected) = (format!("has shape {other:?}"), format!("[labels, {hidden}]"));
            return Err(Error::Tensor { name, found, expected });
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

/// What a JSON value is, in words.
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
