//! 8-bit products of 64-bit Arm.
//!
//! - NEON: widening multiplications, on every processor.
//! - SDOT: the products of four neighboring inputs with the weights of four outputs.
//! - SMMLA: two rows by two columns of eight products each, with four sums in a register.
//!
//! Rust has no stable intrinsics for the last two, hence the inline assembly.

use std::arch::aarch64::*;
use std::arch::asm;

use bytemuck::Zeroable;

use super::dot::{InputRows, Int8Dot, Int8Instructions, Int8Vectors, IntegerSums, start_sums, sums_to_f32};
use super::kernel::{Int8InstructionSet, Int8Kernel};
use crate::isa::microkernel::Prefetch;
use crate::isa::neon::{Neon, NeonDotprod};
use crate::isa::neon_bf16::NeonBf16;
use crate::isa::neon_fhm::NeonFhm;
use crate::isa::simd::memory_ops;
use crate::unroll::unroll;

/// Register tile: 4 × 2 sums take 16 of the 32 registers, because a sum takes two. Each step has 32 instructions for
/// products and 6 loads.
impl Int8InstructionSet for Neon {
    fn run_int8<K: Int8Kernel>(self, kernel: K) {
        kernel.run::<_, 4, 2, 2>(self);
    }
}

/// Register tile: 8 × 2 sums and 2 vectors of weights take 18 of the 32 registers, the inputs of four steps 8 more.
impl Int8InstructionSet for NeonDotprod {
    fn run_int8<K: Int8Kernel>(self, kernel: K) {
        kernel.run::<_, 8, 2, 4>(self);
    }
}

impl Int8InstructionSet for NeonFhm {
    fn run_int8<K: Int8Kernel>(self, kernel: K) {
        self.dotprod().run_int8(kernel);
    }
}

/// Register tile: 8 × 2 sums, 4 registers of weights and one of inputs take 21 of the 32 registers. Each step has 16
/// instructions for 512 products.
impl Int8InstructionSet for NeonBf16 {
    fn run_int8<K: Int8Kernel>(self, kernel: K) {
        kernel.run::<_, 8, 2, 4>(self);
    }
}

/// Four sums.
impl IntegerSums for int32x4_t {
    type S = Neon;

    #[inline(always)]
    fn splat(_: Neon, start: i32) -> Self {
        // SAFETY: the argument proves that the processor has NEON.
        unsafe { vdupq_n_s32(start) }
    }
    #[inline(always)]
    fn to_f32(self, _: Neon) -> float32x4_t {
        // SAFETY: as above.
        unsafe { vcvtq_f32_s32(self) }
    }
}

/// Four sums in two parts each: those of the first two outputs, and those of the others.
impl IntegerSums for [int32x4_t; 2] {
    type S = Neon;

    #[inline(always)]
    fn splat(_: Neon, start: i32) -> Self {
        let start = [start, 0, start, 0];
        // SAFETY: the array has 4 values; the argument proves that the processor has NEON.
        unsafe { [vld1q_s32(start.as_ptr()); 2] }
    }
    #[inline(always)]
    fn to_f32(self, _: Neon) -> float32x4_t {
        // SAFETY: as above.
        unsafe { vcvtq_f32_s32(vpaddq_s32(self[0], self[1])) }
    }
}

impl Int8Instructions for Neon {
    type S = Neon;
    type Input = i8;

    #[inline(always)]
    fn simd(self) -> Neon {
        self
    }
}

// SAFETY: both loads read 16 bytes.
unsafe impl Int8Vectors for Neon {
    type Sums = [int32x4_t; 2];
    type Weights = int8x16_t;

    #[inline(always)]
    fn dot(self, [first, second]: Self::Sums, weights: int8x16_t, x: i32) -> Self::Sums {
        // SAFETY: `self` proves that the processor has NEON.
        unsafe {
            let x = vreinterpretq_s8_s32(vdupq_n_s32(x));
            let products = [vmull_s8(vget_low_s8(weights), vget_low_s8(x)), vmull_high_s8(weights, x)];
            [vpadalq_s16(first, products[0]), vpadalq_s16(second, products[1])]
        }
    }
    memory_ops! {
        load(from: *const u8) -> int8x16_t = vld1q_s8(from.cast());
    }
    #[inline(always)]
    unsafe fn load_nibbles(self, from: *const u8) -> [int8x16_t; 2] {
        // SAFETY: the caller's promise.
        unsafe { nibbles(self.load(from)) }
    }
}

/// The low nibbles and the high nibbles, each extended by its sign.
#[inline(always)]
fn nibbles(bytes: int8x16_t) -> [int8x16_t; 2] {
    // SAFETY: every target of this architecture with a standard library has NEON.
    unsafe { [vshrq_n_s8::<4>(vshlq_n_s8::<4>(bytes)), vshrq_n_s8::<4>(bytes)] }
}

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

impl Int8Instructions for NeonDotprod {
    type S = Neon;
    type Input = i8;

    #[inline(always)]
    fn simd(self) -> Neon {
        self.0
    }
}

// SAFETY: `sums` reads `VECTORS` vectors of 16 weights for each step, or for each two steps of nibbles, and four inputs
// of each row and step.
unsafe impl Int8Dot for NeonDotprod {
    const STEP: usize = 4;

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
            let mut sums: [[int32x4_t; VECTORS]; ROWS] = start_sums(self.0, a);
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
            sums_to_f32(self.0, &sums)
        }
    }
}

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

impl Int8Instructions for NeonBf16 {
    type S = Neon;
    type Input = i8;

    #[inline(always)]
    fn simd(self) -> Neon {
        self.neon()
    }
}

// SAFETY: `sums` reads `VECTORS` times 32 weights for each step, or for each two steps of nibbles, and eight inputs of
// each row and step.
unsafe impl Int8Dot for NeonBf16 {
    const STEP: usize = 8;

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
