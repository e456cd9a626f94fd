//! Heads in int8 as tensors: `(b, s, h, 4 + d)` bytes, a scale and `d` integers for each head of a token.
//!
//! A tensor of bytes with the scales in it moves like any other: caches write, select and join tokens as they do in
//! floating dtypes.

use candle_attention_kernels as kernels;
use candle_attention_kernels::{SCALE_BYTES, check_allocation, element_count};
use candle_core::{DType, Device, Tensor};

use crate::error::{Error, Result};
use crate::tensor::cpu_slice::{with_f32_slice, with_slice};

/// Whether a tensor is heads in int8.
pub fn is_int8(heads: &Tensor) -> bool {
    heads.dtype() == DType::U8
}

/// Rounds heads `(b, s, h, d)` on the CPU to int8. Of sequence `i` the first `counts[i]` tokens are rounded, and the
/// others become zeros.
///
/// # Errors
/// A value is not finite. The error names `what` and its place; token 0 of sequence `i` of the tensor is the token
/// `starts[i]`.
pub fn quantize_heads(what: &str, heads: &Tensor, counts: &[usize], starts: &[usize]) -> Result<Tensor> {
    let (b, s, h, d) = heads.dims4()?;
    let (token, row) = (h * d, h * (SCALE_BYTES + d));
    let bytes = element_count(what, &[b, s, row])?;
    check_allocation::<u8>(what, bytes)?;
    let mut to = vec![0; bytes];
    with_f32_slice(heads, |from| {
        // No chunk is empty; without elements there is none.
        let sequences = from.chunks((s * token).max(1)).zip(to.chunks_mut((s * row).max(1)));
        for (i, (from, to)) in sequences.enumerate() {
            let from = &from[..counts[i] * token];
            kernels::quantize_heads(from, d, &mut to[..counts[i] * row]).map_err(|at| {
                let place = format!("{what} of sequence {i}, token {}, head {}", starts[i] + at / token, at / d % h);
                Error::value(place, from[at], "finite numbers, which a cache in int8 can hold")
            })?;
        }
        Ok::<_, Error>(())
    })??;
    Ok(Tensor::from_vec(to, (b, s, h, SCALE_BYTES + d), &Device::Cpu)?)
}

/// The values of tensors in `dtype` where they are heads in int8; all others as they are.
pub fn wide<const N: usize>(mut tensors: [Tensor; N], dtype: DType) -> Result<[Tensor; N]> {
    for tensor in tensors.iter_mut().filter(|tensor| is_int8(tensor)) {
        *tensor = widened(tensor, dtype)?;
    }
    Ok(tensors)
}

/// The values `(b, s, h, d)` of heads in int8.
fn widened(heads: &Tensor, dtype: DType) -> Result<Tensor> {
    let (b, s, h, row) = heads.dims4()?;
    let d = row - SCALE_BYTES;
    let count = element_count("the values of a cache in int8", &[b, s, h, d])?;
    check_allocation::<f32>("the values of a cache in int8", count)?;
    let mut values = vec![0.0; count];
    if count > 0 {
        with_slice(heads, |heads| kernels::widen_heads(heads, d, &mut values))?;
    }
    Ok(Tensor::from_vec(values, (b, s, h, d), &Device::Cpu)?.to_dtype(dtype)?)
}
