//! Tiles of products of pairs, of every size that an instruction set takes.

use super::isas;
use crate::convert::PairFormat;
use crate::isa::kernel::PairKernel;
use crate::isa::microkernel::Prefetch;
use crate::isa::pair_dot::{PairDot, PairTile, TileLayout, VECTOR_COLUMNS};
use crate::isa::simd::Simd;

/// Compares tiles with plain sums. The values are small integers, so sums are exact in any order.
struct Checks(&'static str);

/// What no product writes.
const UNTOUCHED: f32 = 0.5;

fn a_value(row: usize, term: usize) -> f32 {
    ((row * 7 + term * 5) % 17) as f32 - 8.0
}

fn b_value(term: usize, column: usize) -> f32 {
    ((term * 3 + column * 11) % 13) as f32 - 6.0
}

impl PairKernel for Checks {
    #[inline(always)]
    fn run<S: Simd, D: PairDot>(self, _: S, dot: D) {
        for (rows, vectors, steps) in sizes::<D>() {
            let (pairs, width) = (steps * D::PAIR_STEP, vectors * VECTOR_COLUMNS);
            let (a_stride, b_stride, c_stride) = (pairs + 3, width + 5, width + 7);
            // A and B end with their last tile; C has a row more.
            let a: Vec<u32> = (0..(D::MAX_ROWS - 1) * a_stride + pairs)
                .map(|at| (at / a_stride, 2 * (at % a_stride)))
                .map(|(row, term)| D::FORMAT.pair(a_value(row, term), a_value(row, term + 1)))
                .collect();
            let b: Vec<u32> = (0..pairs.saturating_sub(1) * b_stride + width)
                .map(|at| (2 * (at / b_stride), at % b_stride))
                .map(|(term, column)| D::FORMAT.pair(b_value(term, column), b_value(term + 1, column)))
                .collect();
            for accumulate in [false, true] {
                let layout = TileLayout::Rows { a: a_stride, b: b_stride };
                let prefetch = Prefetch::NONE;
                let tile = PairTile { rows, vectors, pairs, layout, c_stride, accumulate, prefetch };
                let mut c = vec![UNTOUCHED; (D::MAX_ROWS + 1) * c_stride];
                // SAFETY: the sizes are those that the method documents, and this runs under `run_pairs`.
                unsafe { dot.multiply_tile(tile, a.as_ptr(), b.as_ptr(), c.as_mut_ptr()) };
                for (row, c) in c.chunks_exact(c_stride).enumerate() {
                    for (column, got) in c.iter().enumerate() {
                        let sum: f32 = (0..2 * pairs).map(|term| a_value(row, term) * b_value(term, column)).sum();
                        let want = if column >= width || row >= D::MAX_ROWS {
                            UNTOUCHED
                        } else if row < rows {
                            sum + if accumulate { UNTOUCHED } else { 0.0 }
                        } else {
                            continue;
                        };
                        let sizes = format!("{rows} rows, {vectors} vectors, {pairs} pairs, {accumulate}");
                        assert_eq!(*got, want, "{} [{row}, {column}] of {sizes}", self.0);
                    }
                }
            }
        }
    }
}

fn sizes<D: PairDot>() -> impl Iterator<Item = (usize, usize, usize)> {
    let rows = (1..=D::MAX_ROWS).filter(|rows| *rows < 10 || rows % 5 < 2 || *rows == D::MAX_ROWS);
    rows.flat_map(|rows| (1..=D::MAX_VECTORS).flat_map(move |vectors| [0, 1, 2, 5].map(|steps| (rows, vectors, steps))))
}

#[test]
fn tiles_of_every_size_match_plain_sums() {
    for (isa, format) in isas().into_iter().flat_map(|isa| [(isa, PairFormat::Bf16), (isa, PairFormat::F16)]) {
        if isa.has_pairs(format) {
            isa.run_pairs(format, Checks(isa.name()));
        }
    }
}
