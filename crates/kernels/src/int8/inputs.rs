//! Inputs of a product, rounded to int8.

use super::dot::Int8Dot;
use super::encode::MAX_INT8;
use crate::isa::simd::{MAX_LANES, Simd};

/// Adding 1.5 · 2^23 rounds to the nearest integer, ties to even, which is then in the low bits: for magnitudes below
/// 2^22.
const MAGIC: f32 = 12_582_912.0;

/// Rounds inputs that share a scale to integers from -127 to 127, and fills the rest of `to` with zeros. Returns the
/// scale and the sum of the integers.
///
/// The scale is NaN if an input is not finite, so that everything that depends on it becomes NaN. It is at least the
/// smallest normal number, so inputs far below that are 0; and 0 if all inputs are.
#[inline(always)]
pub(super) fn quantize<D: Int8Dot>(dot: D, from: &[f32], to: &mut [i8]) -> (f32, i32) {
    let s = dot.simd();
    let (to, padding) = to.split_at_mut(from.len());
    padding.fill(0);
    let largest = largest_magnitude(s, from);
    if largest == 0.0 {
        to.fill(0);
        return (if from.iter().all(|x| *x == 0.0) { 0.0 } else { f32::NAN }, 0);
    }
    let scale = (largest / MAX_INT8).max(f32::MIN_POSITIVE);
    let (inverse, magic) = (s.splat(1.0 / scale), s.splat(MAGIC));
    // Not fused, so that all instruction sets give the same bits.
    let round = |x: &[f32]| s.add(s.mul(s.load_slice(x), inverse), magic);
    // Sums of integers below 2^24, which are exact in f32; NaN if an input is not finite: the inverse of infinity is 0.
    let mut sums = [s.splat(0.0); SUMS];
    let (blocks, rest) = from.split_at(from.len() / (SUMS * D::S::LANES) * (SUMS * D::S::LANES));
    let (to, to_rest) = to.split_at_mut(blocks.len());
    for (block, to) in blocks.chunks_exact(SUMS * D::S::LANES).zip(to.chunks_exact_mut(SUMS * D::S::LANES)) {
        let vectors = block.chunks_exact(D::S::LANES).zip(to.chunks_exact_mut(D::S::LANES));
        for (sum, (x, to)) in sums.iter_mut().zip(vectors) {
            let rounded = round(x);
            *sum = s.add(*sum, s.sub(rounded, magic));
            // SAFETY: the chunk has `LANES` bytes.
            unsafe { dot.store_low_bytes(to.as_mut_ptr(), rounded) };
        }
    }
    for (rest, to) in rest.chunks(D::S::LANES).zip(to_rest.chunks_mut(D::S::LANES)) {
        let (mut x, mut bytes) = ([0.0; MAX_LANES], [0; MAX_LANES]);
        x.iter_mut().zip(rest).for_each(|(x, rest)| *x = *rest);
        let rounded = round(&x);
        sums[0] = s.add(sums[0], s.sub(rounded, magic));
        // SAFETY: there are `MAX_LANES` bytes.
        unsafe { dot.store_low_bytes(bytes.as_mut_ptr(), rounded) };
        to.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
    }
    let sum = s.reduce_add(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])));
    (if sum.is_nan() { f32::NAN } else { scale }, sum as i32)
}

/// Vectors that are summed or compared side by side: one alone would wait for each operation before the next.
const SUMS: usize = 4;

/// The largest magnitude of the values that are not NaN. (NEON: NaN if one is.)
#[inline(always)]
fn largest_magnitude<S: Simd>(s: S, values: &[f32]) -> f32 {
    let zero = s.splat(0.0);
    let (mut largest, mut least) = ([zero; SUMS], [zero; SUMS]);
    let (blocks, rest) = values.split_at(values.len() / (SUMS * S::LANES) * (SUMS * S::LANES));
    for block in blocks.chunks_exact(SUMS * S::LANES) {
        for (i, x) in block.chunks_exact(S::LANES).enumerate() {
            let x = s.load_slice(x);
            (largest[i], least[i]) = (s.max(x, largest[i]), s.min(x, least[i]));
        }
    }
    for rest in rest.chunks(S::LANES) {
        let mut x = [0.0; MAX_LANES];
        x.iter_mut().zip(rest).for_each(|(x, rest)| *x = *rest);
        let x = s.load_slice(&x);
        (largest[0], least[0]) = (s.max(x, largest[0]), s.min(x, least[0]));
    }
    for i in 1..SUMS {
        (largest[0], least[0]) = (s.max(largest[i], largest[0]), s.min(least[i], least[0]));
    }
    s.reduce_max(s.max(largest[0], s.sub(zero, least[0])))
}
