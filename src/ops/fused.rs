//! When a fused kernel can run an operation.

use candle_core::{DType, Tensor};

#[cfg(all(test, not(feature = "cuda")))]
use super::cuda;

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
