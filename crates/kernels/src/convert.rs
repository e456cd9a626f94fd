//! Conversion between f32, in which kernels compute, and the dtypes that they read and write.

use std::mem::MaybeUninit;

use half::{bf16, f16};

#[cfg(target_arch = "aarch64")]
use super::isa::neon_f16;

/// Two neighboring terms of a sum, the first in the low half.
pub(crate) type Pair = u32;

/// The numbers of pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PairFormat {
    Bf16,
    F16,
}

impl PairFormat {
    /// Rounds a value.
    pub(crate) fn bits(self, value: f32) -> u16 {
        match self {
            Self::Bf16 => bf16::from_f32(value).to_bits(),
            Self::F16 => f16::from_f32(value).to_bits(),
        }
    }

    /// The value of 16 bits.
    pub(crate) fn value(self, bits: u16) -> f32 {
        match self {
            Self::Bf16 => bf16_to_f32(bf16::from_bits(bits)),
            Self::F16 => f16_to_f32(f16::from_bits(bits)),
        }
    }

    /// Rounds two values to a pair.
    pub(crate) fn pair(self, first: f32, second: f32) -> Pair {
        u32::from(self.bits(first)) | u32::from(self.bits(second)) << 16
    }

    /// The values of a pair.
    pub(crate) fn values(self, pair: Pair) -> [f32; 2] {
        [pair as u16, (pair >> 16) as u16].map(|bits| self.value(bits))
    }
}

/// A dtype of stored values, with conversions that are inlined into the kernels.
pub(crate) trait Convert: bytemuck::Pod + Send + Sync {
    /// The format of its bits, if it has 16.
    const HALVES: Option<PairFormat>;
    /// Whether this is f32.
    const IS_F32: bool = Self::HALVES.is_none();
    /// Whether vectors of them are stored faster than by way of a slice in f32.
    const STORES_VECTORS: bool = false;
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

    /// The bits of the values, if they have 16 bits and are of a format.
    #[inline(always)]
    fn as_halves(format: PairFormat, values: &[Self]) -> Option<&[u16]> {
        (Self::HALVES == Some(format)).then(|| bytemuck::cast_slice(values))
    }
}

impl Convert for f32 {
    const HALVES: Option<PairFormat> = None;
    const STORES_VECTORS: bool = true;

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

/// Integers without their scale.
impl Convert for i8 {
    const HALVES: Option<PairFormat> = None;
    const IS_F32: bool = false;

    #[inline(always)]
    fn upcast(from: &[Self], to: &mut [f32]) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = f32::from(*from));
    }
    #[inline(always)]
    fn downcast(from: &[f32], to: &mut [MaybeUninit<Self>]) {
        to.iter_mut().zip(from).for_each(|(to, from)| _ = to.write(*from as i8));
    }
}

/// Converted by `half`, which uses the processor's instructions. On Arm it asks for an extension that the conversion
/// does not need, so NEON is used directly.
impl Convert for f16 {
    const HALVES: Option<PairFormat> = Some(PairFormat::F16);

    #[inline(always)]
    fn upcast(from: &[Self], to: &mut [f32]) {
        #[cfg(target_arch = "aarch64")]
        neon_f16::f16_to_f32(from, to);
        #[cfg(not(target_arch = "aarch64"))]
        half::slice::HalfFloatSliceExt::convert_to_f32_slice(from, to);
    }
    #[inline(always)]
    fn downcast(from: &[f32], to: &mut [MaybeUninit<Self>]) {
        #[cfg(target_arch = "aarch64")]
        neon_f16::f32_to_f16(from, to);
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
    const HALVES: Option<PairFormat> = Some(PairFormat::Bf16);
    const STORES_VECTORS: bool = true;

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
}

/// Makes pairs of neighboring values, and fills the rest of `to` with zeros.
#[inline(always)]
pub(crate) fn copy_pairs(from: &[u16], to: &mut [Pair]) {
    let (pairs, rest) = from.as_chunks::<2>();
    let (whole, to_rest) = to.split_at_mut(pairs.len());
    let (to_last, zeros) = to_rest.split_at_mut(rest.len());
    let pair = |[first, second]: [u16; 2]| u32::from(first) | u32::from(second) << 16;
    let ((blocks, pairs), (to_blocks, to_pairs)) = (pairs.as_chunks::<CHUNK>(), whole.as_chunks_mut::<CHUNK>());
    for (to, block) in to_blocks.iter_mut().zip(blocks) {
        // One move of a vector: the compiler does not merge halves to vectors of pairs.
        *to = if cfg!(target_endian = "little") { bytemuck::cast(*block) } else { block.map(pair) };
    }
    for (to, halves) in to_pairs.iter_mut().zip(pairs) {
        *to = pair(*halves);
    }
    to_last.iter_mut().zip(rest).for_each(|(to, last)| *to = u32::from(*last));
    zeros.fill(0);
}

/// Exact, also for subnormal numbers: a NaN stays one. Without a branch, so that the compiler vectorizes it.
#[inline(always)]
pub(crate) fn f16_to_f32(x: f16) -> f32 {
    const SIGN: u32 = 0x8000;
    const EXPONENT: u32 = 0x7c00;
    let bits = u32::from(x.to_bits());
    // The exponent of f32 is larger by 112. That of infinity and NaN becomes 143, to which all bits are added.
    let finite = f32::from_bits((bits & !SIGN) << 13) * f32::from_bits((112 + 127) << 23);
    let infinite = if bits & EXPONENT == EXPONENT { f32::INFINITY.to_bits() } else { 0 };
    f32::from_bits(finite.to_bits() | infinite | (bits & SIGN) << 16)
}

#[inline(always)]
pub(crate) fn bf16_to_f32(x: bf16) -> f32 {
    f32::from_bits(u32::from(x.to_bits()) << 16)
}

/// Rounds to nearest, ties to even.
#[inline(always)]
pub(crate) fn f32_to_bf16(x: f32) -> bf16 {
    const QUIET: u32 = 0x0040_0000;
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    bf16::from_bits((if x.is_nan() { bits | QUIET } else { rounded } >> 16) as u16)
}
