//! Products of activations with packed weights.
//!
//! An element of the result is a sum over the input features in order, whatever the other rows are. So the result of a
//! row is bitwise the same alone and in any batch, on any number of threads.

use std::mem::MaybeUninit;

use super::activation::{Activation, activate_for};
use super::convert::Convert;
use super::error::{Error, Result};
use super::int8::encode::WeightFormat;
use super::int8::gemm::run_quantized;
use super::int8::inputs::RoundedInputs;
use super::isa::Isa;
use super::isa::kernel::{Kernel, PairKernel};
use super::isa::pair_dot::{Pair, PairDot, PairFormat, PairOrder, PairTile, TileLayout, VECTOR_COLUMNS, as_pairs_mut};
use super::isa::simd::Simd;
use super::memory::{ScratchPool, element_count};
use super::microkernel::{Prefetch, StridedRows, microkernel};
use super::packing::{PackedWeights, Panels, bytes};
use super::team::{Output, SharedOut, Team};

/// The input values of a task: 1 MB in f32, half of the L2 cache.
const BLOCK_VALUES: usize = 1 << 18;
/// The L1 cache of a core that has AMX.
const L1_BYTES: usize = 48 << 10;
/// The fewest multiply-adds of a task: some microseconds, many times what taking a task costs.
const MIN_TASK_WORK: usize = 1 << 18;
/// Tasks for each thread: more than one, so that a thread that loses its core to another program does not hold up all.
const TASKS_PER_THREAD: usize = 3;

impl PackedWeights {
    /// [`multiply`](Self::multiply) for one dtype of inputs and one of outputs.
    pub(crate) fn multiply_elements<A: Convert, O: Convert>(
        &self,
        team: Team,
        a: &[A],
        rows: usize,
        activation: Activation,
        out: Output<O>,
    ) -> Result<()> {
        let size = self.output_size(a, rows)?;
        // SAFETY: the tasks cover all rows and panels, and each task that returns `Ok` has written all of its own.
        unsafe { out.write("the output of a product", size, |out| self.run_tasks(team, a, rows, activation, out)) }
    }

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
    fn output_size<A>(&self, a: &[A], rows: usize) -> Result<usize> {
        if a.len() != element_count("the input of a product", &[rows, self.in_features])? {
            return Err(Error::shape("the input of a product", &[a.len()], format!("{rows} × {}", self.in_features)));
        }
        element_count("the output of a product", &[rows, self.out_features])
    }

    /// `a` has `rows` rows, and `out` is memory for as many.
    fn run_tasks<A: Convert, O: Convert>(
        &self,
        team: Team,
        a: &[A],
        rows: usize,
        activation: Activation,
        out: SharedOut<O>,
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
        let run_each = |run: &(dyn Fn(GemmTask<A, O>) -> Result<()> + Sync)| {
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
            Panels::F32(panels) => run_each(&|task| run_f32(self.isa, task, panels)),
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
pub(super) struct GemmTask<'a, A, O> {
    pub weights: &'a PackedWeights,
    pub a: &'a [A],
    pub out: SharedOut<O>,
    pub pool: &'a ScratchPool,
    pub from: usize,
    pub to: usize,
    pub first: usize,
    pub last: usize,
    pub activation: Activation,
}

/// The most columns that a register tile has.
pub(super) const MAX_COLUMNS: usize = 48;

impl<A, O: Convert> GemmTask<'_, A, O> {
    /// The panel that is read after `panel`: at the end that of the next rows, which mostly are the next task.
    pub(super) fn panel_after(&self, panel: usize) -> usize {
        if panel + 1 < self.last { panel + 1 } else { self.first }
    }

    /// Whether no panel was read before.
    pub(super) fn comes_first(&self, panel: usize) -> bool {
        panel == self.first && self.from == 0
    }

    /// Adds the bias to `sums`, one row of one panel, applies the activation and stores the result.
    ///
    /// # Safety
    /// The row is one of this task, no other thread writes its panel, and `sums` has `panel_width` values.
    #[inline(always)]
    pub(super) unsafe fn store<S: Simd>(&self, s: S, activation: Activation, panel: usize, row: usize, sums: &[S::V]) {
        let PackedWeights { out_features, panel_width, bias, .. } = self.weights;
        let bias = &bias[panel * panel_width..][..*panel_width];
        let columns = (*panel_width).min(out_features - panel * panel_width);
        let at = row * out_features + panel * panel_width;
        let mut buffer = [MaybeUninit::<f32>::uninit(); MAX_COLUMNS];
        let direct = O::STORES_VECTORS && columns == *panel_width;
        // SAFETY: `bias` and `buffer` have `panel_width` values. So has the row of the output, which `multiply` has
        // reserved, if the panel is full; if not, the values are stored in `buffer` first, and `columns` of them are
        // left in this row, which only this task writes.
        unsafe {
            for (v, sum) in sums.iter().enumerate() {
                let sum = activate_for::<S, O>(s, activation, s.add(*sum, s.load(bias.as_ptr().add(v * S::LANES))));
                match direct {
                    true => O::store(s, self.out.0.add(at + v * S::LANES), sum),
                    false => s.store(buffer.as_mut_ptr().cast::<f32>().add(v * S::LANES), sum),
                }
            }
            if !direct {
                O::downcast(buffer[..columns].assume_init_ref(), self.out.part(at, columns));
            }
        }
    }
}

/// Runs a task on the packed panels of its weights.
pub(super) fn run_f32<A: Convert, O: Convert>(isa: Isa, task: GemmTask<A, O>, panels: &[f32]) -> Result<()> {
    // Inputs in f32; not more than there are inputs, so the product does not wrap around.
    let size = if A::IS_F32 { 0 } else { (task.to - task.from) * task.weights.in_features };
    let mut upcast = task.pool.take(size)?;
    isa.run(GemmF32 { task, panels, upcast: &mut upcast });
    Ok(())
}

struct GemmF32<'a, A, O> {
    task: GemmTask<'a, A, O>,
    panels: &'a [f32],
    upcast: &'a mut [f32],
}

