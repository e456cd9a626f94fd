//! Arguments from Python: texts, dtypes, devices.

use candle_attention::candle_core::{DType, Device};
use candle_attention::{ComputeType, Quantization};
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyUnicodeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyList, PyString};

use crate::errors::candle_error;

/// The texts of a list, without copies. They keep their Python objects alive, so that other threads may read them.
pub fn texts(list: &Bound<PyList>) -> PyResult<Vec<PyBackedStr>> {
    list.iter().enumerate().map(|(i, item)| text(&item, || format!("inputs[{i}]"))).collect()
}

/// The pairs of a list of pairs.
pub fn pairs(list: &Bound<PyList>) -> PyResult<Vec<(PyBackedStr, PyBackedStr)>> {
    let pair = |(i, item): (usize, Bound<PyAny>)| {
        let is_text = item.is_instance_of::<PyString>();
        let found = if is_text { 1 } else { item.len().unwrap_or(1) };
        if is_text || found != 2 {
            let found = if is_text { "one text".to_string() } else { format!("{found} items") };
            return Err(PyValueError::new_err(format!("inputs[{i}] is {found}, expected a pair of texts")));
        }
        let part = |part: usize| text(&item.get_item(part)?, || format!("inputs[{i}][{part}]"));
        Ok((part(0)?, part(1)?))
    };
    list.iter().enumerate().map(pair).collect()
}

/// One text; `name` is the argument in the error.
fn text(item: &Bound<PyAny>, name: impl Fn() -> String) -> PyResult<PyBackedStr> {
    let Ok(string) = item.cast::<PyString>() else {
        let found = item.get_type().name()?;
        return Err(PyTypeError::new_err(format!("{} is {found}, expected str", name())));
    };
    PyBackedStr::try_from(string.clone()).map_err(|error| match error.is_instance_of::<PyUnicodeError>(item.py()) {
        true => PyValueError::new_err(format!("{} has a lone surrogate, expected valid Unicode", name())),
        false => error,
    })
}

/// What a model computes in, by the name of a dtype or of a format of weights in few bits.
pub fn compute_type(name: &str) -> PyResult<ComputeType> {
    Ok(match name {
        "auto" => ComputeType::default(),
        "float32" => DType::F32.into(),
        "bfloat16" => DType::BF16.into(),
        "float16" => DType::F16.into(),
        "int8" => Quantization::Int8.into(),
        "q8_0" => Quantization::Q8_0.into(),
        "q4_0" => Quantization::Q4_0.into(),
        _ => {
            let expected = "expected auto, float32, bfloat16, float16, int8, q8_0 or q4_0";
            return Err(PyValueError::new_err(format!("the dtype is {name:?}, {expected}")));
        }
    })
}

/// The device of a name as PyTorch spells it.
pub fn device(name: &str) -> PyResult<Device> {
    let (kind, index) = name.split_once(':').unwrap_or((name, "0"));
    let wrong = || PyValueError::new_err(format!("the device is {name:?}, expected cpu, cuda, cuda:N or mps"));
    let index: usize = index.parse().map_err(|_| wrong())?;
    match kind {
        "cpu" => Ok(Device::Cpu),
        "cuda" if cfg!(feature = "cuda") => Device::new_cuda(index).map_err(candle_error),
        "mps" if cfg!(feature = "metal") => {
            candle_attention::metal_device(index).map_err(|e| PyRuntimeError::new_err(e.to_string()))
        }
        "cuda" | "mps" => {
            let expected = "expected cpu: this wheel was built for CPUs alone";
            Err(PyValueError::new_err(format!("the device is {name:?}, {expected}")))
        }
        _ => Err(wrong()),
    }
}
