//! The part of a product with quantized weights that one thread computes.
//!
//! The kernels here read and write f32 only, and what surrounds them converts other dtypes row by row. So they are
//! compiled once for each instruction set, not for each pair of dtypes.

use std::mem::MaybeUninit;
use std::ops::Range;

use half::f16;

use super::dot::{InputRows, Int8Dot};
use super::encode::{BLOCK, WeightFormat};
use super::inputs::RoundedInputs;
use super::panels::{PanelLayout, PanelScales, QuantizedPanels};
use super::tiles::{Int8TileKernel, Int8Tiles, Sums, TILE_COLUMNS, TILE_ROWS, TILE_STEP};
use crate::activation::Activation;
use crate::convert::Convert;
use crate::error::Result;
use crate::gemm::{GemmTask, MAX_COLUMNS};
use crate::isa::Isa;
use crate::isa::kernel::Int8Kernel;
use crate::isa::simd::{MAX_LANES, Simd};
use crate::microkernel::Prefetch;

/// Runs a task on the packed panels of its weights.
pub(crate) fn run_quantized<A, O: Convert>(
    isa: Isa,
    task: GemmTask<A, O>,
    panels: &QuantizedPanels,
    inputs: &RoundedInputs,
) -> Result<()> {
    let layout = panels.layout;
    let PanelLayout { groups, width, .. } = layout;
    let (rows, n) = (task.to - task.from, task.weights.out_features);
    // The scales of a panel, and its results in f32.
    let results = if O::IS_F32 { 0 } else { rows * width };
    let mut memory = task.pool.take(groups * width + results)?;
    let (panel_scales, results) = memory.split_at_mut(groups * width);
    let (values, scales, starts) = inputs.rows_from(task.from);
    let count = task.weights.bias.len() / width;
    for panel in task.first..task.last {
        let scales_of_panel = match &panels.scales {
            PanelScales::F32(scales) => scales.panel(panel, count),
            PanelScales::F16(scales) => {
                f16::upcast(scales.panel(panel, count), panel_scales);
                &*panel_scales
            }
        };
        let columns = width.min(n - panel * width);
        let at = |row: usize| (task.from + row) * n + panel * width;
        let multiply = MultiplyPanel {
            layout,
            rows,
            values,
            scales,
            starts,
            panel: panels.values.panel(panel, count),
            next: panels.values.panel(task.panel_after(panel), count).as_ptr(),
            is_first: task.comes_first(panel),
            panel_scales: scales_of_panel,
            bias: &task.weights.bias[panel * width..][..width],
            activation: task.activation,
            out: results.as_mut_ptr(),
            stride: width,
            columns: width,
        };
        if O::IS_F32 {
            // SAFETY: the output has the rows of the task, and these columns of them are this task's alone.
            let out = unsafe { task.out.0.cast::<f32>().add(at(0)) };
            MultiplyPanel { out, stride: n, columns, ..multiply }.run_on(isa);
            continue;
        }
        multiply.run_on(isa);
        for (row, results) in results.chunks_exact(width).enumerate() {
            // SAFETY: `columns` values are left in this row of the output, which only this task writes.
            O::downcast(&results[..columns], unsafe { task.out.part(at(row), columns) });
        }
    }
    Ok(())
}

/// Multiplies rows of inputs with a panel, adds the bias and applies the activation.
struct MultiplyPanel<'a> {
    layout: PanelLayout,
    rows: usize,
    /// Those of [`RoundedInputs`].
    values: &'a [i8],
    scales: &'a [f32],
    starts: &'a [i32],
    panel: &'a [u8],
    /// The one that is read after it, and whether none was read before.
    next: *const u8,
    is_first: bool,
    /// `(groups, width)`
    panel_scales: &'a [f32],
    bias: &'a [f32],
    activation: Activation,
    /// Room for `columns` results in each of `rows` rows, which are `stride` values apart.
    out: *mut f32,
    stride: usize,
    columns: usize,
}

impl Int8Kernel for MultiplyPanel<'_> {
    #[inline(always)]
    fn run<D: Int8Dot, const MR: usize, const NR: usize, const BLOCK_MR: usize>(self, dot: D) {
        let (mut row, mut index) = (0, 0);
        while row < self.rows {
            let done = match self.layout.format {
                WeightFormat::Q8_0 => self.next_tile::<D, BLOCK_MR, NR, true, false>(dot, (row, index)),
                WeightFormat::Q4_0 => self.next_tile::<D, BLOCK_MR, NR, true, true>(dot, (row, index)),
                _ => self.next_tile::<D, MR, NR, false, false>(dot, (row, index)),
            };
            self.activate(dot.simd(), row..row + done);
            (row, index) = (row + done, index + 1);
        }
    }
}

