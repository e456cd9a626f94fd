//! Groups of heads, each projected by itself before the output projection (DeepSeek V4).

use candle_core::Tensor;

use crate::attention::MultiHeadAttention;
use crate::attention::mechanism::{Mechanism, Routes};
use crate::config::{AttentionConfig, OutputGroups};
use crate::error::Result;
use crate::ops::per_head;
use crate::weights::{OUTPUT_GROUPS, Parameters};

/// The groups and their projections, `(groups · rank, h / groups · d_v)`.
pub(super) struct GroupedOutput {
    groups: OutputGroups,
    weight: Tensor,
}

impl GroupedOutput {
    pub(super) fn from_layer(config: &AttentionConfig, parameters: &Parameters) -> Option<Self> {
        let (groups, weight) = config.output_groups.zip(parameters.get(OUTPUT_GROUPS))?;
        Some(Self { groups, weight: weight.clone() })
    }
}

impl Mechanism for GroupedOutput {
    fn routes(&self) -> Routes {
        Routes::RAGGED
    }

    fn has_context_stage(&self) -> bool {
        true
    }

    fn context(&self, _: &MultiHeadAttention, context: Tensor, _: &Tensor) -> Result<Tensor> {
        let ((b, s, h, d_v), OutputGroups { count, rank }) = (context.dims4()?, self.groups);
        let width = h * d_v / count;
        let weight = self.weight.to_dtype(context.dtype())?.reshape((count, rank, width))?;
        per_head(&context.reshape((b, s, count, width))?, &weight.transpose(1, 2)?)
    }
}