impl<A: Convert, O: Convert> Kernel for GemmF32<'_, A, O> {
    #[inline(always)]
    fn run<S: Simd, const MR: usize, const NR: usize>(self, s: S) {
        let Self { task, panels, upcast } = self;
        let (k, width) = (task.weights.in_features, task.weights.panel_width);
        assert_eq!(width, NR * S::LANES, "the weights are packed for another instruction set");
        let rows = task.to - task.from;
        let a = A::as_f32(&task.a[task.from * k..task.to * k], upcast);
        for panel in task.first..task.last {
            let terms = &panels[panel * width * k..][..width * k];
            let next = panels[task.panel_after(panel) * width * k..].as_ptr().cast();
            let (mut row, mut index) = (0, 0);
            while row < rows {
                let (a, place) = (&a[row * k..], (panel, row));
                let (step, tiles) = (width * size_of::<f32>(), rows.div_ceil(MR));
                let prefetch = Prefetch::of_tile(bytes(terms), next, step, (index, tiles), task.comes_first(panel));
                // The remaining rows by four and by one.
                row += match rows - row {
                    left if left >= MR => tile::<S, A, O, MR, NR, false>(s, &task, a, terms, place, prefetch),
                    4.. if MR > 4 => tile::<S, A, O, 4, NR, true>(s, &task, a, terms, place, Prefetch::NONE),
                    _ => tile::<S, A, O, 1, NR, true>(s, &task, a, terms, place, Prefetch::NONE),
                };
                index += 1;
            }
        }
    }
}

/// Computes `MR` rows of a task, from `row`, and returns how many these are. `PREFETCH_B` is that of [`microkernel`].
#[inline(always)]
fn tile<S: Simd, A: Convert, O: Convert, const MR: usize, const NR: usize, const PREFETCH_B: bool>(
    s: S,
    task: &GemmTask<A, O>,
    a: &[f32],
    terms: &[f32],
    (panel, row): (usize, usize),
    prefetch: Prefetch,
) -> usize {
    let (k, width) = (task.weights.in_features, NR * S::LANES);
    assert!(a.len() >= MR * k && terms.len() == width * k);
    let a = StridedRows { at: a.as_ptr(), stride: k };
    // SAFETY: the assertion checks the lengths.
    let sums = unsafe { microkernel::<S, MR, NR, PREFETCH_B>(s, k, a, terms.as_ptr(), width, prefetch) };
    for (r, sums) in sums.into_iter().enumerate() {
        // SAFETY: rows `row .. row + MR` are rows of this task, and a register tile is one panel wide.
        unsafe { task.store(s, task.activation, panel, task.from + row + r, &sums) };
    }
    MR
}

