//! SIMD128 of WebAssembly: registers of 4 values.
//!
//! A vector is two registers, and there is no fused multiply-add: that of relaxed SIMD rounds once or twice, as the
//! processor likes. So sums have the terms, the order and the rounding of the portable instruction set, and all results
//! have the same bits, on every processor.
//!
//! A module with these instructions does not load where they are missing, so they are chosen when it is compiled.

use std::arch::wasm32::*;

use bytemuck::Zeroable;
use half::{bf16, f16};

use super::kernel::{InstructionSet, Kernel};
use super::simd::Simd;

/// SIMD128.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Simd128(());

/// Register tile: 4 × 1 vectors of sums are 8 registers; with one vector of B, one broadcast value of A and one
/// product, 12 of the 16 registers that engines have on x86-64 are used, and twice as many sums would not fit. 8
/// independent sums hide the latency of 4 cycles on two ports. Each step has 8 multiplications and 8 additions for 2
/// loads and 4 broadcasts.
const MR: usize = 4;
const NR: usize = 1;

impl InstructionSet for Simd128 {
    const NAME: &'static str = "simd128";

    fn detect() -> Option<Self> {
        Some(Self(()))
    }

    fn speed() -> u32 {
        2
    }

    fn run<K: Kernel>(self, kernel: K) {
        kernel.run::<_, MR, NR>(self);
    }
}

/// 8 values: the first 4 and the last 4.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pair(pub v128, pub v128);

// SAFETY: both vectors are numbers, whose bits may all be 0.
unsafe impl Zeroable for Pair {}

#[inline(always)]
fn on_both(a: Pair, b: Pair, op: impl Fn(v128, v128) -> v128) -> Pair {
    Pair(op(a.0, b.0), op(a.1, b.1))
}

/// f16 in the low bits of each lane to f32, as [`f16_to_f32`](crate::convert::f16_to_f32) does.
#[inline(always)]
fn widen_f16(bits: v128) -> v128 {
    let magnitude = u32x4_shl(v128_and(bits, u32x4_splat(0x7fff)), 13);
    let finite = f32x4_mul(magnitude, u32x4_splat((112 + 127) << 23));
    let exponent = u32x4_splat(0x7c00);
    let is_infinite = i32x4_eq(v128_and(bits, exponent), exponent);
    let infinite = v128_and(is_infinite, u32x4_splat(f32::INFINITY.to_bits()));
    v128_or(v128_or(finite, infinite), u32x4_shl(v128_and(bits, u32x4_splat(0x8000)), 16))
}

/// `a · 2^n`. Adding 1.5 · 2^23 leaves `n` in the lowest bits of the sum, and the shift drops all others.
#[inline(always)]
fn ldexp(a: v128, n: v128) -> v128 {
    let exponent = i32x4_add(f32x4_add(n, f32x4_splat(12_582_912.0)), i32x4_splat(127));
    f32x4_mul(a, i32x4_shl(exponent, 23))
}

// SAFETY: `load` and `store` access exactly 8 values.
unsafe impl Simd for Simd128 {
    type V = Pair;
    const LANES: usize = 8;
    const SUMS: usize = MR * NR;

    #[inline(always)]
    fn splat(self, x: f32) -> Pair {
        Pair(f32x4_splat(x), f32x4_splat(x))
    }
    #[inline(always)]
    fn add(self, a: Pair, b: Pair) -> Pair {
        on_both(a, b, |a, b| f32x4_add(a, b))
    }
    #[inline(always)]
    fn sub(self, a: Pair, b: Pair) -> Pair {
        on_both(a, b, |a, b| f32x4_sub(a, b))
    }
    #[inline(always)]
    fn mul(self, a: Pair, b: Pair) -> Pair {
        on_both(a, b, |a, b| f32x4_mul(a, b))
    }
    #[inline(always)]
    fn mul_add(self, a: Pair, b: Pair, c: Pair) -> Pair {
        self.add(self.mul(a, b), c)
    }
    #[inline(always)]
    fn div(self, a: Pair, b: Pair) -> Pair {
        on_both(a, b, |a, b| f32x4_div(a, b))
    }
    // `pmin(b, a)` is `a < b ? a : b`, and one instruction of x86-64.
    #[inline(always)]
    fn min(self, a: Pair, b: Pair) -> Pair {
        on_both(b, a, |a, b| f32x4_pmin(a, b))
    }
    #[inline(always)]
    fn max(self, a: Pair, b: Pair) -> Pair {
        on_both(b, a, |a, b| f32x4_pmax(a, b))
    }
    #[inline(always)]
    fn round(self, a: Pair) -> Pair {
        Pair(f32x4_nearest(a.0), f32x4_nearest(a.1))
    }
    #[inline(always)]
    fn ldexp(self, a: Pair, n: Pair) -> Pair {
        on_both(a, n, ldexp)
    }
    #[inline(always)]
    fn zero_below(self, x: Pair, limit: Pair, y: Pair) -> Pair {
        on_both(y, on_both(x, limit, |a, b| f32x4_lt(a, b)), |a, b| v128_andnot(a, b))
    }
    #[inline(always)]
    fn reduce_add(self, a: Pair) -> f32 {
        let fours = f32x4_add(a.0, a.1);
        let pairs = f32x4_add(fours, i32x4_shuffle::<2, 3, 0, 1>(fours, fours));
        f32x4_extract_lane::<0>(pairs) + f32x4_extract_lane::<1>(pairs)
    }
    #[inline(always)]
    fn reduce_max(self, a: Pair) -> f32 {
        let mut lanes = [0.0; 8];
        self.store_slice(&mut lanes, a);
        lanes.into_iter().fold(f32::NEG_INFINITY, |m, x| if x > m { x } else { m })
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Pair {
        // SAFETY: the caller promises 8 values; the instruction takes any alignment.
        unsafe { Pair(v128_load(from.cast()), v128_load(from.add(4).cast())) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, a: Pair) {
        // SAFETY: the caller promises room for 8 values; the instruction takes any alignment.
        unsafe {
            v128_store(to.cast(), a.0);
            v128_store(to.add(4).cast(), a.1);
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const f16) -> Pair {
        // SAFETY: the caller promises 8 values; the instruction takes any alignment.
        let halves = unsafe { v128_load(from.cast()) };
        Pair(widen_f16(u32x4_extend_low_u16x8(halves)), widen_f16(u32x4_extend_high_u16x8(halves)))
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const bf16) -> Pair {
        // SAFETY: the caller promises 8 values; the instruction takes any alignment.
        let halves = unsafe { v128_load(from.cast()) };
        Pair(u32x4_shl(u32x4_extend_low_u16x8(halves), 16), u32x4_shl(u32x4_extend_high_u16x8(halves), 16))
    }
    #[inline(always)]
    unsafe fn gather(self, from: *const f32, step: usize, indices: *const u32) -> Pair {
        // SAFETY: the caller promises 8 indices and the values at their places.
        let gathered: [f32; 8] = std::array::from_fn(|i| unsafe { *from.add(i * step + *indices.add(i) as usize) });
        self.load_slice(&gathered)
    }
}
