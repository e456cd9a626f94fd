//! 8-bit products of WebAssembly: products of 16-bit pairs, added in 32 bits.

use std::arch::wasm32::*;

use super::dot::{Int8Instructions, Int8Vectors, IntegerSums};
use super::kernel::{Int8InstructionSet, Int8Kernel};
use crate::isa::simd128::{Pair, Simd128};

/// SIMD128.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Simd128Int8(pub Simd128);

/// Register tile: as for f32.
impl Int8InstructionSet for Simd128 {
    fn run_int8<K: Int8Kernel>(self, kernel: K) {
        kernel.run::<_, 4, 1, 2>(Simd128Int8(self));
    }
}

/// Sums, or weights, of 8 outputs: the first 4 and the last 4.
type Two = [v128; 2];

impl IntegerSums for Two {
    type S = Simd128;

    #[inline(always)]
    fn splat(_: Simd128, start: i32) -> Self {
        [i32x4_splat(start); 2]
    }
    #[inline(always)]
    fn to_f32(self, _: Simd128) -> Pair {
        Pair(f32x4_convert_i32x4(self[0]), f32x4_convert_i32x4(self[1]))
    }
}

impl Int8Instructions for Simd128Int8 {
    type S = Simd128;
    type Input = i8;

    #[inline(always)]
    fn simd(self) -> Simd128 {
        self.0
    }
}

// SAFETY: both loads read 32 bytes.
unsafe impl Int8Vectors for Simd128Int8 {
    type Sums = Two;
    type Weights = Two;

    #[inline(always)]
    fn dot(self, sums: Two, weights: Two, x: i32) -> Two {
        let x = i16x8_extend_low_i8x16(i32x4_splat(x));
        std::array::from_fn(|i| {
            // Sums of two products: two neighboring ones for each of four outputs.
            let low = i32x4_dot_i16x8(i16x8_extend_low_i8x16(weights[i]), x);
            let high = i32x4_dot_i16x8(i16x8_extend_high_i8x16(weights[i]), x);
            let even = i32x4_shuffle::<0, 2, 4, 6>(low, high);
            let odd = i32x4_shuffle::<1, 3, 5, 7>(low, high);
            i32x4_add(sums[i], i32x4_add(even, odd))
        })
    }
    #[inline(always)]
    unsafe fn load(self, from: *const u8) -> Two {
        // SAFETY: the caller promises 32 bytes; the instruction takes any alignment.
        unsafe { [v128_load(from.cast()), v128_load(from.add(16).cast())] }
    }
    #[inline(always)]
    unsafe fn load_nibbles(self, from: *const u8) -> [Two; 2] {
        // SAFETY: the caller's promise.
        let bytes = unsafe { self.load(from) };
        [bytes.map(|bytes| i8x16_shr(i8x16_shl(bytes, 4), 4)), bytes.map(|bytes| i8x16_shr(bytes, 4))]
    }
}
