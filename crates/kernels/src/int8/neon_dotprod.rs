//! SDOT: the products of four neighboring inputs with the weights of four outputs.
//!
//! Rust has no stable intrinsics for it, hence the inline assembly.

use std::arch::aarch64::*;
use std::arch::asm;

use bytemuck::Zeroable;

use super::dot::{InputRows, Int8Dot};
use super::neon::nibbles;
use crate::isa::neon::Neon;
use crate::isa::neon_dotprod::NeonDotprod;
use crate::microkernel::Prefetch;
use crate::unroll::unroll;

/// Register tile: 8 × 2 sums and 2 vectors of weights take 18 of the 32 registers, the inputs of four steps 8 more.
pub(crate) const MR: usize = 8;
pub(crate) const NR: usize = 2;
pub(crate) const BLOCK_MR: usize = 4;

/// Steps whose inputs are one register.
const STEPS: usize = 4;

impl NeonDotprod {
    /// Adds the products of the four inputs in lane `LANE` of `x` with the weights of four outputs.
    #[inline(always)]
    fn dot<const LANE: usize>(self, sums: int32x4_t, weights: int8x16_t, x: int8x16_t) -> int32x4_t {
        let mut sums = sums;
        // SAFETY: the instruction changes one register; `self` proves that the processor has it.
        unsafe {
            asm!(
                ".arch_extension dotprod",
                "sdot {sums:v}.4s, {weights:v}.16b, {x:v}.4b[{lane}]",
                sums = inlateout(vreg) sums,
                weights = in(vreg) weights,
                x = in(vreg) x,
                lane = const LANE,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        sums
    }

    /// Adds the products of one step.
    #[inline(always)]
    fn step<const ROWS: usize, const VECTORS: usize, const LANE: usize>(
        self,
        sums: &mut [[int32x4_t; VECTORS]; ROWS],
        weights: [int8x16_t; VECTORS],
        x: [int8x16_t; ROWS],
    ) {
        unroll!(r in 0..ROWS => {
            unroll!(v in 0..VECTORS => sums[r][v] = self.dot::<LANE>(sums[r][v], weights[v], x[r]));
        });
    }
}

// SAFETY: `sums` reads `VECTORS` vectors of 16 weights for each step, or for each two steps of nibbles, and four inputs
// of each row and step.
unsafe impl Int8Dot for NeonDotprod {
    type S = Neon;
    type Input = i8;
    const STEP: usize = 4;
    const OFFSET: u8 = 0;
    const NIBBLE_OFFSET: u8 = 0;

    fn simd(self) -> Neon {
        self.0
    }

    #[inline(always)]
    unsafe fn sums<const ROWS: usize, const VECTORS: usize, const NIBBLES: bool>(
        self,
        steps: usize,
        a: InputRows,
        panel: *const u8,
        prefetch: &mut Prefetch,
    ) -> [[float32x4_t; VECTORS]; ROWS] {
        // SAFETY: the caller promises the memory of `ROWS` rows and `steps` steps.
        unsafe {
            let mut sums: [[int32x4_t; VECTORS]; ROWS] = Zeroable::zeroed();
            unroll!(r in 0..ROWS => {
                let start = vdupq_n_s32(*a.starts.add(r * a.starts_stride));
                unroll!(v in 0..VECTORS => sums[r][v] = start);
            });
            let inputs = |r: usize, step: usize| a.values.add(r * a.stride + 4 * step);
            let weights = |row: usize| {
                let mut weights: [int8x16_t; VECTORS] = Zeroable::zeroed();
                unroll!(v in 0..VECTORS => weights[v] = vld1q_s8(panel.add((row * VECTORS + v) * 16).cast()));
                weights
            };
            // The weights of two steps.
            let two = |row: usize| -> [[int8x16_t; VECTORS]; 2] {
                if !NIBBLES {
                    return [weights(row), weights(row + 1)];
                }
                let (both, mut two): (_, [[int8x16_t; VECTORS]; 2]) = (weights(row / 2), Zeroable::zeroed());
                unroll!(v in 0..VECTORS => [two[0][v], two[1][v]] = nibbles(both[v]));
                two
            };
            let whole = steps / STEPS * STEPS;
            for step in (0..whole).step_by(STEPS) {
                prefetch.step(self.0, if NIBBLES { step / 2 } else { step });
                let mut x: [int8x16_t; ROWS] = Zeroable::zeroed();
                unroll!(r in 0..ROWS => x[r] = vld1q_s8(inputs(r, step)));
                let [even, odd] = two(step);
                self.step::<ROWS, VECTORS, 0>(&mut sums, even, x);
                self.step::<ROWS, VECTORS, 1>(&mut sums, odd, x);
                let [even, odd] = two(step + 2);
                self.step::<ROWS, VECTORS, 2>(&mut sums, even, x);
                self.step::<ROWS, VECTORS, 3>(&mut sums, odd, x);
            }
            for step in whole..steps {
                let mut x: [int8x16_t; ROWS] = Zeroable::zeroed();
                unroll!(r in 0..ROWS => {
                    let four = inputs(r, step).cast::<i32>().read_unaligned();
                    x[r] = vreinterpretq_s8_s32(vdupq_n_s32(four));
                });
                let weights = if NIBBLES { two(step)[step % 2] } else { weights(step) };
                self.step::<ROWS, VECTORS, 0>(&mut sums, weights, x);
            }
            let mut results: [[float32x4_t; VECTORS]; ROWS] = Zeroable::zeroed();
            unroll!(r in 0..ROWS => unroll!(v in 0..VECTORS => results[r][v] = vcvtq_f32_s32(sums[r][v])));
            results
        }
    }
}
