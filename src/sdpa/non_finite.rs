//! Keys and values that are not finite, under a mask, in tensor operations.
//!
//! Values of hidden keys have no influence, NaN and infinities included. Their weight is 0, but 0 · NaN is NaN: in the
//! product of weights and values, and in the gradients of queries and weights. So products are made of finite elements,
//! and what they left out is added, without a gradient, to the results that depend on it. On the CPU the extra products
//! are made only if an element is not finite. To ask a GPU would mean to wait for it; there, the product that finds
//! which results depend on such an element is always made, and those results become NaN.

use candle_core::{DType, Device, Tensor};

use crate::error::{Error, Result};
use crate::tensor::with_slice;

/// Whether all elements of a tensor on the CPU are finite.
fn all_finite(xs: &Tensor) -> Result<bool> {
    // Sums of zeros and NaN: as many as a vector holds.
    const LANES: usize = 16;
    macro_rules! all_finite {
        ($t:ty) => {
            with_slice(xs, |xs: &[$t]| {
                let mut sums = [0.0; LANES];
                let chunks = xs.chunks_exact(LANES);
                let rest = chunks.remainder().iter().all(|x| x.is_finite());
                chunks.for_each(|xs| sums.iter_mut().zip(xs).for_each(|(sum, x)| *sum += x * 0.0));
                rest && sums.iter().all(|sum| *sum == 0.0)
            })
        };
    }
    if xs.dtype() == DType::F64 { all_finite!(f64) } else { all_finite!(f32) }
}

/// 1 for the elements that are finite.
fn finite(xs: &Tensor) -> Result<Tensor> {
    let largest = if xs.dtype() == DType::F64 { f64::MAX } else { f64::from(f32::MAX) };
    Ok(xs.detach().abs()?.le(largest)?)
}

/// `xs` with zeros in place of what is not finite, without a gradient, on the CPU.
pub(super) fn finite_only(xs: &Tensor) -> Result<Tensor> {
    let xs = xs.detach();
    if all_finite(&xs)? { Ok(xs) } else { zeroed(&xs, &finite(&xs)?) }
}

fn zeroed(xs: &Tensor, keep: &Tensor) -> Result<Tensor> {
    Ok(keep.broadcast_as(xs.shape())?.where_cond(xs, &xs.zeros_like()?)?)
}

/// The questions that the device of the tensors answers without a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asking {
    /// Whether all elements are finite: on the CPU.
    Free,
    /// None: on GPUs.
    Waits,
}

impl Asking {
    pub(super) fn from_device(device: &Device) -> Self {
        if device.is_cpu() { Self::Free } else { Self::Waits }
    }
}

/// `product(a, b)` `(b, h, s_q, keys)`, the scores of queries and keys. A gradient flows through finite elements only.
///
/// The scores of hidden keys are replaced later, whatever they are, so that only a gradient needs finite operands.
pub(super) fn scores(
    asking: Asking,
    a: &Tensor,
    b: &Tensor,
    product: impl Fn(&Tensor, &Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let as_they_are = match asking {
        Asking::Free => all_finite(a)? && all_finite(b)?,
        Asking::Waits => !(a.track_op() || b.track_op()),
    };
    if as_they_are {
        return product(a, b);
    }
    let others = product(&a.detach(), &b.detach())?;
    let others = zeroed(&others, &finite(&others)?.eq(0u8)?)?;
    Ok((product(&zeroed(a, &finite(a)?)?, &zeroed(b, &finite(b)?)?)? + others)?)
}

/// `product(weights, values)`, `(b, h, s_q, d_v)`, for weights `(b, h, s_q, keys)` and values `(b, h_kv, keys, d_v)`.
/// `keep` broadcasts to the weights.
pub(super) fn context(
    asking: Asking,
    weights: &Tensor,
    values: &Tensor,
    keep: &Tensor,
    product: impl Fn(&Tensor, &Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    if asking == Asking::Free && all_finite(values)? {
        return product(weights, values);
    }
    let kept = finite(values)?;
    let clean = product(weights, &zeroed(values, &kept)?)?;
    let (weights, values) = (weights.detach(), values.detach());
    let seen = keep.broadcast_as(weights.shape())?.ne(0u8)?;
    let any = |keys: &Tensor, elements: Tensor| {
        let any = product(&keys.to_dtype(weights.dtype())?, &elements.to_dtype(values.dtype())?)?;
        Ok::<_, Error>(any.ne(0f64)?)
    };
    // In f32, because Apple GPUs have no f64.
    let with = |output: Tensor, depends: Tensor, value: f32| {
        let value = Tensor::new(value, output.device())?.to_dtype(output.dtype())?.broadcast_as(output.shape())?;
        Ok((&output + zeroed(&value, &depends)?)?)
    };
    if asking == Asking::Waits {
        return with(clean, any(&seen, kept.eq(0u8)?)?, f32::NAN);
    }
    // Not the product of these weights and values: a hidden NaN would make NaN of an infinity that the query sees.
    let weighted = (&seen * weights.gt(0f64)?)?;
    let output = with(clean, any(&weighted, values.eq(f64::INFINITY)?)?, f32::INFINITY)?;
    let output = with(output, any(&weighted, values.eq(f64::NEG_INFINITY)?)?, f32::NEG_INFINITY)?;
    let output = with(output, any(&seen, values.ne(&values)?)?, f32::NAN)?;
    // 0 · infinity is NaN.
    with(output, any(&(&seen - &weighted)?, kept.eq(0u8)?)?, f32::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
        Ok(a.matmul(b)?)
    }

    fn numbers(t: &Tensor) -> Vec<f32> {
        t.flatten_all().unwrap().to_vec1().unwrap()
    }

    /// The operations of GPUs, on the CPU.
    #[test]
    fn queries_depend_on_visible_values_only_without_asking() {
        let tensor = |xs: &[f32], dims: [usize; 4]| Tensor::from_slice(xs, &dims[..], &Device::Cpu).unwrap();
        let weights = tensor(&[1., 0., 0., 0.5, 0.5, 0., 0., 0., 0.], [1, 1, 3, 3]);
        let keep = Tensor::new(&[[[[1u8, 0, 0], [1, 1, 0], [0, 0, 0]]]], &Device::Cpu).unwrap();
        let values = tensor(&[1., 2., f32::NAN, 3., 5., f32::INFINITY], [1, 1, 3, 2]);
        for asking in [Asking::Free, Asking::Waits] {
            let got = numbers(&context(asking, &weights, &values, &keep, product).unwrap());
            assert_eq!(got[..2], [1., 2.]);
            assert!(got[2].is_nan());
            assert_eq!(got[3..], [2.5, 0., 0.], "the last query sees nothing");
        }
    }

    /// The gradient of a query is that of the keys which it sees.
    #[test]
    fn gradients_of_queries_are_finite_without_asking() {
        let variable = candle_core::Var::new(&[[[[1f32, 2.]]]], &Device::Cpu).unwrap();
        let keys = Tensor::new(&[[[[3f32, f32::NAN], [4., f32::NEG_INFINITY]]]], &Device::Cpu).unwrap(); // transposed
        for asking in [Asking::Free, Asking::Waits] {
            let scores = scores(asking, variable.as_tensor(), &keys, product).unwrap();
            assert!(numbers(&scores)[0] == 11. && numbers(&scores)[1].is_nan());
            let seen = scores.narrow(3, 0, 1).unwrap().pad_with_zeros(3, 0, 1).unwrap();
            let grads = seen.sum_all().unwrap().backward().unwrap();
            assert_eq!(numbers(grads.get(&variable).unwrap()), [3., 4.]);
        }
    }
}
