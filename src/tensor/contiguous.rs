//! Memory layout that the fused kernels need.

use candle_core::Tensor;

/// The tensor itself if the elements of its last dimension are adjacent in memory, otherwise a contiguous copy. Fused
/// kernels follow the strides of all other dimensions.
pub(crate) fn last_dim_contiguous(xs: &Tensor) -> candle_core::Result<Tensor> {
    if xs.stride().last() == Some(&1) || xs.dims().last() == Some(&1) { Ok(xs.clone()) } else { xs.contiguous() }
}
