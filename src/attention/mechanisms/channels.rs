//! Attention between channels instead of tokens (Florence-2): queries, keys and values are made as in every layer, and
//! transposed before attention, so that every backend runs it.

use candle_core::{D, Tensor};

use crate::attention::AttentionOptions;
use crate::attention::call::OpenCall;
use crate::attention::mechanism::Mechanism;
use crate::attention::tokens::{CallTokens, Counted};
use crate::config::AttentionConfig;
use crate::error::{Error, Result};
use crate::mask::{AttentionMask, AttnShape};
use crate::sdpa::Call;

/// Attention between the channels of each head.
pub(super) struct Channels;

impl Channels {
    pub(super) fn from_config(config: &AttentionConfig) -> Option<Self> {
        config.between_channels.then_some(Self)
    }
}

impl Mechanism for Channels {
    fn check_tokens(&self, tokens: &dyn CallTokens, counted: &Counted, mask: &AttentionMask) -> Result<()> {
        check_whole(tokens, counted, mask)
    }

    fn check_sharing(&self, _: &AttentionOptions) -> Result<()> {
        Err(not_shared())
    }

    fn scale(&self, s: usize) -> Option<f64> {
        Some((s as f64).powf(-0.5)).filter(|_| s > 0)
    }

    fn sizes(&self, sizes: Call) -> Call {
        let (s, d) = (sizes.shape.s_q, sizes.d);
        // Without tokens there is nothing to compare.
        if s == 0 { sizes } else { Call { shape: AttnShape { s_q: d, s_kv: d, ..sizes.shape }, d: s, d_v: s, ..sizes } }
    }

    fn qkv(&self, [q, k, v]: [Tensor; 3]) -> Result<[Tensor; 3]> {
        if q.dim(1)? == 0 {
            return Ok([q, k, v]);
        }
        let by_channel = |xs: Tensor| xs.transpose(1, D::Minus1)?.contiguous(); // (b, s, h, d) -> (b, d, h, s)
        Ok([by_channel(q)?, by_channel(k)?, by_channel(v)?])
    }

    fn heads(&self, _: &OpenCall, context: Tensor) -> Result<Tensor> {
        if context.elem_count() == 0 { Ok(context) } else { Ok(context.transpose(1, D::Minus1)?.contiguous()?) }
    }
}

/// Checks that a call has whole sequences.
pub(super) fn check_whole(tokens: &dyn CallTokens, counted: &Counted, mask: &AttentionMask) -> Result<()> {
    let is_plain = counted.stored.is_none() && counted.new_tokens.is_none() && tokens.ragged().is_none();
    if mask.is_full() && is_plain && counted.s_q == counted.s_kv {
        return Ok(());
    }
    let call = "a call of a layer with attention between channels or of pooled queries";
    Err(Error::value(call, "a mask, a cache, a ragged batch or a memory", "whole sequences"))
}

/// The error for keys that other layers cannot take.
pub(super) fn not_shared() -> Error {
    let found = "channels in place of tokens, pooled queries, or pairs of heads";
    Error::value("the layer whose keys are to be shared", found, "one that compares its tokens")
}
