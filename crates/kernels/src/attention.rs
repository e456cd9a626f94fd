//! Fused attention: softmax attention without a score matrix.
//!
//! The keys are taken in blocks, and the softmax is updated from block to block
//! ([Milakov 2018](https://arxiv.org/abs/1805.02867), [Dao 2022](https://arxiv.org/abs/2205.14135)). Memory is linear
//! in the number of keys, and a tile of scores stays in the L1 cache.
//!
//! The result of a query does not depend on the other queries, sequences or heads of the call, nor on how the work is
//! divided: scores and outputs are sums in a fixed order, and key blocks start at key 0 and have one size. So the
//! result of a sequence is bitwise the same alone, in any batch, with any padding, and on any number of threads.

use super::convert::PairFormat;
use super::distance_products::DistanceProducts;
use super::dropout::Dropout;
use super::elements::{Element, ElementsOut};
use super::error::{Error, Result};
use super::few_queries::{self, FewQueries};
use super::int8::dot::Int8Dot;
use super::int8::kernel::Int8Kernel;
use super::isa::kernel::{Kernel, PairKernel};
use super::isa::pair_dot::PairDot;
use super::isa::simd::{MAX_LANES, Simd};
use super::mask::KEY_BLOCK;
use super::memory::{ScratchPool, element_count, try_reserve};
use super::non_finite::FiniteValues;
use super::online_softmax::{OnlineSoftmaxUpdate, SoftmaxState, TilePos, any_visible, store_row};
use super::problem::{AttentionProblem, Batch, KeyValueView, Problem};
use super::registry::Isa;
use super::score_tile::{Packing, QUERY_BLOCK, ScoreTile, TileKernel, Tokens, pack, query_block};
use super::team::{Output, SharedOut, Team};
use super::tile_bf16::TileBf16;
use super::tile_f32::TileF32;
use super::tile_int8::TileInt8;

/// Part of the queries of one sequence, for the query heads of one key-value head.
#[derive(Clone, Copy)]
struct Task {
    b: usize,
    h_kv: usize,
    from: usize,
    to: usize,
}

/// Computes attention. `to` becomes `(queries, h, d_v)`, the queries of one sequence after those of the other.
///
/// # Errors
/// If the sizes, views and masks of the problem contradict each other, and if there is not enough memory.
pub fn attend<T: Element, K: KeyValueView>(
    isa: Isa,
    team: Team,
    problem: &AttentionProblem<T, K>,
    to: &mut Vec<T>,
) -> Result<()> {
    to.clear();
    attend_to(isa, team, problem.erase(), Output::Vec(to))
}

/// [`attend`] into an existing slice, `to` `(queries, h, d_v)`.
///
/// # Errors
/// The errors of [`attend`], and if `to` has another size.
pub fn attend_into<T: Element>(isa: Isa, team: Team, problem: &AttentionProblem<T>, to: &mut [T]) -> Result<()> {
    attend_to(isa, team, problem.erase(), Output::Slice(to))
}

fn attend_to<T: Element>(isa: Isa, team: Team, problem: Problem, to: Output<T>) -> Result<()> {
    let size = problem.checked_output_size()?;
    let run = |out| if size == 0 { Ok(()) } else { run_tasks(isa, team, &problem, None, T::output(out)) };
    // SAFETY: `run_tasks` writes all of the output.
    unsafe { to.write("the output of attention", size, run) }
}

/// Numbers of the softmax of one query for the backward pass: the attention weight of a score is
/// `e^(score - max) · factor`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SoftmaxRow {
    /// The largest score; 0 for a query that sees no key.
    pub(super) max: f32,
    /// 1 divided by the sum of `e^(score - max)`; 0 for a query that sees no key.
    pub(super) factor: f32,
}

/// Work of a forward pass for training beside inference.
#[derive(Clone, Copy)]
struct Training {
    dropout: Option<Dropout>,
    /// `(queries, h)`.
    rows: SharedOut<SoftmaxRow>,
}

