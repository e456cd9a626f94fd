//! A task of a product of activations with packed weights: what it reads, and how sums become results.
//!
//! An element of the result is a sum over the input features in order, whatever the other rows are. So the result of a
//! row is bitwise the same alone and in any batch, on any number of threads.

use std::ops::Range;

use super::activation::{Activation, activate_bf16};
use super::elements::{Elements, ElementsOut};
use super::isa::microkernel::store_rows;
use super::isa::simd::{Simd, VectorKernel};
use super::memory::ScratchPool;
use super::unroll::unroll;

/// The part of a product that one thread computes: rows `from .. to`, panels `first .. last`.
#[derive(Clone, Copy)]
pub(super) struct GemmTask<'a> {
    pub in_features: usize,
    pub out_features: usize,
    /// Output features per panel.
    pub panel_width: usize,
    /// One value per output feature, padded to whole panels.
    pub bias: &'a [f32],
    pub a: Elements<'a>,
    pub out: ElementsOut,
    pub pool: &'a ScratchPool,
    pub from: usize,
    pub to: usize,
    pub first: usize,
    pub last: usize,
    pub activation: Activation,
}

/// The most columns that a register tile has.
pub(super) const MAX_COLUMNS: usize = 48;
/// The most rows that a tile has.
pub(super) const MAX_ROWS: usize = 32;

/// The sums of a tile, row by row.
#[repr(align(64))]
pub(super) struct Sums(pub [f32; MAX_ROWS * MAX_COLUMNS]);

impl Sums {
    pub const ZERO: Self = Self([0.0; MAX_ROWS * MAX_COLUMNS]);
}

impl GemmTask<'_> {
    /// The panel that is read after `panel`: at the end that of the next rows, which mostly are the next task.
    pub(super) fn panel_after(&self, panel: usize) -> usize {
        if panel + 1 < self.last { panel + 1 } else { self.first }
    }

    /// Whether no panel was read before.
    pub(super) fn comes_first(&self, panel: usize) -> bool {
        panel == self.first && self.from == 0
    }

    /// Adds the bias to the sums of whole rows of some panels, applies the activation and stores the results from row
    /// `row` of the task on.
    ///
    /// # Safety
    /// The rows are rows of this task, and no other thread writes its panels.
    #[inline(always)]
    pub(super) unsafe fn store<S: Simd>(&self, s: S, sums: &mut [f32], panels: Range<usize>, row: usize) {
        let Self { out_features, panel_width, bias, .. } = *self;
        let columns = panels.start * panel_width..panels.end * panel_width;
        s.call(Epilogue {
            sums,
            bias: &bias[columns.clone()],
            activation: self.activation,
            columns: columns.end.min(out_features) - columns.start,
            out: self.out,
            start: (self.from + row) * out_features + columns.start,
            stride: out_features,
        });
    }

    /// [`store`](Self::store) of sums in registers: `NR` vectors of each of the panels. `memory` is for those that do
    /// not go to the output at once.
    ///
    /// # Safety
    /// That of `store`.
    #[inline(always)]
    pub(super) unsafe fn store_tile<S: Simd, const ROWS: usize, const VECTORS: usize>(
        &self,
        s: S,
        sums: [[S::V; VECTORS]; ROWS],
        memory: &mut Sums,
        panels: Range<usize>,
        row: usize,
    ) {
        let Self { out_features, panel_width, bias, .. } = *self;
        let (column, width) = (panels.start * panel_width, VECTORS * S::LANES);
        assert!(panels.len() * panel_width == width && ROWS * width <= memory.0.len());
        let bias = &bias[column..][..width];
        let out = match self.out {
            // Sums become results by nothing but the bias, and all columns are in the output.
            ElementsOut::F32(out) if self.activation == Activation::Identity && column + width <= out_features => out,
            // SAFETY: the assertion checks the memory, and the caller promises the rest.
            _ => {
                return unsafe {
                    store_rows(s, &sums, memory.0.as_mut_ptr(), width);
                    self.store(s, &mut memory.0[..ROWS * width], panels, row)
                };
            }
        };
        // SAFETY: the caller promises the rows; all columns are in the output.
        unsafe {
            let out = out.start().add((self.from + row) * out_features + column);
            unroll!(n in 0..VECTORS => {
                let (to, bias) = (out.add(n * S::LANES), s.load(bias.as_ptr().add(n * S::LANES)));
                unroll!(r in 0..ROWS => s.store(to.add(r * out_features), s.add(sums[r][n], bias)));
            });
        }
    }
}

