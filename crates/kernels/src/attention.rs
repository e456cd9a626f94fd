//! Fused attention: softmax attention without a score matrix.
//!
//! The keys are taken in blocks, and the softmax is updated from block to block
//! ([Milakov 2018](https://arxiv.org/abs/1805.02867), [Dao 2022](https://arxiv.org/abs/2205.14135)). Memory is linear
//! in the number of keys, and a tile of scores stays in the L1 cache.
//!
//! The result of a query does not depend on the other queries, sequences or heads of the call, nor on how the work is
//! divided: scores and outputs are sums in a fixed order, and key blocks start at key 0 and have one size. So the
//! result of a sequence is bitwise the same alone, in any batch, with any padding, and on any number of threads.

use super::distance_products::DistanceProducts;
use super::dropout::Dropout;
use super::elements::ElementsOut;
use super::error::{Error, Result};
use super::few_queries;
use super::isa::Isa;
use super::isa::simd::{MAX_LANES, Simd};
use super::memory::{ScratchPool, element_count, try_reserve};
use super::non_finite::{FiniteValues, all_finite};
use super::online_softmax::{OnlineSoftmaxUpdate, SoftmaxState, TilePos, TileProducts, any_visible};
use super::problem::{AttentionProblem, Batch, Problem};
use super::score_tile::{KEY_BLOCK, Packing, QUERY_BLOCK, ScoreTile, Tokens, pack, query_block};
use super::team::{Output, SharedOut, Team};
use super::tile_kernel::{TileKernel, TileNumbers, run_on_tiles};

/// f32 values in a cache line.
const LINE: usize = 16;
/// Part of the queries of one sequence, for the query heads of one key-value head.
#[derive(Clone, Copy)]
struct Task {
    b: usize,
    h_kv: usize,
    from: usize,
    to: usize,
}

/// Computes a problem that was checked: each task that returns `Ok` has written all of its own, and together they are
/// all of `out`.
pub(super) fn attend(isa: Isa, team: Team, problem: &Problem, out: ElementsOut) -> Result<()> {
    run_tasks(isa, team, problem, None, out)
}

/// What the backward pass needs of the softmax of one query: the attention weight of a score is
/// `e^(score - max) · factor`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SoftmaxRow {
    /// The largest score; 0 for a query that sees no key.
    pub(super) max: f32,
    /// 1 divided by the sum of `e^(score - max)`; 0 for a query that sees no key.
    pub(super) factor: f32,
}

/// What a forward pass for training does beside inference.
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
    if training.is_none() && few_queries::applies(problem) {
        return few_queries::run_tasks(isa, team, problem, out);
    }
    let pool = ScratchPool::default();
    let tasks = tasks(problem, team.threads())?;
    team.try_for_each(tasks.len(), |i| {
        let numbers = if training.is_some() { TileNumbers::F32 } else { problem.tile_numbers() };
        run_on_tiles(isa, numbers, TaskKernel { problem, task: tasks[i], pool: &pool, training, out })
    })
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

/// The scratch memory of a task, divided by purpose.
struct Scratch<'a> {
    keys: &'a mut [f32],
    values: &'a mut [f32],
    queries: &'a mut [f32],
    output: &'a mut [f32],
    row_max: &'a mut [f32],
    row_sum: &'a mut [f32],
    scores: &'a mut [f32],
    tokens: &'a mut [f32],
    products: &'a mut [f32],
}

impl<'a> Scratch<'a> {
    /// The size of each part for `keys` keys and that many `products`, and of all together.
    fn sizes<C: ScoreTile>(keys: usize, d: usize, d_v: usize, products: usize) -> Result<([usize; 9], usize)> {
        let (query_width, width, width_v) = (C::query_width(d), C::key_width(d), C::value_width(d_v));
        let what = "the scratch memory of attention";
        // All of the sum but a small constant is at most this product: then nothing in it wraps around.
        element_count(
            what,
            &[
                keys.saturating_add(2 * QUERY_BLOCK),
                query_width.max(width).saturating_add(width_v).saturating_add(LINE),
                2,
            ],
        )?;
        let keys = keys.next_multiple_of(C::PANEL);
        let sizes = [
            keys * width,
            C::values_offset(keys, width_v),
            query_block(C::ROWS) * query_width,
            query_block(C::ROWS) * width_v,
            query_block(C::ROWS),
            query_block(C::ROWS),
            C::SCORES,
            (MAX_LANES + 2) * d.max(width) + 3 * width_v,
            products,
        ]
        .map(|size| size.next_multiple_of(LINE)); // each part starts at a cache line
        Ok((sizes, sizes.iter().sum()))
    }

