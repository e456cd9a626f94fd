//! The product with packed weights as an operation of candle's graph: the gradient of its input goes through weights
//! that are unpacked for the backward pass of this projection alone.

use std::ops::Range;
use std::sync::Arc;

use candle_attention_kernels::PackedWeights;
use candle_core::{DType, Tensor};

use crate::error::Result;
use crate::ops::dense::differentiable_product;
use crate::ops::pack::unpack;
use crate::ops::trained_product::input_gradient;
use crate::tensor::{check_allocation, computed, element_count};

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
    let packed = packed.clone();
    let weights = move |has_bias| unpack(&packed, outputs.clone(), has_bias, DType::F32);
    let ys = differentiable_product(&xs.detach().unsqueeze(0)?, &weights(true)?)?;
    let output = (ys.flatten_all()?.to_vec1()?, ys.shape().clone());
    let product = computed("packed-product", output, [&xs], move |_, _, gradient| {
        Ok([Some(input_gradient(gradient, &weights(false)?.weight)?)])
    });
    Ok(product?.to_dtype(dtype)?.reshape((b, s, out))?)
}
