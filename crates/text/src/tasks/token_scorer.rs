//! `TokenScorer`: scores of pairs of texts by a causal language model that is asked about them.

use std::path::Path;

use candle_attention::checkpoint::{AnySource, WeightSource};
use candle_attention::ops::Linear;
use candle_attention::tensor::compute_dtype;
use candle_attention::weights::LinearWeights;
use candle_attention::{Error, Result};
use candle_core::Tensor;

use crate::folder::{ModelFolder, Module};
use crate::gguf::head::ANSWERS;
use crate::model::config::TextModelConfig;
use crate::model::embeddings::check_ids;
use crate::model::hidden_states::{HiddenStates, rows};
use crate::model::mlp::linear;
use crate::model::places::Places;
use crate::model::text_model::TextModel;
use crate::text::batches::TextBatcher;
use crate::text::chat_template::{ChatTemplate, Message};
use crate::text::options::{EncodeOptions, check_finite, without_dimensions};
use crate::text::tokenizer::{Text, Tokens};
#[cfg(feature = "visualize")]
use crate::text::{attention_maps::MapOptions, options::without_prompt};
#[cfg(feature = "visualize")]
use crate::visualize::AttentionMaps;

/// A decoder whose next token says how well a document answers a query, as the `LogitScore` module of
/// sentence-transformers has it (Qwen3-Reranker).
#[derive(Debug, Clone)]
pub(crate) struct TokenScorer {
    model: TextModel,
    /// The rows of the language head for the tokens that decide on a score, `(1 or 2, hidden_size)`.
    tokens: Linear,
    pub batcher: TextBatcher,
    template: Option<ChatTemplate>,
}

/// The settings of `LogitScore`.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    true_token_id: u32,
    false_token_id: Option<u32>,
    module_input_name: Option<String>,
}

impl TokenScorer {
    /// Whether a model is one: it has such a module, or it has no modules and is a language model.
    pub fn fits(modules: Option<&[Module]>, config: &TextModelConfig) -> bool {
        match modules {
            Some(modules) => modules.len() == 2 && modules[1].kind() == "LogitScore",
            None => config.is_language_model(),
        }
    }

    /// Loads a model that [fits](Self::fits). Without a module that states them, the tokens are `yes` and `no`.
    pub fn load(
        folder: ModelFolder,
        modules: Option<&[Module]>,
        transformer: &Path,
        config: &TextModelConfig,
        source: &AnySource,
    ) -> Result<Self> {
        let stated = modules.map(|modules| Settings::load(folder, &folder.path.join(&modules[1].path))).transpose()?;
        let template = ChatTemplate::load(folder, transformer, modules.is_some())?;
        // The tokenizer needs the model only for its limits, and the head needs the tokenizer only for these two
        // tokens.
        let tokenizer = TextBatcher::tokenizer(folder, transformer, config)?;
        let id = |token: &str| {
            let missing =
                || Error::file(transformer, format!("the tokenizer has no token `{token}`, which gives the score"));
            tokenizer.id(token).ok_or_else(missing)
        };
        let tokens = match stated {
            Some(settings) => Some((settings.true_token_id, settings.false_token_id)),
            // GGUF files hold the rows of both tokens instead of the whole head.
            None if source.contains(ANSWERS) => None,
            None => Some((id("yes")?, Some(id("no")?))),
        };
        let (model, tokens) = load_model(config, source, tokens)?;
        let mut batcher = TextBatcher::load(folder, transformer, &model)?;
        if template.is_some() {
            batcher.tokenizer = batcher.tokenizer.without_special_tokens();
        }
        Ok(Self { model, tokens, batcher, template })
    }

    /// The score of each pair; `prompt` is the instruction. A template makes one text of the pair and the instruction.
    pub fn scores(&self, pairs: &[(&str, &str)], prompt: &str, options: &EncodeOptions) -> Result<Vec<f32>> {
        without_dimensions(options)?;
        let mut texts: Vec<Text> = pairs.iter().map(|pair| (*pair).into()).collect();
        let (mut before, mut suffix, rendered) = (prompt, Vec::new(), self.rendered(pairs, prompt)?);
        if let Some((template_suffix, rendered)) = &rendered {
            (before, suffix) = ("", template_suffix.clone());
            texts = rendered.iter().map(|text| Text::One(text)).collect();
        }
        let model = &self.model;
        let scores = self.batcher.batches(model, &texts, before, options)?.in_text_order(|batch| {
            batch.tokens.iter_mut().for_each(|tokens| end_with(tokens, &suffix));
            self.token_scores(&self.batcher.hidden(model, &batch.tokens)?)
        })?;
        check_finite("the score", pairs, self.batcher.dtype, |i| Ok(scores[i].is_finite()))?;
        Ok(scores)
    }

    /// The score of each text: the logit of the first token after it, less that of the second if there is one.
    fn token_scores(&self, hidden: &HiddenStates) -> Result<Vec<f32>> {
        let last = hidden.lengths.iter().map(|length| length.saturating_sub(1)).enumerate();
        let xs = hidden.tokens_at(&last.collect::<Vec<_>>())?.unsqueeze(1)?; // (b, 1, hidden)
        let logits = rows(&self.tokens.forward_in_dtype(&xs, compute_dtype(xs.dtype()))?.squeeze(1)?)?;
        Ok(logits.iter().map(|logits| logits[0] - logits.get(1).copied().unwrap_or(0.0)).collect())
    }

