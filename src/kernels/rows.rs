//! Single passes over rows of activations.

use rayon::prelude::*;

use super::isa::Isa;
use super::simd::{Portable, Simd};

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
        match isa {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the value in `isa` proves that the processor has AVX-512F.
            Isa::Avx512(s) => unsafe { avx512(s, xs, add, weight, bias, eps) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the value in `isa` proves that the processor has AVX2 and FMA.
            Isa::Avx2(s) => unsafe { avx2(s, xs, add, weight, bias, eps) },
            #[cfg(target_arch = "aarch64")]
            Isa::Neon(s) => rows_of(s, xs, add, weight, bias, eps),
            Isa::Portable => rows_of(Portable, xs, add, weight, bias, eps),
        }
    };
    match xs.len() > 4 * CHUNK * width && rayon::current_num_threads() > 1 {
        true => xs.par_chunks_mut(CHUNK * width).enumerate().for_each(norm),
        false => xs.chunks_mut(CHUNK * width.max(1)).enumerate().for_each(norm),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn avx512(s: super::x86::Avx512, xs: &mut [f32], add: Option<&[f32]>, weight: &[f32], bias: &[f32], eps: f32) {
    rows_of(s, xs, add, weight, bias, eps);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2(s: super::x86::Avx2, xs: &mut [f32], add: Option<&[f32]>, weight: &[f32], bias: &[f32], eps: f32) {
    rows_of(s, xs, add, weight, bias, eps);
}

#[inline(always)]
fn rows_of<S: Simd>(s: S, xs: &mut [f32], add: Option<&[f32]>, weight: &[f32], bias: &[f32], eps: f32) {
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
