//! NEON, which every 64-bit Arm processor that Rust supports has.

use std::arch::aarch64::*;
use std::arch::asm;
use std::mem::MaybeUninit;

use half::f16;

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

/// f16 to f32; both slices are of one length. The instruction is NEON's own, unlike arithmetic in f16, but has no
/// intrinsic on stable Rust.
#[inline(always)]
pub(super) fn widen_f16(from: &[f16], to: &mut [f32]) {
    in_fours(from, to, f16::ZERO, |from| {
        let mut to = [0.0; 4];
        // SAFETY: every target of this architecture with a standard library has NEON; four numbers are read and written.
        unsafe {
            let wide: float32x4_t;
            let from = vld1_u16(from.as_ptr().cast());
            asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) wide, in(vreg) from, options(pure, nomem, nostack));
            vst1q_f32(to.as_mut_ptr(), wide);
        }
        to
    });
}

/// f32 to the nearest f16, ties to even; both slices are of one length.
#[inline(always)]
pub(super) fn narrow_to_f16(from: &[f32], to: &mut [MaybeUninit<f16>]) {
    in_fours(from, to, 0.0, |from| {
        let mut to = [f16::ZERO; 4];
        // SAFETY: as above.
        unsafe {
            let narrow: uint16x4_t;
            let from = vld1q_f32(from.as_ptr());
            asm!("fcvtn {0:v}.4h, {1:v}.4s", out(vreg) narrow, in(vreg) from, options(pure, nomem, nostack));
            vst1_u16(to.as_mut_ptr().cast(), narrow);
        }
        to.map(MaybeUninit::new)
    });
}

/// Converts four at a time, the last ones filled up with `zero`.
#[inline(always)]
fn in_fours<A: Copy, B: Copy>(from: &[A], to: &mut [B], zero: A, convert: impl Fn(&[A; 4]) -> [B; 4]) {
    let ((from, from_rest), (to, to_rest)) = (from.as_chunks(), to.as_chunks_mut());
    to.iter_mut().zip(from).for_each(|(to, from)| *to = convert(from));
    if !from_rest.is_empty() {
        let last = std::array::from_fn(|i| from_rest.get(i).copied().unwrap_or(zero));
        to_rest.copy_from_slice(&convert(&last)[..to_rest.len()]);
    }
}
