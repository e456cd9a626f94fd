//! Operations around attention, one function per operation whatever the device: linear, qkv, norm, activation,
//! rotation. The fused ones have no gradient and return `None` where candle's own operations have to run.

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
pub(crate) use linear::{Dense, Unbiased, accumulate_in};
pub(crate) use norm::Norm;
pub(crate) use qkv::Qkv;
pub(crate) use rotation::rotate;

use candle_core::{DType, Tensor};

/// Whether an NVIDIA GPU does a step on `xs` with these in one kernel.
pub(crate) fn takes(xs: &Tensor, others: &[Option<&Tensor>]) -> bool {
    #[cfg(all(test, not(feature = "cuda")))]
    if on_cuda::pretended() {
        return may_take(xs, others);
    }
    cfg!(feature = "cuda") && xs.device().is_cuda() && may_take(xs, others)
}

fn may_take(xs: &Tensor, others: &[Option<&Tensor>]) -> bool {
    let fits =
        |other: &Tensor| other.dtype() == xs.dtype() && !other.track_op() && other.device().same_device(xs.device());
    let float = matches!(xs.dtype(), DType::F16 | DType::BF16 | DType::F32);
    float && !xs.track_op() && xs.elem_count() > 0 && others.iter().flatten().all(|other| fits(other))
}

/// The numbers of a row side by side.
fn together(xs: &Tensor) -> candle_core::Result<Tensor> {
    match xs.stride().last() {
        Some(1) => Ok(xs.clone()),
        _ => xs.contiguous(),
    }
}

#[cfg(feature = "cuda")]
use crate::kernels::cuda as on_cuda;

/// Without the feature no tensor is on an NVIDIA GPU.
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
