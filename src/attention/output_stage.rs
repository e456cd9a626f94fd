//! What is done to the context before the output projection: a norm, then a gate that depends on the layer's input, and
//! a projection of groups of heads.
//!
//! Neither needs a kernel of attention to know it: the gate is one more projection of the input of the queries, and
//! both act on the output of the kernel, in tensors here, in place in the buffers of the CPU.

use candle_attention_kernels::{GateFunction, Isa, RowGate, Team};
use candle_core::Tensor;

use crate::attention::MultiHeadAttention;
use crate::attention::steps::{norm_parameters, normalize, softplus};
use crate::config::{GateActivation, OutputGroups};
use crate::error::Result;
use crate::ops::{accumulate_dtype, per_head};
use crate::tensor::compute_dtype;
use crate::weights::OUTPUT_GROUPS;

impl MultiHeadAttention {
    /// Whether there is anything between the heads and the output projection.
    pub(super) fn has_output_stage(&self) -> bool {
        let config = &self.config;
        config.output_gate.is_some() || config.context_norm.is_some() || config.output_groups.is_some()
    }

    /// The context `(b, s, h · d_v)` as the output projection takes it; `query` `(b, s, query_size)` is the input of
    /// the queries. Differentiable.
    pub(super) fn gated(&self, context: Tensor, query: &Tensor) -> Result<Tensor> {
        if !self.has_output_stage() {
            return Ok(context);
        }
        let wide = accumulate_dtype(self.qkv.like());
        let (b, s, width) = context.dims3()?;
        let (h, d_v) = (self.config.num_attention_heads, self.config.resolved_value_head_dim());
        let mut context = context.to_dtype(wide)?.reshape((b, s, h, d_v))?;
        if let (Some(norm), Some(weights)) = (&self.config.context_norm, &self.norms.context) {
            context = normalize(&context, norm, weights)?;
        }
        if let (Some(gate), Some(projected)) = (&self.config.output_gate, self.qkv.gate(query, wide)?) {
            let gates = gate.activation.apply(&projected.to_dtype(compute_dtype(wide))?)?.to_dtype(wide)?;
            context = context.broadcast_mul(&gates.reshape((b, s, h, ()))?)?; // (b, s, h, d_v or 1)
        }
        if let Some(OutputGroups { count, rank }) = self.config.output_groups {
            let weight =
                self.parameters.require(OUTPUT_GROUPS)?.to_dtype(wide)?.reshape((count, rank, width / count))?;
            context = per_head(&context.reshape((b, s, count, width / count))?, &weight.transpose(1, 2)?)?;
        }
        Ok(context.flatten_from(2)?)
    }

    /// [`gated`](Self::gated) in place: `context` `(tokens, h · d_v)`, and beside it `projected` `(tokens, width)` with
    /// queries, keys, values and the gates of each token.
    pub(super) fn gate_rows(&self, team: Team, context: &mut [f32], projected: &[f32]) -> Result<()> {
        self.normalize_context(team, context)?;
        let (h, d_v) = (self.config.num_attention_heads, self.config.resolved_value_head_dim());
        let Some(gate) = self.config.output_gate.filter(|_| !projected.is_empty()) else { return Ok(()) };
        let (width, count) = (self.qkv.packed()?.out_features(), gate.rows(h, d_v));
        let function = match gate.activation {
            GateActivation::Sigmoid => GateFunction::Sigmoid,
            GateActivation::Softplus => GateFunction::Softplus,
        };
        let gates = RowGate { gates: &projected[width - count..], stride: width, count, function };
        Ok(gates.apply(Isa::detect()?, team, context, h * d_v)?)
    }

    /// The norm of the context `(tokens, h · d_v)` in place.
    pub(super) fn normalize_context(&self, team: Team, context: &mut [f32]) -> Result<()> {
        let (Some(norm), Some(weights)) = (&self.config.context_norm, &self.norms.context) else { return Ok(()) };
        norm_parameters(norm, weights).normalize_rows(Isa::detect()?, team, context, None)
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
