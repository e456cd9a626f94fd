//! The product of a projection with gradients, by the CPU kernels: an operation of candle's graph.
//!
//! Candle's own product needs three more passes for it: one that adds the bias, one that sums the gradient of the bias
//! over the rows, and copies of transposed matrices. What is multiplied here is packed for each product, because
//! weights may change between two calls.

use candle_attention_kernels::{Isa, Matrix, Team, column_sums, matmul};
use candle_core::{DType, Device, Shape, Tensor};

use crate::error::{Error, Result};
use crate::ops::dense::accumulate_dtype;
use crate::tensor::{check_allocation, computed, element_count, with_slices};
use crate::weights::LinearWeights;

/// Whether products with gradients run on the CPU kernels, and not in Accelerate or MKL.
const OWN_KERNELS: bool = cfg!(not(any(feature = "accelerate", feature = "mkl")));

/// `xs` `(b, s, in)` projected to `(b · s, out)` by the CPU kernels, in f32 and with gradients; `None` where they
/// cannot, or where a build uses Accelerate or MKL for products.
pub(super) fn trained(xs: &Tensor, LinearWeights { weight, bias }: &LinearWeights) -> Result<Option<Tensor>> {
    if !OWN_KERNELS || !xs.device().is_cpu() || accumulate_dtype(weight) != DType::F32 {
        return Ok(None);
    }
    let (b, s, input) = xs.dims3()?;
    check_product(xs, weight)?;
    let wide = |tensor: &Tensor| tensor.to_dtype(DType::F32);
    let (xs, bias) = (wide(xs)?.contiguous()?.reshape((b * s, input))?, bias.as_ref().map(wide).transpose()?);
    trained_product(&xs, &wide(weight)?, bias.as_ref()).map(Some)
}

/// Checks that the input `(b, s, in)`, the weight `(out, in)` and the output of a product fit into memory. Views have
/// any size, and candle wraps around or aborts where they do not.
pub(super) fn check_product(xs: &Tensor, weight: &Tensor) -> Result<()> {
    let (b, s, _) = xs.dims3()?;
    let output = element_count("the output of a product", &[b, s, weight.dim(0)?])?;
    let (input, weight) = (element_count("xs", xs.dims())?, element_count("a weight", weight.dims())?);
    if xs.device().is_cpu() {
        check_allocation::<f64>("a product", input.max(weight).max(output))?;
    }
    Ok(())
}

/// `xs` `(rows, in)` times `weight` `(out, in)`, plus `bias` `(out)`, all f32 on the CPU → `(rows, out)`.
fn trained_product(xs: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let ((rows, input), out) = (xs.dims2()?, weight.dim(0)?);
    let [a, b] = [(rows, input, false), (input, out, true)];
    let multiplied = |data: [&[f32]; 2], bias: Option<&[f32]>| multiply([data[0], data[1]], [a, b], bias);
    let output = match bias {
        Some(bias) => with_slices([xs, weight, bias], |[xs, weight, bias]| multiplied([xs, weight], Some(bias)))?,
        None => with_slices([xs, weight], |data| multiplied(data, None))?,
    };
    let output = (output?, Shape::from((rows, out)));
    match bias {
        Some(bias) => {
            computed("trained-product-with-bias", output, [xs, weight, bias], |[xs, weight, bias], _, gradient| {
                let [d_xs, d_weight] = gradients(xs, weight, gradient)?;
                let d_bias = bias.track_op().then(|| bias_gradient(gradient)).transpose()?;
                Ok([d_xs, d_weight, d_bias])
            })
        }
        None => computed("trained-product", output, [xs, weight], |[xs, weight], _, gradient| {
            gradients(xs, weight, gradient)
        }),
    }
}

/// The gradients of the input and of the weight of a product, of those that track one.
fn gradients(xs: &Tensor, weight: &Tensor, gradient: &Tensor) -> Result<[Option<Tensor>; 2]> {
    let d_xs = xs.track_op().then(|| input_gradient(gradient, weight));
    let d_weight = weight.track_op().then(|| {
        let ((rows, input), out) = (xs.dims2()?, weight.dim(0)?);
        let shapes = [(out, rows, true), (rows, input, false)];
        let data = with_slices([gradient, xs], |data| multiply(data, shapes, None))??;
        Ok::<_, Error>(Tensor::from_vec(data, (out, input), &Device::Cpu)?)
    });
    Ok([d_xs.transpose()?, d_weight.transpose()?])
}

/// The gradient `(out)` of the bias of a product: the sums over its output's `(rows, out)`.
fn bias_gradient(gradient: &Tensor) -> Result<Tensor> {
    let columns = gradient.dim(1)?;
    let sums = with_slices([gradient], |[rows]: [&[f32]; 1]| column_sums(rows, columns))?;
    Ok(Tensor::from_vec(sums, columns, &Device::Cpu)?)
}

/// The gradient `(rows, in)` of the input of a product with `weight` `(out, in)`, from its output's `(rows, out)`.
pub(super) fn input_gradient(gradient: &Tensor, weight: &Tensor) -> Result<Tensor> {
    if !OWN_KERNELS {
        return Ok(gradient.matmul(weight)?);
    }
    let (rows, (out, input)) = (gradient.dim(0)?, weight.dims2()?);
    let shapes = [(rows, out, false), (out, input, false)];
    let data = with_slices([gradient, weight], |data| multiply(data, shapes, None))??;
    Ok(Tensor::from_vec(data, (rows, input), &Device::Cpu)?)
}

/// The product of two matrices, each with its rows, its columns and whether it is transposed.
fn multiply(data: [&[f32]; 2], shapes: [(usize, usize, bool); 2], bias: Option<&[f32]>) -> Result<Vec<f32>> {
    let [a, b] = [0, 1].map(|i| {
        let (rows, columns, transposed) = shapes[i];
        Matrix { data: data[i], dims: [rows, columns], transposed }
    });
    let mut output = Vec::new();
    let work = a.dims[0].saturating_mul(a.dims[1]).saturating_mul(b.dims[1]);
    Team::with(work, |team| matmul(Isa::detect()?, team, a, b, bias, &mut output))?;
    Ok(output)
}
