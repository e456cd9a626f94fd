//! Layer and RMS normalization, with the residual addition before it, in one pass over rows of activations.

use bytemuck::Zeroable;

use super::error::{Error, Result};
use super::isa::kernel::Kernel;
use super::isa::simd::Simd;
use super::registry::Isa;
use super::team::Team;
use super::unroll::unroll;

/// Values that one thread takes at a time, in whole rows.
const TASK_VALUES: usize = 1 << 14;

/// The parameters of a normalization: layer normalization ([Ba 2016](https://arxiv.org/abs/1607.06450)), or with `rms`
/// the same without a mean ([Zhang 2019](https://arxiv.org/abs/1910.07467)).
#[derive(Debug, Clone, Copy)]
pub struct RowNorm<'a> {
    /// `(width)`.
    pub weight: &'a [f32],
    /// `(width)`.
    pub bias: &'a [f32],
    /// Added to the variance.
    pub eps: f32,
    /// Whether values are not centered.
    pub rms: bool,
}

impl RowNorm<'_> {
    /// Normalizes `xs`, or `xs + residual`, in place. `xs` and `residual` are rows of `weight.len()` values. Values are
    /// centered before their squares are summed, so that a large mean costs no precision.
    ///
    /// # Errors
    /// If the sizes differ.
    pub fn apply(self, isa: Isa, team: Team, xs: &mut [f32], residual: Option<&[f32]>) -> Result<()> {
        let width = self.weight.len();
        if self.bias.len() != width {
            return Err(Error::shape("the bias of a norm", &[self.bias.len()], format!("[{width}]")));
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
        let step = (TASK_VALUES / width).max(1) * width;
        team.try_for_chunks(xs, step, |task, xs| {
            let residual = residual.map(|residual| &residual[task * step..][..xs.len()]);
            isa.run(NormTask { norm: self, xs, residual });
            Ok(())
        })
    }
}

struct NormTask<'a> {
    norm: RowNorm<'a>,
    xs: &'a mut [f32],
    residual: Option<&'a [f32]>,
}

impl Kernel for NormTask<'_> {
    #[inline(always)]
    fn run<S: Simd, const MR: usize, const NR: usize>(self, s: S) {
        let Self { norm: RowNorm { weight, bias, eps, rms }, xs, residual } = self;
        let width = weight.len();
        let whole = width / S::LANES * S::LANES;
        for (row, xs) in xs.chunks_exact_mut(width).enumerate() {
            if let Some(residual) = residual {
                let residual = &residual[row * width..][..width];
                for (xs, residual) in xs.chunks_exact_mut(S::LANES).zip(residual.chunks_exact(S::LANES)) {
                    s.store_slice(xs, s.add(s.load_slice(xs), s.load_slice(residual)));
                }
                xs[whole..].iter_mut().zip(&residual[whole..]).for_each(|(x, residual)| *x += residual);
            }
            let mean = if rms { 0.0 } else { sum(s, xs, 0.0, false) / width as f32 };
            let variance = sum(s, xs, mean, true) / width as f32;
            let factor = 1.0 / (variance + eps).sqrt();
            let parameters = weight.chunks_exact(S::LANES).zip(bias.chunks_exact(S::LANES));
            for (xs, (weight, bias)) in xs.chunks_exact_mut(S::LANES).zip(parameters) {
                let normalized = s.mul(s.sub(s.load_slice(xs), s.splat(mean)), s.splat(factor));
                s.store_slice(xs, s.add(s.mul(normalized, s.load_slice(weight)), s.load_slice(bias)));
            }
            for ((x, weight), bias) in xs[whole..].iter_mut().zip(&weight[whole..]).zip(&bias[whole..]) {
                *x = (*x - mean) * factor * weight + bias;
            }
        }
    }
}

/// Sums that are added side by side: one alone would wait for each addition before the next.
const SUMS: usize = 4;

/// `Σ (x - offset)`, or `Σ (x - offset)²` if `squares`.
#[inline(always)]
fn sum<S: Simd>(s: S, xs: &[f32], offset: f32, squares: bool) -> f32 {
    let (mut sums, offsets): ([S::V; SUMS], _) = (Zeroable::zeroed(), s.splat(offset));
    let mut blocks = xs.chunks_exact(SUMS * S::LANES);
    for block in &mut blocks {
        unroll!(i in 0..SUMS => {
            let vector = s.load_slice(&block[i * S::LANES..]);
            sums[i] = add_term(s, sums[i], s.sub(vector, offsets), squares);
        });
    }
    let vectors = blocks.remainder().chunks_exact(S::LANES);
    let mut rest = 0.0;
    for x in vectors.remainder() {
        let x = x - offset;
        rest += if squares { x * x } else { x };
    }
    for vector in vectors {
        sums[0] = add_term(s, sums[0], s.sub(s.load_slice(vector), offsets), squares);
    }
    s.reduce_add(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3]))) + rest
}

/// `sum + x`, or `sum + x²` if `squares`.
#[inline(always)]
fn add_term<S: Simd>(s: S, sum: S::V, x: S::V, squares: bool) -> S::V {
    if squares { s.mul_add(x, x, sum) } else { s.add(sum, x) }
}
