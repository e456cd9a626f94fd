//! 8-bit products in plain Rust.

use super::dot::{Int8Instructions, Int8Vectors, IntegerSums};
use super::kernel::{Int8InstructionSet, Int8Kernel};
use crate::isa::portable::Portable;
use crate::isa::simd::memory_ops;

/// Plain Rust.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PortableInt8;

/// Rows of the register tile for blocks of weights. On Arm, where the compiler makes vectors of these loops, there are
/// registers for one.
const BLOCK_ROWS: usize = if cfg!(target_arch = "aarch64") { 1 } else { 2 };

/// Register tile: as for f32.
impl Int8InstructionSet for Portable {
    fn run_int8<K: Int8Kernel>(self, kernel: K) {
        kernel.run::<_, 4, 2, BLOCK_ROWS>(PortableInt8);
    }
}

const LANES: usize = 8;

impl IntegerSums for [i32; LANES] {
    type S = Portable;

    #[inline(always)]
    fn splat(_: Portable, start: i32) -> Self {
        [start; LANES]
    }
    #[inline(always)]
    fn to_f32(self, _: Portable) -> [f32; LANES] {
        self.map(|sum| sum as f32)
    }
}

impl Int8Instructions for PortableInt8 {
    type S = Portable;
    type Input = i8;

    #[inline(always)]
    fn simd(self) -> Portable {
        Portable
    }
}

// SAFETY: both loads read `4 · LANES` bytes.
unsafe impl Int8Vectors for PortableInt8 {
    type Sums = [i32; LANES];
    type Weights = [[i8; 4]; LANES];

    #[inline(always)]
    fn dot(self, sums: Self::Sums, weights: Self::Weights, x: i32) -> Self::Sums {
        let x = x.to_ne_bytes().map(|x| i32::from(x.cast_signed()));
        std::array::from_fn(|i| {
            let w = weights[i].map(i32::from);
            sums[i] + w[0] * x[0] + w[1] * x[1] + w[2] * x[2] + w[3] * x[3]
        })
    }
    memory_ops! {
        load(from: *const u8) -> Self::Weights = from.cast::<Self::Weights>().read();
        load_nibbles(from: *const u8) -> [Self::Weights; 2] = {
            let bytes = from.cast::<Self::Weights>().read();
            [bytes.map(|four| four.map(|byte| byte << 4 >> 4)), bytes.map(|four| four.map(|byte| byte >> 4))]
        };
    }
}
