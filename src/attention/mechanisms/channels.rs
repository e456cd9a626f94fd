//! Attention between channels instead of tokens (Florence-2): queries, keys and values are made as in every layer, and
//! transposed before attention, so that every backend runs it.

use candle_core::{D, Tensor};

use crate::attention::AttentionOptions;
use crate::attention::call::OpenCall;
use crate::attention::mechanism::{Mechanism, MechanismRow, boxed};
use crate::attention::tokens::{CallTokens, Counted};
use crate::config::{AttentionConfig, KeyValueSource, MechanismConfig, Scoring};
use crate::error::{Error, Result};
use crate::mask::{AttentionMask, AttnShape};
use crate::sdpa::Call;

pub(super) const ROW: MechanismRow =
    MechanismRow { from_layer: |layer| Ok(boxed(layer.config.mechanisms.get::<Channels>())), ..MechanismRow::NONE };

/// Attention between the channels of each head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Channels;

impl AttentionConfig {
    /// Sets whether attention is between channels instead of tokens (Florence-2,
    /// [DaViT](https://arxiv.org/abs/2204.03645)): the elements of a head are compared with one another by their values
    /// in all tokens, with the factor `s^-0.5` on the scores of `s` tokens, whatever `scale` is.
    ///
    /// Such a layer has neither positions nor masks nor a cache, and its attention weights are `(b, h, d, d)`.
    #[must_use]
    pub fn with_between_channels(mut self, between_channels: bool) -> Self {
        self.mechanisms.set(between_channels.then_some(Channels));
        self
    }

    /// Whether attention is between channels instead of tokens.
    pub fn between_channels(&self) -> bool {
        self.mechanisms.get::<Channels>().is_some()
    }
}

impl MechanismConfig for Channels {
    fn validate(&self, config: &AttentionConfig) -> Result<()> {
        check_reshaped(config)
    }

    fn reshapes(&self) -> bool {
        true
    }
}

/// Checks that a layer with attention between channels or of pooled queries has nothing that belongs to its tokens.
pub(super) fn check_reshaped(config: &AttentionConfig) -> Result<()> {
    let [d, d_v] = [config.resolved_head_dim(), config.resolved_value_head_dim()];
    let found = if config.between_channels() && config.query_pool().is_some() {
        "both".to_string()
    } else if !config.position.is_none() {
        format!("{} positions", config.position)
    } else if !config.mask.is_full() {
        format!("the mask {}", config.mask)
    } else if config.latent.is_some() || d != d_v {
        "values of another size than keys".to_string()
    } else if config.extends_keys() {
        "extra keys".to_string()
    } else if config.scoring != Scoring::ScaledDotProduct {
        "additive scoring".to_string()
    } else if config.key_value_source != KeyValueSource::Projections {
        "keys and values of another kind".to_string()
    } else {
        return Ok(());
    };
    let what = "a layer with attention between channels or of pooled queries";
    Err(Error::value(what, found, "none of what belongs to tokens"))
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
