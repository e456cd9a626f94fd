//! Products in f32, with packed weights of any floating-point dtype.
//!
//! Weights of 16 bits become f32 in registers. Where many rows are multiplied with a panel of them, the first tile
//! writes it to memory in f32 for the others: so the loop over terms is the same for all dtypes, and compiled once.

use std::ops::Range;

use super::convert::Convert;
use super::elements::{Elements, with_elements};
use super::error::Result;
use super::gemm::{GemmTask, SMALL_TILE, Sums, next_tile};
use super::isa::kernel::Kernel;
use super::isa::microkernel::{Lhs, Prefetch, Rhs, microkernel};
use super::isa::simd::Simd;
use super::registry::Isa;

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

/// What the tiles of a panel fetch.
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
