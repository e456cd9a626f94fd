//! The gate of the context: one more projection of the input of the queries, which multiplies what attention returns.

use candle_attention_kernels::{GateFunction, Isa, RowGate, Team};
use candle_core::Tensor;

use crate::attention::MultiHeadAttention;
use crate::attention::mechanism::{Mechanism, MechanismRow, Routes, boxed};
use crate::attention::steps::softplus;
use crate::config::{AttentionConfig, MechanismConfig};
use crate::error::Result;
use crate::setters;
use crate::tensor::compute_dtype;

pub(super) const ROW: MechanismRow =
    MechanismRow { from_layer: |layer| Ok(boxed(layer.config.output_gate())), ..MechanismRow::NONE };

/// The function that makes a gate of a projection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum GateActivation {
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// `ln(1 + e^x)`, which may be more than 1 (Laguna).
    Softplus,
}

/// Whether a gate multiplies one element or a whole head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum GateOver {
    /// One element of a head: `h · d_v` gates per token.
    Element,
    /// A whole head: `h` gates per token.
    Head,
}

/// A gate of the context: `context · activation(X_q W_Gᵀ + b_G)`, of the input of the queries
/// ([Qiu 2025](https://arxiv.org/abs/2505.06708)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutputGate {
    /// The function that makes a gate of the projection.
    pub activation: GateActivation,
    /// Whether a gate multiplies one element or a whole head.
    pub over: GateOver,
    /// Whether the projection has a bias. In a new layer: default no. Of a loaded layer it says whether its checkpoint
    /// holds one.
    pub bias: bool,
}

impl OutputGate {
    /// A gate whose projection has no bias.
    pub fn new(activation: GateActivation, over: GateOver) -> Self {
        Self { activation, over, bias: false }
    }

    setters! {
        /// Sets whether the projection of a new layer has a bias.
        with_bias, bias: bool = bias;
    }

    /// The number of gates per token of a layer with `heads` heads of `value_head_dim` elements.
    pub(crate) fn rows(&self, heads: usize, value_head_dim: usize) -> usize {
        match self.over {
            GateOver::Element => heads * value_head_dim,
            GateOver::Head => heads,
        }
    }
}

impl AttentionConfig {
    /// Sets the gate of the context, before the output projection.
    #[must_use]
    pub fn with_output_gate(mut self, output_gate: impl Into<Option<OutputGate>>) -> Self {
        self.mechanisms.set(output_gate.into());
        self
    }

    /// The gate of the context, if there is one.
    pub fn output_gate(&self) -> Option<OutputGate> {
        self.mechanisms.get()
    }

    /// Sets whether the projection of the gate has a bias, if there is one.
    pub(crate) fn with_gate_bias(self, bias: bool) -> Self {
        match self.output_gate() {
            Some(gate) => self.with_output_gate(gate.with_bias(bias)),
            None => self,
        }
    }

    /// Checks that there is a gate over elements; `reason`: why there has to be one.
    #[cfg(feature = "checkpoints")]
    pub(crate) fn require_gate_over_elements(&self, reason: impl FnOnce() -> String) -> Result<()> {
        let gate = self.output_gate();
        let is_over_elements = gate.is_some_and(|gate| gate.over == GateOver::Element);
        crate::ensure!(
            is_over_elements,
            crate::error::Error::config("output_gate", format!("{gate:?}"), format!("over elements: {}", reason()))
        );
        Ok(())
    }

    /// The outputs of the projection of the gate, and whether a new one has a bias, if there is a gate.
    pub(crate) fn gate_projection(&self) -> Option<(usize, bool)> {
        let gate = self.output_gate()?;
        Some((gate.rows(self.num_attention_heads, self.resolved_value_head_dim()), gate.bias))
    }
}

impl MechanismConfig for OutputGate {
    fn validate(&self, _: &AttentionConfig) -> Result<()> {
        Ok(())
    }

    fn projects_more(&self) -> bool {
        true
    }
}

/// The projection of the gate is beside those of queries, keys and values.
impl Mechanism for OutputGate {
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
        let gates = self.activation.apply(&projected.to_dtype(compute_dtype(wide))?)?.to_dtype(wide)?;
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
        let (width, count) = (layer.qkv.packed()?.out_features(), self.rows(h, d_v));
        let function = match self.activation {
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