impl Int8TileKernel for MultiplyPanel<'_> {
    #[inline(always)]
    fn run<S: Simd, T: Int8Tiles>(self, s: S, tiles: T) {
        let PanelLayout { width, inputs, .. } = self.layout;
        assert!(width == TILE_COLUMNS && inputs.is_multiple_of(TILE_STEP), "packed for another instruction set");
        assert!(self.values.len() >= self.rows.next_multiple_of(TILE_ROWS) * inputs);
        assert!(self.panel.len() >= width * inputs);
        // Two in turns: the sums of one tile are stored while the instructions for the next one run.
        let mut sums = [const { Sums([0; TILE_ROWS * TILE_COLUMNS]) }; 2];
        let [mut sums, mut last_sums] = sums.each_mut();
        for row in (0..self.rows).step_by(TILE_ROWS) {
            std::mem::swap(&mut sums, &mut last_sums);
            let (rows, values) = (TILE_ROWS.min(self.rows - row), self.values[row * inputs..].as_ptr());
            // SAFETY: the assertions check the lengths, for whole tiles of rows; this is a kernel under
            // `run_int8_tiles`.
            unsafe { tiles.multiply(rows, inputs / TILE_STEP, values, inputs, self.panel.as_ptr(), sums) };
            if row > 0 {
                self.store_sums(s, row - TILE_ROWS, TILE_ROWS, last_sums);
            }
        }
        let last = self.rows.saturating_sub(1) / TILE_ROWS * TILE_ROWS;
        self.store_sums(s, last, self.rows - last, sums);
        self.activate(s, 0..self.rows);
    }
}

