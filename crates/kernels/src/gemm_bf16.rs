//! Products with packed bf16 weights.

use super::convert::Convert;
use super::error::Result;
use super::gemm_task::{GemmTask, MAX_COLUMNS};
use super::isa::Isa;
use super::isa::bf16_dot::{
    BLOCK, Bf16Dot, Bf16Tile, Bf16x2, TileLayout, VECTOR_COLUMNS, as_bf16x2_mut, place_in_blocks,
};
use super::isa::kernel::Bf16Kernel;
use super::isa::simd::Simd;
use super::size::element_count;

/// Runs a task on the packed panels of its weights.
pub(super) fn run_bf16<A: Convert, O: Convert>(isa: Isa, task: GemmTask<A, O>, panels: &[Bf16x2]) -> Result<()> {
    // Inputs in bf16 pairs, with room for a whole tile more; one row of them, and one in f32.
    let k = task.weights.in_features;
    let pairs = k.div_ceil(2).next_multiple_of(isa.bf16_tiles().pair_step);
    let rounded = element_count("the scratch memory of a product", &[task.to - task.from + MAX_ROWS, pairs])?;
    let mut memory = task.pool.take(rounded + pairs + k)?;
    let (rounded, rest) = memory.split_at_mut(rounded);
    let (row, upcast) = rest.split_at_mut(pairs);
    isa.run_bf16(GemmBf16 { task, panels, rounded: as_bf16x2_mut(rounded), row: as_bf16x2_mut(row), upcast });
    Ok(())
}

struct GemmBf16<'a, A, O> {
    task: GemmTask<'a, A, O>,
    panels: &'a [Bf16x2],
    rounded: &'a mut [Bf16x2],
    row: &'a mut [Bf16x2],
    upcast: &'a mut [f32],
}

/// The most rows that a tile has.
const MAX_ROWS: usize = 32;
/// The most vectors that a row of a tile has: of 8 lanes, with the portable instruction set.
const MAX_VECTORS: usize = MAX_COLUMNS / 8;

/// The sums of a tile.
#[repr(align(64))]
struct Sums([f32; MAX_ROWS * MAX_COLUMNS]);

impl<A: Convert, O: Convert> Bf16Kernel for GemmBf16<'_, A, O> {
    #[inline(always)]
    fn run<S: Simd, D: Bf16Dot>(mut self, s: S, dot: D) {
        const {
            assert!(D::MAX_ROWS <= MAX_ROWS && D::MAX_VECTORS * VECTOR_COLUMNS <= MAX_COLUMNS);
            assert!(D::MAX_VECTORS * VECTOR_COLUMNS <= MAX_VECTORS * S::LANES);
            assert!(!D::TAKES_BLOCKS || D::PAIR_STEP == BLOCK && D::MAX_ROWS.is_multiple_of(BLOCK));
        }
        let (k, width) = (self.task.weights.in_features, D::MAX_VECTORS * VECTOR_COLUMNS);
        assert_eq!(width, self.task.weights.panel_width, "the weights are packed for another instruction set");
        let pairs = k.div_ceil(2).next_multiple_of(D::PAIR_STEP);
        let rows = self.task.to - self.task.from;
        self.round_inputs(dot, rows, pairs);
        let Self { task, panels, rounded, .. } = self;
        // A tile may read more rows than it has. Their contents do not matter: no row affects another.
        let rounded = &rounded[..rows.next_multiple_of(D::MAX_ROWS) * pairs];
        let layout = if D::TAKES_BLOCKS { TileLayout::Blocks } else { TileLayout::Rows { a: pairs, b: width } };
        // Two in turns: the sums of one tile are stored while the instructions for the next one run.
        let mut sums = [const { Sums([0.0; MAX_ROWS * MAX_COLUMNS]) }; 2];
        let mut last = None::<(usize, usize)>;
        for panel in task.first..task.last {
            let terms = &panels[panel * width * pairs..][..width * pairs];
            for first in (0..rows).step_by(D::MAX_ROWS) {
                let tile = Bf16Tile {
                    rows: D::MAX_ROWS.min(rows - first),
                    vectors: D::MAX_VECTORS,
                    pairs,
                    layout,
                    c_stride: width,
                    accumulate: false,
                };
                sums.swap(0, 1);
                // SAFETY: `rounded` has `MAX_ROWS` rows of `pairs` from `first`, a multiple of `MAX_ROWS`, `terms` is a
                // whole panel, both in the layout of the tile, and `sums` has room for the largest tile. This is a
                // kernel under `run_bf16`.
                unsafe {
                    let to = sums[0].0.as_mut_ptr();
                    dot.multiply_tile(tile, rounded[first * pairs..].as_ptr(), terms.as_ptr(), to)
                };
                if let Some((panel, first)) = last.replace((panel, first)) {
                    store_tile(s, &task, &sums[1].0, panel, first, D::MAX_ROWS.min(rows - first));
                }
            }
        }
        if let Some((panel, first)) = last {
            store_tile(s, &task, &sums[0].0, panel, first, D::MAX_ROWS.min(rows - first));
        }
    }
}

impl<A: Convert, O> GemmBf16<'_, A, O> {
    /// Rounds the inputs of the task to pairs, in the layout of the tiles.
    #[inline(always)]
    fn round_inputs<D: Bf16Dot>(&mut self, dot: D, rows: usize, pairs: usize) {
        let Self { task, rounded, row, upcast, .. } = self;
        let k = task.weights.in_features;
        for i in 0..rows {
            let from = &task.a[(task.from + i) * k..][..k];
            if !D::TAKES_BLOCKS {
                A::to_bf16x2(dot, from, upcast, &mut rounded[i * pairs..][..pairs]);
                continue;
            }
            A::to_bf16x2(dot, from, upcast, row);
            for (step, line) in row.as_chunks::<BLOCK>().0.iter().enumerate() {
                let at = place_in_blocks(i, step * BLOCK, pairs);
                // A loop of fixed length, not `copy_from_slice`, which may be a call.
                rounded[at..][..BLOCK].iter_mut().zip(line).for_each(|(to, pair)| *to = *pair);
            }
        }
    }
}

/// Stores the sums of a tile of `rows` rows from row `first` of a task.
#[inline(always)]
fn store_tile<S: Simd, A, O: Convert>(
    s: S,
    task: &GemmTask<A, O>,
    sums: &[f32],
    panel: usize,
    first: usize,
    rows: usize,
) {
    let width = task.weights.panel_width;
    for (r, sums) in sums.chunks_exact(width).take(rows).enumerate() {
        let mut vectors = [s.splat(0.0); MAX_VECTORS];
        for (vector, sums) in vectors.iter_mut().zip(sums.chunks_exact(S::LANES)) {
            *vector = s.load_slice(sums);
        }
        // SAFETY: the row is in `from .. to`, the rows of this task, and the vectors are a panel's width.
        unsafe { task.store(s, panel, task.from + first + r, &vectors[..width / S::LANES]) };
    }
}
