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

/// The bias `(b, h, s_q, s_kv)` from a table `(rows, h)` and the row of each query and key, `(b, s_q, s_kv)` of them.
/// Differentiable.
pub fn bias_from_table(table: &Tensor, rows: Vec<u32>, [b, s_q, s_kv]: [usize; 3]) -> Result<Tensor> {
    let biases = table.index_select(&Tensor::new(rows, table.device())?, 0)?; // (b · s_q · s_kv, h)
    Ok(biases.reshape((b, s_q, s_kv, table.dim(1)?))?.permute((0, 3, 1, 2))?.contiguous()?) // (b, h, s_q, s_kv)
}

/// A vector `(size)` in a shape that broadcasts over the rows of `xs` `(…, size)`.
///
/// A vector that tracks no gradient is returned as it is. One that does is expanded to the shape of `xs` by a matrix
/// product with ones, because candle computes the gradient of a broadcast many times slower than that of a product.
pub fn broadcast_rows(vector: &Tensor, xs: &Tensor) -> Result<Tensor> {
    let size = vector.elem_count();
    if !vector.track_op() || size == 0 {
        return Ok(vector.clone());
    }
    let ones = Tensor::ones((xs.elem_count() / size, 1), vector.dtype(), vector.device())?;
    Ok(ones.matmul(&vector.reshape((1, size))?)?.reshape(xs.shape())?)
}
