//! Fused activations.

use candle_core::Tensor;

use super::{on_cuda, takes, together};
use crate::error::Result;

/// What can be done with a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "encoder"), allow(dead_code, reason = "only feed-forwards activate"))]
pub(crate) enum Activation {
    None = 0,
    /// `x · Φ(x)` by the error function.
    Gelu = 1,
    /// `x · Φ(x)` by the hyperbolic tangent.
    GeluTanh = 2,
    /// `x / (1 + e^-x)`.
    Silu = 3,
    Relu = 4,
}

/// `activation(xs + bias) · (gate + gate_bias)`, in f32, rounded once.
#[derive(Clone, Copy)]
pub(crate) struct Activated<'a> {
    pub activation: Activation,
    /// `(rows, size)`.
    pub xs: &'a Tensor,
    /// `(size)`.
    pub bias: Option<&'a Tensor>,
    /// As `xs`.
    pub gate: Option<&'a Tensor>,
    /// `(size)`.
    pub gate_bias: Option<&'a Tensor>,
}

impl Activated<'_> {
    /// `(rows, size)`.
    pub(crate) fn run(&self) -> Result<Option<Tensor>> {
        let more = self.xs.elem_count() > i32::MAX as usize;
        if more || !takes(self.xs, &[self.bias, self.gate, self.gate_bias]) {
            return Ok(None);
        }
        let xs = together(self.xs)?;
        let gate = self.gate.map(together).transpose()?;
        let [bias, gate_bias] = [self.bias, self.gate_bias].map(|tensor| tensor.map(Tensor::contiguous).transpose());
        let (bias, gate_bias) = (bias?, gate_bias?);
        let all = Activated {
            activation: self.activation,
            xs: &xs,
            bias: bias.as_ref(),
            gate: gate.as_ref(),
            gate_bias: gate_bias.as_ref(),
        };
        on_cuda::activated(&all).map(Some)
    }
}
