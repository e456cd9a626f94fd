//! Conversion between f32, in which kernels compute, and the dtypes that they read and write.

use std::mem::MaybeUninit;

use half::{bf16, f16};

use super::isa::bf16_dot::{Bf16Dot, Bf16x2};
#[cfg(target_arch = "aarch64")]
use super::isa::neon;

/// A dtype of stored values, with conversions that are inlined into the kernels.
pub(crate) trait Convert: bytemuck::Pod + Send + Sync {
    /// Whether this is f32.
    const IS_F32: bool = false;
    /// Zero.
    const ZERO: Self;

    /// Converts to f32, which is exact. Both slices have the same length.
    fn upcast(from: &[Self], to: &mut [f32]);
    /// Rounds from f32 to nearest, ties to even. Both slices have the same length.
    fn downcast(from: &[f32], to: &mut [MaybeUninit<Self>]);

    /// The values in f32: `from` itself, or upcast into `buffer`, which is at least as long.
    #[inline(always)]
    fn as_f32<'a>(from: &'a [Self], buffer: &'a mut [f32]) -> &'a [f32] {
        let buffer = &mut buffer[..from.len()];
        Self::upcast(from, buffer);
        buffer
    }

    /// Rounds the values to bf16 pairs and fills the rest of `to` with zeros. `buffer` is at least as long as `from`.
    #[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code))]
    #[inline(always)]
    fn to_bf16x2<D: Bf16Dot>(dot: D, from: &[Self], buffer: &mut [f32], to: &mut [Bf16x2]) {
        dot.round_to_bf16(Self::as_f32(from, buffer), to);
    }
}

impl Convert for f32 {
    const IS_F32: bool = true;
    const ZERO: Self = 0.0;

    #[inline(always)]
    fn upcast(from: &[Self], to: &mut [f32]) {
        // The slices are short: a loop is inlined, `copy_from_slice` would be a call.
        to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    }
    #[inline(always)]
    fn downcast(from: &[f32], to: &mut [MaybeUninit<Self>]) {
        to.iter_mut().zip(from).for_each(|(to, from)| _ = to.write(*from));
    }
    #[inline(always)]
    fn as_f32<'a>(from: &'a [Self], _: &'a mut [f32]) -> &'a [f32] {
        from
    }
}

/// Converted by `half`, which uses the processor's instructions. On Arm it asks for an extension that the conversion
/// does not need, so NEON is used directly.
impl Convert for f16 {
    const ZERO: Self = f16::ZERO;

    #[inline(always)]
    fn upcast(from: &[Self], to: &mut [f32]) {
        #[cfg(target_arch = "aarch64")]
        neon::f16_to_f32(from, to);
        #[cfg(not(target_arch = "aarch64"))]
        half::slice::HalfFloatSliceExt::convert_to_f32_slice(from, to);
    }
    #[inline(always)]
    fn downcast(from: &[f32], to: &mut [MaybeUninit<Self>]) {
        #[cfg(target_arch = "aarch64")]
        neon::f32_to_f16(from, to);
        #[cfg(not(target_arch = "aarch64"))]
        downcast_by_half(from, to);
    }
}

#[cfg(not(target_arch = "aarch64"))]
fn downcast_by_half(from: &[f32], to: &mut [MaybeUninit<f16>]) {
    const BUFFER: usize = 64;
    let mut narrow = [f16::ZERO; BUFFER];
    for (from, to) in from.chunks(BUFFER).zip(to.chunks_mut(BUFFER)) {
        half::slice::HalfFloatSliceExt::convert_from_f32_slice(&mut narrow[..from.len()], from);
        to.iter_mut().zip(narrow).for_each(|(to, narrow)| _ = to.write(narrow));
    }
}

/// Values that are converted together: as many as a vector holds, so that short slices are converted by vectors, too.
const CHUNK: usize = 16;

/// Converted by integer arithmetic, which the compiler vectorizes for the instruction set of the kernel around it.
impl Convert for bf16 {
    const ZERO: Self = bf16::ZERO;

    #[inline(always)]
    fn upcast(from: &[Self], to: &mut [f32]) {
        let ((from, from_rest), (to, to_rest)) = (from.as_chunks::<CHUNK>(), to.as_chunks_mut::<CHUNK>());
        for (from, to) in from.iter().zip(to) {
            for i in 0..CHUNK {
                to[i] = bf16_to_f32(from[i]);
            }
        }
        to_rest.iter_mut().zip(from_rest).for_each(|(to, from)| *to = bf16_to_f32(*from));
    }
    #[inline(always)]
    fn downcast(from: &[f32], to: &mut [MaybeUninit<Self>]) {
        let ((from, from_rest), (to, to_rest)) = (from.as_chunks::<CHUNK>(), to.as_chunks_mut::<CHUNK>());
        for (from, to) in from.iter().zip(to) {
            for i in 0..CHUNK {
                to[i].write(f32_to_bf16(from[i]));
            }
        }
        to_rest.iter_mut().zip(from_rest).for_each(|(to, from)| _ = to.write(f32_to_bf16(*from)));
    }
    #[inline(always)]
    fn to_bf16x2<D: Bf16Dot>(_: D, from: &[Self], _: &mut [f32], to: &mut [Bf16x2]) {
        let (pairs, rest) = from.as_chunks::<2>();
        let (whole, zeros) = to.split_at_mut(from.len().div_ceil(2));
        for (to, pair) in whole.iter_mut().zip(pairs) {
            // The compiler merges this into one load.
            *to = u32::from(pair[0].to_bits()) | u32::from(pair[1].to_bits()) << 16;
        }
        if let [last] = rest {
            whole[pairs.len()] = u32::from(last.to_bits());
        }
        zeros.fill(0);
    }
}

#[inline(always)]
fn bf16_to_f32(x: bf16) -> f32 {
    f32::from_bits(u32::from(x.to_bits()) << 16)
}

#[inline(always)]
fn f32_to_bf16(x: f32) -> bf16 {
    const QUIET: u32 = 0x0040_0000;
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    bf16::from_bits((if x.is_nan() { bits | QUIET } else { rounded } >> 16) as u16)
}
