//! Products with packed bf16 weights.

use super::element::Element;
use super::gemm_task::{GemmTask, MAX_COLUMNS};
use super::isa::Isa;
use super::isa::bf16_dot::{Bf16Dot, Bf16Tile, Bf16x2, VECTOR_COLUMNS, as_bf16x2_mut};
use super::isa::kernel::Bf16Kernel;
use super::isa::simd::Simd;
use crate::error::Result;
use crate::tensor::element_count;

/// Runs a task on the packed panels of its weights.
pub(super) fn run_bf16<A: Element, O: Element>(isa: Isa, task: GemmTask<A, O>, panels: &[Bf16x2]) -> Result<()> {
    // Inputs in bf16 pairs, with room for a whole tile more, and one row in f32.
    let (k, (_, pair_step)) = (task.weights.in_features, isa.bf16_tile_columns());
    let pairs = k.div_ceil(2).next_multiple_of(pair_step);
    let rounded = element_count("the scratch memory of a product", &[task.to - task.from + MAX_ROWS, pairs])?;
    let mut memory = task.pool.take(rounded + k)?;
    let (rounded, upcast) = memory.split_at_mut(rounded);
    isa.run_bf16(GemmBf16 { task, panels, rounded: as_bf16x2_mut(rounded), upcast });
    Ok(())
}

struct GemmBf16<'a, A, O> {
    task: GemmTask<'a, A, O>,
    panels: &'a [Bf16x2],
    rounded: &'a mut [Bf16x2],
    upcast: &'a mut [f32],
}

/// The most rows that a tile has.
const MAX_ROWS: usize = 32;
/// The most vectors that a row of a tile has: of 8 lanes, with the portable instruction set.
const MAX_VECTORS: usize = MAX_COLUMNS / 8;

impl<A: Element, O: Element> Bf16Kernel for GemmBf16<'_, A, O> {
    #[inline(always)]
    fn run<S: Simd, D: Bf16Dot>(self, s: S, dot: D) {
        const {
            assert!(D::MAX_ROWS <= MAX_ROWS && D::MAX_VECTORS * VECTOR_COLUMNS <= MAX_COLUMNS);
            assert!(D::MAX_VECTORS * VECTOR_COLUMNS <= MAX_VECTORS * S::LANES);
        }
        let Self { task, panels, rounded, upcast } = self;
        let (k, width) = (task.weights.in_features, D::MAX_VECTORS * VECTOR_COLUMNS);
        assert_eq!(width, task.weights.panel_width, "the weights are packed for another instruction set");
        let pairs = k.div_ceil(2).next_multiple_of(D::PAIR_STEP);
        let rows = task.to - task.from;
        // A tile may read more rows than it has. Their contents do not matter: no row affects another.
        let size = rows.next_multiple_of(D::MAX_ROWS) * pairs;
        for row in 0..rows {
            A::to_bf16x2(dot, &task.a[(task.from + row) * k..][..k], upcast, &mut rounded[row * pairs..][..pairs]);
        }
        let rounded = &rounded[..size];
        let mut sums = [0.0; MAX_ROWS * MAX_COLUMNS];
        for panel in task.first..task.last {
            let terms = &panels[panel * width * pairs..][..width * pairs];
            for first in (0..rows).step_by(D::MAX_ROWS) {
                let tile = Bf16Tile {
                    rows: D::MAX_ROWS.min(rows - first),
                    vectors: D::MAX_VECTORS,
                    pairs,
                    a_stride: pairs,
                    b_stride: width,
                    c_stride: width,
                    accumulate: false,
                };
                // SAFETY: `rounded` has `MAX_ROWS` rows of `pairs` from `first`, `terms` has `pairs` rows of `width`,
                // and `sums` has room for the largest tile. This is a kernel under `run_bf16`.
                unsafe {
                    dot.multiply_tile(tile, rounded[first * pairs..].as_ptr(), terms.as_ptr(), sums.as_mut_ptr())
                };
                for (r, sums) in sums.chunks_exact(width).take(tile.rows).enumerate() {
                    let mut vectors = [s.splat(0.0); MAX_VECTORS];
                    for (vector, sums) in vectors.iter_mut().zip(sums.chunks_exact(S::LANES)) {
                        *vector = s.load_slice(sums);
                    }
                    // SAFETY: the row is in `from .. to`, the rows of this task, and the vectors are a panel's width.
                    unsafe { task.store(s, panel, task.from + first + r, &vectors[..width / S::LANES]) };
                }
            }
        }
    }
}
