//! Products of activations with packed weights.
//!
//! An element of the result is a sum over the input features in order, whatever the other rows are. So the result of a
//! row is bitwise the same alone and in any batch, on any number of threads.

use std::ops::Range;

use super::activation::Activation;
use super::blas::{OUTPUT_STEP, ROW_BLOCK, run_blas, share};
use super::elements::{Elements, ElementsOut};
use super::epilogue::Epilogue;
use super::error::{Error, Result};
use super::gemm_f32::{F32Panels, run_f32};
use super::gemm_pairs::run_pairs;
use super::int8::encode::WeightFormat;
use super::int8::gemm::run_quantized;
use super::int8::inputs::RoundedInputs;
use super::isa::pair_dot::PairOrder;
use super::isa::simd::Simd;
use super::memory::{ScratchPool, element_count};
use super::microkernel::store_rows;
use super::packing::{PackedWeights, Panels};
use super::team::{SharedOut, Team};
use super::unroll::unroll;

/// The input values of a task: 1 MB in f32, half of the L2 cache.
const BLOCK_VALUES: usize = 1 << 18;
/// The L1 cache of a core that has AMX.
const L1_BYTES: usize = 48 << 10;
/// The fewest multiply-adds of a task: some microseconds, many times what taking a task costs.
const MIN_TASK_WORK: usize = 1 << 18;
/// Tasks for each thread: more than one, so that a thread that loses its core to another program does not hold up all.
const TASKS_PER_THREAD: usize = 3;

impl PackedWeights {
    /// Multiply-adds of a product with `rows` rows.
    pub fn multiply_adds(&self, rows: usize) -> usize {
        rows.saturating_mul(self.out_features).saturating_mul(self.in_features)
    }

    /// Rows that one task multiplies with a panel before the next panel is fetched, a multiple of all tiles.
    fn row_block(&self) -> usize {
        match &self.panels {
            _ if self.blas.is_some() => ROW_BLOCK,
            // Tiles of AMX are so fast that rows and panel have to come from the L1 cache, if they fit.
            Panels::Pairs(format, _) if self.isa.pair_tiles(*format).order == PairOrder::Blocks => {
                let bytes = (32 + self.panel_width) * self.in_features * size_of::<half::bf16>();
                if bytes <= L1_BYTES { 32 } else { 128 }
            }
            // As large, because the tiles are configured for each panel.
            Panels::Quantized(panels) if panels.layout.format == WeightFormat::Int8 && self.isa.has_int8_tiles() => {
                if (64 + self.panel_width) * self.in_features <= L1_BYTES {
                    64
                } else {
                    128
                }
            }
            _ => (BLOCK_VALUES / self.in_features.max(1)).next_multiple_of(32).clamp(64, 128),
        }
    }

    /// Checks the size of the input of a product, and gives that of its output.
    pub(super) fn output_size(&self, a: Elements, rows: usize) -> Result<usize> {
        if a.len() != element_count("the input of a product", &[rows, self.in_features])? {
            return Err(Error::shape("the input of a product", &[a.len()], format!("{rows} × {}", self.in_features)));
        }
        element_count("the output of a product", &[rows, self.out_features])
    }