/// [`attend`](crate::attend) with dropout, for a later [`attention_backward`](crate::attention_backward). `rows` become
/// `(queries, h)`. The place of a weight for dropout is its index in `(b, h, s_q, keys)`.
///
/// # Errors
/// The errors of `attend`, and dropout in a ragged batch.
pub fn attend_for_training(
    isa: Isa,
    team: Team,
    problem: &AttentionProblem<f32>,
    dropout: Option<Dropout>,
    to: &mut Vec<f32>,
    rows: &mut Vec<SoftmaxRow>,
) -> Result<()> {
    let problem = &problem.erase();
    let size = problem.checked_output_size()?;
    let queries = if size == 0 { 0 } else { size / problem.d_v };
    if dropout.is_some() && !matches!(problem.batch, Batch::Padded { .. }) {
        return Err(Error::value("dropout", "in a ragged batch", "in a padded one"));
    }
    let (out, kept) = (Output::Vec(to), Output::Vec(rows));
    // SAFETY: each task that returns `Ok` has written all of its own, and together they are all: for each query and
    // head one row, and `d_v` values of the output.
    unsafe {
        kept.write("the rows of the softmax", queries, |rows| {
            let training = Some(Training { dropout, rows });
            let run = |out| match size {
                0 => Ok(()),
                _ => run_tasks(isa, team, problem, training, ElementsOut::F32(out)),
            };
            out.write("the output of attention", size, run)
        })
    }
}

/// Runs all tasks of a problem that was checked. They cover all queries, and all heads because `h_kv` divides `h`.
/// `out` is memory for all of them.
fn run_tasks(isa: Isa, team: Team, problem: &Problem, training: Option<Training>, out: ElementsOut) -> Result<()> {
    let pool = ScratchPool::default();
    if training.is_none() && problem.has_few_queries() {
        let tasks = few_queries::tasks(problem, team.threads())?;
        return team.try_for_each(tasks.len(), |i| {
            run_on_tiles(isa, problem, problem.bf16, FewQueries { problem, task: &tasks[i], pool: &pool, out })
        });
    }
    let (tasks, bf16) = (tasks(problem, team.threads())?, problem.bf16 && training.is_none());
    team.try_for_each(tasks.len(), |i| {
        run_on_tiles(isa, problem, bf16, TaskKernel { problem, task: tasks[i], pool: &pool, training, out })
    })
}

/// Runs a kernel with tiles of the numbers of a problem: of int8 keys and values, of bf16 if it may be and there are
/// instructions for it, or else of f32.
fn run_on_tiles<K: TileKernel>(isa: Isa, problem: &Problem, bf16: bool, kernel: K) -> Result<()> {
    let mut result = Ok(());
    let kernel = OnTiles { kernel, result: &mut result };
    if problem.k.data.is_int8() {
        isa.run_int8(kernel);
    } else if bf16 && isa.has_bf16_dot() {
        isa.run_pairs(PairFormat::Bf16, kernel);
    } else {
        isa.run(kernel);
    }
    result
}

struct OnTiles<'a, K> {
    kernel: K,
    result: &'a mut Result<()>,
}

impl<K: TileKernel> Kernel for OnTiles<'_, K> {
    #[inline(always)]
    fn run<S: Simd, const MR: usize, const NR: usize>(self, s: S) {
        *self.result = self.kernel.run(TileF32::<S, MR, NR>(s));
    }
}

impl<K: TileKernel> Int8Kernel for OnTiles<'_, K> {
    #[inline(always)]
    fn run<D: Int8Dot, const MR: usize, const NR: usize, const BLOCK_MR: usize>(self, dot: D) {
        // AVX2 without VNNI, and NEON, have no registers left for the sums of more rows.
        *self.result = if const { MR == 5 || D::S::LANES == 4 } {
            self.kernel.run(TileInt8::<D, 4, NR>(dot))
        } else {
            self.kernel.run(TileInt8::<D, MR, NR>(dot))
        };
    }
}

impl<K: TileKernel> PairKernel for OnTiles<'_, K> {
    #[inline(always)]
    fn run<S: Simd, D: PairDot>(self, s: S, dot: D) {
        *self.result = self.kernel.run(TileBf16(s, dot));
    }
}

