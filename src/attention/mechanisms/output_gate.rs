//! The gate of the context: one more projection of the input of the queries, which multiplies what attention returns.

use candle_attention_kernels::{GateFunction, Isa, RowGate, Team};
use candle_core::Tensor;

use crate::attention::MultiHeadAttention;
use crate::attention::mechanism::{Mechanism, Routes};
use crate::attention::steps::softplus;
use crate::config::{AttentionConfig, GateActivation, OutputGate};
use crate::error::Result;
use crate::tensor::compute_dtype;

/// The gate of a layer, whose projection is beside those of queries, keys and values.
pub(super) struct Gate(OutputGate);

impl Gate {
    pub(super) fn from_config(config: &AttentionConfig) -> Option<Self> {
        config.output_gate.map(Self)
    }
}

impl Mechanism for Gate {
    fn routes(&self) -> Routes {
        Routes::ALL
    }

    fn has_context_stage(&self) -> bool {
        true
    }

    fn context(&self, layer: &MultiHeadAttention, context: Tensor, query: &Tensor) -> Result<Tensor> {
        let (b, s, h, _) = context.dims4()?;
        let wide = context.dtype();
        let Some(projected) = layer.qkv.gate(query, wide)? else { return Ok(context) };
        let gates = self.0.activation.apply(&projected.to_dtype(compute_dtype(wide))?)?.to_dtype(wide)?;
        Ok(context.broadcast_mul(&gates.reshape((b, s, h, ()))?)?) // (b, s, h, d_v or 1)
    }

    fn context_in_place(
        &self,
        layer: &MultiHeadAttention,
        team: Team,
        context: &mut [f32],
        projected: &[f32],
    ) -> Result<()> {
        if projected.is_empty() {
            return Ok(());
        }
        let (h, d_v) = (layer.config.num_attention_heads, layer.config.resolved_value_head_dim());
        let (width, count) = (layer.qkv.packed()?.out_features(), self.0.rows(h, d_v));
        let function = match self.0.activation {
            GateActivation::Sigmoid => GateFunction::Sigmoid,
            GateActivation::Softplus => GateFunction::Softplus,
        };
        let gates = RowGate { gates: &projected[width - count..], stride: width, count, function };
        Ok(gates.apply(Isa::detect()?, team, context, h * d_v)?)
    }
}

impl GateActivation {
    /// The gates of a projection. Differentiable.
    fn apply(self, xs: &Tensor) -> Result<Tensor> {
        Ok(match self {
            Self::Sigmoid => (xs * 0.5)?.tanh()?.affine(0.5, 0.5)?,
            Self::Softplus => softplus(xs, 1.0, xs.dtype())?,
        })
    }
}
