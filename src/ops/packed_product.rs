//! The product with packed weights as an operation of candle's graph: the gradient of its input goes through weights
//! that are unpacked for the backward pass of this projection alone.

use std::ops::Range;
use std::sync::Arc;

use candle_attention_kernels::PackedWeights;
use candle_core::{CpuStorage, CustomOp1, DType, Layout, Shape, Tensor};

use crate::error::Result;
use crate::ops::dense::differentiable_product;
use crate::ops::pack::unpack;
use crate::ops::trained_product::input_gradient;
use crate::tensor::{check_allocation, element_count};
use crate::weights::LinearWeights;

/// `xs` `(b, s, in)`, which tracks a gradient, times these outputs of packed weights, plus their bias → `(b, s, out)`
/// in `dtype`. Computed in f32 with the weights as they are unpacked, so that it is the function whose gradient
/// follows.
pub(super) fn packed_product(
    xs: &Tensor,
    packed: &Arc<PackedWeights>,
    outputs: Range<usize>,
    dtype: DType,
) -> Result<Tensor> {
    let (b, s, input) = xs.dims3()?;
    let out = outputs.len();
    check_allocation::<f32>("a product", element_count("a product", &[b, s, input.max(out)])?)?;
    let xs = xs.to_dtype(DType::F32)?.contiguous()?.reshape((b * s, input))?;
    let product = PackedProduct { packed: packed.clone(), outputs };
    Ok(xs.apply_op1(product)?.to_dtype(dtype)?.reshape((b, s, out))?)
}

/// `(rows, in)` → `(rows, out)` in f32.
struct PackedProduct {
    packed: Arc<PackedWeights>,
    outputs: Range<usize>,
}

impl PackedProduct {
    fn weights(&self, has_bias: bool) -> Result<LinearWeights> {
        unpack(&self.packed, self.outputs.clone(), has_bias, DType::F32)
    }
}

impl CustomOp1 for PackedProduct {
    fn name(&self) -> &'static str {
        "packed-product"
    }

    fn cpu_fwd(&self, xs: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let (rows, input) = layout.shape().dims2()?;
        let start = layout.start_offset();
        let xs = &xs.as_slice::<f32>()?[start..start + rows * input];
        let xs = Tensor::from_slice(xs, (1, rows, input), &candle_core::Device::Cpu)?;
        let ys = differentiable_product(&xs, &self.weights(true)?)?;
        Ok((CpuStorage::F32(ys.flatten_all()?.to_vec1()?), ys.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> candle_core::Result<Option<Tensor>> {
        Ok(Some(input_gradient(gradient, &self.weights(false)?.weight)?))
    }
}
