use candle_core::Tensor;

use crate::error::Result;

/// A vector as a row for each vector of `xs` along their last dimension, to be added or multiplied with a broadcast. While
/// it is trained, the rows are made by a product: candle sums the gradient of a broadcast many times slower.
pub(crate) fn broadcast_rows(vector: &Tensor, xs: &Tensor) -> Result<Tensor> {
    let size = vector.elem_count();
    if !vector.track_op() || size == 0 {
        return Ok(vector.clone());
    }
    let ones = Tensor::ones((xs.elem_count() / size, 1), vector.dtype(), vector.device())?;
    Ok(ones.matmul(&vector.reshape((1, size))?)?.reshape(xs.shape())?)
}
