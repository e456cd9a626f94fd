//! Element-wise activation of the result of a product, with its bias and its gate in the same pass.

use candle_core::Tensor;

use super::cuda;
use super::problem::Activated;
use super::problem::supports_fused;
use crate::error::Result;
use crate::tensor::last_dim_contiguous;

impl Activated<'_> {
    /// The activated rows `(rows, size)` by one kernel on an NVIDIA GPU; `None` where there is no such kernel.
    pub fn fused(&self) -> Result<Option<Tensor>> {
        // The kernel counts elements in 32 bits.
        let too_large = self.xs.elem_count() > i32::MAX as usize;
        if too_large || !supports_fused(self.xs, &[self.bias, self.gate, self.gate_bias]) {
            return Ok(None);
        }
        let xs = last_dim_contiguous(self.xs)?;
        let gate = self.gate.map(last_dim_contiguous).transpose()?;
        let [bias, gate_bias] = [self.bias, self.gate_bias].map(|tensor| tensor.map(Tensor::contiguous).transpose());
        let (bias, gate_bias) = (bias?, gate_bias?);
        let activated = Activated {
            activation: self.activation,
            xs: &xs,
            bias: bias.as_ref(),
            gate: gate.as_ref(),
            gate_bias: gate_bias.as_ref(),
        };
        cuda::activated(&activated).map(Some)
    }
}
