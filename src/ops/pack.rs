//! Weights packed for the CPU kernels, and products with them.

use candle_core::{DType, Device, Tensor, WithDType};

use crate::error::{Error, Result};
use crate::kernels::Activation;
use crate::kernels::cpu::{Element, Isa, PackedWeights, Team};
use crate::tensor::{check_allocation, element_count, for_cpu_element, try_reserve, with_f32_slice, with_slice};
use crate::weights::LinearWeights;

/// Packs the outputs of one or more layers of the same input, one after the other.
pub(super) fn pack(parts: &[&LinearWeights]) -> Result<PackedWeights> {
    let input = parts[0].weight.dim(1)?;
    let (mut weights, mut biases) = (Vec::new(), Vec::new());
    for part in parts {
        with_f32_slice(&part.weight, |weight| {
            try_reserve("packed weights", &mut weights, weight.len())?;
            weights.extend_from_slice(weight);
            Ok::<_, Error>(())
        })??;
        match &part.bias {
            Some(bias) => with_f32_slice(bias, |bias| biases.extend_from_slice(bias))?,
            None => biases.resize(biases.len() + part.weight.dim(0)?, 0.0),
        }
    }
    let pack = if parts[0].weight.dtype() == DType::BF16 { PackedWeights::new_bf16 } else { PackedWeights::new };
    pack(Isa::detect()?, &weights, Some(&biases), biases.len(), input)
}

/// `xs` `(b, s, in)` times packed weights, plus their bias → `(b, s, out)` in `dtype`.
pub(super) fn multiply(xs: &Tensor, weights: &PackedWeights, dtype: DType) -> Result<Tensor> {
    let ys = for_cpu_element!(xs.dtype(), A => for_cpu_element!(dtype, O => multiply_as::<A, O>(xs, weights)));
    Ok(ys?.to_dtype(dtype)?)
}

fn multiply_as<A: Element + WithDType, O: Element + WithDType>(xs: &Tensor, weights: &PackedWeights) -> Result<Tensor> {
    let (b, s, _) = xs.dims3()?;
    let mut ys = Vec::<O>::new();
    let rows = element_count("the input of a product", &[b, s, 1])?;
    if xs.dtype() != A::DTYPE {
        check_allocation::<A>("a copy of the input of a product", element_count("xs", xs.dims())?)?;
    }
    let xs = xs.to_dtype(A::DTYPE)?;
    with_slice(&xs, |xs| {
        Team::with(weights.multiply_adds(rows), |team| {
            weights.multiply::<A, O>(team, xs, rows, Activation::Identity, &mut ys)
        })
    })??;
    Ok(Tensor::from_vec(ys, (b, s, weights.out_features()), &Device::Cpu)?)
}
