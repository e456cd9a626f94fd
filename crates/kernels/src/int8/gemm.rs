//! The part of a product with quantized weights that one thread computes.

use half::f16;

use super::dot::{InputRows, Int8Dot};
use super::encode::WeightFormat;
use super::inputs::quantize;
use super::panels::{PanelLayout, PanelScales, QuantizedPanels};
use crate::convert::Convert;
use crate::error::Result;
use crate::gemm::GemmTask;
use crate::isa::Isa;
use crate::isa::kernel::Int8Kernel;
use crate::isa::simd::Simd;
use crate::memory::element_count;

/// Runs a task on the packed panels of its weights.
pub(crate) fn run_quantized<A: Convert, O: Convert>(
    isa: Isa,
    task: GemmTask<A, O>,
    panels: &QuantizedPanels,
) -> Result<()> {
    let PanelLayout { inputs, groups, width, .. } = panels.layout;
    let (rows, k) = (task.to - task.from, task.weights.in_features);
    // In f32 values: the integers, four in each; scales and starts of the rows; a row in f32; scales of a panel.
    let values = element_count("the scratch memory of a product", &[rows, inputs])? / size_of::<f32>();
    let per_row = rows * groups;
    let mut memory = task.pool.take(values + 2 * per_row + k + groups * width)?;
    let (values, rest) = memory.split_at_mut(values);
    let (scales, rest) = rest.split_at_mut(per_row);
    let (starts, rest) = rest.split_at_mut(per_row);
    let (upcast, panel_scales) = rest.split_at_mut(k);
    isa.run_int8(GemmQuantized {
        task,
        panels,
        values: bytemuck::cast_slice_mut(values),
        scales,
        starts: bytemuck::cast_slice_mut(starts),
        upcast,
        panel_scales,
    });
    Ok(())
}

struct GemmQuantized<'a, A, O> {
    task: GemmTask<'a, A, O>,
    panels: &'a QuantizedPanels,
    /// The inputs as integers, `(rows, inputs)`.
    values: &'a mut [i8],
    /// `(rows, groups)`
    scales: &'a mut [f32],
    /// What sums start with, `(rows, groups)`: the sum of the inputs times what was added to each weight, negated.
    starts: &'a mut [i32],
    upcast: &'a mut [f32],
    /// The scales of one panel, `(groups, width)`, where they are not f32.
    panel_scales: &'a mut [f32],
}

impl<A: Convert, O: Convert> Int8Kernel for GemmQuantized<'_, A, O> {
    #[inline(always)]
    fn run<D: Int8Dot, const MR: usize, const NR: usize, const BLOCK_MR: usize>(mut self, dot: D) {
        let layout = self.panels.layout;
        assert_eq!(layout, PanelLayout { width: NR * D::S::LANES, ..layout }, "packed for another instruction set");
        self.quantize_inputs();
        match layout.format {
            WeightFormat::Q8_0 => self.run_format::<D, BLOCK_MR, NR, true, false>(dot),
            WeightFormat::Q4_0 => self.run_format::<D, BLOCK_MR, NR, true, true>(dot),
            _ => self.run_format::<D, MR, NR, false, false>(dot),
        }
    }
}

