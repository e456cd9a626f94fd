//! Embeddings as tensors and as lists.

use candle_core::{DType, Device, Tensor};

use crate::error::{EncoderError, Result};

/// A matrix of rows `(n, d)`; `what` names it in errors. Of no rows, `(0, columns)`.
pub(crate) fn matrix(rows: &[Vec<f32>], columns: usize, what: &str) -> Result<Tensor> {
    let columns = rows.first().map_or(columns, Vec::len);
    if let Some((i, row)) = rows.iter().enumerate().find(|(_, row)| row.len() != columns) {
        return Err(EncoderError::argument(
            format!("the size of row {i} of {what}"),
            row.len(),
            format!("{columns}, that of row 0"),
        ));
    }
    if let Some(i) = rows.iter().position(|row| row.iter().any(|number| !number.is_finite())) {
        return Err(EncoderError::argument(format!("row {i} of {what}"), "not finite", "finite numbers"));
    }
    Tensor::from_vec(rows.concat(), (rows.len(), columns), &Device::Cpu).map_err(failed)
}

/// The rows of a matrix `(n, d)`.
pub(crate) fn rows(matrix: &Tensor) -> Result<Vec<Vec<f32>>> {
    let on_cpu = || matrix.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.to_vec2();
    on_cpu().map_err(failed)
}

fn failed(error: candle_core::Error) -> EncoderError {
    EncoderError::Device(error.to_string())
}
