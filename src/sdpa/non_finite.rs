//! Keys and values that are not finite, under a mask, in tensor operations.
//!
//! What a hidden key holds has no influence, NaN and infinities included. Its weight is 0, but 0 · NaN is NaN: in the
//! product of weights and values, and in the gradients of queries and weights. So products are made of finite elements,
//! and what they left out is added, without a gradient, to the results that depend on it. On the CPU the extra products
//! are made only if an element is not finite. To ask a GPU would mean to wait for it; there, the keys that no query of a
//! sequence sees, such as padding, are replaced by zeros.

use candle_core::{DType, Tensor};

use crate::error::Result;
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

fn zeroed(xs: &Tensor, keep: &Tensor) -> Result<Tensor> {
    Ok(keep.broadcast_as(xs.shape())?.where_cond(xs, &xs.zeros_like()?)?)
}

/// `product(a, b)` `(b, h, s_q, keys)`, the scores of queries and keys. A gradient flows through finite elements only.
pub(super) fn scores(a: &Tensor, b: &Tensor, product: impl Fn(&Tensor, &Tensor) -> Result<Tensor>) -> Result<Tensor> {
    if !a.device().is_cpu() || (all_finite(a)? && all_finite(b)?) {
        return product(a, b);
    }
    let others = product(&a.detach(), &b.detach())?;
    let others = zeroed(&others, &finite(&others)?.eq(0u8)?)?;
    Ok((product(&zeroed(a, &finite(a)?)?, &zeroed(b, &finite(b)?)?)? + others)?)
}

/// `product(weights, values)`, `(b, h, s_q, d_v)`, for weights `(b, h, s_q, keys)` and values `(b, h_kv, keys, d_v)`. `keep`
/// broadcasts to the weights.
pub(super) fn context(
    weights: &Tensor,
    values: &Tensor,
    keep: &Tensor,
    product: impl Fn(&Tensor, &Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    if !values.device().is_cpu() || all_finite(values)? {
        return product(weights, values);
    }
    let kept = finite(values)?;
    let (clean, others) = (product(weights, &zeroed(values, &kept)?)?, product(&weights.detach(), &values.detach())?);
    let keep = keep.broadcast_as(weights.shape())?.to_dtype(weights.dtype())?;
    let depends = product(&keep, &kept.eq(0u8)?.to_dtype(values.dtype())?)?.ne(0f64)?;
    Ok((clean + zeroed(&others, &depends)?)?)
}

/// `xs` `(b, h_kv, keys, d)` with zeros in the keys that no query sees; `keep` broadcasts to `(b, h, s_q, keys)`.
pub(super) fn without_unseen(xs: &Tensor, keep: &Tensor) -> Result<Tensor> {
    let seen = keep.max_keepdim(1)?.max_keepdim(2)?; // (b|1, 1, 1, keys|1)
    zeroed(xs, &seen.transpose(2, 3)?)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    /// What GPUs do instead, on the CPU.
    #[test]
    fn keys_that_no_query_sees_become_zeros() {
        let keep = Tensor::new(&[[[[1u8, 0, 0]], [[0, 0, 1]]], [[[0, 0, 0]], [[1, 1, 1]]]], &Device::Cpu).unwrap();
        let xs = Tensor::new(&[1f32, f32::NAN, 3., 4., 5., f32::NAN], &Device::Cpu).unwrap();
        let got = without_unseen(&xs.reshape((2, 1, 3, 1)).unwrap(), &keep).unwrap();
        let got: Vec<f32> = got.flatten_all().unwrap().to_vec1().unwrap();
        assert_eq!(got[..5], [1., 0., 3., 4., 5.]);
        assert!(got[5].is_nan());
        // Shared by all keys.
        let got = without_unseen(&xs.reshape((2, 1, 3, 1)).unwrap(), &keep.narrow(3, 0, 1).unwrap()).unwrap();
        assert!(got.flatten_all().unwrap().to_vec1::<f32>().unwrap()[1].is_nan());
    }
}
