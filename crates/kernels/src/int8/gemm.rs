//! The part of a product with quantized weights that one thread computes.

use bytemuck::Zeroable;

use super::dot::{InputRows, Int8Dot};
use super::encode::{BLOCK, WeightFormat};
use super::inputs::RoundedInputs;
use super::kernel::{Int8Kernel, Int8TileKernel, Int8Tiles, Sums as TileSums, TILE_COLUMNS, TILE_ROWS, TILE_STEP};
use super::panels::PanelLayout;
use crate::error::Result;
use crate::gemm::{GemmTask, Sums, next_tile};
use crate::isa::microkernel::Prefetch;
use crate::isa::simd::Simd;
use crate::memory::SharedPanels;
use crate::registry::Isa;
use crate::unroll::unroll;

/// Runs a task on the packed panels of its weights and their scales.
pub(crate) fn run_quantized(
    isa: Isa,
    task: GemmTask,
    layout: PanelLayout,
    [panels, panel_scales]: [&SharedPanels; 2],
    inputs: &RoundedInputs,
) -> Result<()> {
    let PanelLayout { format, groups, width, .. } = layout;
    let mut buffer = task.pool.take(groups * width)?;
    let (values, scales, starts) = inputs.rows_from(task.from);
    let (count, mut results) = (task.bias.len() / width, Sums::ZERO);
    for panel in task.first..task.last {
        let multiply = MultiplyPanel {
            task: &task,
            layout,
            rows: task.to - task.from,
            values,
            scales,
            starts,
            index: panel,
            panel: panels.panel(panel, count),
            next: panels.panel::<u8>(task.panel_after(panel), count).as_ptr(),
            panel_scales: format.scales_in_f32(panel_scales.panel(panel, count), &mut buffer),
        };
        let kernel = PanelKernel { multiply, results: &mut results };
        if format == WeightFormat::Int8 && isa.has_int8_tiles() {
            isa.run_int8_tiles(kernel);
        } else {
            isa.run_int8(kernel);
        }
    }
    Ok(())
}

/// Multiplies the rows of a task with a panel.
struct MultiplyPanel<'a> {
    task: &'a GemmTask<'a>,
    layout: PanelLayout,
    rows: usize,
    /// Those of [`RoundedInputs`].
    values: &'a [i8],
    scales: &'a [f32],
    starts: &'a [i32],
    /// The number of the panel, its bytes, and the panel that is read after it.
    index: usize,
    panel: &'a [u8],
    next: *const u8,
    /// `(groups, width)`
    panel_scales: &'a [f32],
}

/// [`MultiplyPanel`] as a kernel, with memory for results.
struct PanelKernel<'a> {
    multiply: MultiplyPanel<'a>,
    results: &'a mut Sums,
}

impl Int8Kernel for PanelKernel<'_> {
    #[inline(always)]
    fn run<D: Int8Dot, const MR: usize, const NR: usize, const BLOCK_MR: usize>(self, dot: D) {
        let Self { multiply, results } = self;
        let (mut row, mut index) = (0, 0);
        while row < multiply.rows {
            let place = (row, index);
            row = match multiply.layout.format {
                WeightFormat::Q8_0 => multiply.next_tile::<D, BLOCK_MR, NR, true, false>(dot, place, results),
                WeightFormat::Q4_0 => multiply.next_tile::<D, BLOCK_MR, NR, true, true>(dot, place, results),
                _ => multiply.next_tile::<D, MR, NR, false, false>(dot, place, results),
            };
            index += 1;
        }
    }
}

impl Int8TileKernel for PanelKernel<'_> {
    #[inline(always)]
    fn run<S: Simd, T: Int8Tiles>(self, s: S, tiles: T) {
        let Self { multiply, results } = self;
        let PanelLayout { width, inputs, .. } = multiply.layout;
        assert!(width == TILE_COLUMNS && inputs.is_multiple_of(TILE_STEP), "packed for another instruction set");
        assert!(multiply.values.len() >= multiply.rows.next_multiple_of(TILE_ROWS) * inputs);
        assert!(multiply.panel.len() >= width * inputs);
        // Two in turns: the sums of one tile are stored while the instructions for the next one run.
        let mut sums = [const { TileSums([0; TILE_ROWS * TILE_COLUMNS]) }; 2];
        let [mut sums, mut last_sums] = sums.each_mut();
        for row in (0..multiply.rows).step_by(TILE_ROWS) {
            std::mem::swap(&mut sums, &mut last_sums);
            let (rows, values) = (TILE_ROWS.min(multiply.rows - row), multiply.values[row * inputs..].as_ptr());
            // SAFETY: the assertions check the lengths, for whole tiles of rows; this is a kernel under
            // `run_int8_tiles`.
            unsafe { tiles.multiply(rows, inputs / TILE_STEP, values, inputs, multiply.panel.as_ptr(), sums) };
            if row > 0 {
                multiply.store_sums(s, row - TILE_ROWS, TILE_ROWS, last_sums, results);
            }
        }
        let last = multiply.rows.saturating_sub(1) / TILE_ROWS * TILE_ROWS;
        multiply.store_sums(s, last, multiply.rows - last, sums, results);
    }
}

