//! A context whose values were rotated, because they are the keys (DeepSeek V4): it is rotated back.

use candle_core::Tensor;

use crate::attention::AttentionOptions;
use crate::attention::call::OpenCall;
use crate::attention::mechanism::{Mechanism, MechanismRow, boxed};
use crate::config::AttentionConfig;
use crate::error::{Error, Result};
use crate::ops::concat_last;
use crate::position::{Position, PositionScheme, Rotary};

pub(super) const ROW: MechanismRow =
    MechanismRow { from_layer: |layer| Ok(boxed(RotatedContext::from_config(layer.config))), ..MechanismRow::NONE };

/// The elements at the end of each head that are rotated, in values, too.
struct RotatedContext {
    rope: usize,
}

impl RotatedContext {
    fn from_config(config: &AttentionConfig) -> Option<Self> {
        config.latent.filter(|latent| latent.multi_query).map(|latent| Self { rope: latent.qk_rope_head_dim })
    }
}

impl Mechanism for RotatedContext {
    fn check_sharing(&self, _: &AttentionOptions) -> Result<()> {
        let found = "a key that is its value, too";
        Err(Error::value("the layer whose keys are to be shared", found, "another"))
    }

    /// The context `(b, s, h, d)`, whose values were rotated, rotated back by the positions of the queries.
    fn heads(&self, call: &OpenCall, context: Tensor) -> Result<Tensor> {
        let Position::Rotary(rotary) = &call.layer.config.position else { return Ok(context) };
        if context.elem_count() == 0 {
            return Ok(context);
        }
        let (d, rope) = (context.dim(3)?, self.rope);
        // Positions of a call with a cache continue after its keys, so that these do not count.
        let keys = if call.counted.new_tokens.is_some() { call.counted.s_q } else { call.counted.s_kv };
        let back = Rotary { reversed: !rotary.reversed, ..rotary.clone() };
        let tokens = call.counted.positions(call.lengths.as_deref(), call.options);
        let rotated = context.narrow(3, d - rope, rope)?.contiguous()?;
        concat_last(&context.narrow(3, 0, d - rope)?, &back.rotate_queries(rotated, keys, &tokens)?)
    }
}
