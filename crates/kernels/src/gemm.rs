//! Products of activations with packed weights.
//!
//! An element of the result is a sum over the input features in order, whatever the other rows are. So the result of a
//! row is bitwise the same alone and in any batch, on any number of threads.

use std::ops::Range;

use half::{bf16, f16};

use super::activation::Activation;
use super::convert::Convert;
use super::elements::{Elements, ElementsOut};
use super::epilogue::Epilogue;
use super::error::{Error, Result};
use super::int8::encode::WeightFormat;
use super::int8::gemm::run_quantized;
use super::int8::inputs::RoundedInputs;
use super::isa::Isa;
use super::isa::kernel::{Kernel, PairKernel};
use super::isa::pair_dot::{Pair, PairDot, PairFormat, PairOrder, PairTile, TileLayout, VECTOR_COLUMNS, as_pairs_mut};
use super::isa::simd::Simd;
use super::memory::{ScratchPool, element_count};
use super::microkernel::{Lhs, Prefetch, Rhs, microkernel};
use super::packing::{PackedWeights, Panels, bytes};
use super::team::{SharedOut, Team};

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

    /// Computes a product whose sizes were checked: `a` has `rows` rows, and `out` is memory for as many. The tasks cover
    /// all rows and panels, and each that returns `Ok` has written all of its own.
    pub(super) fn run_tasks(
        &self,
        team: Team,
        a: Elements,
        rows: usize,
        activation: Activation,
        out: ElementsOut,
    ) -> Result<()> {
        let panels = self.bias.len() / self.panel_width;
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
                run(GemmTask {
                    weights: self,
                    a,
                    out,
                    pool: &pool,
                    from: block * row_block,
                    to: rows.min((block + 1) * row_block),
                    first: (part * group).min(panels),
                    last: ((part + 1) * group).min(panels),
                    activation,
                })
            })
        };
        match &self.panels {
            Panels::F32(panels) => run_each(&|task| run_f32(self.isa, task, PanelsIn::F32(panels))),
            Panels::Halves(format, panels) => {
                run_each(&|task| run_f32(self.isa, task, PanelsIn::Halves(*format, panels)))
            }
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
const MAX_ROWS: usize = 32;

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

    /// [`store`](Self::store) of sums in registers: `NR` vectors of each of the panels. `memory` is for those that do not
    /// go to the output at once.
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
            let rows = sums.into_iter().zip(memory.0.chunks_exact_mut(width));
            for (sums, to) in rows {
                sums.into_iter().zip(to.chunks_exact_mut(S::LANES)).for_each(|(sum, to)| s.store_slice(to, sum));
            }
            // SAFETY: the caller promises it.
            return unsafe { self.store(s, &mut memory.0[..ROWS * width], panels, row) };
        };
        // SAFETY: the caller promises the rows; all columns are in the output.
        unsafe {
            let out = out.start().add((self.from + row) * out_features + column);
            for n in 0..VECTORS {
                let bias = s.load(bias.as_ptr().add(n * S::LANES));
                for (r, sums) in sums.iter().enumerate() {
                    s.store(out.add(r * out_features + n * S::LANES), s.add(sums[n], bias));
                }
            }
        }
    }
}

/// The tile of a product that starts at `row` of `rows` rows: its first row, and its height, one of `[mr, SMALL_TILE, 1]`. The last
/// tile starts earlier, if it can, and computes some rows again: a product of one row takes as long as one of four.
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

/// Panels of weights that are multiplied in f32.
#[derive(Clone, Copy)]
enum PanelsIn<'a> {
    F32(&'a [f32]),
    Halves(PairFormat, &'a [u16]),
}

/// Runs a task on the packed panels of its weights.
fn run_f32(isa: Isa, task: GemmTask, panels: PanelsIn) -> Result<()> {
    // Inputs in f32, and a panel; not more than there are inputs and weights, so the products do not wrap around.
    let k = task.weights.in_features;
    let upcast = if task.a.is_f32() { 0 } else { ((task.to - task.from) * k).next_multiple_of(CACHE_LINE) };
    let wide = if matches!(panels, PanelsIn::F32(_)) { 0 } else { task.weights.panel_width * k };
    let mut memory = task.pool.take(upcast + wide)?;
    let (upcast, wide) = memory.split_at_mut(upcast);
    isa.run(GemmF32 { task, panels, upcast, wide });
    Ok(())
}

/// f32 values in a cache line.
const CACHE_LINE: usize = 16;

struct GemmF32<'a> {
    task: GemmTask<'a>,
    panels: PanelsIn<'a>,
    upcast: &'a mut [f32],
    /// Memory for a panel of 16-bit weights in f32.
    wide: &'a mut [f32],
}

