//! `TokenScore`: how much more likely one token follows a text than another, by a causal language model.

use candle_attention::checkpoint::{AnySource, WeightSource};
use candle_attention::ops::Linear;
use candle_attention::tensor::compute_dtype;
use candle_attention::weights::LinearWeights;
use candle_attention::{Error, Result};
use candle_core::Tensor;

use crate::gguf::head::ANSWERS;
use crate::model::config::TextModelConfig;
use crate::model::embeddings::check_ids;
use crate::model::hidden_states::{HiddenStates, rows};
use crate::model::mlp::linear;
use crate::model::places::Places;
use crate::model::text_model::TextModel;

/// A decoder, and the rows of its language head for the tokens that decide on a score.
#[derive(Debug, Clone)]
pub(crate) struct TokenScore {
    pub model: TextModel,
    /// `(1 or 2, hidden_size)`.
    tokens: Linear,
}

impl TokenScore {
    /// Loads the model from the root of a checkpoint. The score is the logit of the first token, less that of the
    /// second if there is one. `None`: a GGUF file that holds the rows of both ([`holds_rows`](Self::holds_rows)).
    ///
    /// # Errors
    /// The errors of [`TextModel::load`]; a family without such a head; a token that the model does not have.
    pub fn load(config: &TextModelConfig, source: &AnySource, tokens: Option<(u32, Option<u32>)>) -> Result<Self> {
        if !config.row().classifier.is_some_and(|head| head.last_token) {
            return Err(Error::config("model_type", &config.model_type, "a decoder"));
        }
        if let Some(cap) = config.key("final_logit_softcapping") {
            return Err(Error::config("final_logit_softcapping", cap, "absent: this version caps no logits"));
        }
        let hidden = config.hidden_size;
        let Some((yes, no)) = tokens else {
            let tokens = linear(source, ANSWERS.trim_end_matches(".weight"), 2, hidden, false)?;
            return Ok(Self { tokens, model: TextModel::load_from(config, source)? });
        };
        let ids: Vec<u32> = [Some(yes), no].into_iter().flatten().collect();
        check_ids("the tokens that are scored", &ids, config.vocab_size)?;
        const HEAD: &str = "lm_head.weight";
        let source = source.watched();
        let places = Places::find(config, &source);
        let root = &places.root;
        // A head that is stored counts even if it is said to be the word embeddings: transformers ties what is missing
        // or equal.
        let tied = config.key_flag("tie_word_embeddings")?;
        let shared = (tied == Some(true)).then_some(HEAD);
        let count = ids.len();
        let head = if root.contains(HEAD) || tied == Some(false) {
            Some(root.get(HEAD, &[config.vocab_size, hidden])?)
        } else {
            None
        };
        let model = TextModel::load_at(config, &places, shared)?;
        places.check_read(config)?;
        let ids = Tensor::new(ids, model.device())?;
        let weight =
            head.map_or_else(|| model.embeddings.words.lookup(&ids), |head| Ok(head.index_select(&ids, 0)?))?;
        Ok(Self { tokens: Linear::new(HEAD, LinearWeights::new(weight, None), count, hidden)?, model })
    }

    /// Whether a checkpoint holds the rows of the tokens that are scored, as GGUF files do.
    pub fn holds_rows(source: &AnySource) -> bool {
        source.contains(ANSWERS)
    }

    /// The score of each text.
    pub fn scores(&self, hidden: &HiddenStates) -> Result<Vec<f32>> {
        let last = hidden.lengths.iter().map(|length| length.saturating_sub(1)).enumerate();
        let last: Vec<(usize, usize)> = last.collect();
        let xs = hidden.tokens_at(&last)?.unsqueeze(1)?; // (b, 1, hidden)
        let logits = rows(&self.tokens.forward_in_dtype(&xs, compute_dtype(xs.dtype()))?.squeeze(1)?)?;
        Ok(logits.iter().map(|logits| logits[0] - logits.get(1).copied().unwrap_or(0.0)).collect())
    }
}
