//! Products of activations with packed weights: a task, how its sums become results, and the product in f32 with
//! weights of any floating-point dtype.
//!
//! An element of the result is a sum over the input features in order, whatever the other rows are. So the result of a
//! row is bitwise the same alone and in any batch, on any number of threads.
//!
//! Weights of 16 bits become f32 in registers. Where many rows are multiplied with a panel of them, the first tile
//! writes it to memory in f32 for the others: so the loop over terms is the same for all dtypes, and compiled once.

use std::ops::Range;

use super::activation::{Activation, activate_bf16};
use super::convert::Convert;
use super::elements::{Elements, ElementsOut, with_elements};
use super::error::Result;
use super::isa::kernel::Kernel;
use super::isa::microkernel::{Lhs, Prefetch, Rhs, microkernel, store_rows};
use super::isa::simd::{Simd, VectorKernel};
use super::memory::ScratchPool;
use super::registry::Isa;
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
            _ => {
                // SAFETY: the assertion checks the memory, and the caller promises the rest.
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

/// Runs a task on the packed panels of its weights.
pub(super) fn run_f32(isa: Isa, task: GemmTask, panels: Elements) -> Result<()> {
    // Inputs in f32, and a panel; not more than there are inputs and weights, so the products do not wrap around.
    let k = task.in_features;
    let upcast = if task.a.is_f32() { 0 } else { ((task.to - task.from) * k).next_multiple_of(CACHE_LINE) };
    let wide = if panels.is_f32() { 0 } else { task.panel_width * k };
    let mut memory = task.pool.take(upcast + wide)?;
    let (upcast, wide) = memory.split_at_mut(upcast);
    isa.run(GemmF32 { task, panels, upcast, wide });
    Ok(())
}

/// f32 values in a cache line.
const CACHE_LINE: usize = 16;

struct GemmF32<'a> {
    task: GemmTask<'a>,
    panels: Elements<'a>,
    upcast: &'a mut [f32],
    /// Memory for a panel of 16-bit weights in f32.
    wide: &'a mut [f32],
}

impl Kernel for GemmF32<'_> {
    #[inline(always)]
    fn run<S: Simd, const MR: usize, const NR: usize>(self, s: S) {
        let Self { ref task, panels, upcast, wide } = self;
        let k = task.in_features;
        assert_eq!(task.panel_width, NR * S::LANES, "the weights are packed for another instruction set");
        let a = task.a.part(task.from * k..task.to * k).as_f32(upcast);
        with_elements!(
            Elements(panels),
            panels => multiply_panels::<S, _, MR, NR>(s, task, a, panels, wide),
            Int8(_panels) => unreachable!("integers are multiplied as such")
        );
    }
}

/// Multiplies all rows of a task with its panels.
#[inline(always)]
fn multiply_panels<S: Simd, T: Convert, const MR: usize, const NR: usize>(
    s: S,
    task: &GemmTask,
    a: &[f32],
    panels: &[T],
    wide: &mut [f32],
) {
    let (rows, width) = (task.to - task.from, task.panel_width);
    let (size, mut sums) = (width * task.in_features, Sums::ZERO);
    let mut panel = task.first;
    while panel < task.last {
        let terms = &panels[panel * size..];
        if rows < SMALL_TILE && panel + PANELS_OF_ROW <= task.last && (T::IS_F32 || S::MULTIPLIES_HALVES) {
            // A tile of one row has too few sums to hide the latency of multiply-adds, so it is wider.
            let terms = &terms[..PANELS_OF_ROW * size];
            for row in 0..rows {
                let tile = Tile { task, a, terms, panels: panel..panel + PANELS_OF_ROW, row };
                match NR {
                    1 => tile.multiply::<S, 1, { PANELS_OF_ROW }, 1>(s, Prefetch::NONE, &mut sums, None),
                    2 => tile.multiply::<S, 1, { 2 * PANELS_OF_ROW }, 2>(s, Prefetch::NONE, &mut sums, None),
                    _ => tile.multiply::<S, 1, { 3 * PANELS_OF_ROW }, 3>(s, Prefetch::NONE, &mut sums, None),
                }
            }
            panel += PANELS_OF_ROW;
            continue;
        }
        let terms = &terms[..size];
        let fetch = PanelFetch {
            panel: bytemuck::cast_slice(terms),
            next: panels[task.panel_after(panel) * size..].as_ptr().cast(),
            step: width * size_of::<T>(),
            tiles: rows.div_ceil(MR),
            is_first: task.comes_first(panel),
        };
        if T::IS_F32 {
            multiply_rows::<S, T, MR, NR>(s, task, a, panel, terms, (0, fetch), &mut sums);
        } else if !S::MULTIPLIES_HALVES {
            for at in (0..size).step_by(S::LANES) {
                // SAFETY: a panel is whole vectors.
                s.store_slice(&mut wide[at..], unsafe { s.load_as(terms.as_ptr().add(at)) });
            }
            multiply_rows::<S, f32, MR, NR>(s, task, a, panel, wide, (0, fetch), &mut sums);
        } else if rows <= SMALL_TILE {
            multiply_rows::<S, T, SMALL_TILE, NR>(s, task, a, panel, terms, (0, fetch), &mut sums);
        } else {
            // The first tile, which is small because conversions take registers, reads 16-bit weights and writes them
            // in f32 for the others.
            let tile = Tile { task, a, terms, panels: panel..panel + 1, row: 0 };
            tile.multiply::<S, SMALL_TILE, NR, NR>(s, fetch.tile(0), &mut sums, Some(&mut *wide));
            multiply_rows::<S, f32, MR, NR>(s, task, a, panel, wide, (SMALL_TILE, fetch), &mut sums);
        }
        panel += 1;
    }
}