impl Kernel for GemmF32<'_> {
    #[inline(always)]
    fn run<S: Simd, const MR: usize, const NR: usize>(self, s: S) {
        let Self { ref task, panels, upcast, wide } = self;
        let k = task.weights.in_features;
        assert_eq!(task.weights.panel_width, NR * S::LANES, "the weights are packed for another instruction set");
        let a = task.a.part(task.from * k..task.to * k).as_f32(upcast);
        match panels {
            PanelsIn::F32(panels) => multiply_panels::<S, f32, MR, NR>(s, task, a, panels, wide),
            PanelsIn::Halves(PairFormat::Bf16, panels) => {
                multiply_panels::<S, bf16, MR, NR>(s, task, a, bytemuck::cast_slice(panels), wide);
            }
            PanelsIn::Halves(PairFormat::F16, panels) => {
                multiply_panels::<S, f16, MR, NR>(s, task, a, bytemuck::cast_slice(panels), wide);
            }
        }
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
    let (rows, width) = (task.to - task.from, task.weights.panel_width);
    let (size, mut sums) = (width * task.weights.in_features, Sums::ZERO);
    let mut panel = task.first;
    while panel < task.last {
        let terms = &panels[panel * size..];
        if rows < SMALL_TILE && panel + PANELS_OF_ROW <= task.last && (T::IS_F32 || S::MULTIPLIES_HALVES) {
            // A tile of one row has too few sums to hide the latency of multiply-adds, so it is wider.
            let terms = &terms[..PANELS_OF_ROW * size];
            for row in 0..rows {
                let tile = Tile { task, a, terms, panels: panel..panel + PANELS_OF_ROW, row };
                match NR {
                    1 => tile.multiply::<S, 1, { PANELS_OF_ROW }, 1>(s, Prefetch::NONE, &mut sums),
                    2 => tile.multiply::<S, 1, { 2 * PANELS_OF_ROW }, 2>(s, Prefetch::NONE, &mut sums),
                    _ => tile.multiply::<S, 1, { 3 * PANELS_OF_ROW }, 3>(s, Prefetch::NONE, &mut sums),
                }
            }
            panel += PANELS_OF_ROW;
            continue;
        }
        let terms = &terms[..size];
        let fetch = PanelFetch {
            panel: bytes(terms),
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
                s.store_slice(&mut wide[at..], unsafe { T::load(s, terms.as_ptr().add(at)) });
            }
            multiply_rows::<S, f32, MR, NR>(s, task, a, panel, wide, (0, fetch), &mut sums);
        } else if rows <= SMALL_TILE {
            multiply_rows::<S, T, SMALL_TILE, NR>(s, task, a, panel, terms, (0, fetch), &mut sums);
        } else {
            // The first tile, which is small because conversions take registers, reads 16-bit weights and writes them in
            // f32 for the others.
            let tile = Tile { task, a, terms, panels: panel..panel + 1, row: 0 };
            tile.multiply_and_widen::<S, SMALL_TILE, NR>(s, fetch.tile(0), &mut sums, wide);
            multiply_rows::<S, f32, MR, NR>(s, task, a, panel, wide, (SMALL_TILE, fetch), &mut sums);
        }
        panel += 1;
    }
}