/// Runs a task on the packed panels of its weights.
pub(super) fn run_pairs<A: Convert, O: Convert>(
    isa: Isa,
    format: PairFormat,
    task: GemmTask<A, O>,
    panels: &[Pair],
) -> Result<()> {
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

struct GemmPairs<'a, A, O> {
    task: GemmTask<'a, A, O>,
    panels: &'a [Pair],
    rounded: &'a mut [Pair],
    row: &'a mut [Pair],
    upcast: &'a mut [f32],
}

/// The most rows that a tile has.
const MAX_ROWS: usize = 32;
/// The most vectors that a row of a tile has: of 8 lanes, with the portable instruction set.
const MAX_VECTORS: usize = MAX_COLUMNS / 8;

/// The sums of a tile.
#[repr(align(64))]
struct Sums([f32; MAX_ROWS * MAX_COLUMNS]);

impl<A: Convert, O: Convert> PairKernel for GemmPairs<'_, A, O> {
    #[inline(always)]
    fn run<S: Simd, D: PairDot>(mut self, s: S, dot: D) {
        const {
            assert!(D::MAX_ROWS <= MAX_ROWS && D::MAX_VECTORS * VECTOR_COLUMNS <= MAX_COLUMNS);
            assert!(D::MAX_VECTORS * VECTOR_COLUMNS <= MAX_VECTORS * S::LANES);
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
            true => A::as_pairs(D::FORMAT, &self.task.a[self.task.from * k..self.task.to * k]),
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
        let mut sums = [const { Sums([0.0; MAX_ROWS * MAX_COLUMNS]) }; 2];
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
                    false => Prefetch::of_tile(bytes(terms), next, step, (index, tiles), task.comes_first(panel)),
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
                    store_tile(s, &task, &last_sums.0, width, (panel, first), D::MAX_ROWS.min(rows - first));
                }
            }
        }
        if let Some((panel, first)) = last {
            store_tile(s, &task, &sums.0, width, (panel, first), D::MAX_ROWS.min(rows - first));
        }
    }
}

impl<A: Convert, O> GemmPairs<'_, A, O> {
    /// Rounds the inputs of the task to pairs, in the layout of the tiles.
    #[inline(always)]
    fn round_inputs<D: PairDot>(&mut self, dot: D, rows: usize, pairs: usize) {
        let Self { task, rounded, row, upcast, .. } = self;
        let k = task.weights.in_features;
        for i in 0..rows {
            let from = &task.a[(task.from + i) * k..][..k];
            if D::ORDER == PairOrder::Rows {
                A::to_pairs(dot, from, upcast, &mut rounded[i * pairs..][..pairs]);
                continue;
            }
            A::to_pairs(dot, from, upcast, row);
            let block = const { D::ORDER.block() };
            for (step, line) in row.chunks_exact(block).enumerate() {
                let at = D::ORDER.place_in_rows(i, step * block, pairs);
                // A loop of fixed length, not `copy_from_slice`, which may be a call.
                rounded[at..][..block].iter_mut().zip(line).for_each(|(to, pair)| *to = *pair);
            }
        }
    }
}

/// Stores the sums of a tile of `rows` rows of `width` values from row `first` of a task.
#[inline(always)]
fn store_tile<S: Simd, A, O: Convert>(
    s: S,
    task: &GemmTask<A, O>,
    sums: &[f32],
    width: usize,
    place: (usize, usize),
    rows: usize,
) {
    // Two loops, so that the tables of GELU stay in registers.
    match task.activation {
        Activation::Gelu => store_rows(s, task, Activation::Gelu, sums, width, place, rows),
        activation => store_rows(s, task, activation, sums, width, place, rows),
    }
}

#[inline(always)]
fn store_rows<S: Simd, A, O: Convert>(
    s: S,
    task: &GemmTask<A, O>,
    activation: Activation,
    sums: &[f32],
    width: usize,
    (panel, first): (usize, usize),
    rows: usize,
) {
    for (r, sums) in sums.chunks_exact(width).take(rows).enumerate() {
        let mut vectors = [s.splat(0.0); MAX_VECTORS];
        for (vector, sums) in vectors.iter_mut().zip(sums.chunks_exact(S::LANES)) {
            *vector = s.load_slice(sums);
        }
        // SAFETY: the row is in `from .. to`, the rows of this task, and the vectors are a panel's width.
        unsafe { task.store(s, activation, panel, task.from + first + r, &vectors[..width / S::LANES]) };
    }
}
