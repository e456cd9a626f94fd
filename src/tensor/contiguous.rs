//! Memory layout that the fused kernels need.

use candle_attention_kernels::{check_allocation, element_count};
use candle_core::Tensor;

use crate::error::Result;

/// The tensor itself if the elements of its last dimension are adjacent in memory, otherwise a contiguous copy. Fused
/// kernels follow the strides of all other dimensions.
pub fn last_dim_contiguous(xs: &Tensor) -> Result<Tensor> {
    if xs.stride().last() == Some(&1) || xs.dims().last() == Some(&1) {
        return Ok(xs.clone());
    }
    check_allocation::<f32>("a contiguous copy of a tensor", element_count("a tensor", xs.dims())?)?;
    Ok(xs.contiguous()?)
}