/// Size in f32 values of the memory that one thread needs beside inputs and outputs: the packed keys and values, and
/// the packed queries, sums and scores of a query block. An estimate, which saturates.
pub fn scratch_floats(keys: usize, d: usize, d_v: usize) -> usize {
    let widths = d.saturating_add(d_v).saturating_add(16);
    let keys = keys.saturating_add(KEY_BLOCK).saturating_mul(widths);
    keys.saturating_add(QUERY_BLOCK.saturating_mul(widths)).saturating_add(8 * KEY_BLOCK)
}

fn tasks(problem: &Problem, threads: usize) -> Result<Vec<Task>> {
    let batch = problem.batch;
    let heads = batch.sequences().len() * problem.h_kv;
    // Every task packs its keys again. So there are only as many tasks as keep all threads busy, and no short ones.
    let wanted = if threads == 1 { 1 } else { (2 * threads).div_ceil(heads.max(1)) };
    let tasks_of_head = |(b, h_kv): (usize, usize)| {
        let s_q = batch.s_q(b);
        let queries = s_q.div_ceil(wanted.min(s_q.div_ceil(2 * QUERY_BLOCK)).max(1)).next_multiple_of(QUERY_BLOCK);
        (0..s_q).step_by(queries.max(1)).map(move |from| Task { b, h_kv, from, to: s_q.min(from + queries) })
    };
    let heads = || batch.sequences().flat_map(|b| (0..problem.h_kv).map(move |h_kv| (b, h_kv)));
    // Many sequences may be one row of memory, and their output small.
    let mut tasks = Vec::new();
    try_reserve("the tasks of attention", &mut tasks, heads().map(|head| tasks_of_head(head).len()).sum())?;
    tasks.extend(heads().flat_map(tasks_of_head));
    Ok(tasks)
}

/// A task as a kernel.
struct TaskKernel<'a> {
    problem: &'a Problem<'a>,
    task: Task,
    pool: &'a ScratchPool,
    training: Option<Training>,
    out: ElementsOut,
}

impl TileKernel for TaskKernel<'_> {
    #[inline(always)]
    fn run<C: ScoreTile>(self, tile: C) -> Result<()> {
        let Self { problem, task: Task { b, h_kv, from, to }, .. } = self;
        // Keys after the last one that any query of the task sees are not even packed.
        let keys = problem.visible_keys(b, from..to);
        let sizes = self.sizes::<C>(keys)?;
        let mut memory = self.pool.take_parts(sizes)?;
        let [packed_keys, packed_values, queries, output, row_max, row_sum, scores, tokens, products] =
            memory.parts(sizes);
        let (embeddings, rows) = (problem.mask.embeddings, query_block(C::ROWS));
        let mut running = Running {
            call: &self,
            tile,
            keys: Tokens::keys(problem, b, h_kv, keys),
            values: Tokens::values(problem, b, h_kv, keys),
            factors: C::split_scale(problem.scale, problem.q.data.is_f32()),
            finite: None,
            values_were_checked: false,
            products: embeddings.map(|of| DistanceProducts::new::<C>(problem, of, b, from..to, [rows, keys], products)),
            packed_keys,
            packed_values,
            queries,
            state: SoftmaxState { row_max, row_sum, output, width_v: C::value_width(problem.d_v) },
            scores,
            tokens,
        };
        running.pack_keys_and_values();
        let group = problem.h / problem.h_kv;
        for h in h_kv * group..(h_kv + 1) * group {
            running.start_head(h);
            for first in (from..to).step_by(rows) {
                let block = Block { h, first, rows: rows.min(to - first) };
                running.load_queries(block);
                running.add_keys(block);
                if running.replaces_values(block)? {
                    running.add_keys(block);
                }
                running.store(block);
            }
        }
        Ok(())
    }
}

