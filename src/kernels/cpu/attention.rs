//! Fused attention: softmax attention without a score matrix.
//!
//! The keys are taken in blocks, and the softmax is updated from block to block
//! ([Milakov 2018](https://arxiv.org/abs/1805.02867), [Dao 2022](https://arxiv.org/abs/2205.14135)). Memory is linear
//! in the number of keys, and a tile of scores stays in the L1 cache.
//!
//! The result of a query does not depend on the other queries, sequences or heads of the call, nor on how the work is
//! divided: scores and outputs are sums in a fixed order, and key blocks start at key 0 and have one size. So the
//! result of a sequence is bitwise the same alone, in any batch, with any padding, and on any number of threads.

use std::cell::RefCell;

use rayon::prelude::*;

use super::element::Element;
use super::isa::Isa;
use super::isa::bf16_dot::Bf16Dot;
use super::isa::kernel::{Bf16Kernel, Kernel};
use super::isa::simd::Simd;
use super::non_finite::FiniteValues;
use super::online_softmax::{SoftmaxState, TilePos, any_visible, online_softmax_update};
use super::problem::AttentionProblem;
use super::score_tile::{KEY_BLOCK, ScoreTile, Tokens};
use super::shared_out::SharedOut;
use super::tile_bf16::TileBf16;
use super::tile_f32::TileF32;

/// Queries that are multiplied with a key block before the next key block is fetched.
const QUERY_BLOCK: usize = 64;
/// Multiply-adds below which a second thread costs more than it gains.
const MIN_PARALLEL_WORK: usize = 1 << 18;

/// Part of the queries of one sequence, for the query heads of one key-value head.
#[derive(Clone, Copy)]
struct Task {
    b: usize,
    h_kv: usize,
    from: usize,
    to: usize,
}

thread_local! {
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Computes attention. `to` becomes `(queries, h, d_v)`, the queries of one sequence after those of the other.
pub(crate) fn attend<T: Element>(isa: Isa, problem: &AttentionProblem<T>, to: &mut Vec<T>) {
    let size = problem.batch.queries() * problem.h * problem.d_v;
    to.clear();
    to.reserve(size);
    let out = SharedOut(to.as_mut_ptr());
    let run = |task: &Task| {
        SCRATCH.with_borrow_mut(|scratch| {
            let kernel = TaskKernel { problem, task: *task, scratch, out };
            if problem.bf16 && isa.has_bf16_dot() { isa.run_bf16(kernel) } else { isa.run(kernel) }
        });
    };
    let tasks = tasks(problem);
    if tasks.len() > 1 && problem.multiply_adds() >= MIN_PARALLEL_WORK {
        tasks.par_iter().for_each(run);
    } else {
        tasks.iter().for_each(run);
    }
    // SAFETY: the tasks cover all queries and heads, and each task writes all of its own.
    unsafe { to.set_len(size) };
}

/// Size in f32 values of the memory that one thread needs beside inputs and outputs: the packed keys and values, and
/// the packed queries, sums and scores of a query block.
pub(crate) fn scratch_floats(keys: usize, d: usize, d_v: usize) -> usize {
    let d_v = d_v.next_multiple_of(16);
    keys.next_multiple_of(KEY_BLOCK) * (d + d_v) + QUERY_BLOCK * (d + d_v + 2) + 8 * KEY_BLOCK + d
}

fn tasks<T>(problem: &AttentionProblem<T>) -> Vec<Task> {
    let batch = problem.batch;
    let heads = batch.sequences() * problem.h_kv;
    // Every task packs its keys again. So there are only as many tasks as keep all threads busy, and no short ones.
    let wanted = (2 * rayon::current_num_threads()).div_ceil(heads.max(1));
    let tasks_of_head = |(b, h_kv): (usize, usize)| {
        let s_q = batch.s_q(b);
        let queries = s_q.div_ceil(wanted.min(s_q.div_ceil(2 * QUERY_BLOCK)).max(1)).next_multiple_of(QUERY_BLOCK);
        (0..s_q).step_by(queries.max(1)).map(move |from| Task { b, h_kv, from, to: s_q.min(from + queries) })
    };
    let heads = (0..batch.sequences()).flat_map(|b| (0..problem.h_kv).map(move |h_kv| (b, h_kv)));
    heads.flat_map(tasks_of_head).collect()
}

/// A task as a kernel.
struct TaskKernel<'a, T> {
    problem: &'a AttentionProblem<'a, T>,
    task: Task,
    scratch: &'a mut Vec<f32>,
    out: SharedOut<T>,
}

impl<T: Element> Kernel for TaskKernel<'_, T> {
    #[inline(always)]
    fn run<S: Simd, const MR: usize, const NR: usize>(self, s: S) {
        self.run_with(TileF32::<S, MR, NR>(s));
    }
}

impl<T: Element> Bf16Kernel for TaskKernel<'_, T> {
    #[inline(always)]
    fn run<S: Simd, D: Bf16Dot>(self, s: S, dot: D) {
        self.run_with(TileBf16(s, dot));
    }
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
}

