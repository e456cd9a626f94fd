//! Operations around attention: linear layers, the packed query-key-value projection, norms, activations, rotations.
//!
//! Each operation is one function whatever the device: it runs a fused kernel where there is one for the call, and
//! candle's differentiable operations otherwise. Kernels have no gradient, so a tensor that tracks operations never
//! reaches one. The alternative, candle's `CustomOp` per kernel, was rejected: it cannot take the number of inputs that a
//! fused step needs, and a backward pass would have to be written and kept equal for each.

mod activation;
mod linear;
mod norm;
#[cfg(all(test, not(feature = "cuda")))]
#[path = "mock_device.rs"]
pub(crate) mod on_cuda;
mod pack;
mod qkv;
mod rotation;

pub(crate) use activation::{Activated, Activation};
pub(crate) use linear::{Linear, PendingBias, accumulate_dtype};
pub(crate) use norm::Norm;
pub(crate) use qkv::Qkv;
pub(crate) use rotation::rotate;

use candle_core::{DType, Tensor};

#[cfg(feature = "cuda")]
use crate::kernels::cuda as on_cuda;

/// Whether one kernel on an NVIDIA GPU can compute an operation of `xs` and these other tensors.
pub(crate) fn supports_fused(xs: &Tensor, others: &[Option<&Tensor>]) -> bool {
    #[cfg(all(test, not(feature = "cuda")))]
    if on_cuda::is_mocked() {
        return fits_fused(xs, others);
    }
    cfg!(feature = "cuda") && xs.device().is_cuda() && fits_fused(xs, others)
}

/// Whether the fused kernels can read these tensors: one dtype that they have, one device, no gradient to track.
fn fits_fused(xs: &Tensor, others: &[Option<&Tensor>]) -> bool {
    let fits =
        |other: &Tensor| other.dtype() == xs.dtype() && !other.track_op() && other.device().same_device(xs.device());
    let float = matches!(xs.dtype(), DType::F16 | DType::BF16 | DType::F32);
    float && !xs.track_op() && xs.elem_count() > 0 && others.iter().flatten().all(|other| fits(other))
}

/// The tensor itself if the elements of its last dimension are adjacent in memory, otherwise a contiguous copy.
fn last_dim_contiguous(xs: &Tensor) -> candle_core::Result<Tensor> {
    if xs.stride().last() == Some(&1) { Ok(xs.clone()) } else { xs.contiguous() }
}

/// The kernels of a build without the feature `cuda`: never called, because no tensor is on an NVIDIA GPU then.
#[cfg(not(any(test, feature = "cuda")))]
mod on_cuda {
    use candle_core::Tensor;

    use super::{Activated, Norm};
    use crate::error::{Error, Result};

    fn not_built<T>() -> Result<T> {
        let reason = "the crate was built without its feature `cuda`".to_string();
        Err(Error::Backend { backend: "cuda".into(), reason })
    }

    pub(crate) fn norm(_: &Norm) -> Result<(Option<Tensor>, Tensor)> {
        not_built()
    }

    pub(crate) fn activated(_: &Activated) -> Result<Tensor> {
        not_built()
    }

    pub(crate) fn rotate(_: &Tensor, _: [&Tensor; 2], _: bool) -> Result<Tensor> {
        not_built()
    }
}