impl<A: Convert, O: Convert> GemmQuantized<'_, A, O> {
    /// Rounds the inputs of the task.
    #[inline(always)]
    fn quantize_inputs(&mut self) {
        let PanelLayout { format, inputs, groups, offset, .. } = self.panels.layout;
        let k = self.task.weights.in_features;
        let group = format.group(k);
        for row in 0..self.task.to - self.task.from {
            let from = A::as_f32(&self.task.a[(self.task.from + row) * k..][..k], self.upcast);
            let values = &mut self.values[row * inputs..][..inputs];
            for index in 0..groups {
                let (from, to) = match format {
                    WeightFormat::Int8 => (from, &mut *values),
                    _ => (&from[index * group..][..group], &mut values[index * group..][..group]),
                };
                let (scale, sum) = quantize(from, to);
                self.scales[row * groups + index] = scale;
                self.starts[row * groups + index] = -(i32::from(offset) * sum);
            }
        }
    }

    #[inline(always)]
    fn run_format<D: Int8Dot, const MR: usize, const NR: usize, const BLOCKS: bool, const NIBBLES: bool>(
        &mut self,
        dot: D,
    ) {
        let layout = self.panels.layout;
        let count = self.task.weights.bias.len() / layout.width;
        let rows = self.task.to - self.task.from;
        for panel in self.task.first..self.task.last {
            let scales = match &self.panels.scales {
                PanelScales::F32(scales) => scales.panel(panel, count),
                PanelScales::F16(scales) => {
                    f16::upcast(scales.panel(panel, count), self.panel_scales);
                    &*self.panel_scales
                }
            };
            let tile = Tile {
                task: &self.task,
                layout,
                values: self.values,
                scales: self.scales,
                starts: self.starts,
                panel: self.panels.values.panel(panel, count),
                panel_scales: scales,
                index: panel,
            };
            let mut row = 0;
            // Only the first tile fetches the panel from afar; the others find it in the cache.
            if MR <= rows {
                tile.compute::<D, MR, NR, BLOCKS, NIBBLES, true>(dot, 0);
                row = MR;
            }
            while row + MR <= rows {
                tile.compute::<D, MR, NR, BLOCKS, NIBBLES, false>(dot, row);
                row += MR;
            }
            // The remaining rows, by four and by one.
            while MR > 4 && row + 4 <= rows {
                tile.compute::<D, 4, NR, BLOCKS, NIBBLES, true>(dot, row);
                row += 4;
            }
            while row < rows {
                tile.compute::<D, 1, NR, BLOCKS, NIBBLES, true>(dot, row);
                row += 1;
            }
        }
    }
}

/// One panel, and the rows that are multiplied with it.
struct Tile<'a, A, O> {
    task: &'a GemmTask<'a, A, O>,
    layout: PanelLayout,
    values: &'a [i8],
    scales: &'a [f32],
    starts: &'a [i32],
    panel: &'a [u8],
    panel_scales: &'a [f32],
    /// Of the panel.
    index: usize,
}

impl<A, O: Convert> Tile<'_, A, O> {
    /// Computes `ROWS` rows of the task from `row`.
    #[inline(always)]
    fn compute<
        D: Int8Dot,
        const ROWS: usize,
        const NR: usize,
        const BLOCKS: bool,
        const NIBBLES: bool,
        const PREFETCH: bool,
    >(
        &self,
        dot: D,
        row: usize,
    ) {
        let (s, lanes) = (dot.simd(), D::S::LANES);
        let PanelLayout { width, inputs, groups, .. } = self.layout;
        // Inputs of a group, and its bytes of the panel.
        let group = if BLOCKS { super::encode::BLOCK } else { inputs };
        let bytes = self.layout.bytes_of(group);
        let (values, scales) = (&self.values[row * inputs..], &self.scales[row * groups..]);
        let starts = &self.starts[row * groups..];
        assert!(width == NR * lanes && (BLOCKS || groups == 1) && inputs == groups * group);
        assert!(values.len() >= ROWS * inputs && scales.len() >= ROWS * groups && starts.len() >= ROWS * groups);
        assert!(self.panel.len() >= groups * bytes && self.panel_scales.len() >= groups * width);
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
                let sums = dot.sums::<ROWS, NR, NIBBLES, PREFETCH>(group / D::STEP, a, panel);
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
        for (r, results) in results.iter().enumerate() {
            // SAFETY: rows `row .. row + ROWS` are rows of this task, and a register tile is one panel wide.
            unsafe { self.task.store(s, self.index, self.task.from + row + r, results) };
        }
    }
}
