//! BFMMLA: two rows by two columns of four terms each, with four sums in a register.
//!
//! Rust has no stable intrinsics for it, hence the inline assembly. See `BFMatMulAdd` in the Arm Architecture Reference
//! Manual: the two pairs of an instruction are added to a sum one after the other, as by two BFDOT. So an element has
//! the same bits in any tile.

use std::arch::aarch64::*;
use std::arch::asm;

use bytemuck::Zeroable;

use super::kernel::{InstructionSet, Kernel, PairKernel};
use super::neon::Neon;
use super::neon_fhm::NeonFhm;
use super::pair_dot::{PairDot, PairOrder, PairTile, TileLayout, VECTOR_COLUMNS, round_tail};
use crate::convert::{Pair, PairFormat};
use crate::unroll::unroll;

/// FEAT_BF16 and FEAT_I8MM, which processors get together (both are part of Armv8.6), and all that is older.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NeonBf16(NeonFhm);

impl InstructionSet for NeonBf16 {
    const NAME: &'static str = "neon_bf16";
    const F32_NAME: &'static str = Neon::NAME;
    const PAIRS: &[PairFormat] = &[PairFormat::Bf16, PairFormat::F16];

    fn detect() -> Option<Self> {
        let is_newer =
            std::arch::is_aarch64_feature_detected!("bf16") && std::arch::is_aarch64_feature_detected!("i8mm");
        NeonFhm::detect().filter(|_| is_newer).map(Self)
    }

    /// SMMLA: 32 multiply-adds. BFMMLA has 16.
    fn speed() -> u32 {
        32
    }

    fn run<K: Kernel>(self, kernel: K) {
        self.0.run(kernel);
    }

    fn run_pairs<K: PairKernel>(self, format: PairFormat, kernel: K) {
        match format {
            PairFormat::Bf16 => kernel.run(self.0.neon(), self),
            PairFormat::F16 => self.0.run_pairs(format, kernel),
        }
    }
}

/// One instruction of FEAT_BF16, for which the rest of the program is not compiled.
macro_rules! bf16_asm {
    ($instruction:literal, $($operand:tt)+) => {
        asm!(
            ".arch_extension bf16",
            $instruction,
            $($operand)+
            options(pure, nomem, nostack, preserves_flags),
        )
    };
}

/// Two neighboring pairs of two rows, or of two columns.
type Quad = uint32x4_t;

impl NeonBf16 {
    /// NEON alone.
    pub(crate) fn neon(self) -> Neon {
        self.0.neon()
    }

    /// Adds the products of two rows with two columns to their sums: those of the first row, and then of the second.
    #[inline(always)]
    fn multiply_add(self, rows: Quad, columns: Quad, sums: float32x4_t) -> float32x4_t {
        let mut sums = sums;
        // SAFETY: the instruction changes one register; `self` proves that the processor has it.
        unsafe {
            bf16_asm!(
                "bfmmla {0:v}.4s, {1:v}.8h, {2:v}.8h",
                inlateout(vreg) sums, in(vreg) rows, in(vreg) columns,
            );
        }
        sums
    }

    /// Computes `2 · ROWS` rows by `2 · COLUMNS` columns of a tile in registers, from column `first`.
    ///
    /// # Safety
    /// The conditions of [`PairDot::multiply_tile`], with so many rows and columns. `PACKED` is the layout of the tile.
    #[inline(always)]
    unsafe fn microkernel<const ROWS: usize, const COLUMNS: usize, const PACKED: bool>(
        self,
        tile: PairTile,
        a: *const Pair,
        b: *const Pair,
        c: *mut f32,
        first: usize,
    ) {
        const { assert!(COLUMNS.is_multiple_of(2)) };
        // From a row of A to the next, and from two pairs of it; of B from two pairs to the next.
        let (a_stride, a_step, b_stride) = match tile.layout {
            TileLayout::Rows { a, b } => (a, 2, b),
            TileLayout::Packed => (tile.pairs, 4, VECTOR_COLUMNS),
        };
        // SAFETY: `r < ROWS`, `n < COLUMNS` and `step < pairs / 2` stay inside the memory that the caller promises.
        unsafe {
            let c = |r: usize, n: usize| c.add(2 * r * tile.c_stride + first + 2 * n);
            let mut sums: [[float32x4_t; COLUMNS]; ROWS] = Zeroable::zeroed();
            if tile.accumulate {
                unroll!(r in 0..ROWS => unroll!(n in 0..COLUMNS / 2 => {
                    let rows = [vld1q_f32(c(r, 2 * n)), vld1q_f32(c(r, 2 * n).add(tile.c_stride))];
                    [sums[r][2 * n], sums[r][2 * n + 1]] = swap_halves(rows);
                }));
            }
            for step in 0..tile.pairs / 2 {
                let mut columns: [uint32x4_t; COLUMNS] = Zeroable::zeroed();
                unroll!(n in 0..COLUMNS / 2 => {
                    let at = b.add(2 * step * b_stride);
                    [columns[2 * n], columns[2 * n + 1]] = if PACKED {
                        let at = at.add(2 * first + 8 * n);
                        [vld1q_u32(at), vld1q_u32(at.add(4))]
                    } else {
                        let at = at.add(first + 4 * n);
                        let (even, odd) = (vld1q_u32(at), vld1q_u32(at.add(b_stride)));
                        [vzip1q_u32(even, odd), vzip2q_u32(even, odd)]
                    };
                });
                unroll!(r in 0..ROWS => {
                    let at = a.add(2 * r * a_stride + step * a_step);
                    let rows =
                        if PACKED { vld1q_u32(at) } else { vcombine_u32(vld1_u32(at), vld1_u32(at.add(a_stride))) };
                    unroll!(n in 0..COLUMNS => sums[r][n] = self.multiply_add(rows, columns[n], sums[r][n]));
                });
            }
            unroll!(r in 0..ROWS => unroll!(n in 0..COLUMNS / 2 => {
                let [upper, lower] = swap_halves([sums[r][2 * n], sums[r][2 * n + 1]]);
                vst1q_f32(c(r, 2 * n), upper);
                vst1q_f32(c(r, 2 * n).add(tile.c_stride), lower);
            }));
        }
    }

