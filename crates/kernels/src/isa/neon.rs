//! NEON: 32 registers of 4 values, on every 64-bit Arm processor that Rust supports.

use std::arch::aarch64::*;
use std::arch::asm;

use bytemuck::Zeroable;
use half::{bf16, f16};

use super::kernel::{InstructionSet, Kernel};
use super::neon_f16::widen_f16;
use super::simd::{MAX_LANES, Simd, memory_ops, register_ops};
use crate::convert::Convert;

/// NEON.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Neon(());

/// Register tile: 6 × 3 sums, 3 vectors of B and the values of A, which the compiler loads for several rows at once,
/// take 22 to 27 of the 32 registers; with 8 × 3 sums some of them would be kept in memory. Each step has 18
/// multiply-adds and 9 loads, and 18 independent sums hide the latency of 4 cycles on the four ports of the widest
/// cores.
const MR: usize = 6;
const NR: usize = 3;

impl InstructionSet for Neon {
    const NAME: &'static str = "neon";

    fn detect() -> Option<Self> {
        std::arch::is_aarch64_feature_detected!("neon").then_some(Self(()))
    }

    fn speed() -> u32 {
        4
    }

    /// The target enables NEON everywhere, so no function with a target feature is needed.
    fn run<K: Kernel>(self, kernel: K) {
        kernel.run::<_, MR, NR>(self);
    }
}

/// FEAT_DotProd and NEON: SDOT multiplies 8-bit integers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NeonDotprod(pub(crate) Neon);

impl InstructionSet for NeonDotprod {
    const NAME: &'static str = "neon_dotprod";
    const F32_NAME: &'static str = Neon::NAME;

    fn detect() -> Option<Self> {
        let has_dotprod = std::arch::is_aarch64_feature_detected!("dotprod");
        Neon::detect().filter(|_| has_dotprod).map(Self)
    }

    /// SDOT: 16 multiply-adds.
    fn speed() -> u32 {
        16
    }

    fn run<K: Kernel>(self, kernel: K) {
        self.0.run(kernel);
    }
}

// SAFETY: `load` and `store` access exactly 4 values.
unsafe impl Simd for Neon {
    type V = float32x4_t;
    const LANES: usize = 4;
    const SUMS: usize = MR * NR;

    register_ops! {
        (f32) -> float32x4_t:
            splat(x) = vdupq_n_f32(x);
        (float32x4_t) -> float32x4_t:
            add(a, b) = vaddq_f32(a, b);
            sub(a, b) = vsubq_f32(a, b);
            mul(a, b) = vmulq_f32(a, b);
            mul_add(a, b, c) = vfmaq_f32(c, a, b);
            div(a, b) = vdivq_f32(a, b);
            min(a, b) = vminq_f32(a, b);
            max(a, b) = vmaxq_f32(a, b);
            round(a) = vrndnq_f32(a);
            ldexp(a, n) = {
                let exponent = vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127));
                vmulq_f32(a, vreinterpretq_f32_s32(vshlq_n_s32::<23>(exponent)))
            };
            zero_below(x, limit, y) = vbslq_f32(vcltq_f32(x, limit), vdupq_n_f32(0.0), y);
        (float32x4_t) -> f32:
            reduce_add(a) = vaddvq_f32(a);
            reduce_max(a) = vmaxvq_f32(a);
    }

    #[inline(always)]
    unsafe fn transposed<T: Convert>(self, rows: &[*const T; MAX_LANES]) -> [float32x4_t; MAX_LANES] {
        // SAFETY: the caller promises 4 values at each of 4 rows; `self` proves that the processor has NEON.
        unsafe {
            let (a, b) = (self.load_as(rows[0]), self.load_as(rows[1]));
            let (c, d) = (self.load_as(rows[2]), self.load_as(rows[3]));
            let [ac, bd] = [vzip1q_f32(a, c), vzip1q_f32(b, d)];
            let [ac_high, bd_high] = [vzip2q_f32(a, c), vzip2q_f32(b, d)];
            let mut columns: [_; MAX_LANES] = Zeroable::zeroed();
            columns[0] = vzip1q_f32(ac, bd);
            columns[1] = vzip2q_f32(ac, bd);
            columns[2] = vzip1q_f32(ac_high, bd_high);
            columns[3] = vzip2q_f32(ac_high, bd_high);
            columns
        }
    }
    const PREFETCHES: bool = true;
    #[inline(always)]
    fn prefetch(self, at: *const f32) {
        // SAFETY: a prefetch never faults, and changes no register. It has no intrinsic on stable Rust.
        unsafe { asm!("prfm pldl1keep, [{0}]", in(reg) at, options(readonly, nostack, preserves_flags)) };
    }
    memory_ops! {
        load(from: *const f32) -> float32x4_t = vld1q_f32(from);
        store(to: *mut f32, a: float32x4_t) = vst1q_f32(to, a);
        load_f16(from: *const f16) -> float32x4_t = widen_f16(vld1_u16(from.cast()));
        load_bf16(from: *const bf16) -> float32x4_t = vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(from.cast())));
        load_i8(from: *const i8) -> float32x4_t = {
            let bytes = vcreate_s8(u64::from(from.cast::<u32>().read_unaligned()));
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))))
        };
    }
    #[inline(always)]
    unsafe fn gather(self, from: *const f32, step: usize, indices: *const u32) -> float32x4_t {
        // SAFETY: the caller promises 4 indices and the values at their places.
        let gathered: [f32; 4] = std::array::from_fn(|i| unsafe { *from.add(i * step + *indices.add(i) as usize) });
        // SAFETY: the array has 4 values; `self` proves that the processor has NEON.
        unsafe { vld1q_f32(gathered.as_ptr()) }
    }
}
