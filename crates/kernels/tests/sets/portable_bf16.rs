//! Products of pairs in plain Rust, in the shapes of AMX. With them, what surrounds the instructions is tested on every
//! machine.

use crate::convert::{Pair, PairFormat};
use crate::isa::kernel::{InstructionSet, Kernel, PairKernel};
use crate::isa::pair_dot::{PairDot, PairOrder, PairTile, TileLayout, VECTOR_COLUMNS, round_tail};
use crate::isa::portable::Portable;

/// [`Portable`] with products of pairs. Only tests have it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PortableBf16;

impl InstructionSet for PortableBf16 {
    const NAME: &'static str = "portable_bf16";
    const F32_NAME: &'static str = Portable::NAME;
    const PAIRS: &[PairFormat] = &[PairFormat::Bf16, PairFormat::F16];

    fn detect() -> Option<Self> {
        Some(Self)
    }

    fn speed() -> u32 {
        0
    }

    fn run<K: Kernel>(self, kernel: K) {
        Portable.run(kernel);
    }

    fn run_pairs<K: PairKernel>(self, format: PairFormat, kernel: K) {
        match format {
            PairFormat::Bf16 => kernel.run(Portable, PortablePairs::<false>),
            PairFormat::F16 => kernel.run(Portable, PortablePairs::<true>),
        }
    }
}

/// Pairs of f16, or of bf16.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PortablePairs<const F16: bool>;

// SAFETY: a tile reads and writes what a tile of AMX does: multiples of 16 rows, at most `MAX_ROWS`.
unsafe impl<const F16: bool> PairDot for PortablePairs<F16> {
    const FORMAT: PairFormat = if F16 { PairFormat::F16 } else { PairFormat::Bf16 };
    const MAX_ROWS: usize = 32;
    const MAX_VECTORS: usize = 2;
    const PAIR_STEP: usize = 16;
    const ORDER: PairOrder = PairOrder::Blocks;

    fn round_to_pairs(self, from: &[f32], to: &mut [Pair]) {
        round_tail(Self::FORMAT, from, to, 0);
    }

    unsafe fn multiply_tile(self, tile: PairTile, a: *const Pair, b: *const Pair, c: *mut f32) {
        assert!(tile.rows <= 32 && tile.vectors <= 2 && tile.pairs.is_multiple_of(16));
        for row in 0..tile.rows.next_multiple_of(16) {
            for column in 0..tile.vectors * VECTOR_COLUMNS {
                // SAFETY: `row < MAX_ROWS`, `column < 16 · vectors`, `pair < pairs`: inside the memory that the caller
                // promises.
                unsafe {
                    let to = c.add(row * tile.c_stride + column);
                    let mut sum = if tile.accumulate { *to } else { 0.0 };
                    for pair in 0..tile.pairs {
                        let (at_a, at_b) = match tile.layout {
                            TileLayout::Rows { a, b } => (row * a + pair, pair * b + column),
                            TileLayout::Packed => (
                                Self::ORDER.place_in_rows(row, pair, tile.pairs),
                                Self::ORDER.place_in_columns(pair, column, Self::MAX_VECTORS * VECTOR_COLUMNS),
                            ),
                        };
                        let (x, y) = (Self::FORMAT.values(*a.add(at_a)), Self::FORMAT.values(*b.add(at_b)));
                        sum += x[0] * y[0];
                        sum += x[1] * y[1];
                    }
                    *to = sum;
                }
            }
        }
    }
}
