//! Layer and RMS normalization, with the residual addition before it, in one pass over rows of activations.

use rayon::prelude::*;

use super::isa::Isa;
use super::isa::kernel::Kernel;
use super::isa::simd::Simd;
use crate::error::{Error, Result};

/// Rows that one thread takes at a time.
const ROW_CHUNK: usize = 64;

/// Normalization of `xs`, or of `xs + residual`, in place: layer normalization
/// ([Ba 2016](https://arxiv.org/abs/1607.06450)), or with `rms` the same without a mean
/// ([Zhang 2019](https://arxiv.org/abs/1910.07467)).
///
/// `xs` and `residual` are rows of `weight.len()` values. Values are centered before their squares are summed, so that
/// a large mean costs no precision.
///
/// # Errors
/// If the sizes differ.
pub(crate) fn residual_norm(
    isa: Isa,
    xs: &mut [f32],
    residual: Option<&[f32]>,
    weight: &[f32],
    bias: &[f32],
    eps: f32,
    rms: bool,
) -> Result<()> {
    let width = weight.len();
    if bias.len() != width {
        return Err(Error::shape("the bias of a norm", &[bias.len()], format!("[{width}]")));
    }
    if !xs.len().is_multiple_of(width) {
        return Err(Error::shape("the input of a norm", &[xs.len()], format!("rows of {width} values")));
    }
    if let Some(residual) = residual.filter(|residual| residual.len() != xs.len()) {
        return Err(Error::shape("the residual of a norm", &[residual.len()], format!("[{}]", xs.len())));
    }
    if xs.is_empty() {
        return Ok(());
    }
    let norm = |(chunk, xs): (usize, &mut [f32])| {
        let at = chunk * ROW_CHUNK * width;
        let residual = residual.map(|residual| &residual[at..at + xs.len()]);
        isa.run(ResidualNorm { xs, residual, weight, bias, eps, rms });
    };
    if xs.len() > 4 * ROW_CHUNK * width && rayon::current_num_threads() > 1 {
        xs.par_chunks_mut(ROW_CHUNK * width).enumerate().for_each(norm);
    } else {
        xs.chunks_mut(ROW_CHUNK * width).enumerate().for_each(norm);
    }
    Ok(())
}

struct ResidualNorm<'a> {
    xs: &'a mut [f32],
    residual: Option<&'a [f32]>,
    weight: &'a [f32],
    bias: &'a [f32],
    eps: f32,
    rms: bool,
}

impl Kernel for ResidualNorm<'_> {
    #[inline(always)]
    fn run<S: Simd, const MR: usize, const NR: usize>(self, s: S) {
        let Self { xs, residual, weight, bias, eps, rms } = self;
        let width = weight.len();
        for (row, xs) in xs.chunks_exact_mut(width).enumerate() {
            if let Some(residual) = residual {
                let residual = &residual[row * width..][..width];
                xs.iter_mut().zip(residual).for_each(|(x, residual)| *x += residual);
            }
            let mean = if rms { 0.0 } else { sum(s, xs, 0.0, false) / width as f32 };
            let variance = sum(s, xs, mean, true) / width as f32;
            let factor = 1.0 / (variance + eps).sqrt();
            for ((x, weight), bias) in xs.iter_mut().zip(weight).zip(bias) {
                *x = (*x - mean) * factor * weight + bias;
            }
        }
    }
}

/// `Σ (x - offset)`, or `Σ (x - offset)²` if `squares`.
#[inline(always)]
fn sum<S: Simd>(s: S, xs: &[f32], offset: f32, squares: bool) -> f32 {
    let (mut sums, offsets) = (s.splat(0.0), s.splat(offset));
    let vectors = xs.chunks_exact(S::LANES);
    let mut rest = 0.0;
    for x in vectors.remainder() {
        let x = x - offset;
        rest += if squares { x * x } else { x };
    }
    for vector in vectors {
        let x = s.sub(s.load_slice(vector), offsets);
        sums = if squares { s.mul_add(x, x, sums) } else { s.add(sums, x) };
    }
    s.reduce_add(sums) + rest
}
