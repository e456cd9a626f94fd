//! Single passes over rows of activations.

use rayon::prelude::*;

use super::isa::{Isa, Kernel};
use super::simd::Simd;

/// Rows that one thread takes at a time.
const CHUNK: usize = 64;

/// Layer normalisation of `xs`, or of `xs + add`, in place: rows of `weight.len()` numbers, each centred before its
/// variance is taken.
pub(crate) fn add_norm(isa: Isa, xs: &mut [f32], add: Option<&[f32]>, weight: &[f32], bias: &[f32], eps: f32) {
    let width = weight.len();
    assert!(bias.len() == width && xs.len().is_multiple_of(width.max(1)), "rows of the norm's width");
    assert!(add.is_none_or(|add| add.len() == xs.len()), "as many numbers to add");
    let norm = |(chunk, xs): (usize, &mut [f32])| {
        let at = chunk * CHUNK * width;
        let add = add.map(|add| &add[at..at + xs.len()]);
        isa.run(Norm { xs, add, weight, bias, eps });
    };
    match xs.len() > 4 * CHUNK * width && rayon::current_num_threads() > 1 {
        true => xs.par_chunks_mut(CHUNK * width).enumerate().for_each(norm),
        false => xs.chunks_mut(CHUNK * width.max(1)).enumerate().for_each(norm),
    }
}

/// Some of the rows.
struct Norm<'a> {
    xs: &'a mut [f32],
    add: Option<&'a [f32]>,
    weight: &'a [f32],
    bias: &'a [f32],
    eps: f32,
}

impl Kernel for Norm<'_> {
    #[inline(always)]
    fn run<S: Simd, const MR: usize, const NR: usize>(self, s: S) {
        let Self { xs, add, weight, bias, eps } = self;
        let width = weight.len();
        for (row, xs) in xs.chunks_exact_mut(width).enumerate() {
            if let Some(add) = add {
                let add = &add[row * width..][..width];
                xs.iter_mut().zip(add).for_each(|(x, add)| *x += add);
            }
            let mean = sum(s, xs, 0.0, false) / width as f32;
            let variance = sum(s, xs, mean, true) / width as f32;
            let factor = 1.0 / (variance + eps).sqrt();
            for ((x, weight), bias) in xs.iter_mut().zip(weight).zip(bias) {
                *x = (*x - mean) * factor * weight + bias;
            }
        }
    }
}

/// `Σ (x - offset)`, or of the squares.
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
        // SAFETY: a chunk has `LANES` numbers.
        let x = s.sub(unsafe { s.load(vector.as_ptr()) }, offsets);
        sums = if squares { s.mul_add(x, x, sums) } else { s.add(sums, x) };
    }
    s.sum(sums) + rest
}