    fn divide(mut rest: &'a mut [f32], sizes: [usize; 9]) -> Self {
        let [keys, values, queries, output, row_max, row_sum, scores, tokens, products] = sizes.map(|size| {
            let (part, after) = std::mem::take(&mut rest).split_at_mut(size);
            rest = after;
            part
        });
        Self { keys, values, queries, output, row_max, row_sum, scores, tokens, products }
    }
}

impl TileKernel for TaskKernel<'_> {
    #[inline(always)]
    fn run<C: ScoreTile>(self, tile: C) -> Result<()> {
        let Self { problem, task: Task { b, h_kv, from, to }, training, out, .. } = self;
        let (s, d, d_v) = (tile.simd(), problem.d, problem.d_v);
        const { assert!(KEY_BLOCK.is_multiple_of(C::PANEL)) };
        let query_block = const { query_block(C::ROWS) };
        let (query_width, width, width_v) = (C::query_width(d), C::key_width(d), C::value_width(d_v));
        let (s_q, s_kv, start) = (problem.batch.s_q(b), problem.batch.s_kv(b), problem.batch.start(b));

        // Keys after the last one that any query of the task sees are not even packed.
        let ranges = (from..to).map(|i| problem.mask.range(b, i, s_q, s_kv));
        let visible = ranges.filter(|range| !range.is_empty()).map(|range| range.end).max().unwrap_or(0);
        let keys = if problem.appended > 0 { s_kv + problem.appended } else { visible };
        let products = DistanceProducts::size::<C>(problem, query_block, keys)?;
        let (sizes, total) = Scratch::sizes::<C>(keys, d, d_v, products)?;
        let mut memory = self.pool.take(total)?;
        let mut scratch = Scratch::divide(&mut memory, sizes);
        let packed_keys = Tokens { heads: problem.k, start, h: h_kv, from: 0, count: keys, d };
        pack(tile, Packing::Keys, packed_keys, scratch.tokens, scratch.keys);
        let values = Tokens { heads: problem.v, start, h: h_kv, from: 0, count: keys, d: d_v };
        pack(tile, Packing::Values { width_v }, values, scratch.tokens, scratch.values);
        // The values without what is not finite, once an output is not.
        let (mut finite, mut values_were_checked) = (None::<FiniteValues>, false);

        let mut products = DistanceProducts::new::<C>(
            problem,
            b,
            from..to,
            [query_block, keys],
            std::mem::take(&mut scratch.products),
        );
        let (query_factor, score_factor) = C::split_scale(problem.scale, problem.q.data.is_f32());
        let group = problem.h / problem.h_kv;
        for h in h_kv * group..(h_kv + 1) * group {
            if let Some(products) = &mut products {
                let memory = [&mut *scratch.tokens, &mut *scratch.queries, &mut *scratch.scores];
                products.start_head(tile, problem, [h, h_kv], memory);
            }
            let sink = problem.sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[h]);
            let mut first = from;
            while first < to {
                let rows = query_block.min(to - first);
                let used = rows.next_multiple_of(C::ROWS);
                let queries = Tokens { heads: problem.q, start, h, from: first, count: rows, d };
                let packing = Packing::Queries { factor: query_factor };
                pack(tile, packing, queries, scratch.tokens, &mut scratch.queries[..used * query_width]);
                if let Some(products) = &mut products {
                    let queries = &scratch.queries[..used * query_width];
                    products.start_block(tile, d, first..first + rows, queries, scratch.scores);
                }
                // A sink is a score that was seen before the first key, with a value of 0.
                scratch.output[..used * width_v].fill(0.0);
                scratch.row_max[..used].fill(sink);
                scratch.row_sum[..used].fill(if sink == f32::NEG_INFINITY { 0.0 } else { 1.0 });
                for block in (0..keys).step_by(KEY_BLOCK) {
                    let count = KEY_BLOCK.min(keys - block);
                    for row in (0..rows).step_by(C::ROWS) {
                        let rows = C::ROWS.min(rows - row);
                        let pos = TilePos { b, h, s_q, s_kv, query: first + row, rows, start: block, count };
                        if !any_visible(problem.mask, pos) {
                            continue;
                        }
                        let range = |size: usize| row * size..(row + C::ROWS) * size;
                        let queries = &scratch.queries[range(query_width)];
                        tile.scores(rows, queries, d, &scratch.keys[block * width..], count, scratch.scores);
                        let state = SoftmaxState {
                            row_max: &mut scratch.row_max[range(1)],
                            row_sum: &mut scratch.row_sum[range(1)],
                            output: &mut scratch.output[range(width_v)],
                            width_v,
                        };
                        let products = products.as_ref().map(|products| TileProducts { products, row });
                        let scores = &mut *scratch.scores;
                        OnlineSoftmaxUpdate { tile, problem, pos, score_factor, products, scores, state }.run();
                        if let Some(dropout) = training.and_then(|training| training.dropout) {
                            drop_weights(s, dropout, problem, pos, scratch.scores);
                        }
                        let values = &scratch.values[C::values_offset(block, width_v)..];
                        let output = &mut scratch.output[range(width_v)];
                        tile.accumulate_values(rows, scratch.scores, values, count, output, width_v);
                    }
                }
                if !values_were_checked && !all_finite(&scratch.output[..rows * width_v]) {
                    values_were_checked = true;
                    finite = FiniteValues::new::<C>(values, scratch.tokens)?;
                    if let Some(finite) = &finite {
                        let values = Tokens { heads: finite.view(d_v), start: (0, 0), h: 0, ..values };
                        pack(tile, Packing::Values { width_v }, values, scratch.tokens, scratch.values);
                        continue; // with the same queries again
                    }
                }
                for (i, row) in scratch.output.chunks_exact_mut(width_v).take(rows).enumerate() {
                    let row_sum = scratch.row_sum[i];
                    // A query that sees no key has sums of 0, and its output is 0.
                    let factor = if row_sum == 0.0 { 0.0 } else { 1.0 / row_sum };
                    let mut left = factor;
                    if let Some(finite) = &finite {
                        row.iter_mut().for_each(|x| *x = *x * factor + 0.0);
                        left = 1.0;
                        let sees = |key: usize| problem.mask.sees((b, h, first + i), key, [s_q, s_kv]);
                        finite.add_visible::<C>(values, sees, scratch.tokens, row);
                    }
                    let at = (problem.batch.queries_before(b) + first + i) * problem.h + h;
                    // SAFETY: the callers have reserved the output; only this task writes this query and head.
                    unsafe { store_row(s, &mut row[..d_v], left, out, at * d_v) };
                    if let Some(training) = training {
                        let max = if factor == 0.0 { 0.0 } else { scratch.row_max[i] };
                        // SAFETY: for the same reason.
                        let kept = unsafe { training.rows.part(at, 1) };
                        kept[0].write(SoftmaxRow { max, factor });
                    }
                }
                first += rows;
            }
        }
        Ok(())
    }
}

/// Stores a row times `factor` at `at` of the output. 0 is added because the sign of a product that underflows to 0 may
/// come from a hidden key.
///
/// # Safety
/// The elements are allocated, and nobody else uses them now.
#[inline(always)]
pub(super) unsafe fn store_row<S: Simd>(s: S, row: &mut [f32], factor: f32, out: ElementsOut, at: usize) {
    let whole = row.len() / S::LANES * S::LANES;
    let (vectors, rest) = row.split_at_mut(whole);
    for values in vectors.chunks_exact_mut(S::LANES) {
        s.store_slice(values, s.add(s.mul(s.load_slice(values), s.splat(factor)), s.splat(0.0)));
    }
    rest.iter_mut().for_each(|x| *x = *x * factor + 0.0);
    // SAFETY: the caller promises it.
    unsafe { out.store(s, at, row) };
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
