//! bf16 products in plain Rust, in the shapes of AMX: what surrounds the instructions is tested wherever tests run.

use half::bf16;

use crate::kernels::cpu::pairs::{COLUMNS, Pair, PairDot, Tile, round_rest};

/// Numbers of a pair, the first first.
fn numbers(pair: Pair) -> [f32; 2] {
    [pair as u16, (pair >> 16) as u16].map(|bits| bf16::from_bits(bits).to_f32())
}

#[derive(Debug, Clone, Copy)]
pub(in crate::kernels::cpu) struct PortablePairs;

// SAFETY: reads and writes what a tile of AMX does: whole tiles of 16 rows.
unsafe impl PairDot for PortablePairs {
    const ROWS: usize = 32;
    const VECTORS: usize = 2;
    const STEP: usize = 16;

    fn begin(self) {}
    fn end(self) {}

    fn round(self, from: &[f32], to: &mut [Pair]) {
        round_rest(from, to, 0);
    }

    unsafe fn tile(self, tile: Tile, a: *const Pair, b: *const Pair, c: *mut f32) {
        assert!(tile.rows <= 32 && tile.vectors <= 2 && tile.pairs.is_multiple_of(16));
        for row in 0..tile.rows.next_multiple_of(16) {
            for column in 0..tile.vectors * COLUMNS {
                // SAFETY: promised by the caller.
                unsafe {
                    let to = c.add(row * tile.c_row + column);
                    let mut sum = if tile.add { *to } else { 0.0 };
                    for pair in 0..tile.pairs {
                        let (x, y) =
                            (numbers(*a.add(row * tile.a_row + pair)), numbers(*b.add(pair * tile.b_row + column)));
                        sum += x[0] * y[0];
                        sum += x[1] * y[1];
                    }
                    *to = sum;
                }
            }
        }
    }
}
