//! Products by instructions that multiply pairs of 16-bit numbers.

use bytemuck::cast_slice_mut;

use super::convert::{Pair, PairFormat};
use super::error::Result;
use super::gemm::{GemmTask, MAX_COLUMNS, MAX_ROWS, Sums};
use super::isa::kernel::PairKernel;
use super::isa::microkernel::Prefetch;
use super::isa::pair_dot::{PairDot, PairOrder, PairTile, TileLayout, VECTOR_COLUMNS};
use super::isa::simd::Simd;
use super::memory::element_count;
use super::registry::Isa;

/// Runs a task on the packed panels of its weights.
pub(super) fn run_pairs(isa: Isa, format: PairFormat, task: GemmTask, panels: &[Pair]) -> Result<()> {
    // Inputs in pairs, with room for a whole tile more; one row of them, and one in f32.
    let k = task.in_features;
    let pairs = k.div_ceil(2).next_multiple_of(isa.pair_tiles(format).pair_step);
    let rounded = element_count("the scratch memory of a product", &[task.to - task.from + MAX_ROWS, pairs])?;
    let mut memory = task.pool.take(rounded + pairs + k)?;
    let (rounded, rest) = memory.split_at_mut(rounded);
    let (row, upcast) = rest.split_at_mut(pairs);
    isa.run_pairs(
        format,
        GemmPairs { task, panels, rounded: cast_slice_mut(rounded), row: cast_slice_mut(row), upcast },
    );
    Ok(())
}

struct GemmPairs<'a> {
    task: GemmTask<'a>,
    panels: &'a [Pair],
    rounded: &'a mut [Pair],
    row: &'a mut [Pair],
    upcast: &'a mut [f32],
}

impl PairKernel for GemmPairs<'_> {
    #[inline(always)]
    fn run<S: Simd, D: PairDot>(mut self, s: S, dot: D) {
        const {
            assert!(D::MAX_ROWS <= MAX_ROWS && D::MAX_VECTORS * VECTOR_COLUMNS <= MAX_COLUMNS);
            let block = D::ORDER.block();
            assert!(D::PAIR_STEP.is_multiple_of(block) && D::MAX_ROWS.is_multiple_of(block));
        }
        let (k, width) = (self.task.in_features, D::MAX_VECTORS * VECTOR_COLUMNS);
        assert_eq!(width, self.task.panel_width, "the weights are packed for another instruction set");
        let pairs = k.div_ceil(2).next_multiple_of(D::PAIR_STEP);
        let rows = self.task.to - self.task.from;
        // Inputs that are pairs already, whole tiles of them, are read where they are.
        let in_place = D::ORDER == PairOrder::Rows && k == 2 * pairs && rows.is_multiple_of(D::MAX_ROWS);
        let in_place =
            if in_place { self.task.a.part(self.task.from * k..self.task.to * k).as_pairs(D::FORMAT) } else { None };
        if in_place.is_none() {
            self.round_inputs(dot, rows, pairs);
        }
        let Self { task, panels, rounded, .. } = self;
        // A tile may read more rows than it has. Their contents do not matter: no row affects another.
        let rounded = in_place.unwrap_or(&rounded[..rows.next_multiple_of(D::MAX_ROWS) * pairs]);
        let layout = match D::ORDER {
            PairOrder::Rows => TileLayout::Rows { a: pairs, b: width },
            _ => TileLayout::Packed,
        };
        // Two in turns: the sums of one tile are stored while the instructions for the next one run.
        let mut sums = [const { Sums::ZERO }; 2];
        let [mut sums, mut last_sums] = sums.each_mut();
        let mut last = None::<(usize, usize)>;
        for panel in task.first..task.last {
            let terms = &panels[panel * width * pairs..][..width * pairs];
            let next = panels[task.panel_after(panel) * width * pairs..].as_ptr().cast();
            for (index, first) in (0..rows).step_by(D::MAX_ROWS).enumerate() {
                let (step, tiles) = (width * size_of::<Pair>(), rows.div_ceil(D::MAX_ROWS));
                // One or a few rows leave no time between their loads.
                let prefetch = if rows < D::MAX_ROWS {
                    Prefetch::NONE
                } else {
                    Prefetch::for_tile(bytemuck::cast_slice(terms), next, step, (index, tiles), task.comes_first(panel))
                };
                let tile = PairTile {
                    rows: D::MAX_ROWS.min(rows - first),
                    vectors: D::MAX_VECTORS,
                    pairs,
                    layout,
                    c_stride: width,
                    accumulate: false,
                    prefetch,
                };
                std::mem::swap(&mut sums, &mut last_sums);
                // SAFETY: `rounded` has `MAX_ROWS` rows of `pairs` from `first`, a multiple of `MAX_ROWS`, `terms` is a
                // whole panel, both in the layout of the tile, and `sums` has room for the largest tile. This is a
                // kernel under `run_pairs`.
                unsafe {
                    let to = sums.0.as_mut_ptr();
                    dot.multiply_tile(tile, rounded[first * pairs..].as_ptr(), terms.as_ptr(), to)
                };
                if let Some((panel, first)) = last.replace((panel, first)) {
                    let count = D::MAX_ROWS.min(rows - first) * width;
                    // SAFETY: rows of this task.
                    unsafe { task.store(s, &mut last_sums.0[..count], panel..panel + 1, first) };
                }
            }
        }
        if let Some((panel, first)) = last {
            // SAFETY: rows of this task.
            unsafe { task.store(s, &mut sums.0[..D::MAX_ROWS.min(rows - first) * width], panel..panel + 1, first) };
        }
    }
}

impl GemmPairs<'_> {
    /// Rounds the inputs of the task to pairs, in the layout of the tiles.
    #[inline(always)]
    fn round_inputs<D: PairDot>(&mut self, dot: D, rows: usize, pairs: usize) {
        let Self { task, rounded, row, upcast, .. } = self;
        let k = task.in_features;
        for i in 0..rows {
            let from = task.a.part((task.from + i) * k..(task.from + i + 1) * k);
            if D::ORDER == PairOrder::Rows {
                from.to_pairs(dot, upcast, &mut rounded[i * pairs..][..pairs]);
                continue;
            }
            from.to_pairs(dot, upcast, row);
            let block = const { D::ORDER.block() };
            for (step, line) in row.chunks_exact(block).enumerate() {
                let at = D::ORDER.place_in_rows(i, step * block, pairs);
                // A loop of fixed length, not `copy_from_slice`, which may be a call.
                rounded[at..][..block].iter_mut().zip(line).for_each(|(to, pair)| *to = *pair);
            }
        }
    }
}
