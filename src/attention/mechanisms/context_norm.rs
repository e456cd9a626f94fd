//! The norm of the context, between the heads and the gate (BitNet).

use candle_attention_kernels::{Isa, Team};
use candle_core::Tensor;

use crate::attention::MultiHeadAttention;
use crate::attention::mechanism::{Mechanism, Routes};
use crate::attention::steps::{norm_parameters, normalize, unit};
use crate::config::{AttentionConfig, HeadNorm};
use crate::error::Result;
use crate::weights::{CONTEXT_NORM, NormWeights, Parameters};

/// The norm and its weights, which are ones for a norm without weights.
pub(super) struct ContextNorm {
    norm: HeadNorm,
    weights: NormWeights,
    /// Whether a gate multiplies the normalized context.
    is_gated: bool,
}

impl ContextNorm {
    pub(super) fn from_layer(config: &AttentionConfig, parameters: &Parameters, like: &Tensor) -> Result<Option<Self>> {
        let Some(norm) = config.context_norm else { return Ok(None) };
        let weights = match parameters.norm(CONTEXT_NORM) {
            Some(learned) if norm.weighted => learned,
            _ => unit(&norm, [config.num_attention_heads, config.resolved_value_head_dim()], like)?,
        };
        Ok(Some(Self { norm, weights, is_gated: config.output_gate.is_some() }))
    }
}

impl Mechanism for ContextNorm {
    fn routes(&self) -> Routes {
        // A token without any key, whose context is zeros, has to give the same whatever its input is.
        Routes { rows: !(self.is_gated && self.weights.bias.is_some()), ragged: true }
    }

    fn has_context_stage(&self) -> bool {
        true
    }

    fn context(&self, _: &MultiHeadAttention, context: Tensor, _: &Tensor) -> Result<Tensor> {
        normalize(&context, &self.norm, &self.weights)
    }

    fn context_in_place(&self, _: &MultiHeadAttention, team: Team, context: &mut [f32], _: &[f32]) -> Result<()> {
        norm_parameters(&self.norm, &self.weights).normalize_rows(Isa::detect()?, team, context, None)
    }
}
