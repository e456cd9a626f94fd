//! What is done to the context, the heads of a token, before the output projection: `o_proj(gate · norm(context))`.

use crate::config::{NormKind, NormOver};
use crate::error::{Error, Result};
use crate::setters;

/// The function that makes a gate of a projection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum GateActivation {
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// `ln(1 + e^x)`, which may be more than 1 (Laguna).
    Softplus,
}

/// What one gate of a token is for.
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
    /// What makes a gate of the projection.
    pub activation: GateActivation,
    /// What one gate is for.
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

/// A norm of the context, before the gate (BitNet, Kosmos-2).
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct ContextNorm {
    /// The formula: RMS norm, RMS norm with offset, or layer norm.
    pub kind: NormKind,
    /// Whether each head is normalized by itself, or all heads of a token together.
    pub over: NormOver,
    /// Added to the mean square or the variance before the square root; finite, at least 0.
    pub eps: f64,
    /// Whether the norm has a learned weight; default yes.
    pub weighted: bool,
}

impl ContextNorm {
    /// A norm with a weight: `(h · d_v)` over all heads, `(d_v)` over one.
    pub fn new(kind: NormKind, over: NormOver, eps: f64) -> Self {
        Self { kind, over, eps, weighted: true }
    }

    setters! {
        /// Sets whether the norm has a weight.
        with_weighted, weighted: bool = weighted;
    }

    /// The number of elements that are normalized together.
    pub(crate) fn size(&self, heads: usize, value_head_dim: usize) -> usize {
        match self.over {
            NormOver::AllHeads => heads * value_head_dim,
            NormOver::Head => value_head_dim,
        }
    }

    pub(super) fn validate(&self) -> Result<()> {
        if !((self.eps as f32).is_finite() && self.eps >= 0.0) {
            return Err(Error::config("context_norm eps", self.eps, "a finite number from 0"));
        }
        if !self.weighted && self.kind == NormKind::RmsOffset {
            return Err(Error::config("context_norm kind", "RmsOffset", "one that has a weight, or `weighted`"));
        }
        Ok(())
    }
}
