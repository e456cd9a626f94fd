//! Descriptions of the row-wise operations, from which both the fused kernels and candle's operations compute.

use candle_attention_kernels::Activation;
use candle_core::{DType, Tensor};

use crate::error::Result;
use crate::ops::cuda;
use crate::tensor::last_dim_contiguous;

/// One call of a normalization: `(x - mean) / sqrt(variance + eps) · (weight + offset) + bias` per row ([Ba
/// 2016](https://arxiv.org/abs/1607.06450)), or the same without the mean ([Zhang
/// 2019](https://arxiv.org/abs/1910.07467)).
#[derive(Clone, Copy)]
pub(crate) struct Norm<'a> {
    /// `(…, size)`; `(b, s, h, size)` if `weight` is per head.
    pub xs: &'a Tensor,
    /// A residual of the shape of `xs`: the sum of both is normalized.
    pub add: Option<&'a Tensor>,
    /// `(size)`, added to each row of the sum: the bias of the projection that made `add`.
    pub add_bias: Option<&'a Tensor>,
    /// `(size)`, or `(h, size)` for one per head.
    pub weight: &'a Tensor,
    /// The shape of `weight`.
    pub bias: Option<&'a Tensor>,
    pub eps: f64,
    /// RMS normalization: the mean is not subtracted, and the variance is the mean square.
    pub rms: bool,
    /// Added to `weight` (1 for Gemma's RMS norm).
    pub offset: f32,
    /// Whether the caller wants the sum too.
    pub keep_sum: bool,
}

/// `activation(xs + bias) · (gate + gate_bias)`, computed in f32 and rounded once.
#[derive(Clone, Copy)]
pub(crate) struct Activated<'a> {
    pub activation: Activation,
    /// `(rows, size)`.
    pub xs: &'a Tensor,
    /// `(size)`.
    pub bias: Option<&'a Tensor>,
    /// `(rows, size)`.
    pub gate: Option<&'a Tensor>,
    /// `(size)`.
    pub gate_bias: Option<&'a Tensor>,
}

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

/// Whether one kernel on an NVIDIA GPU can compute an operation of `xs` and these other tensors.
pub(crate) fn supports_fused(xs: &Tensor, others: &[Option<&Tensor>]) -> bool {
    #[cfg(all(test, not(feature = "cuda")))]
    if cuda::is_mocked() {
        return fits_fused(xs, others);
    }
    cfg!(feature = "cuda") && xs.device().is_cuda() && fits_fused(xs, others)
}

/// Whether the fused kernels can read these tensors: one dtype that they have, one device, no gradient to track.
pub(crate) fn fits_fused(xs: &Tensor, others: &[Option<&Tensor>]) -> bool {
    let fits =
        |other: &Tensor| other.dtype() == xs.dtype() && !other.track_op() && other.device().same_device(xs.device());
    let float = matches!(xs.dtype(), DType::F16 | DType::BF16 | DType::F32);
    float && !xs.track_op() && xs.elem_count() > 0 && others.iter().flatten().all(|other| fits(other))
}
