//! Selection of slices along a dimension.

use candle_core::Tensor;

use crate::error::Result;

/// The slices of a tensor with these indices along `dim`, in the order given. Differentiable; no index is allowed too.
pub fn select(t: &Tensor, indices: &[usize], dim: usize) -> Result<Tensor> {
    if indices.is_empty() {
        let mut dims = t.dims().to_vec();
        dims[dim] = 0;
        return Ok(Tensor::zeros(dims, t.dtype(), t.device())?);
    }
    let indices: Vec<u32> = indices.iter().map(|&index| index as u32).collect();
    Ok(t.contiguous()?.index_select(&Tensor::new(indices, t.device())?, dim)?)
}
