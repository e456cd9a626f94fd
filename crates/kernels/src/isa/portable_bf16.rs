//! bf16 products in plain Rust, in the shapes of AMX. With them, what surrounds the instructions is tested on every
//! machine.

use half::bf16;

use super::bf16_dot::{Bf16Dot, Bf16Tile, Bf16x2, TileLayout, VECTOR_COLUMNS, place_in_blocks, round_tail};
use super::kernel::{Bf16Kernel, InstructionSet, Kernel};
use super::portable::Portable;
use crate::int8::tiles::Int8TileKernel;

/// [`Portable`] with bf16 products, and with tiles of int8. Only tests have it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PortableBf16;

impl InstructionSet for PortableBf16 {
    const NAME: &'static str = "portable_bf16";
    const F32_NAME: &'static str = Portable::NAME;
    const HAS_BF16_DOT: bool = true;
    const HAS_INT8_TILES: bool = true;

    fn detect() -> Option<Self> {
        Some(Self)
    }

    fn speed() -> u32 {
        0
    }

    fn run<K: Kernel>(self, kernel: K) {
        Portable.run(kernel);
    }

    fn run_bf16<K: Bf16Kernel>(self, kernel: K) {
        kernel.run(Portable, self);
    }

    fn run_int8_tiles<K: Int8TileKernel>(self, kernel: K) {
        kernel.run(Portable, self);
    }
}

fn upcast(pair: Bf16x2) -> [f32; 2] {
    [pair as u16, (pair >> 16) as u16].map(|bits| bf16::from_bits(bits).to_f32())
}

// SAFETY: a tile reads and writes what a tile of AMX does: multiples of 16 rows, at most `MAX_ROWS`.
unsafe impl Bf16Dot for PortableBf16 {
    const MAX_ROWS: usize = 32;
    const MAX_VECTORS: usize = 2;
    const PAIR_STEP: usize = 16;
    const TAKES_BLOCKS: bool = true;

    fn round_to_bf16(self, from: &[f32], to: &mut [Bf16x2]) {
        round_tail(from, to, 0);
    }

    unsafe fn multiply_tile(self, tile: Bf16Tile, a: *const Bf16x2, b: *const Bf16x2, c: *mut f32) {
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
                            TileLayout::Blocks => (
                                place_in_blocks(row, pair, tile.pairs),
                                place_in_blocks(pair, column, Self::MAX_VECTORS * VECTOR_COLUMNS),
                            ),
                        };
                        let (x, y) = (upcast(*a.add(at_a)), upcast(*b.add(at_b)));
                        sum += x[0] * y[0];
                        sum += x[1] * y[1];
                    }
                    *to = sum;
                }
            }
        }
    }
}
