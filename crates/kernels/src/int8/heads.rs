//! Heads in int8: keys and values of a cache, each head of a token with a scale of its own.
//!
//! The scale stands before the integers, in the same memory: a token is one row, which a cache moves as it is, and what
//! reads the first integers of a head alone finds the scale, too.

use super::encode::{MAGIC, MAX_INT8};

/// Bytes of the scale at the start of a head.
pub const SCALE_BYTES: usize = size_of::<f32>();

/// 127 times more is still finite.
const MAX_SCALE: f32 = f32::from_bits((f32::MAX / MAX_INT8).to_bits() - 1);

/// Rounds heads of `d` values to int8: the largest magnitude of a head becomes 127. Writes `4 + d` bytes for each. The
/// scale is at least the smallest normal number, so a head of smaller values is zeros.
///
/// # Errors
/// The index of the first value that is not finite. `to` then has other contents.
///
/// # Panics
/// If these are no whole heads, or `to` has another size.
pub fn quantize_heads(from: &[f32], d: usize, to: &mut [u8]) -> Result<(), usize> {
    assert!(d > 0 && from.len().is_multiple_of(d) && to.len() == from.len() / d * (SCALE_BYTES + d));
    for (i, (from, to)) in from.chunks_exact(d).zip(to.chunks_exact_mut(SCALE_BYTES + d)).enumerate() {
        // Compared as integers, so that the loop is vectorized: NaN and infinity are the largest.
        let largest = f32::from_bits(from.iter().fold(0, |largest, x| largest.max(x.abs().to_bits())));
        if !largest.is_finite() {
            let place = from.iter().position(|x| !x.is_finite()).unwrap_or(0);
            return Err(i * d + place);
        }
        let scale = (largest / MAX_INT8).clamp(f32::MIN_POSITIVE, MAX_SCALE);
        let (to_scale, integers) = to.split_at_mut(SCALE_BYTES);
        to_scale.copy_from_slice(&scale.to_ne_bytes());
        let inverse = 1.0 / scale;
        integers.iter_mut().zip(from).for_each(|(to, x)| *to = (x * inverse + MAGIC).to_bits() as u8);
    }
    Ok(())
}

/// The values of heads that [`quantize_heads`] has made: each integer times the scale.
///
/// # Panics
/// If these are no whole heads, or `to` has another size.
pub fn widen_heads(from: &[u8], d: usize, to: &mut [f32]) {
    assert!(d > 0 && to.len().is_multiple_of(d) && from.len() == to.len() / d * (SCALE_BYTES + d));
    for (from, to) in from.chunks_exact(SCALE_BYTES + d).zip(to.chunks_exact_mut(d)) {
        widen(bytemuck::cast_slice(from), to);
    }
}

/// The scale of a head.
#[inline(always)]
pub(crate) fn scale(head: &[i8]) -> f32 {
    f32::from_ne_bytes(std::array::from_fn(|i| head[i].cast_unsigned()))
}

/// Widens one head into `to`, which is at least as long, and returns its values.
#[inline(always)]
pub(crate) fn widen<'a>(head: &[i8], to: &'a mut [f32]) -> &'a mut [f32] {
    let (scale, integers) = (scale(head), &head[SCALE_BYTES..]);
    let to = &mut to[..integers.len()];
    to.iter_mut().zip(integers).for_each(|(to, x)| *to = f32::from(*x) * scale);
    to
}
