//! Functions on embeddings: similarity, and embeddings in fewer bits.

use candle_attention::Result;
use candle_attention::candle_core::Tensor;
use candle_attention_text::{Precision, QuantizationRanges, QuantizedValues, SimilarityFunction, quantize_embeddings};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arrays;
use crate::errors::{candle_error, python_error};
use crate::threads::run;

/// How similar embeddings `(n, d)` and `(m, d)` are, each with each: `(n, m)`.
#[pyfunction]
pub fn similarity<'py>(
    py: Python<'py>,
    name: &str,
    embeddings1: &Bound<PyAny>,
    embeddings2: &Bound<PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    compare(py, name, embeddings1, embeddings2, SimilarityFunction::similarity)
}

/// How similar embeddings, twice `(n, d)`, are row by row: `(n,)`.
#[pyfunction]
pub fn similarity_pairwise<'py>(
    py: Python<'py>,
    name: &str,
    embeddings1: &Bound<PyAny>,
    embeddings2: &Bound<PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    compare(py, name, embeddings1, embeddings2, SimilarityFunction::similarity_pairwise)
}

fn compare<'py>(
    py: Python<'py>,
    name: &str,
    a: &Bound<PyAny>,
    b: &Bound<PyAny>,
    compare: fn(SimilarityFunction, &Tensor, &Tensor) -> Result<Tensor>,
) -> PyResult<Bound<'py, PyAny>> {
    let function: SimilarityFunction = name.parse().map_err(python_error)?;
    let (a, b) = (arrays::to_tensor("embeddings1", a)?, arrays::to_tensor("embeddings2", b)?);
    let compared = run(py, None, |_| compare(function, &a, &b))?;
    arrays::to_numpy(py, &compared)
}

/// Embeddings `(n, d)` in another precision. `ranges` are `(2, d)`: the least and the largest value of each feature.
#[pyfunction]
#[pyo3(signature = (embeddings, precision, ranges=None))]
pub fn quantize<'py>(
    py: Python<'py>,
    embeddings: &Bound<PyAny>,
    precision: &str,
    ranges: Option<&Bound<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let precision: Precision = precision.parse().map_err(python_error)?;
    let embeddings = arrays::to_tensor("embeddings", embeddings)?;
    let ranges = ranges.map(quantization_ranges).transpose()?;
    let quantized = run(py, None, |_| quantize_embeddings(&embeddings, precision, ranges.as_ref()))?;
    let dims = quantized.dims();
    match quantized.into_values() {
        QuantizedValues::Float32(values) => arrays::rows(py, values, dims),
        QuantizedValues::Int8(values) => arrays::rows(py, values, dims),
        QuantizedValues::Uint8(values) => arrays::rows(py, values, dims),
        other => Err(PyValueError::new_err(format!("numbers that this module does not know: {other:?}"))),
    }
}

fn quantization_ranges(ranges: &Bound<PyAny>) -> PyResult<QuantizationRanges> {
    let rows: Vec<Vec<f32>> = arrays::to_tensor("ranges", ranges)?
        .to_dtype(candle_attention::candle_core::DType::F32)
        .and_then(|ranges| ranges.to_vec2())
        .map_err(candle_error)?;
    let [least, largest]: [Vec<f32>; 2] = rows
        .try_into()
        .map_err(|rows: Vec<_>| PyValueError::new_err(format!("ranges has {} rows, expected 2", rows.len())))?;
    QuantizationRanges::new(least, largest).map_err(python_error)
}
