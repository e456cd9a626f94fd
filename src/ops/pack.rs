//! Weights packed for the CPU kernels, and products with them.

use candle_core::{DType, Device, Tensor, WithDType};
use half::{bf16, f16};

use super::linear::Dense;
use crate::error::Result;
use crate::kernels::cpu::{Element, Epilogue, Isa, Packed};
use crate::tensor::{with_f32_slice, with_slice};

/// Packs the rows of one or more projections of the same input, one after the other.
pub(super) fn pack(parts: &[&Dense]) -> Result<Packed> {
    let k = parts[0].weight.dim(1)?;
    let (mut weights, mut biases) = (Vec::new(), Vec::new());
    for part in parts {
        with_f32_slice(&part.weight, |numbers| weights.extend_from_slice(numbers))?;
        match &part.bias {
            Some(bias) => with_f32_slice(bias, |numbers| biases.extend_from_slice(numbers))?,
            None => biases.resize(biases.len() + part.weight.dim(0)?, 0.0),
        }
    }
    let pack = if parts[0].weight.dtype() == DType::BF16 { Packed::new_bf16 } else { Packed::new };
    Ok(pack(Isa::detect()?, &weights, Some(&biases), biases.len(), k))
}

/// xs `(b, s, in)` times packed weights → `(b, s, out)` in `dtype`.
pub(super) fn multiply(xs: &Tensor, weights: &Packed, dtype: DType) -> Result<Tensor> {
    match xs.dtype() {
        DType::F16 => multiply_from::<f16>(xs, weights, dtype),
        DType::BF16 => multiply_from::<bf16>(xs, weights, dtype),
        _ => multiply_from::<f32>(&xs.to_dtype(DType::F32)?, weights, dtype),
    }
}

fn multiply_from<A: Element + WithDType>(xs: &Tensor, weights: &Packed, dtype: DType) -> Result<Tensor> {
    match dtype {
        DType::F16 => multiply_to::<A, f16>(xs, weights),
        DType::BF16 => multiply_to::<A, bf16>(xs, weights),
        _ => Ok(multiply_to::<A, f32>(xs, weights)?.to_dtype(dtype)?),
    }
}

fn multiply_to<A: Element + WithDType, O: Element + WithDType>(xs: &Tensor, weights: &Packed) -> Result<Tensor> {
    let (b, s, _) = xs.dims3()?;
    let mut ys = Vec::<O>::new();
    with_slice(xs, |xs| weights.multiply::<A, O>(xs, b * s, Epilogue::None, &mut ys))?;
    Ok(Tensor::from_vec(ys, (b, s, weights.columns()), &Device::Cpu)?)
}