impl TaskKernel<'_> {
    /// The sizes of the scratch memory, part by part, for `keys` keys.
    fn sizes<C: ScoreTile>(&self, keys: usize) -> Result<[usize; 9]> {
        const { assert!(KEY_BLOCK.is_multiple_of(C::PANEL)) };
        let (Problem { d, d_v, .. }, rows) = (*self.problem, query_block(C::ROWS));
        let (query_width, width, width_v) = (C::query_width(d), C::key_width(d), C::value_width(d_v));
        let widths = query_width.max(width).saturating_add(width_v).saturating_add(MAX_LANES);
        // All of the sum but a small constant is at most this product: then nothing in it wraps around.
        element_count("the scratch memory of attention", &[keys.saturating_add(2 * QUERY_BLOCK), widths, 2])?;
        let products = match &self.problem.mask.embeddings {
            Some(embeddings) => DistanceProducts::size::<C>(embeddings, d, rows, keys)?,
            None => 0,
        };
        let keys = keys.next_multiple_of(C::PANEL);
        Ok([
            keys * width,
            C::values_offset(keys, width_v),
            rows * query_width,
            rows * width_v,
            rows,
            rows,
            C::SCORES,
            (MAX_LANES + 2) * d.max(width) + 3 * width_v,
            products,
        ])
    }
}

/// Some queries of a head, which are multiplied with all keys together.
#[derive(Clone, Copy)]
struct Block {
    h: usize,
    first: usize,
    rows: usize,
}

/// A task while it runs, with its memory.
struct Running<'a, 'm, C> {
    call: &'a TaskKernel<'a>,
    tile: C,
    keys: Tokens<'a>,
    values: Tokens<'a>,
    /// Those on queries and on scores.
    factors: (f32, f32),
    /// The values without what is not finite, once an output is not.
    finite: Option<FiniteValues>,
    values_were_checked: bool,
    /// Products with embeddings of distances, if there are such embeddings.
    products: Option<DistanceProducts<'m>>,
    packed_keys: &'m mut [f32],
    packed_values: &'m mut [f32],
    /// The queries of a block, and what they have accumulated.
    queries: &'m mut [f32],
    state: SoftmaxState<'m>,
    /// Of one tile.
    scores: &'m mut [f32],
    tokens: &'m mut [f32],
}

impl<C: ScoreTile> Running<'_, '_, C> {
    #[inline(always)]
    fn pack_keys_and_values(&mut self) {
        pack(self.tile, Packing::Keys, self.keys, self.tokens, self.packed_keys);
        let packing = Packing::Values { width_v: self.state.width_v };
        pack(self.tile, packing, self.values, self.tokens, self.packed_values);
    }

    /// Multiplies the keys with the embeddings of distances of a head.
    #[inline(always)]
    fn start_head(&mut self, h: usize) {
        if let Some(products) = &mut self.products {
            let memory = [&mut *self.tokens, &mut *self.queries, &mut *self.scores];
            products.start_head(self.tile, self.call.problem, [h, self.call.task.h_kv], memory);
        }
    }

    /// Packs the queries of a block.
    #[inline(always)]
    fn load_queries(&mut self, Block { h, first, rows }: Block) {
        let problem = self.call.problem;
        let tokens = Tokens { heads: problem.q, h, from: first, count: rows, ..self.keys };
        let queries = &mut self.queries[..rows.next_multiple_of(C::ROWS) * C::query_width(problem.d)];
        pack(self.tile, Packing::Queries { factor: self.factors.0 }, tokens, self.tokens, queries);
        if let Some(products) = &mut self.products {
            products.start_block(self.tile, problem.d, first..first + rows, queries, self.scores);
        }
    }

    /// Accumulates all keys for a block of queries.
    #[inline(always)]
    fn add_keys(&mut self, Block { h, first, rows }: Block) {
        let Task { b, .. } = self.call.task;
        let (problem, keys) = (self.call.problem, self.keys.count);
        let (s_q, s_kv) = (problem.batch.s_q(b), problem.batch.s_kv(b));
        self.state.rows(0..rows.next_multiple_of(C::ROWS)).start(problem.sink(h));
        for start in (0..keys).step_by(KEY_BLOCK) {
            let count = KEY_BLOCK.min(keys - start);
            for row in (0..rows).step_by(C::ROWS) {
                let rows = C::ROWS.min(rows - row);
                let pos = TilePos { b, h, s_q, s_kv, query: first + row, rows, start, count };
                if any_visible(problem.mask, pos) {
                    self.add_tile(row, pos);
                }
            }
        }
    }

