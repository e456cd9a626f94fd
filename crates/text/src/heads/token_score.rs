//! `TokenScore`: how much more likely one token follows a text than another, by a causal language model.

use candle_attention::checkpoint::{AnySource, WeightSource};
use candle_attention::ops::Linear;
use candle_attention::tensor::compute_dtype;
use candle_attention::weights::LinearWeights;
use candle_attention::{Error, Result};
use candle_core::Tensor;

use crate::model::config::TextModelConfig;
use crate::model::embeddings::check_ids;
use crate::model::hidden_states::{HiddenStates, rows};
use crate::model::places::{Places, watch};
use crate::model::text_model::TextModel;

/// A decoder, and the rows of its language head for the tokens that decide on a score.
#[derive(Debug, Clone)]
pub(crate) struct TokenScore {
    pub model: TextModel,
    /// `(1 or 2, hidden_size)`.
    tokens: Linear,
}

impl TokenScore {
    /// Loads the model from the root of a checkpoint. The score is the logit of the token `yes`, less that of `no` if
    /// there is one.
    ///
    /// # Errors
    /// The errors of [`TextModel::load`]; a family without such a head; a token that the model does not have.
    pub fn load(config: &TextModelConfig, source: &AnySource, yes: u32, no: Option<u32>) -> Result<Self> {
        if !config.row().classifier.is_some_and(|head| head.last_token) {
            return Err(Error::config("model_type", &config.model_type, "a decoder"));
        }
        if let Some(cap) = config.key("final_logit_softcapping") {
            return Err(Error::config("final_logit_softcapping", cap, "absent: this version caps no logits"));
        }
        let ids: Vec<u32> = [Some(yes), no].into_iter().flatten().collect();
        check_ids("the tokens that are scored", &ids, config.vocab_size)?;
        const HEAD: &str = "lm_head.weight";
        let (source, read) = watch(source);
        let places = Places::find(config, &source);
        let root = &places.root;
        // A head that is stored counts even if it is said to be the word embeddings: transformers ties what is missing
        // or equal.
        let tied = config.key_flag("tie_word_embeddings")?;
        let shared = (tied == Some(true)).then_some(HEAD);
        let (count, hidden) = (ids.len(), config.hidden_size);
        let head = match root.contains(HEAD) || tied == Some(false) {
            true => Some(root.get(HEAD, &[config.vocab_size, hidden])?),
            false => None,
        };
        let model = TextModel::load_at(config, &places, shared)?;
        places.check_read(config, &read)?;
        let ids = Tensor::new(ids, model.device())?;
        let weight =
            head.map_or_else(|| model.embeddings.words.lookup(&ids), |head| Ok(head.index_select(&ids, 0)?))?;
        Ok(Self { tokens: Linear::new(HEAD, LinearWeights::new(weight, None), count, hidden)?, model })
    }

    /// The score of each text.
    pub fn scores(&self, hidden: &HiddenStates) -> Result<Vec<f32>> {
        let last = hidden.lengths.iter().map(|length| length.saturating_sub(1)).enumerate();
        let last: Vec<(usize, usize)> = last.collect();
        let xs = hidden.tokens_at(&last)?.unsqueeze(1)?; // (b, 1, hidden)
        let logits = rows(&self.tokens.forward(&xs, compute_dtype(xs.dtype()))?.squeeze(1)?)?;
        Ok(logits.iter().map(|logits| logits[0] - logits.get(1).copied().unwrap_or(0.0)).collect())
    }
}
