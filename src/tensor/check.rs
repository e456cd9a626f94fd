//! Checks that two tensors can be used together.

use candle_core::Tensor;

use crate::error::{Error, Result};

/// Checks that `tensor` has the dtype and the device of `like`; `name` is the name of `tensor` in the error.
pub fn same_dtype_and_device(name: &str, tensor: &Tensor, like: &Tensor) -> Result<()> {
    if tensor.dtype() != like.dtype() {
        return Err(Error::dtype(name, tensor.dtype(), like.dtype().as_str()));
    }
    if !tensor.device().same_device(like.device()) {
        let (found, expected) =
            (format!("{:?}", tensor.device().location()), format!("{:?}", like.device().location()));
        return Err(Error::Device { tensor: name.to_string(), found, expected });
    }
    Ok(())
}
