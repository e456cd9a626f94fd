//! Conversion between f16 and f32 by NEON.

use std::arch::aarch64::*;
use std::arch::asm;
use std::mem::MaybeUninit;

use half::f16;

/// Converts four values of f16 to f32.
///
/// The conversion is part of NEON, unlike f16 arithmetic, but has no intrinsic on stable Rust.
///
/// # Safety
/// The processor has NEON.
#[inline(always)]
pub(super) unsafe fn widen_f16(halves: uint16x4_t) -> float32x4_t {
    let wide: float32x4_t;
    // SAFETY: the caller promises NEON; the instruction accesses registers only.
    unsafe { asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) wide, in(vreg) halves, options(pure, nomem, nostack)) };
    wide
}

/// Converts f16 to f32. Both slices have the same length.
#[inline(always)]
pub(crate) fn f16_to_f32(from: &[f16], to: &mut [f32]) {
    convert_by_four(from, to, f16::ZERO, |from| {
        let mut to = [0.0; 4];
        // SAFETY: every target of this architecture with a standard library has NEON; 4 values are read and written.
        unsafe {
            vst1q_f32(to.as_mut_ptr(), widen_f16(vld1_u16(from.as_ptr().cast())));
        }
        to
    });
}

/// Rounds f32 to the nearest f16, ties to even. Both slices have the same length.
#[inline(always)]
pub(crate) fn f32_to_f16(from: &[f32], to: &mut [MaybeUninit<f16>]) {
    convert_by_four(from, to, 0.0, |from| {
        let mut to = [f16::ZERO; 4];
        // SAFETY: every target of this architecture with a standard library has NEON; 4 values are read and written.
        unsafe {
            let narrow: uint16x4_t;
            let from = vld1q_f32(from.as_ptr());
            asm!("fcvtn {0:v}.4h, {1:v}.4s", out(vreg) narrow, in(vreg) from, options(pure, nomem, nostack));
            vst1_u16(to.as_mut_ptr().cast(), narrow);
        }
        to.map(MaybeUninit::new)
    });
}

/// Converts four values at a time; the last four are filled up with `zero`.
#[inline(always)]
fn convert_by_four<A: Copy, B: Copy>(from: &[A], to: &mut [B], zero: A, convert: impl Fn(&[A; 4]) -> [B; 4]) {
    let ((from, from_rest), (to, to_rest)) = (from.as_chunks(), to.as_chunks_mut());
    to.iter_mut().zip(from).for_each(|(to, from)| *to = convert(from));
    if !from_rest.is_empty() {
        let last = std::array::from_fn(|i| from_rest.get(i).copied().unwrap_or(zero));
        to_rest.copy_from_slice(&convert(&last)[..to_rest.len()]);
    }
}
