//! Options and output of an attention call.

use std::borrow::Cow;

use candle_core::Tensor;

use crate::error::{Error, Result};
use crate::mask::{AttentionMask, CallMask};
use crate::ops::{expected_dropout, expected_factor, expected_limit};
use crate::sdpa::backend::Backend;
use crate::setters;

/// Options of [`attend_bshd`](crate::sdpa::attend_bshd).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SdpaOptions<'a> {
    /// Factor on the scores, of magnitude up to 1e15; `None` is `d^-0.5` for dot products and 1 for additive scoring.
    pub scale: Option<f64>,
    /// Which keys a query may see. Its shapes do not count `appended_keys`.
    pub mask: Cow<'a, AttentionMask>,
    /// Number of keys at the end of `k` and `v` that every query sees, whatever the mask.
    pub appended_keys: usize,
    /// Scores become `softcap · tanh(score / softcap)` before they are masked
    /// ([Gemma 2](https://arxiv.org/abs/2408.00118)); from 1e-15 to 1e15.
    pub softcap: Option<f64>,
    /// `(h)`: a score per head that takes part in the softmax but has no value, so that attention weights sum to less
    /// than 1 ([Xiao 2023](https://arxiv.org/abs/2309.17453), as in gpt-oss). A sink that is not finite can give NaN,
    /// on the eager backend also to a query that sees no key.
    pub sinks: Option<&'a Tensor>,
    /// The vector of additive scoring, `(h, d)`: scores are `w · tanh(q + k)`
    /// ([Bahdanau 2014](https://arxiv.org/abs/1409.0473)); `None` is the dot product.
    pub additive: Option<&'a Tensor>,
    /// Embeddings of distances `(2 n + 1, d_v)` that are added to values: the first is that of a key `n` tokens before
    /// the query, the last of one `n` tokens after it; farther keys have none.
    pub(crate) value_distances: Option<Tensor>,
    /// Probability of dropping an attention weight, in `[0, 1)`; 0 for inference.
    pub dropout: f64,
    /// Makes dropout reproducible: the same seed drops the same weights of a call of the same shape. `None`, the
    /// default, drops others in each call.
    pub dropout_seed: Option<u64>,
    /// Whether to return the attention weights.
    pub return_attention_weights: bool,
    /// The backend to use, or an error if it cannot run the call; `None` chooses the fastest that can.
    pub backend: Option<Backend>,
}

/// [`SdpaOptions::new`] without a mask.
impl Default for SdpaOptions<'_> {
    fn default() -> Self {
        Self::new(None)
    }
}

impl<'a> SdpaOptions<'a> {
    /// Default options: dot product with the default scale, no dropout, no attention weights, any backend.
    pub fn new(mask: impl Into<CallMask<'a>>) -> Self {
        Self {
            scale: None,
            mask: mask.into().0,
            appended_keys: 0,
            softcap: None,
            sinks: None,
            additive: None,
            value_distances: None,
            dropout: 0.0,
            dropout_seed: None,
            return_attention_weights: false,
            backend: None,
        }
    }

    setters! {
        /// Sets the factor on the scores; `None` restores the default.
        with_scale, scale: impl Into<Option<f64>> = scale.into();
        /// Sets the mask.
        with_mask, mask: impl Into<CallMask<'a>> = mask.into().0;
        /// Sets the number of keys that every query sees.
        with_appended_keys, appended_keys: usize = appended_keys;
        /// Sets the softcap of the scores; `None` turns it off.
        with_softcap, softcap: impl Into<Option<f64>> = softcap.into();
        /// Sets the sinks, `(h)`; `None` removes them.
        with_sinks, sinks: impl Into<Option<&'a Tensor>> = sinks.into();
        /// Sets the vector of additive scoring, `(h, d)`; `None` is the dot product.
        with_additive, additive: impl Into<Option<&'a Tensor>> = additive.into();
        /// Sets the probability of dropping an attention weight.
        with_dropout, dropout: f64 = dropout;
        /// Sets the seed of dropout; `None` drops other weights in each call.
        with_dropout_seed, dropout_seed: impl Into<Option<u64>> = dropout_seed.into();
        /// Sets whether the attention weights are returned.
        with_return_attention_weights, return_attention_weights: bool = return_attention_weights;
        /// Forces a backend; `None` chooses.
        with_backend, backend: impl Into<Option<Backend>> = backend.into();
    }

    /// The factor on dot products of heads of dimension `d`.
    pub(crate) fn dot_product_scale(&self, d: usize) -> f64 {
        self.scale.unwrap_or_else(|| (d as f64).powf(-0.5))
    }

    /// Checks the numeric options.
    pub(crate) fn validate(&self) -> Result<()> {
        let numbers = [
            ("dropout", Some(self.dropout), expected_dropout(self.dropout)),
            ("softcap", self.softcap, self.softcap.and_then(expected_limit)),
            ("scale", self.scale, self.scale.and_then(expected_factor)),
        ];
        for (name, value, expected) in numbers {
            if let (Some(value), Some(expected)) = (value, expected) {
                return Err(Error::value(name, value, expected));
            }
        }
        Ok(())
    }
}

/// Output of an attention call.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AttentionOutput {
    /// `(b, s_q, h, d_v)` from [`attend_bshd`](crate::sdpa::attend_bshd), `(b, s_q, output_size)` from
    /// [`MultiHeadAttention`](crate::MultiHeadAttention), `(tokens, output_size)` for a ragged batch.
    pub output: Tensor,
    /// Output of the softmax before dropout, `(b, h, s_q, s_kv)`, if it was requested. A fully masked row is all zeros.
    pub attention_weights: Option<Tensor>,
}
