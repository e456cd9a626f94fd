//! Weights packed for the CPU kernels, products with them, and the tensors that they came from.

use std::cell::Cell;
use std::ops::Range;

use candle_attention_kernels::{Activation, Blas, Element, Isa, PackedWeights, Packer};
use candle_attention_kernels::{QuantizedRows, Team, WeightFormat};
use candle_core::{D, DType, Device, Tensor, WithDType};

use crate::error::{Error, Result};
use crate::tensor::{check_allocation, element_count, for_cpu_element, with_f32_slice, with_slice};
use crate::weights::LinearWeights;

thread_local! {
    static CHOSEN: Cell<Option<Option<Blas>>> = const { Cell::new(None) };
}

/// The library that multiplies with weights of 16 and 32 bits which this thread packs, if this crate does not.
pub(super) fn blas() -> Option<Blas> {
    CHOSEN.get().unwrap_or_else(Blas::linked)
}

/// Calls `run`, in which this thread packs weights of 16 and 32 bits for `blas`, or for this crate's kernels if it is
/// `None`. Otherwise they are packed for the library that the feature `accelerate` or `mkl` links. Products with the
/// weights go to what they were packed for, also after the call.
///
/// It is for a program that links MKL and also runs on processors on which the kernels are faster. `Blas` is a type of
/// the package `candle-attention-kernels`.
///
/// ```
/// use candle_attention::ops::{Linear, with_blas};
/// use candle_attention::weights::LinearWeights;
/// use candle_core::{DType, Device, Tensor};
///
/// let weights = LinearWeights::new(Tensor::ones((3, 2), DType::F32, &Device::Cpu)?, None);
/// let mut linear = Linear::new("up_proj", weights, 3, 2)?;
/// with_blas(None, || linear.pack())?;
/// assert!(linear.is_packed());
/// # Ok::<(), candle_attention::Error>(())
/// ```
pub fn with_blas<R>(blas: Option<Blas>, run: impl FnOnce() -> R) -> R {
    let before = CHOSEN.replace(Some(blas));
    let result = run();
    CHOSEN.set(before);
    result
}

/// The format that keeps weights of a dtype as they are.
pub(super) fn format_of(dtype: DType) -> WeightFormat {
    match dtype {
        DType::BF16 => WeightFormat::Bf16,
        DType::F16 => WeightFormat::F16,
        _ => WeightFormat::F32,
    }
}

/// Packs the outputs of one or more layers of the same input and dtype, one after the other.
pub(super) fn pack(parts: &[&LinearWeights], format: WeightFormat) -> Result<PackedWeights> {
    let mut out = 0;
    for part in parts {
        out += part.weight.dim(0)?;
    }
    let (dtype, input) = (parts[0].weight.dtype(), parts[0].weight.dim(1)?);
    let mut packer = Packer::with_blas(Isa::detect()?, blas(), format, out, input)?;
    for LinearWeights { weight, bias } in parts {
        // Before the weight is locked: nothing else may be read then.
        let bias = bias.as_ref().map(|bias| with_f32_slice(bias, <[f32]>::to_vec)).transpose()?;
        let (bias, outputs) = (bias.as_deref(), weight.dim(0)?);
        for_cpu_element!(dtype, T => with_slice(weight, |weight: &[T]| packer.push(outputs, weight, bias))?)?;
    }
    Ok(packer.finish()?)
}

/// Packs the rows of a table in its format, one at a time.
pub(super) fn pack_rows(rows: &QuantizedRows, bias: Option<&Tensor>) -> Result<PackedWeights> {
    let bias = bias.map(|bias| with_f32_slice(bias, <[f32]>::to_vec)).transpose()?;
    if let Some(bias) = bias.as_ref().filter(|bias| bias.len() != rows.rows()) {
        return Err(Error::shape("the bias of a table", &[bias.len()], format!("[{}]", rows.rows())));
    }
    let mut packer = Packer::new(Isa::detect()?, rows.format(), rows.rows(), rows.width())?;
    let mut row = vec![0.0f32; rows.width()];
    for index in 0..rows.rows() {
        rows.row_into(index, &mut row);
        packer.push(1, &row, bias.as_ref().map(|bias| &bias[index..=index]))?;
    }
    Ok(packer.finish()?)
}

/// The weights of a range of outputs as they were packed, in their `dtype`: every bit of a number is the same.
pub(super) fn unpack(
    packed: &PackedWeights,
    outputs: Range<usize>,
    has_bias: bool,
    dtype: DType,
) -> Result<LinearWeights> {
    let shape = (outputs.len(), packed.in_features());
    let bias = has_bias.then(|| unpack_bias(packed, outputs.clone(), dtype)).transpose()?;
    let weight = for_cpu_element!(dtype, T => Tensor::from_vec(packed.unpack::<T>(outputs)?, shape, &Device::Cpu)?);
    Ok(LinearWeights { weight, bias })
}

/// The bias of a range of outputs as it was packed, in its `dtype`.
pub(super) fn unpack_bias(packed: &PackedWeights, outputs: Range<usize>, dtype: DType) -> Result<Tensor> {
    Ok(Tensor::new(packed.bias(outputs), &Device::Cpu)?.to_dtype(dtype)?)
}

/// `xs` `(b, s, in)` times packed weights, plus their bias → `(b, s, out)` in `dtype`.
pub(super) fn multiply(xs: &Tensor, weights: &PackedWeights, dtype: DType) -> Result<Tensor> {
    let ys = for_cpu_element!(xs.dtype(), A => for_cpu_element!(dtype, O => multiply_as::<A, O>(xs, weights)));
    Ok(ys?.to_dtype(dtype)?)
}

/// [`multiply`] for a range of the outputs alone: the same bits as in the whole product.
pub(super) fn multiply_outputs(
    xs: &Tensor,
    weights: &PackedWeights,
    outputs: Range<usize>,
    dtype: DType,
) -> Result<Tensor> {
    let size = outputs.len();
    let (part, before) = weights.outputs(outputs)?;
    let ys = multiply(xs, &part, dtype)?;
    if before == 0 { Ok(ys) } else { Ok(ys.narrow(D::Minus1, before, size)?.contiguous()?) }
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