impl MultiplyPanel<'_> {
    /// Runs it with tiles if there are any for the format.
    fn run_on(self, isa: Isa) {
        if self.layout.format == WeightFormat::Int8 && isa.has_int8_tiles() {
            isa.run_int8_tiles(self);
        } else {
            isa.run_int8(self);
        }
    }

    /// Scales the sums of a tile of `rows` rows from `row`, adds the bias and stores the results.
    #[inline(always)]
    fn store_sums<S: Simd>(&self, s: S, row: usize, rows: usize, sums: &Sums) {
        for (r, sums) in sums.0.as_chunks::<TILE_COLUMNS>().0.iter().take(rows).enumerate() {
            let row_scale = s.splat(self.scales[row + r]);
            let mut results = sums.map(|sum| sum as f32);
            for (v, results) in results.chunks_exact_mut(S::LANES).enumerate() {
                let at = v * S::LANES;
                let scale = s.mul(row_scale, s.load_slice(&self.panel_scales[at..]));
                let result = s.add(s.mul(s.load_slice(results), scale), s.load_slice(&self.bias[at..]));
                s.store_slice(results, result);
            }
            // SAFETY: the output has room for `columns` values, at most a panel, in each row.
            unsafe {
                let out = self.out.add((row + r) * self.stride);
                out.copy_from_nonoverlapping(results.as_ptr(), self.columns);
            }
        }
    }

    /// Computes the rows from `row` that go together: `MR`, of the remaining rows four, or one. Returns how many.
    #[inline(always)]
    fn next_tile<D: Int8Dot, const MR: usize, const NR: usize, const BLOCKS: bool, const NIBBLES: bool>(
        &self,
        dot: D,
        (row, index): (usize, usize),
    ) -> usize {
        let step = self.layout.bytes_of(if NIBBLES { 2 * D::STEP } else { D::STEP });
        let prefetch = Prefetch::of_tile(self.panel, self.next, step, (index, self.rows.div_ceil(MR)), self.is_first);
        match self.rows - row {
            left if left >= MR => self.tile::<D, MR, NR, BLOCKS, NIBBLES>(dot, row, prefetch),
            4.. if MR > 4 => self.tile::<D, 4, NR, BLOCKS, NIBBLES>(dot, row, prefetch),
            _ => self.tile::<D, 1, NR, BLOCKS, NIBBLES>(dot, row, prefetch),
        }
    }

    /// Computes `ROWS` rows from `row`, without the activation, and returns how many these are.
    #[inline(always)]
    fn tile<D: Int8Dot, const ROWS: usize, const NR: usize, const BLOCKS: bool, const NIBBLES: bool>(
        &self,
        dot: D,
        row: usize,
        mut prefetch: Prefetch,
    ) -> usize {
        let (s, lanes) = (dot.simd(), D::S::LANES);
        let PanelLayout { width, inputs, groups, .. } = self.layout;
        // Inputs of a group, and its bytes of the panel.
        let group = if BLOCKS { BLOCK } else { inputs };
        let bytes = self.layout.bytes_of(group);
        let (values, scales) = (&self.values[row * inputs..], &self.scales[row * groups..]);
        let starts = &self.starts[row * groups..];
        assert!(width == NR * lanes && inputs == groups * group, "the weights are packed for another instruction set");
        assert!(values.len() >= ROWS * inputs && scales.len() >= ROWS * groups && starts.len() >= ROWS * groups);
        assert!(self.panel.len() >= groups * bytes && self.panel_scales.len() >= groups * width);
        assert!(row + ROWS <= self.rows && self.bias.len() >= width && width <= MAX_COLUMNS);
        let groups = if BLOCKS { groups } else { 1 };
        let mut results = [[s.splat(0.0); NR]; ROWS];
        for index in 0..groups {
            // SAFETY: the assertions check the lengths for all groups; a group is a whole number of steps, and blocks
            // are an even one. This is a kernel under `run_int8`.
            unsafe {
                let a = InputRows {
                    values: values.as_ptr().add(index * group),
                    stride: inputs,
                    starts: starts.as_ptr().add(index),
                    starts_stride: groups,
                };
                let panel = self.panel.as_ptr().add(index * bytes);
                let sums = dot.sums::<ROWS, NR, NIBBLES>(group / D::STEP, a, panel, &mut prefetch);
                let scale = |v: usize| s.load(self.panel_scales.as_ptr().add(index * width + v * lanes));
                let panel_scales: [_; NR] = std::array::from_fn(scale);
                for (r, (results, sums)) in results.iter_mut().zip(sums).enumerate() {
                    let row_scale = s.splat(*scales.get_unchecked(r * groups + index));
                    for ((result, sum), panel_scale) in results.iter_mut().zip(sums).zip(panel_scales) {
                        // Not fused, so that all instruction sets give the same bits.
                        let scaled = s.mul(sum, s.mul(row_scale, panel_scale));
                        *result = if BLOCKS { s.add(*result, scaled) } else { scaled };
                    }
                }
            }
        }
        // SAFETY: `row + ROWS` is at most the number of rows and `bias` has `width` values, which were checked. If the
        // columns are fewer, they are copied from `buffer`, which has as many rows of at least `width` values.
        unsafe {
            let out = self.out.add(row * self.stride);
            let mut buffer = [const { MaybeUninit::<[f32; MAX_COLUMNS]>::uninit() }; ROWS];
            let whole = self.columns == width;
            let (to, stride) =
                if whole { (out, self.stride) } else { (buffer.as_mut_ptr().cast::<f32>(), MAX_COLUMNS) };
            for (r, results) in results.into_iter().enumerate() {
                for (v, result) in results.into_iter().enumerate() {
                    let result = s.add(result, s.load(self.bias.as_ptr().add(v * lanes)));
                    s.store(to.add(r * stride + v * lanes), result);
                }
            }
            if !whole {
                for (r, results) in buffer.iter().enumerate() {
                    out.add(r * self.stride).copy_from_nonoverlapping(results.as_ptr().cast(), self.columns);
                }
            }
        }
        ROWS
    }

    /// Applies the activation to the results of a tile, which are in the L1 cache: those of all rows would not be,
    /// because rows are often so far apart that they share few of its lines. This is code of its own because
    /// activations are long, and there are many sizes of tiles.
    #[inline(always)]
    fn activate<S: Simd>(&self, s: S, rows: Range<usize>) {
        // A loop for each, which keeps its constants in registers.
        match self.activation {
            Activation::Identity => {}
            Activation::Gelu => self.map_rows(s, rows, Activation::Gelu),
            Activation::GeluTanh => self.map_rows(s, rows, Activation::GeluTanh),
            Activation::Silu => self.map_rows(s, rows, Activation::Silu),
            Activation::Relu => self.map_rows(s, rows, Activation::Relu),
        }
    }

    #[inline(always)]
    fn map_rows<S: Simd>(&self, s: S, rows: Range<usize>, activation: Activation) {
        for row in rows {
            // SAFETY: a row of results has `columns` values, which were written.
            let results = unsafe { std::slice::from_raw_parts_mut(self.out.add(row * self.stride), self.columns) };
            let mut vectors = results.chunks_exact_mut(S::LANES);
            for results in &mut vectors {
                s.store_slice(results, activation.apply(s, s.load_slice(results)));
            }
            let rest = vectors.into_remainder();
            if !rest.is_empty() {
                let mut lanes = [0.0; MAX_LANES];
                lanes[..rest.len()].copy_from_slice(rest);
                let activated = activation.apply(s, s.load_slice(&lanes));
                s.store_slice(&mut lanes, activated);
                rest.copy_from_slice(&lanes[..rest.len()]);
            }
        }
    }
}
