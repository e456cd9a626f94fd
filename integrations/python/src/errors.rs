//! Errors of the crate as Python exceptions, with the crate's message.

use std::io::ErrorKind;

use candle_attention::Error;
use pyo3::PyErr;
use pyo3::exceptions::{
    PyFileNotFoundError, PyFloatingPointError, PyNotImplementedError, PyOSError, PyPermissionError, PyRuntimeError,
    PyTypeError, PyValueError,
};

/// The exception of the type that a Python user expects of such an error.
pub fn python_error(error: Error) -> PyErr {
    let message = error.to_string();
    match error {
        Error::Io { source, .. } => match source.kind() {
            ErrorKind::NotFound => PyFileNotFoundError::new_err(message),
            ErrorKind::PermissionDenied => PyPermissionError::new_err(message),
            _ => PyOSError::new_err(message),
        },
        Error::Hub { .. } => PyOSError::new_err(message),
        Error::DType { .. } => PyTypeError::new_err(message),
        Error::UnknownFamily { .. }
        | Error::UnsupportedFamily { .. }
        | Error::UnsupportedKey { .. }
        | Error::UnsupportedTensor { .. } => PyNotImplementedError::new_err(message),
        Error::NotFinite { .. } => PyFloatingPointError::new_err(message),
        Error::Candle(_) | Error::Backend { .. } | Error::Device { .. } => PyRuntimeError::new_err(message),
        _ => PyValueError::new_err(message),
    }
}

/// The same of an error of candle, which may hold one of the crate.
pub fn candle_error(error: candle_attention::candle_core::Error) -> PyErr {
    python_error(error.into())
}
