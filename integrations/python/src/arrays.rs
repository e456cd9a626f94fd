//! Tensors of candle and arrays of NumPy.

use candle_attention::candle_core::{DType, Device, Tensor, WithDType};
use numpy::{Element, PyArray2, PyArrayDyn, PyArrayMethods, PyReadonlyArray2, ToPyArray};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::errors::candle_error;

/// A tensor in f32, or in f64 if it has that dtype, as an array of the same shape.
pub fn to_numpy<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>> {
    match tensor.dtype() {
        DType::F64 => shaped::<f64>(py, tensor),
        _ => shaped::<f32>(py, &tensor.to_dtype(DType::F32).map_err(candle_error)?),
    }
}

fn shaped<'py, T: Element + WithDType>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>> {
    let values = tensor.flatten_all().and_then(|flat| flat.to_vec1::<T>()).map_err(candle_error)?;
    let array: Bound<PyArrayDyn<T>> = numpy::PyArray1::from_vec(py, values).reshape(tensor.dims().to_vec())?;
    Ok(array.into_any())
}

/// The rows of integers or floats as an array `(rows, columns)`.
pub fn rows<'py, T: Element>(py: Python<'py>, values: Vec<T>, dims: (usize, usize)) -> PyResult<Bound<'py, PyAny>> {
    Ok(numpy::PyArray1::from_vec(py, values).reshape([dims.0, dims.1])?.into_any())
}

/// An array `(rows, columns)` of f32 or f64 as a tensor.
pub fn to_tensor(name: &str, array: &Bound<PyAny>) -> PyResult<Tensor> {
    if let Ok(array) = array.cast::<PyArray2<f32>>() {
        return tensor_of(array.readonly());
    }
    if let Ok(array) = array.cast::<PyArray2<f64>>() {
        return tensor_of(array.readonly());
    }
    let message = format!("{name}: expected an array of two dimensions of float32 or float64");
    Err(PyTypeError::new_err(message))
}

fn tensor_of<T: Element + WithDType>(array: PyReadonlyArray2<T>) -> PyResult<Tensor> {
    let view = array.as_array();
    let values: Vec<T> = view.iter().copied().collect();
    Tensor::from_vec(values, view.dim(), &Device::Cpu).map_err(candle_error)
}

/// Token ids as an array of int64, the dtype of token ids in PyTorch.
pub fn ids<'py>(py: Python<'py>, ids: &[u32]) -> Bound<'py, numpy::PyArray1<i64>> {
    ids.iter().map(|id| i64::from(*id)).collect::<Vec<_>>().to_pyarray(py)
}
