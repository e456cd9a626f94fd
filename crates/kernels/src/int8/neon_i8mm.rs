//! SMMLA: two rows by two columns of eight products each, with four sums in a register.
//!
//! Rust has no stable intrinsics for it, hence the inline assembly.

use std::arch::aarch64::*;
use std::arch::asm;

use bytemuck::Zeroable;

use super::dot::{InputRows, Int8Dot};
use super::neon::nibbles;
use crate::isa::neon::Neon;
use crate::isa::neon_bf16::NeonBf16;
use crate::microkernel::Prefetch;
use crate::unroll::unroll;

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
    type Input = i8;
    const STEP: usize = 8;
    const OFFSET: u8 = 0;
    const NIBBLE_OFFSET: u8 = 0;

    fn simd(self) -> Neon {
        self.neon()
    }

    #[inline(always)]
    unsafe fn sums<const ROWS: usize, const VECTORS: usize, const NIBBLES: bool>(
        self,
        steps: usize,
        a: InputRows,
        panel: *const u8,
        prefetch: &mut Prefetch,
    ) -> [[float32x4_t; VECTORS]; ROWS] {
        // SAFETY: the caller promises the memory of `ROWS` rows and `steps` steps. The second row of a pair is the
        // first again if there is none.
        unsafe {
            let second = |first: usize| (first + 1).min(ROWS - 1);
            // Of the rows, only the first of each two is used: it has the sums of both.
            let mut sums: [[[int32x4_t; 2]; VECTORS]; ROWS] = Zeroable::zeroed();
            unroll!(first in 0..ROWS => {
                if first % 2 == 0 {
                    let start = |r: usize| vdup_n_s32(*a.starts.add(r * a.starts_stride));
                    let starts = vcombine_s32(start(first), start(second(first)));
                    unroll!(v in 0..VECTORS => (sums[first][v][0], sums[first][v][1]) = (starts, starts));
                }
            });
            let from = |row: usize, v: usize| {
                let from = panel.add((row * VECTORS + v) * 32);
                [vld1q_s8(from.cast()), vld1q_s8(from.add(16).cast())]
            };
            let mut multiply = |step: usize, weights: [[int8x16_t; 2]; VECTORS]| {
                unroll!(first in 0..ROWS => {
                    if first % 2 == 0 {
                        let input = |r: usize| vld1_s8(a.values.add(r * a.stride + 8 * step));
                        let x = vcombine_s8(input(first), input(second(first)));
                        unroll!(v in 0..VECTORS => {
                            sums[first][v][0] = self.add_products(sums[first][v][0], x, weights[v][0]);
                            sums[first][v][1] = self.add_products(sums[first][v][1], x, weights[v][1]);
                        });
                    }
                });
            };
            if NIBBLES {
                for row in 0..steps / 2 {
                    prefetch.step(self.neon(), row);
                    let mut two: [[[int8x16_t; 2]; VECTORS]; 2] = Zeroable::zeroed();
                    unroll!(v in 0..VECTORS => {
                        let [left, right] = from(row, v);
                        [two[0][v][0], two[1][v][0]] = nibbles(left);
                        [two[0][v][1], two[1][v][1]] = nibbles(right);
                    });
                    multiply(2 * row, two[0]);
                    multiply(2 * row + 1, two[1]);
                }
            } else {
                for step in 0..steps {
                    prefetch.step(self.neon(), step);
                    let mut weights: [[int8x16_t; 2]; VECTORS] = Zeroable::zeroed();
                    unroll!(v in 0..VECTORS => weights[v] = from(step, v));
                    multiply(step, weights);
                }
            }
            let mut results: [[float32x4_t; VECTORS]; ROWS] = Zeroable::zeroed();
            unroll!(r in 0..ROWS => unroll!(v in 0..VECTORS => {
                let [left, right] = sums[r / 2 * 2][v];
                let (left, right) = (vreinterpretq_s64_s32(left), vreinterpretq_s64_s32(right));
                let row = if r % 2 == 0 { vzip1q_s64(left, right) } else { vzip2q_s64(left, right) };
                results[r][v] = vcvtq_f32_s32(vreinterpretq_s32_s64(row));
            }));
            results
        }
    }
}
