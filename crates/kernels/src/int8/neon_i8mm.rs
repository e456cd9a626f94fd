//! SMMLA: two rows by two columns of eight products each, with four sums in a register.
//!
//! Rust has no stable intrinsics for it, hence the inline assembly.

use std::arch::aarch64::*;
use std::arch::asm;

use super::dot::{InputRows, Int8Dot, PREFETCH_BYTES};
use super::neon::nibbles;
use crate::isa::neon::Neon;
use crate::isa::neon_bf16::NeonBf16;
use crate::isa::simd::Simd;

/// Register tile: 8 × 2 sums, 4 registers of weights and one of inputs take 21 of the 32 registers. Each step has 16
/// instructions for 512 products.
pub(crate) const MR: usize = 8;
pub(crate) const NR: usize = 2;
pub(crate) const BLOCK_MR: usize = 4;

impl NeonBf16 {
    /// Adds the products of two rows with two columns to their sums: those of the first row, and then of the second.
    #[inline(always)]
    fn add_products(self, sums: int32x4_t, rows: int8x16_t, columns: int8x16_t) -> int32x4_t {
        let mut sums = sums;
        // SAFETY: the instruction changes one register; `self` proves that the processor has it.
        unsafe {
            asm!(
                ".arch_extension i8mm",
                "smmla {0:v}.4s, {1:v}.16b, {2:v}.16b",
                inlateout(vreg) sums,
                in(vreg) rows,
                in(vreg) columns,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        sums
    }
}

// SAFETY: `sums` reads `VECTORS` times 32 weights for each step, or for each two steps of nibbles, and eight inputs of
// each row and step.
unsafe impl Int8Dot for NeonBf16 {
    type S = Neon;
    const STEP: usize = 8;
    const OFFSET: u8 = 0;
    const NIBBLE_OFFSET: u8 = 0;

    fn simd(self) -> Neon {
        self.neon()
    }

    #[inline(always)]
    unsafe fn sums<const ROWS: usize, const VECTORS: usize, const NIBBLES: bool, const PREFETCH: bool>(
        self,
        steps: usize,
        a: InputRows,
        panel: *const u8,
    ) -> [[float32x4_t; VECTORS]; ROWS] {
        // SAFETY: the caller promises the memory of `ROWS` rows and `steps` steps. The second row of a pair is the first
        // again if there is none.
        unsafe {
            let second = |first: usize| (first + 1).min(ROWS - 1);
            // Of the rows, only the first of each two is used: it has the sums of both.
            let mut sums = [[[vdupq_n_s32(0); 2]; VECTORS]; ROWS];
            for first in (0..ROWS).step_by(2) {
                let start = |r: usize| vdup_n_s32(*a.starts.add(r * a.starts_stride));
                sums[first] = [[vcombine_s32(start(first), start(second(first))); 2]; VECTORS];
            }
            let from = |row: usize, v: usize| {
                let from = panel.add((row * VECTORS + v) * 32);
                if PREFETCH && (v * 32).is_multiple_of(64) {
                    self.neon().prefetch(from.wrapping_add(PREFETCH_BYTES).cast());
                }
                [vld1q_s8(from.cast()), vld1q_s8(from.add(16).cast())]
            };
            let mut multiply = |step: usize, weights: [[int8x16_t; 2]; VECTORS]| {
                for first in (0..ROWS).step_by(2) {
                    let input = |r: usize| vld1_s8(a.values.add(r * a.stride + 8 * step));
                    let x = vcombine_s8(input(first), input(second(first)));
                    for (sums, weights) in sums[first].iter_mut().zip(weights) {
                        for (sum, weights) in sums.iter_mut().zip(weights) {
                            *sum = self.add_products(*sum, x, weights);
                        }
                    }
                }
            };
            if NIBBLES {
                for row in 0..steps / 2 {
                    let weights: [_; VECTORS] = std::array::from_fn(|v| from(row, v).map(nibbles));
                    multiply(2 * row, weights.map(|weights| weights.map(|nibbles| nibbles[0])));
                    multiply(2 * row + 1, weights.map(|weights| weights.map(|nibbles| nibbles[1])));
                }
            } else {
                for step in 0..steps {
                    multiply(step, std::array::from_fn(|v| from(step, v)));
                }
            }
            std::array::from_fn(|r| {
                sums[r / 2 * 2].map(|two| {
                    let [left, right] = two.map(|sums| vreinterpretq_s64_s32(sums));
                    let row = if r % 2 == 0 { vzip1q_s64(left, right) } else { vzip2q_s64(left, right) };
                    vcvtq_f32_s32(vreinterpretq_s32_s64(row))
                })
            })
        }
    }
}
