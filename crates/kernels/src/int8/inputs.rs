//! Inputs of a product, rounded to int8.

use super::encode::MAX_INT8;

/// Values that are rounded together. The compiler makes vectors of them, for the instruction set of the kernel around.
const CHUNK: usize = 16;

/// Adding 1.5 · 2^23 leaves the nearest integer in the low bits, ties to even, for magnitudes below 2^22.
const MAGIC: f32 = 12_582_912.0;

/// Rounds inputs that share a scale to integers from -127 to 127, and fills the rest of `to` with zeros. Returns the
/// scale and the sum of the integers.
///
/// The scale is NaN if an input is not finite, so that everything that depends on it becomes NaN. It is at least the
/// smallest normal number, so inputs far below that are 0; and 0 if all inputs are.
#[inline(always)]
pub(super) fn quantize(from: &[f32], to: &mut [i8]) -> (f32, i32) {
    let largest = largest_magnitude(from);
    let (to, padding) = to.split_at_mut(from.len());
    padding.fill(0);
    if !largest.is_finite() || largest == 0.0 {
        to.fill(0);
        return (if largest == 0.0 { 0.0 } else { f32::NAN }, 0);
    }
    let scale = (largest / MAX_INT8).max(f32::MIN_POSITIVE);
    let inverse = 1.0 / scale;
    let round = |x: f32| (x * inverse + MAGIC).to_bits().cast_signed().wrapping_sub(MAGIC.to_bits().cast_signed());
    let ((from, from_rest), (to, to_rest)) = (from.as_chunks::<CHUNK>(), to.as_chunks_mut::<CHUNK>());
    let mut sums = [0i32; CHUNK];
    for (from, to) in from.iter().zip(to) {
        for i in 0..CHUNK {
            let rounded = round(from[i]);
            to[i] = rounded as i8;
            sums[i] += rounded;
        }
    }
    let mut sum = sums.into_iter().sum();
    for (x, to) in from_rest.iter().zip(to_rest) {
        let rounded = round(*x);
        *to = rounded as i8;
        sum += rounded;
    }
    (scale, sum)
}

/// The largest magnitude; NaN if there is one. Without their sign, the bits of floating-point numbers are ordered as the
/// numbers are, with infinity above them and NaN at the end.
#[inline(always)]
fn largest_magnitude(values: &[f32]) -> f32 {
    let magnitude = |x: f32| (x.to_bits() & 0x7fff_ffff).cast_signed();
    let (chunks, rest) = values.as_chunks::<CHUNK>();
    let mut largest = [0i32; CHUNK];
    for chunk in chunks {
        for i in 0..CHUNK {
            largest[i] = largest[i].max(magnitude(chunk[i]));
        }
    }
    let largest = largest.into_iter().chain(rest.iter().map(|x| magnitude(*x))).max();
    f32::from_bits(largest.unwrap_or(0).cast_unsigned())
}
