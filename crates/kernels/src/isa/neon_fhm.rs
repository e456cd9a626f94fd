//! FMLAL: products of f16, which are exact, added to f32 sums and rounded once.
//!
//! An instruction has as many multiply-adds as one of f32. But weights take half the memory, and no input has to be
//! broadcast first. Rust has no stable intrinsics for it, hence the inline assembly.

use std::arch::aarch64::*;
use std::arch::asm;
use std::mem::MaybeUninit;

use bytemuck::Zeroable;
use half::f16;

use super::kernel::{InstructionSet, Kernel, PairKernel};
use super::neon::{Neon, NeonDotprod};
use super::neon_f16::f32_to_f16;
use super::pair_dot::{PairDot, PairOrder, PairTile, TileLayout, VECTOR_COLUMNS};
use crate::convert::{Pair, PairFormat};
use crate::unroll::unroll;

/// FEAT_FHM, FEAT_DotProd and NEON.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NeonFhm(NeonDotprod);

impl InstructionSet for NeonFhm {
    const NAME: &'static str = "neon_fhm";
    const F32_NAME: &'static str = Neon::NAME;
    const PAIRS: &[PairFormat] = &[PairFormat::F16];

    fn detect() -> Option<Self> {
        let has_fhm = std::arch::is_aarch64_feature_detected!("fhm");
        NeonDotprod::detect().filter(|_| has_fhm).map(Self)
    }

    /// It has all that [`NeonDotprod`] has, and more.
    fn speed() -> u32 {
        NeonDotprod::speed() + 1
    }

    fn run<K: Kernel>(self, kernel: K) {
        self.0.run(kernel);
    }

    fn run_pairs<K: PairKernel>(self, _: PairFormat, kernel: K) {
        kernel.run(self.neon(), self);
    }
}

/// Eight values of f16.
type Halves = uint16x8_t;

/// Pairs of a row that are one register.
const PAIRS: usize = 4;

impl NeonFhm {
    /// NEON alone.
    pub(super) fn neon(self) -> Neon {
        self.0.0
    }

    /// The older instructions.
    pub(crate) fn dotprod(self) -> NeonDotprod {
        self.0
    }

    /// Adds the products of the value in lane `LANE` of `x` with eight columns to their sums.
    #[inline(always)]
    fn multiply_add<const LANE: usize>(self, sums: [float32x4_t; 2], columns: Halves, x: Halves) -> [float32x4_t; 2] {
        let [mut left, mut right] = sums;
        // SAFETY: the instructions change one register each; `self` proves that the processor has them. They take `x`
        // in one of the lower 16 registers.
        unsafe {
            asm!(
                ".arch_extension fp16fml",
                "fmlal {left:v}.4s, {columns:v}.4h, {x:v}.h[{lane}]",
                "fmlal2 {right:v}.4s, {columns:v}.4h, {x:v}.h[{lane}]",
                left = inout(vreg) left,
                right = inout(vreg) right,
                columns = in(vreg) columns,
                x = in(vreg_low16) x,
                lane = const LANE,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        [left, right]
    }

    /// Computes `ROWS` rows by `8 · EIGHTS` columns of a tile in registers, from column `first`.
    ///
    /// # Safety
    /// The conditions of [`PairDot::multiply_tile`], with so many rows and columns.
    #[inline(always)]
    unsafe fn microkernel<const ROWS: usize, const EIGHTS: usize>(
        self,
        tile: PairTile,
        a: *const Pair,
        b: *const Pair,
        c: *mut f32,
        first: usize,
    ) {
        let TileLayout::Rows { a: a_stride, b: b_stride } = tile.layout else { unreachable!("is packed as rows") };
        // SAFETY: `r < ROWS`, `n < EIGHTS` and `pair < pairs` stay inside the memory that the caller promises.
        unsafe {
            let c = |r: usize, n: usize| c.add(r * tile.c_stride + first + 8 * n);
            let mut sums: [[[float32x4_t; 2]; EIGHTS]; ROWS] = Zeroable::zeroed();
            if tile.accumulate {
                unroll!(r in 0..ROWS => unroll!(n in 0..EIGHTS => {
                    sums[r][n] = [vld1q_f32(c(r, n)), vld1q_f32(c(r, n).add(4))];
                }));
            }
            for step in (0..tile.pairs).step_by(PAIRS) {
                let mut x: [Halves; ROWS] = Zeroable::zeroed();
                unroll!(r in 0..ROWS => x[r] = vld1q_u16(a.add(r * a_stride + step).cast()));
                // One pair of each row: the values in two lanes.
                macro_rules! pair {
                    ($pair:literal) => {
                        // The first values of the pairs of eight columns, and the second ones.
                        let b = b.add((step + $pair) * b_stride + first);
                        let mut columns: [[Halves; 2]; EIGHTS] = Zeroable::zeroed();
                        unroll!(n in 0..EIGHTS => {
                            let uint16x8x2_t(even, odd) = vld2q_u16(b.add(8 * n).cast());
                            columns[n] = [even, odd];
                        });
                        unroll!(r in 0..ROWS => unroll!(n in 0..EIGHTS => {
                            sums[r][n] = self.multiply_add::<{ 2 * $pair }>(sums[r][n], columns[n][0], x[r]);
                            sums[r][n] = self.multiply_add::<{ 2 * $pair + 1 }>(sums[r][n], columns[n][1], x[r]);
                        }));
                    };
                }
                pair!(0);
                pair!(1);
                pair!(2);
                pair!(3);
            }
            unroll!(r in 0..ROWS => unroll!(n in 0..EIGHTS => {
                vst1q_f32(c(r, n), sums[r][n][0]);
                vst1q_f32(c(r, n).add(4), sums[r][n][1]);
            }));
        }
    }
}

// SAFETY: `microkernel` reads and writes at most 8 rows of one vector.
unsafe impl PairDot for NeonFhm {
    const FORMAT: PairFormat = PairFormat::F16;
    /// Register tile: 8 rows by 8 columns are 16 registers of sums, with 8 of A and 2 of B. Fewer rows take 16 columns.
    const MAX_ROWS: usize = 8;
    const MAX_VECTORS: usize = 1;
    const PAIR_STEP: usize = PAIRS;
    const ORDER: PairOrder = PairOrder::Rows;

    #[inline(always)]
    fn round_to_pairs(self, from: &[f32], to: &mut [Pair]) {
        let (values, zeros) = bytemuck::cast_slice_mut::<Pair, f16>(to).split_at_mut(from.len());
        // SAFETY: a value may be taken for one that may be uninitialized, because only numbers are written.
        f32_to_f16(from, unsafe { &mut *(&raw mut *values as *mut [MaybeUninit<f16>]) });
        zeros.fill(f16::ZERO);
    }

    #[inline(always)]
    unsafe fn multiply_tile(self, tile: PairTile, a: *const Pair, b: *const Pair, c: *mut f32) {
        const { assert!(VECTOR_COLUMNS == 16) };
        debug_assert_eq!(tile.vectors, Self::MAX_VECTORS);
        // SAFETY: the caller's promise; together the microkernels compute one vector of columns.
        unsafe {
            match tile.rows {
                1..=2 => self.microkernel::<2, 2>(tile, a, b, c, 0),
                3..=4 => self.microkernel::<4, 2>(tile, a, b, c, 0),
                _ => {
                    self.microkernel::<8, 1>(tile, a, b, c, 0);
                    self.microkernel::<8, 1>(tile, a, b, c, 8);
                }
            }
        }
    }
}
