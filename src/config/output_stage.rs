//! What happens between the heads and the output projection: the difference of pairs of heads, the gate, and the
//! projection of groups of heads.

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

/// Groups of heads, each projected to `rank` elements by a matrix of its own before the output projection, whose input
/// these are, group after group (DeepSeek V4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutputGroups {
    /// The number of groups, a divisor of the number of heads.
    pub count: usize,
    /// Elements of a projected group, at least 1.
    pub rank: usize,
}

impl OutputGroups {
    /// `count` groups of `rank` elements.
    pub fn new(count: usize, rank: usize) -> Self {
        Self { count, rank }
    }
}

/// Differential attention ([Ye 2024](https://arxiv.org/abs/2410.05258)): heads `i` and `i + h/2` are a pair, which
/// shares the values of two heads, and of which one softmax is taken from the other.
///
/// ```text
/// V = [v_j, v_{j + h_kv/2}]                           the values of the pair's key-value heads, side by side
/// C = softmax(Q_i K_iᵀ) V - λ · softmax(Q_{i+h/2} K_{i+h/2}ᵀ) V
/// λ = exp(λ_q1 · λ_k1) - exp(λ_q2 · λ_k2) + λ_init    with learned vectors of `head_dim` elements
/// context = (1 - λ_init) · C / sqrt(mean(C²) + eps)   2 · v_head_dim elements per pair
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Differential {
    /// The part of `λ` that is not learned; finite.
    pub lambda_init: f64,
    /// Added to the mean square of the context of a pair; finite, more than 0.
    pub eps: f64,
}

impl Differential {
    /// Differential attention with these numbers.
    pub fn new(lambda_init: f64, eps: f64) -> Self {
        Self { lambda_init, eps }
    }
}
