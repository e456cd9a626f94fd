//! NEON, which every 64-bit Arm processor that Rust supports has.

use std::arch::aarch64::*;

use super::simd::Simd;

/// NEON.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Neon(());

impl Neon {
    pub(super) fn new() -> Option<Self> {
        std::arch::is_aarch64_feature_detected!("neon").then_some(Self(()))
    }
}

// SAFETY: `load` and `store` touch exactly 4 numbers. In every method: `self` exists only after the check in `new`, so
// the processor has the instructions.
unsafe impl Simd for Neon {
    type V = float32x4_t;
    const LANES: usize = 4;

    #[inline(always)]
    fn splat(self, x: f32) -> float32x4_t {
        // SAFETY: see above; so for all methods of this block.
        unsafe { vdupq_n_f32(x) }
    }
    #[inline(always)]
    fn add(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: `self` is the proof.
        unsafe { vaddq_f32(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: `self` is the proof.
        unsafe { vsubq_f32(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: `self` is the proof.
        unsafe { vmulq_f32(a, b) }
    }
    #[inline(always)]
    fn mul_add(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        // SAFETY: `self` is the proof.
        unsafe { vfmaq_f32(c, a, b) }
    }
    #[inline(always)]
    fn div(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: `self` is the proof.
        unsafe { vdivq_f32(a, b) }
    }
    #[inline(always)]
    fn min(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: `self` is the proof.
        unsafe { vminq_f32(a, b) }
    }
    #[inline(always)]
    fn max(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: `self` is the proof.
        unsafe { vmaxq_f32(a, b) }
    }
    #[inline(always)]
    fn round(self, a: float32x4_t) -> float32x4_t {
        // SAFETY: `self` is the proof.
        unsafe { vrndnq_f32(a) }
    }
    #[inline(always)]
    fn scale_by_power(self, a: float32x4_t, n: float32x4_t) -> float32x4_t {
        // SAFETY: `self` is the proof.
        unsafe {
            let exponent = vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127));
            vmulq_f32(a, vreinterpretq_f32_s32(vshlq_n_s32::<23>(exponent)))
        }
    }
    #[inline(always)]
    fn zero_below(self, x: float32x4_t, limit: float32x4_t, y: float32x4_t) -> float32x4_t {
        // SAFETY: `self` is the proof.
        unsafe { vbslq_f32(vcltq_f32(x, limit), vdupq_n_f32(0.0), y) }
    }
    #[inline(always)]
    fn sum(self, a: float32x4_t) -> f32 {
        // SAFETY: `self` is the proof.
        unsafe { vaddvq_f32(a) }
    }
    #[inline(always)]
    fn largest(self, a: float32x4_t) -> f32 {
        // SAFETY: `self` is the proof.
        unsafe { vmaxvq_f32(a) }
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> float32x4_t {
        // SAFETY: the caller promises 4 numbers; `self` is the proof.
        unsafe { vld1q_f32(from) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, a: float32x4_t) {
        // SAFETY: the caller promises room for 4 numbers; `self` is the proof.
        unsafe { vst1q_f32(to, a) }
    }
}