    /// Accumulates a block of keys for the queries from `row` of a block on.
    #[inline(always)]
    fn add_tile(&mut self, row: usize, pos: TilePos) {
        let (tile, problem, score_factor) = (self.tile, self.call.problem, self.factors.1);
        let (query_width, width_v) = (C::query_width(problem.d), self.state.width_v);
        let queries = &self.queries[row * query_width..][..C::ROWS * query_width];
        let keys = &self.packed_keys[pos.start * C::key_width(problem.d)..];
        tile.scores(pos.rows, queries, problem.d, keys, pos.count, self.scores);
        let products = self.products.as_ref().map(|products| (products, row));
        let (scores, state) = (&mut *self.scores, self.state.rows(row..row + C::ROWS));
        let update = OnlineSoftmaxUpdate { tile, problem, pos, score_factor, products, scores, state };
        tile.simd().call(update);
        if let Some(dropout) = self.call.training.and_then(|training| training.dropout) {
            drop_weights(tile.simd(), dropout, problem, pos, self.scores);
        }
        let values = &self.packed_values[C::values_offset(pos.start, width_v)..];
        let output = self.state.rows(row..row + C::ROWS).output;
        tile.accumulate_values(pos.rows, self.scores, values, pos.count, output, width_v);
    }

    /// Whether the outputs of a block are not finite, and the values have been packed again without those that are not.
    #[inline(always)]
    fn replaces_values(&mut self, Block { rows, .. }: Block) -> Result<bool> {
        if self.values_were_checked || self.state.rows(0..rows).is_finite() {
            return Ok(false);
        }
        self.values_were_checked = true;
        self.finite = FiniteValues::new::<C>(self.values, self.tokens)?;
        if let Some(finite) = &self.finite {
            let packing = Packing::Values { width_v: self.state.width_v };
            pack(self.tile, packing, finite.tokens(self.values), self.tokens, self.packed_values);
        }
        Ok(self.finite.is_some())
    }

    /// Stores the outputs of a block.
    #[inline(always)]
    fn store(&mut self, Block { h, first, rows }: Block) {
        let TaskKernel { problem, task: Task { b, .. }, training, out, .. } = *self.call;
        let (d_v, width_v) = (problem.d_v, self.state.width_v);
        for row in 0..rows {
            let (query, factor) = (first + row, self.state.factor(row));
            let (max, output) = (self.state.row_max[row], &mut self.state.output[row * width_v..][..width_v]);
            let mut left = factor;
            if let Some(finite) = &self.finite {
                let sees = |key: usize| problem.sees((b, h, query), key);
                finite.add_visible::<C>(self.values, sees, self.tokens, (&mut *output, factor));
                left = 1.0;
            }
            let at = (problem.batch.queries_before(b) + query) * problem.h + h;
            // SAFETY: the callers have reserved the output; only this task writes this query and head.
            unsafe { store_row(self.tile.simd(), &mut output[..d_v], left, out, at * d_v) };
            if let Some(training) = training {
                let max = if factor == 0.0 { 0.0 } else { max };
                // SAFETY: for the same reason.
                let kept = unsafe { training.rows.part(at, 1) };
                kept[0].write(SoftmaxRow { max, factor });
            }
        }
    }
}

/// Drops attention weights of a tile.
#[inline(always)]
fn drop_weights<S: Simd>(s: S, dropout: Dropout, problem: &Problem, pos: TilePos, weights: &mut [f32]) {
    let mut factors = [0.0; KEY_BLOCK];
    for (r, row) in weights.chunks_exact_mut(KEY_BLOCK).take(pos.rows).enumerate() {
        dropout.factors(pos.place(problem, r), &mut factors[..pos.count]);
        for (weights, factors) in row.chunks_exact_mut(S::LANES).zip(factors.chunks_exact(S::LANES)) {
            s.store_slice(weights, s.mul(s.load_slice(weights), s.load_slice(factors)));
        }
    }
}
