//! Checks that two tensors can be used together.

use candle_attention_kernels::{check_allocation, element_count};
use candle_core::{DType, Device, Tensor};

use crate::ensure;
use crate::error::{Error, Result};

/// Checks that `tensor` has the shape `expected`; `name` is its name in the error.
pub fn check_shape(name: &str, tensor: &Tensor, expected: &[usize]) -> Result<()> {
    if tensor.dims() == expected { Ok(()) } else { Err(Error::shape(name, tensor.dims(), format!("{expected:?}"))) }
}

/// Checks that `tensor` is of a floating dtype; `name` is its name in the error.
pub fn check_float(name: &str, tensor: &Tensor) -> Result<()> {
    if tensor.dtype().is_float() { Ok(()) } else { Err(Error::dtype(name, tensor.dtype(), "a floating dtype")) }
}

/// Checks that `tensor` has the dtype and the device of `like`; `name` is the name of `tensor` in the error.
pub fn same_dtype_and_device(name: &str, tensor: &Tensor, like: &Tensor) -> Result<()> {
    ensure!(tensor.dtype() == like.dtype(), Error::dtype(name, tensor.dtype(), like.dtype().as_str()));
    same_device(name, tensor, like)
}

/// Checks that `tensor` is on the device of `like`.
pub fn same_device(name: &str, tensor: &Tensor, like: &Tensor) -> Result<()> {
    if tensor.device().same_device(like.device()) {
        return Ok(());
    }
    let [found, expected] = [tensor, like].map(|tensor| format!("{:?}", tensor.device().location()));
    Err(Error::Device { tensor: name.to_string(), found, expected })
}

/// The tensor itself if the elements of its last dimension are adjacent in memory, otherwise a contiguous copy. Fused
/// kernels follow the strides of all other dimensions.
pub fn last_dim_contiguous(xs: &Tensor) -> Result<Tensor> {
    if xs.stride().last() == Some(&1) || xs.dims().last() == Some(&1) {
        return Ok(xs.clone());
    }
    check_allocation::<f32>("a contiguous copy of a tensor", element_count("a tensor", xs.dims())?)?;
    Ok(xs.contiguous()?)
}

/// Checks that `elements`, the product of these numbers, can be allocated: they have an address, and on the CPU the
/// allocator grants them. candle aborts the process where an allocation on the CPU fails; on GPUs it returns an error.
/// `what` is the name of the memory in the error, and `found` the number that made it so large.
pub fn check_tensor_memory(what: &str, found: usize, elements: &[usize], dtype: DType, device: &Device) -> Result<()> {
    let bytes = elements.iter().try_fold(dtype.size_in_bytes(), |bytes, count| bytes.checked_mul(*count));
    match bytes {
        Some(bytes)
            if bytes <= isize::MAX as usize && (!device.is_cpu() || check_allocation::<u8>(what, bytes).is_ok()) =>
        {
            Ok(())
        }
        bytes => {
            let bytes = bytes.map_or("more bytes than an address can count".to_string(), |n| format!("{n} bytes"));
            Err(Error::value(what, found, format!("one that fits into memory: it takes {bytes}")))
        }
    }
}