impl<'a> Scratch<'a> {
    /// For `keys` keys, a multiple of the tile's panel.
    fn divide<C: ScoreTile>(memory: &'a mut Vec<f32>, keys: usize, d: usize, width_v: usize) -> Self {
        let width = C::key_width(d);
        let sizes = [
            keys * width,
            C::values_offset(keys, width_v),
            QUERY_BLOCK * width,
            QUERY_BLOCK * width_v,
            QUERY_BLOCK,
            QUERY_BLOCK,
            C::SCORES,
            2 * d + width + 3 * width_v,
        ];
        let total = sizes.iter().sum();
        if memory.len() < total {
            memory.resize(total, 0.0);
        }
        let mut rest = memory.as_mut_slice();
        let [keys, values, queries, output, row_max, row_sum, scores, tokens] = sizes.map(|size| {
            let (part, after) = std::mem::take(&mut rest).split_at_mut(size);
            rest = after;
            part
        });
        Self { keys, values, queries, output, row_max, row_sum, scores, tokens }
    }
}

impl<T: Element> TaskKernel<'_, T> {
    #[inline(always)]
    fn run_with<C: ScoreTile>(self, tile: C) {
        let Self { problem, task: Task { b, h_kv, from, to }, scratch, out } = self;
        let (s, d, d_v) = (tile.simd(), problem.d, problem.d_v);
        const { assert!(KEY_BLOCK.is_multiple_of(C::PANEL) && QUERY_BLOCK.is_multiple_of(C::ROWS)) };
        let (width, width_v) = (C::key_width(d), C::value_width(d_v));
        let (s_q, s_kv, start) = (problem.batch.s_q(b), problem.batch.s_kv(b), problem.batch.start(b));

        // Keys after the last one that any query of the task sees are not even packed.
        let ranges = (from..to).map(|i| problem.mask.range(b, i, s_q, s_kv));
        let visible = ranges.filter(|range| !range.is_empty()).map(|range| range.end).max().unwrap_or(0);
        let keys = if problem.appended > 0 { s_kv + problem.appended } else { visible };
        let scratch = Scratch::divide::<C>(scratch, keys.next_multiple_of(C::PANEL), d, width_v);
        let packed_keys = Tokens { heads: &problem.k, start, h: h_kv, from: 0, count: keys, d };
        tile.pack_keys(packed_keys, scratch.tokens, scratch.keys);
        let values = Tokens { heads: &problem.v, start, h: h_kv, from: 0, count: keys, d: d_v };
        let hides = problem.mask.may_hide(b, from..to, keys, [s_q, s_kv]);
        let finite = if hides { FiniteValues::new(values, scratch.tokens) } else { None };
        let view = finite.as_ref().map(|finite| finite.view(d_v));
        let packed_values = match &view {
            Some(heads) => Tokens { heads, start: (0, 0), h: 0, ..values },
            None => values,
        };
        tile.pack_values(packed_values, width_v, scratch.tokens, scratch.values);

        let (query_factor, score_factor) = C::split_scale(problem.scale);
        let group = problem.h / problem.h_kv;
        for h in h_kv * group..(h_kv + 1) * group {
            let sink = problem.sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[h]);
            for first in (from..to).step_by(QUERY_BLOCK) {
                let rows = QUERY_BLOCK.min(to - first);
                let used = rows.next_multiple_of(C::ROWS);
                let queries = Tokens { heads: &problem.q, start, h, from: first, count: rows, d };
                tile.pack_queries(queries, query_factor, scratch.tokens, &mut scratch.queries[..used * width]);
                // A sink is a score that was seen before the first key, with a value of 0.
                scratch.output[..used * width_v].fill(0.0);
                scratch.row_max[..used].fill(sink);
                scratch.row_sum[..used].fill(if sink == f32::NEG_INFINITY { 0.0 } else { 1.0 });
                for block in (0..keys).step_by(KEY_BLOCK) {
                    let count = KEY_BLOCK.min(keys - block);
                    for row in (0..rows).step_by(C::ROWS) {
                        let rows = C::ROWS.min(rows - row);
                        let pos = TilePos { b, h, s_q, s_kv, query: first + row, rows, start: block, count };
                        if !any_visible(&problem.mask, pos) {
                            continue;
                        }
                        let range = |size: usize| row * size..(row + C::ROWS) * size;
                        let queries = &scratch.queries[range(width)];
                        tile.scores(rows, queries, d, &scratch.keys[block * width..], count, scratch.scores);
                        let mut state = SoftmaxState {
                            row_max: &mut scratch.row_max[range(1)],
                            row_sum: &mut scratch.row_sum[range(1)],
                            output: &mut scratch.output[range(width_v)],
                            width_v,
                        };
                        online_softmax_update(s, problem, pos, score_factor, scratch.scores, &mut state);
                        let values = &scratch.values[C::values_offset(block, width_v)..];
                        tile.accumulate_values(rows, scratch.scores, values, count, state.output, width_v);
                    }
                }
                for (i, row) in scratch.output.chunks_exact_mut(width_v).take(rows).enumerate() {
                    let row_sum = scratch.row_sum[i];
                    // A query that sees no key has sums of 0, and its output is 0.
                    let factor = if row_sum == 0.0 { 0.0 } else { 1.0 / row_sum };
                    row.iter_mut().for_each(|x| *x *= factor);
                    if let Some(finite) = &finite {
                        let sees = |key: usize| problem.mask.sees((b, h, first + i), key, [s_q, s_kv]);
                        finite.add_visible(values, sees, scratch.tokens, row);
                    }
                    let at = ((problem.batch.queries_before(b) + first + i) * problem.h + h) * d_v;
                    // SAFETY: `attend` has reserved the output; only this task writes this query and head.
                    T::downcast(&row[..d_v], unsafe { out.part(at, d_v) });
                }
            }
        }
    }
}
