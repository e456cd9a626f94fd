//! 8-bit products by NEON: widening multiplications, on every 64-bit Arm processor.

use std::arch::aarch64::*;

use super::dot::Int8Vectors;
use crate::isa::neon::Neon;

/// Register tile: 4 × 2 sums take 16 of the 32 registers, because a sum takes two. Each step has 32 instructions for
/// products and 6 loads.
pub(crate) const MR: usize = 4;
pub(crate) const NR: usize = 2;
pub(crate) const BLOCK_MR: usize = 2;

// SAFETY: both loads read 16 bytes.
unsafe impl Int8Vectors for Neon {
    type S = Neon;
    type Input = i8;
    const OFFSET: u8 = 0;
    const NIBBLE_OFFSET: u8 = 0;
    /// Two neighboring values add up to a sum: those of the first two outputs, and those of the others.
    type Sums = [int32x4_t; 2];
    type Weights = int8x16_t;

    #[inline(always)]
    fn simd(self) -> Neon {
        self
    }
    #[inline(always)]
    fn splat(self, start: i32) -> Self::Sums {
        let start = [start, 0, start, 0];
        // SAFETY: the array has 4 values; `self` proves that the processor has NEON.
        unsafe { [vld1q_s32(start.as_ptr()); 2] }
    }
    #[inline(always)]
    fn to_f32(self, [first, second]: Self::Sums) -> float32x4_t {
        // SAFETY: `self` proves that the processor has NEON.
        unsafe { vcvtq_f32_s32(vpaddq_s32(first, second)) }
    }
    #[inline(always)]
    fn dot(self, [first, second]: Self::Sums, weights: int8x16_t, x: i32) -> Self::Sums {
        // SAFETY: `self` proves that the processor has NEON.
        unsafe {
            let x = vreinterpretq_s8_s32(vdupq_n_s32(x));
            let products = [vmull_s8(vget_low_s8(weights), vget_low_s8(x)), vmull_high_s8(weights, x)];
            [vpadalq_s16(first, products[0]), vpadalq_s16(second, products[1])]
        }
    }
    #[inline(always)]
    unsafe fn load(self, from: *const u8) -> int8x16_t {
        // SAFETY: the caller promises 16 bytes; `self` proves that the processor has NEON.
        unsafe { vld1q_s8(from.cast()) }
    }
    #[inline(always)]
    unsafe fn load_nibbles(self, from: *const u8) -> [int8x16_t; 2] {
        // SAFETY: the caller's promise.
        unsafe { nibbles(self.load(from)) }
    }
}

/// The low nibbles and the high nibbles, each extended by its sign.
#[inline(always)]
pub(super) fn nibbles(bytes: int8x16_t) -> [int8x16_t; 2] {
    // SAFETY: every target of this architecture with a standard library has NEON.
    unsafe { [vshrq_n_s8::<4>(vshlq_n_s8::<4>(bytes)), vshrq_n_s8::<4>(bytes)] }
}