/// The height of tiles for rows that do not fill a tile.
pub(super) const SMALL_TILE: usize = 4;

/// The tile of a product that starts at `row` of `rows` rows: its first row, and its height, one of
/// `[mr, SMALL_TILE, 1]`. The last tile starts earlier, if it can, and computes some rows again: a product of one row
/// takes as long as one of four.
#[inline(always)]
pub(super) fn next_tile(row: usize, rows: usize, mr: usize) -> (usize, usize) {
    let left = rows - row;
    match mr.min(SMALL_TILE) {
        _ if left >= mr => (row, mr),
        small if rows >= mr && left > small => (rows - mr, mr),
        small if left >= small => (row, small),
        small if rows >= small => (rows - small, small),
        _ => (row, 1),
    }
}

/// The sums of some rows by one panel of outputs, which become results by bias, activation and dtype of the output.
pub(super) struct Epilogue<'a> {
    /// Rows as long as `bias`.
    pub sums: &'a mut [f32],
    /// One value for each output of the panel, whole vectors.
    pub bias: &'a [f32],
    pub activation: Activation,
    /// The outputs that there are; the others of the panel fill it.
    pub columns: usize,
    pub out: ElementsOut,
    /// The first result of the first row in the output, and the number of elements from one row to the next.
    pub start: usize,
    pub stride: usize,
}

impl VectorKernel for Epilogue<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // A loop for each, which keeps its constants in registers.
        match self.activation {
            Activation::Identity => self.finish(s, Activation::Identity),
            Activation::Gelu => self.finish(s, Activation::Gelu),
            Activation::GeluTanh => self.finish(s, Activation::GeluTanh),
            Activation::Silu => self.finish(s, Activation::Silu),
            Activation::Relu => self.finish(s, Activation::Relu),
        }
    }
}

impl Epilogue<'_> {
    #[inline(always)]
    fn finish<S: Simd>(self, s: S, activation: Activation) {
        let Self { sums, bias, columns, out, start, stride, .. } = self;
        let (width, rounds_to_bf16) = (bias.len(), out.is_bf16());
        assert!(width.is_multiple_of(S::LANES) && sums.len().is_multiple_of(width) && columns <= width);
        let rows = sums.len() / width;
        // Whole rows of f32 go to the output at once, others first back to where the sums were.
        let sums = sums.as_mut_ptr();
        let (to, to_stride, direct) = match out {
            ElementsOut::F32(out) if columns == width => (out.start().wrapping_add(start), stride, true),
            _ => (sums, width, false),
        };
        // SAFETY: there are `rows` rows of `width` sums, and the bias has as many values, whole vectors. The callers of
        // `GemmTask::store` promise that `columns` elements of each row of the output are theirs.
        unsafe {
            for at in (0..width).step_by(S::LANES) {
                let bias = s.load(bias.as_ptr().add(at));
                for row in 0..rows {
                    let sum = s.add(s.load(sums.add(row * width + at)), bias);
                    let result =
                        if rounds_to_bf16 { activate_bf16(s, activation, sum) } else { activation.apply(s, sum) };
                    s.store(to.add(row * to_stride + at), result);
                }
            }
            if !direct {
                for row in 0..rows {
                    let results = std::slice::from_raw_parts(sums.add(row * width), columns);
                    out.store(s, start + row * stride, results);
                }
            }
        }
    }
}
