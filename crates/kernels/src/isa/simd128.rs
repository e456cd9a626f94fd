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
use super::simd::{Simd, memory_ops};

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
fn ldexp_half(a: v128, n: v128) -> v128 {
    let exponent = i32x4_add(f32x4_add(n, f32x4_splat(12_582_912.0)), i32x4_splat(127));
    f32x4_mul(a, i32x4_shl(exponent, 23))
}

/// Writes the methods that are one expression for each half.
macro_rules! half_ops {
    ($($name:ident($($x:ident),+) = $body:expr;)+) => {$(
        #[inline(always)]
        fn $name(self, $($x: Pair),+) -> Pair {
            let half = |$($x: v128),+| $body;
            Pair(half($($x.0),+), half($($x.1),+))
        }
    )+};
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
    half_ops! {
        add(a, b) = f32x4_add(a, b);
        sub(a, b) = f32x4_sub(a, b);
        mul(a, b) = f32x4_mul(a, b);
        div(a, b) = f32x4_div(a, b);
        // `pmin(b, a)` is `a < b ? a : b`, and one instruction of x86-64.
        min(a, b) = f32x4_pmin(b, a);
        max(a, b) = f32x4_pmax(b, a);
        round(a) = f32x4_nearest(a);
        ldexp(a, n) = ldexp_half(a, n);
        zero_below(x, limit, y) = v128_andnot(y, f32x4_lt(x, limit));
    }
    #[inline(always)]
    fn mul_add(self, a: Pair, b: Pair, c: Pair) -> Pair {
        self.add(self.mul(a, b), c)
    }
    #[inline(always)]
    fn reduce_add(self, a: Pair) -> f32 {
        let fours = f32x4_add(a.0, a.1);
        let pairs = f32x4_add(fours, i32x4_shuffle::<2, 3, 0, 1>(fours, fours));
        f32x4_extract_lane::<0>(pairs) + f32x4_extract_lane::<1>(pairs)
    }
    memory_ops! {
        load(from: *const f32) -> Pair = Pair(v128_load(from.cast()), v128_load(from.add(4).cast()));
        store(to: *mut f32, a: Pair) = {
            v128_store(to.cast(), a.0);
            v128_store(to.add(4).cast(), a.1);
        };
        load_f16(from: *const f16) -> Pair = {
            let halves = v128_load(from.cast());
            Pair(widen_f16(u32x4_extend_low_u16x8(halves)), widen_f16(u32x4_extend_high_u16x8(halves)))
        };
        load_bf16(from: *const bf16) -> Pair = {
            let halves = v128_load(from.cast());
            Pair(u32x4_shl(u32x4_extend_low_u16x8(halves), 16), u32x4_shl(u32x4_extend_high_u16x8(halves), 16))
        };
        gather(from: *const f32, step: usize, indices: *const u32) -> Pair = {
            let gathered: [f32; 8] = std::array::from_fn(|i| *from.add(i * step + *indices.add(i) as usize));
            Pair(v128_load(gathered.as_ptr().cast()), v128_load(gathered[4..].as_ptr().cast()))
        };
    }
}
