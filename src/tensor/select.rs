use candle_core::Tensor;

use crate::error::Result;

/// Some of the slices of a tensor along a dimension, in this order. Differentiable.
pub(crate) fn select(t: &Tensor, slices: &[usize], dim: usize) -> Result<Tensor> {
    if slices.is_empty() {
        let mut dims = t.dims().to_vec();
        dims[dim] = 0;
        return Ok(Tensor::zeros(dims, t.dtype(), t.device())?);
    }
    let slices: Vec<u32> = slices.iter().map(|&slice| slice as u32).collect();
    Ok(t.contiguous()?.index_select(&Tensor::new(slices, t.device())?, dim)?)
}

/// The columns of a table `(_, heads)` of the heads that are left of a layer without the `pruned` ones.
pub(crate) fn unpruned(table: &Tensor, pruned: &[usize]) -> Result<Tensor> {
    if pruned.is_empty() {
        return Ok(table.clone());
    }
    let kept: Vec<usize> = (0..table.dim(1)?).filter(|head| !pruned.contains(head)).collect();
    select(table, &kept, 1)
}