/// Panels that a row is multiplied with at the same time.
const PANELS_OF_ROW: usize = 4;

/// Memory that the tiles of a panel fetch.
#[derive(Clone, Copy)]
struct PanelFetch<'a> {
    /// The panel in memory, and the one that is read after it.
    panel: &'a [u8],
    next: *const u8,
    /// Bytes of a term.
    step: usize,
    tiles: usize,
    is_first: bool,
}

impl PanelFetch<'_> {
    fn tile(self, index: usize) -> Prefetch {
        Prefetch::for_tile(self.panel, self.next, self.step, (index, self.tiles), self.is_first)
    }
}

/// Multiplies the rows of a task from `row` on with a panel.
#[inline(always)]
fn multiply_rows<S: Simd, T: Convert, const MR: usize, const NR: usize>(
    s: S,
    task: &GemmTask,
    a: &[f32],
    panel: usize,
    terms: &[T],
    (mut row, fetch): (usize, PanelFetch),
    sums: &mut Sums,
) {
    let rows = task.to - task.from;
    while row < rows {
        let (first, height) = next_tile(row, rows, MR);
        let tile = Tile { task, a, terms, panels: panel..panel + 1, row: first };
        match height {
            SMALL_TILE if MR > SMALL_TILE => {
                tile.multiply::<S, SMALL_TILE, NR, NR>(s, Prefetch::ahead(fetch.panel, fetch.step), sums, None);
            }
            1 => tile.multiply::<S, 1, NR, NR>(s, Prefetch::ahead(fetch.panel, fetch.step), sums, None),
            _ => tile.multiply::<S, MR, NR, NR>(s, fetch.tile(row.div_ceil(MR)), sums, None),
        }
        row = first + height;
    }
}

/// Rows of a task from `row` on by some panels.
struct Tile<'a, T> {
    task: &'a GemmTask<'a>,
    a: &'a [f32],
    terms: &'a [T],
    panels: Range<usize>,
    row: usize,
}

impl<T: Convert> Tile<'_, T> {
    /// Computes `ROWS` rows by `VECTORS` vectors, `NR` of each panel, and stores them. `memory` is for their sums. The
    /// panel is also written in f32 to `wide`, if there is such memory.
    #[inline(always)]
    fn multiply<S: Simd, const ROWS: usize, const VECTORS: usize, const NR: usize>(
        self,
        s: S,
        prefetch: Prefetch,
        memory: &mut Sums,
        wide: Option<&mut [f32]>,
    ) {
        let (k, width) = (self.task.in_features, VECTORS * S::LANES);
        let a = &self.a[self.row * k..];
        assert!(a.len() >= ROWS * k && self.terms.len() == width * k);
        let mut b = Rhs::panels(self.terms.as_ptr(), NR * S::LANES, NR, NR * S::LANES * k);
        if let Some(wide) = wide {
            assert!(wide.len() >= width * k);
            b = b.copied_to(wide.as_mut_ptr());
        }
        // SAFETY: the assertion checks the lengths; rows `row .. row + ROWS` are rows of this task.
        unsafe {
            let sums = microkernel::<S, T, ROWS, VECTORS>(s, k, Lhs::rows(a.as_ptr(), k), b, prefetch);
            self.task.store_tile(s, sums, memory, self.panels, self.row);
        }
    }
}
