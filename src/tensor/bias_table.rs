//! Biases looked up in a learned table.

use candle_core::Tensor;

use crate::error::Result;

/// The bias `(b, h, s_q, s_kv)` from a table `(rows, h)` and the row of each query and key, `(b, s_q, s_kv)` of them.
/// Differentiable.
pub fn bias_from_table(table: &Tensor, rows: Vec<u32>, [b, s_q, s_kv]: [usize; 3]) -> Result<Tensor> {
    let biases = table.index_select(&Tensor::new(rows, table.device())?, 0)?; // (b · s_q · s_kv, h)
    Ok(biases.reshape((b, s_q, s_kv, table.dim(1)?))?.permute((0, 3, 1, 2))?.contiguous()?) // (b, h, s_q, s_kv)
}