impl MultiplyPanel<'_> {
    /// Scales the sums of a tile of `rows` rows from `row` and stores the results.
    #[inline(always)]
    fn store_sums<S: Simd>(&self, s: S, row: usize, rows: usize, sums: &TileSums, results: &mut Sums) {
        let sums = sums.0.as_chunks::<TILE_COLUMNS>().0.iter().take(rows);
        for (r, (sums, results)) in sums.zip(results.0.chunks_exact_mut(TILE_COLUMNS)).enumerate() {
            let row_scale = s.splat(self.scales[row + r]);
            results.iter_mut().zip(sums).for_each(|(result, sum)| *result = *sum as f32);
            for (results, scales) in results.chunks_exact_mut(S::LANES).zip(self.panel_scales.chunks_exact(S::LANES)) {
                let scale = s.mul(row_scale, s.load_slice(scales));
                s.store_slice(results, s.mul(s.load_slice(results), scale));
            }
        }
        // SAFETY: rows of the task.
        unsafe { self.task.store(s, &mut results.0[..rows * TILE_COLUMNS], self.index..self.index + 1, row) };
    }

    /// Computes the next rows that go together, from `row` or some before it on, and returns the row after them.
    #[inline(always)]
    fn next_tile<D: Int8Dot, const MR: usize, const NR: usize, const BLOCKS: bool, const NIBBLES: bool>(
        &self,
        dot: D,
        (row, index): (usize, usize),
        results: &mut Sums,
    ) -> usize {
        let step = self.layout.bytes_of(if NIBBLES { 2 * D::STEP } else { D::STEP });
        let (place, is_first) = ((index, self.rows.div_ceil(MR)), self.task.comes_first(self.index));
        let prefetch = Prefetch::for_tile(self.panel, self.next, step, place, is_first);
        let (first, height) = next_tile(row, self.rows, MR);
        match height {
            1 => self.tile::<D, 1, NR, BLOCKS, NIBBLES>(dot, first, prefetch, results),
            4 if MR > 4 => self.tile::<D, 4, NR, BLOCKS, NIBBLES>(dot, first, prefetch, results),
            _ => self.tile::<D, MR, NR, BLOCKS, NIBBLES>(dot, first, prefetch, results),
        }
        first + height
    }

    /// Computes `ROWS` rows from `row` and stores them. `results` is memory for them.
    #[inline(always)]
    fn tile<D: Int8Dot, const ROWS: usize, const NR: usize, const BLOCKS: bool, const NIBBLES: bool>(
        &self,
        dot: D,
        row: usize,
        mut prefetch: Prefetch,
        memory: &mut Sums,
    ) {
        let (s, lanes) = (dot.simd(), D::S::LANES);
        let PanelLayout { width, inputs, groups, input_size, .. } = self.layout;
        let row_bytes = self.layout.input_row_bytes();
        // Inputs of a group, and its bytes of the panel.
        let group = if BLOCKS { BLOCK } else { inputs };
        let bytes = self.layout.bytes_of(group);
        let (values, scales) = (&self.values[row * row_bytes..], &self.scales[row * groups..]);
        let starts = &self.starts[row * groups..];
        assert!(width == NR * lanes && inputs == groups * group, "the weights are packed for another instruction set");
        assert!(
            input_size == size_of::<D::Input>()
                && values.len() >= ROWS * row_bytes
                && scales.len() >= ROWS * groups
                && starts.len() >= ROWS * groups
        );
        assert!(self.panel.len() >= groups * bytes && self.panel_scales.len() >= groups * width);
        assert!(row + ROWS <= self.rows);
        let groups = if BLOCKS { groups } else { 1 };
        let mut results: [[<D::S as Simd>::V; NR]; ROWS] = Zeroable::zeroed();
        for index in 0..groups {
            // SAFETY: the assertions check the lengths for all groups; a group is a whole number of steps, and blocks
            // are an even one. This is a kernel under `run_int8`.
            unsafe {
                let a = InputRows {
                    values: values.as_ptr().add(index * group * input_size),
                    stride: row_bytes,
                    starts: starts.as_ptr().add(index),
                    starts_stride: groups,
                };
                let panel = self.panel.as_ptr().add(index * bytes);
                let sums = dot.sums::<ROWS, NR, NIBBLES>(group / D::STEP, a, panel, &mut prefetch);
                let panel_scales = self.panel_scales.as_ptr().add(index * width);
                unroll!(v in 0..NR => {
                    let panel_scale = s.load(panel_scales.add(v * lanes));
                    unroll!(r in 0..ROWS => {
                        let row_scale = s.splat(*scales.get_unchecked(r * groups + index));
                        // Not fused, so that all instruction sets give the same bits.
                        let scaled = s.mul(sums[r][v], s.mul(row_scale, panel_scale));
                        results[r][v] = if BLOCKS { s.add(results[r][v], scaled) } else { scaled };
                    });
                });
            }
        }
        // SAFETY: these are rows of the task.
        unsafe { self.task.store_tile(s, results, memory, self.index..self.index + 1, row) };
    }
}
