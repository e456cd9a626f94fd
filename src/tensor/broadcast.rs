//! Broadcasting of vectors over rows, with a fast gradient.

use candle_core::Tensor;

use crate::error::Result;

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