    /// The attention weights for a pair, in the text that the template makes of it.
    #[cfg(feature = "visualize")]
    pub fn attention(&self, query: &str, document: &str, options: &MapOptions) -> Result<AttentionMaps> {
        without_prompt(options.prompt_name, options.prompt)?;
        match &self.template {
            None => self.batcher.attention(&self.model, (query, document).into(), options),
            Some(template) => {
                let text = template.render(&messages("", query, document))?;
                self.batcher.attention(&self.model, text.as_str().into(), options)
            }
        }
    }

    /// The texts that the template makes of pairs, and the tokens that end each of them; `None` without a template.
    fn rendered(&self, pairs: &[(&str, &str)], prompt: &str) -> Result<Option<(Vec<u32>, Vec<String>)>> {
        let Some(template) = &self.template else { return Ok(None) };
        let render = |query, document| template.render(&messages(prompt, query, document));
        let suffix = self.suffix([render("0", "0")?, render("1 2 3 4", "1 2 3 4")?])?;
        let texts = pairs.iter().map(|(query, document)| render(query, document)).collect::<Result<_>>()?;
        Ok(Some((suffix, texts)))
    }

    /// The tokens that end every rendered text: what two texts with other contents have in common at their end. A text
    /// that is cut gets them back, because the model answers after them.
    fn suffix(&self, texts: [String; 2]) -> Result<Vec<u32>> {
        let tokenizer = self.batcher.tokenizer.with_max_length(usize::MAX)?;
        let texts = texts.each_ref().map(|text| Text::One(text));
        let tokens = tokenizer.encode(&texts, "")?;
        let [first, second] = [&tokens[0].ids, &tokens[1].ids];
        let common = first.iter().rev().zip(second.iter().rev()).take_while(|(a, b)| a == b).count();
        let is_suffix = common < first.len().min(second.len());
        Ok(if is_suffix { first[first.len() - common..].to_vec() } else { Vec::new() })
    }
}

/// Loads a decoder from the root of a checkpoint, and the rows of its language head for the tokens that decide on a
/// score. `None`: a GGUF file that holds the rows of both.
///
/// # Errors
/// The errors of [`TextModel::load`]; a family without such a head; a token that the model does not have.
fn load_model(
    config: &TextModelConfig,
    source: &AnySource,
    tokens: Option<(u32, Option<u32>)>,
) -> Result<(TextModel, Linear)> {
    if !config.row().classifier.is_some_and(|head| head.last_token) {
        return Err(Error::config("model_type", &config.model_type, "a decoder"));
    }
    if let Some(cap) = config.key("final_logit_softcapping") {
        return Err(Error::config("final_logit_softcapping", cap, "absent: this version caps no logits"));
    }
    let hidden = config.hidden_size;
    let Some((yes, no)) = tokens else {
        let tokens = linear(source, ANSWERS.trim_end_matches(".weight"), 2, hidden, false)?;
        return Ok((TextModel::load_from(config, source)?, tokens));
    };
    let ids: Vec<u32> = [Some(yes), no].into_iter().flatten().collect();
    check_ids("the tokens that are scored", &ids, config.vocab_size)?;
    const HEAD: &str = "lm_head.weight";
    let source = source.watched();
    let places = Places::find(config, &source);
    // A head that is stored counts even if it is said to be the word embeddings: transformers ties what is missing or
    // equal.
    let tied = config.key_flag("tie_word_embeddings")?;
    let is_own = places.root.contains(HEAD) || tied == Some(false);
    let head = is_own.then(|| places.root.get(HEAD, &[config.vocab_size, hidden])).transpose()?;
    let model = TextModel::load_at(config, &places, (tied == Some(true)).then_some(HEAD))?;
    places.check_read(config)?;
    let (count, ids) = (ids.len(), Tensor::new(ids, model.device())?);
    let weight = head.map_or_else(|| model.embeddings.words.lookup(&ids), |head| Ok(head.index_select(&ids, 0)?))?;
    Ok((model, Linear::new(HEAD, LinearWeights::new(weight, None), count, hidden)?))
}

impl Settings {
    fn load(folder: ModelFolder, module: &Path) -> Result<Self> {
        let path = module.join("config.json");
        let settings: Self = folder.json(&path)?;
        match settings.module_input_name.as_deref() {
            None | Some("causal_logits") => Ok(settings),
            Some(other) => Err(Error::file(path, format!("module_input_name is `{other}`, expected `causal_logits`"))),
        }
    }
}

/// The messages of a pair: the prompt, if there is one, the query and the document.
fn messages<'a>(prompt: &'a str, query: &'a str, document: &'a str) -> Vec<Message<'a>> {
    let system = Some(("system", prompt)).filter(|(_, prompt)| !prompt.is_empty());
    system.into_iter().chain([("query", query), ("document", document)]).collect()
}

/// Puts the suffix in place of the last tokens of a text that was cut.
fn end_with(tokens: &mut Tokens, suffix: &[u32]) {
    if tokens.truncated {
        let kept = suffix.len().min(tokens.len());
        let start = tokens.len() - kept;
        tokens.ids[start..].copy_from_slice(&suffix[suffix.len() - kept..]);
    }
}
