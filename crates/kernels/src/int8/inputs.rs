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
    let scale = match largest_magnitude(s, from) {
        Some(0.0) => 0.0,
        Some(largest) => (largest / MAX_INT8).max(f32::MIN_POSITIVE),
        None => f32::NAN,
    };
    if !(scale > 0.0) {
        to.fill(0);
        return (scale, 0);
    }
    let (inverse, magic) = (s.splat(1.0 / scale), s.splat(MAGIC));
    // Not fused, so that all instruction sets give the same bits.
    let round = |x: &[f32]| s.add(s.mul(s.load_slice(x), inverse), magic);
    let (whole, rest) = from.split_at(from.len() / D::S::LANES * D::S::LANES);
    let (to, to_rest) = to.split_at_mut(whole.len());
    // Sums of integers below 2^24, which are exact in f32.
    let mut sums = s.splat(0.0);
    for (x, to) in whole.chunks_exact(D::S::LANES).zip(to.chunks_exact_mut(D::S::LANES)) {
        let rounded = round(x);
        sums = s.add(sums, s.sub(rounded, magic));
        // SAFETY: the chunk has `LANES` bytes.
        unsafe { dot.store_low_bytes(to.as_mut_ptr(), rounded) };
    }
    if !rest.is_empty() {
        let (mut x, mut bytes) = ([0.0; MAX_LANES], [0; MAX_LANES]);
        x.iter_mut().zip(rest).for_each(|(x, rest)| *x = *rest);
        let rounded = round(&x);
        sums = s.add(sums, s.sub(rounded, magic));
        // SAFETY: there are `MAX_LANES` bytes.
        unsafe { dot.store_low_bytes(bytes.as_mut_ptr(), rounded) };
        to_rest.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
    }
    (scale, s.reduce_add(sums) as i32)
}

/// The largest magnitude; `None` if a value is not finite.
#[inline(always)]
fn largest_magnitude<S: Simd>(s: S, values: &[f32]) -> Option<f32> {
    let (zero, mut largest, mut zeros) = (s.splat(0.0), s.splat(0.0), s.splat(0.0));
    let mut add = |x: &[f32]| {
        let x = s.load_slice(x);
        largest = s.max(s.max(x, s.sub(zero, x)), largest);
        // NaN if `x` is not finite.
        zeros = s.add(zeros, s.sub(x, x));
    };
    let chunks = values.chunks_exact(S::LANES);
    let rest = chunks.remainder();
    chunks.for_each(&mut add);
    if !rest.is_empty() {
        let mut x = [0.0; MAX_LANES];
        x.iter_mut().zip(rest).for_each(|(x, rest)| *x = *rest);
        add(&x);
    }
    (s.reduce_add(zeros) == 0.0).then(|| s.reduce_max(largest))
}