    /// Computes a tile vector by vector.
    ///
    /// # Safety
    /// The conditions of [`PairDot::multiply_tile`]; `PACKED` is the layout of the tile.
    #[inline(always)]
    unsafe fn multiply_in_layout<const PACKED: bool>(
        self,
        tile: PairTile,
        a: *const Pair,
        b: *const Pair,
        c: *mut f32,
    ) {
        // SAFETY: the caller's promise; together the microkernels compute one vector of columns.
        unsafe {
            match tile.rows {
                1..=2 => self.microkernel::<1, 8, PACKED>(tile, a, b, c, 0),
                3..=4 => self.microkernel::<2, 8, PACKED>(tile, a, b, c, 0),
                _ => {
                    self.microkernel::<4, 4, PACKED>(tile, a, b, c, 0);
                    self.microkernel::<4, 4, PACKED>(tile, a, b, c, 8);
                }
            }
        }
    }
}

/// From two rows of four columns to two registers of two rows by two columns, and back.
#[inline(always)]
fn swap_halves([first, second]: [float32x4_t; 2]) -> [float32x4_t; 2] {
    // SAFETY: every target of this architecture with a standard library has NEON.
    unsafe {
        let [first, second] = [vreinterpretq_f64_f32(first), vreinterpretq_f64_f32(second)];
        [vreinterpretq_f32_f64(vzip1q_f64(first, second)), vreinterpretq_f32_f64(vzip2q_f64(first, second))]
    }
}

// SAFETY: `microkernel` reads and writes at most 8 rows of one vector.
unsafe impl PairDot for NeonBf16 {
    const FORMAT: PairFormat = PairFormat::Bf16;
    /// Register tile: 8 rows by 8 columns are 16 registers of sums, with 4 of A and 4 of B. Each step has 16
    /// instructions and 8 loads, and the sums hide a latency of 4 cycles on four ports. Fewer rows take 16 columns.
    const MAX_ROWS: usize = 8;
    const MAX_VECTORS: usize = 1;
    const PAIR_STEP: usize = 2;
    /// Then what an instruction multiplies is one load. Rows have to be interleaved.
    const ORDER: PairOrder = PairOrder::Quads;

    #[inline(always)]
    fn round_to_pairs(self, from: &[f32], to: &mut [Pair]) {
        assert!(to.len() >= from.len().div_ceil(2));
        let whole = from.len() / 4 * 4;
        for at in (0..whole).step_by(4) {
            // SAFETY: 4 values from `at` are 2 pairs from `at / 2`, inside both slices; `self` proves that the
            // processor has the instruction.
            unsafe {
                let rounded: uint32x2_t;
                let from = vld1q_f32(from.as_ptr().add(at));
                bf16_asm!("bfcvtn {0:v}.4h, {1:v}.4s", lateout(vreg) rounded, in(vreg) from,);
                vst1_u32(to.as_mut_ptr().add(at / 2), rounded);
            }
        }
        round_tail(Self::FORMAT, from, to, whole);
    }

    #[inline(always)]
    unsafe fn multiply_tile(self, tile: PairTile, a: *const Pair, b: *const Pair, c: *mut f32) {
        debug_assert_eq!(tile.vectors, Self::MAX_VECTORS);
        // SAFETY: the caller's promise.
        unsafe {
            match tile.layout {
                TileLayout::Rows { .. } => self.multiply_in_layout::<false>(tile, a, b, c),
                TileLayout::Packed => self.multiply_in_layout::<true>(tile, a, b, c),
            }
        }
    }
}