    /// Computes a product whose sizes were checked: `a` has `rows` rows, and `out` is memory for as many. The tasks
    /// cover all rows and panels, and each that returns `Ok` has written all of its own.
    pub(super) fn run_tasks(
        &self,
        team: Team,
        a: Elements,
        rows: usize,
        activation: Activation,
        out: ElementsOut,
    ) -> Result<()> {
        // Rows of nothing, of which there may be any number.
        if self.out_features == 0 {
            return Ok(());
        }
        let panels = match self.blas {
            Some(_) => (self.out_features / OUTPUT_STEP).max(1),
            None => self.bias.len() / self.panel_width,
        };
        let row_block = self.row_block();
        let row_blocks = rows.div_ceil(row_block);
        // If there are few row blocks, the threads divide the panels, too.
        let wanted = match team.threads() {
            1 => 1,
            threads => (TASKS_PER_THREAD * threads).min(self.multiply_adds(rows) / MIN_TASK_WORK),
        };
        let groups = wanted.div_ceil(row_blocks.max(1)).min(panels).max(1);
        let group = panels.div_ceil(groups);
        let pool = ScratchPool::default();
        let run_each = |run: &(dyn Fn(GemmTask) -> Result<()> + Sync)| {
            team.try_for_each(row_blocks * groups, |index| {
                let (block, part) = (index / groups, index % groups);
                let (rows, panels) = match self.blas {
                    Some(_) => {
                        (share(rows, (block, row_blocks), 1), share(self.out_features, (part, groups), OUTPUT_STEP))
                    }
                    None => (
                        block * row_block..rows.min((block + 1) * row_block),
                        (part * group).min(panels)..((part + 1) * group).min(panels),
                    ),
                };
                let (from, to, first, last) = (rows.start, rows.end, panels.start, panels.end);
                run(GemmTask { weights: self, a, out, pool: &pool, from, to, first, last, activation })
            })
        };
        let run_f32_panels = |panels: F32Panels| match self.blas {
            Some(blas) => run_each(&|task| run_blas(self.isa, blas, task, panels)),
            None => run_each(&|task| run_f32(self.isa, task, panels)),
        };
        match &self.panels {
            Panels::F32(panels) => run_f32_panels(F32Panels::F32(panels)),
            Panels::Halves(format, panels) => run_f32_panels(F32Panels::Halves(*format, panels)),
            Panels::Pairs(format, panels) => run_each(&|task| run_pairs(self.isa, *format, task, panels)),
            Panels::Quantized(panels) => {
                let inputs = RoundedInputs::new(self.isa, team, &pool, panels.layout, a, rows)?;
                run_each(&|task| run_quantized(self.isa, task, panels, &inputs))
            }
        }
    }
}

/// The part of a product that one thread computes: rows `from .. to`, panels `first .. last`.
#[derive(Clone, Copy)]
pub(super) struct GemmTask<'a> {
    pub weights: &'a PackedWeights,
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

    /// The output, if sums become results by nothing but the bias, and all columns before `end` are in it.
    #[inline(always)]
    fn direct_output(&self, end: usize) -> Option<SharedOut<f32>> {
        match self.out {
            ElementsOut::F32(out) if self.activation == Activation::Identity && end <= self.weights.out_features => {
                Some(out)
            }
            _ => None,
        }
    }

    /// Adds the bias to the sums of whole rows of some panels, applies the activation and stores the results from row
    /// `row` of the task on.
    ///
    /// # Safety
    /// The rows are rows of this task, and no other thread writes its panels.
    #[inline(always)]
    pub(super) unsafe fn store<S: Simd>(&self, s: S, sums: &mut [f32], panels: Range<usize>, row: usize) {
        let PackedWeights { out_features, panel_width, ref bias, .. } = *self.weights;
        let columns = panels.start * panel_width..panels.end * panel_width;
        if let Some(out) = self.direct_output(columns.end) {
            let (bias, width) = (&bias[columns.clone()], columns.len());
            for (r, sums) in sums.chunks_exact(width).enumerate() {
                for at in (0..width).step_by(S::LANES) {
                    let result = s.add(s.load_slice(&sums[at..]), s.load_slice(&bias[at..]));
                    // SAFETY: the caller promises the rows; all columns are in the output.
                    unsafe {
                        s.store(out.start().add((self.from + row + r) * out_features + columns.start + at), result)
                    };
                }
            }
            return;
        }
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
        let PackedWeights { out_features, panel_width, ref bias, .. } = *self.weights;
        let (column, width) = (panels.start * panel_width, VECTORS * S::LANES);
        assert!(panels.len() * panel_width == width && ROWS * width <= memory.0.len());
        let bias = &bias[column..][..width];
        let Some(out) = self.direct_output(column + width) else {
            // SAFETY: the assertion checks the memory, and the caller promises the rest.
            return unsafe {
                store_rows(s, &sums, memory.0.as_mut_ptr(), width);
                self.store(s, &mut memory.0[..ROWS * width], panels, row)
            };
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