/// The height of tiles for rows that do not fill a tile.
const SMALL_TILE: usize = 4;
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
                tile.multiply::<S, SMALL_TILE, NR, NR>(s, Prefetch::ahead(fetch.panel, fetch.step), sums);
            }
            1 => tile.multiply::<S, 1, NR, NR>(s, Prefetch::ahead(fetch.panel, fetch.step), sums),
            _ => tile.multiply::<S, MR, NR, NR>(s, fetch.tile(row.div_ceil(MR)), sums),
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
    /// Computes `ROWS` rows by `VECTORS` vectors, `NR` of each panel, and stores them. `memory` is for their sums.
    #[inline(always)]
    fn multiply<S: Simd, const ROWS: usize, const VECTORS: usize, const NR: usize>(
        self,
        s: S,
        prefetch: Prefetch,
        memory: &mut Sums,
    ) {
        let (k, width) = (self.task.weights.in_features, VECTORS * S::LANES);
        let a = &self.a[self.row * k..];
        assert!(a.len() >= ROWS * k && self.terms.len() == width * k);
        let b = Rhs::panels(self.terms.as_ptr(), NR * S::LANES, NR, NR * S::LANES * k);
        // SAFETY: the assertion checks the lengths; rows `row .. row + ROWS` are rows of this task.
        unsafe {
            let sums = microkernel::<S, T, ROWS, VECTORS>(s, k, Lhs::rows(a.as_ptr(), k), b, prefetch);
            self.task.store_tile(s, sums, memory, self.panels, self.row);
        }
    }

    /// [`multiply`](Self::multiply) of one panel, which is also written to `wide` in f32.
    #[inline(always)]
    fn multiply_and_widen<S: Simd, const MR: usize, const NR: usize>(
        self,
        s: S,
        prefetch: Prefetch,
        memory: &mut Sums,
        wide: &mut [f32],
    ) {
        let (k, width) = (self.task.weights.in_features, NR * S::LANES);
        let a = &self.a[self.row * k..];
        assert!(a.len() >= MR * k && self.terms.len() == width * k && wide.len() == width * k);
        let b = Rhs::new(self.terms.as_ptr(), width).copied_to(wide.as_mut_ptr());
        // SAFETY: the assertion checks the lengths; rows `row .. row + MR` are rows of this task.
        unsafe {
            let sums = microkernel::<S, T, MR, NR>(s, k, Lhs::rows(a.as_ptr(), k), b, prefetch);
            self.task.store_tile(s, sums, memory, self.panels, self.row);
        }
    }
}

/// Runs a task on the packed panels of its weights.
fn run_pairs(isa: Isa, format: PairFormat, task: GemmTask, panels: &[Pair]) -> Result<()> {
    // Inputs in pairs, with room for a whole tile more; one row of them, and one in f32.
    let k = task.weights.in_features;
    let pairs = k.div_ceil(2).next_multiple_of(isa.pair_tiles(format).pair_step);
    let rounded = element_count("the scratch memory of a product", &[task.to - task.from + MAX_ROWS, pairs])?;
    let mut memory = task.pool.take(rounded + pairs + k)?;
    let (rounded, rest) = memory.split_at_mut(rounded);
    let (row, upcast) = rest.split_at_mut(pairs);
    isa.run_pairs(format, GemmPairs { task, panels, rounded: as_pairs_mut(rounded), row: as_pairs_mut(row), upcast });
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
        let (k, width) = (self.task.weights.in_features, D::MAX_VECTORS * VECTOR_COLUMNS);
        assert_eq!(width, self.task.weights.panel_width, "the weights are packed for another instruction set");
        let pairs = k.div_ceil(2).next_multiple_of(D::PAIR_STEP);
        let rows = self.task.to - self.task.from;
        // Inputs that are pairs already, whole tiles of them, are read where they are.
        let in_place = D::ORDER == PairOrder::Rows && k == 2 * pairs && rows.is_multiple_of(D::MAX_ROWS);
        let in_place = match in_place {
            true => self.task.a.part(self.task.from * k..self.task.to * k).as_pairs(D::FORMAT),
            false => None,
        };
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
                let prefetch = match rows < D::MAX_ROWS {
                    true => Prefetch::NONE,
                    false => Prefetch::for_tile(bytes(terms), next, step, (index, tiles), task.comes_first(panel)),
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
        let k = task.weights.in_features;
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
