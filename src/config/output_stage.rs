//! The gate between the heads and the output projection.

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
    /// What makes a gate of the projection.
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
