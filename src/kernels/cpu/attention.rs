//! Softmax attention without a score matrix: keys are taken in blocks, the softmax is carried along
//! ([Milakov 2018](https://arxiv.org/abs/1805.02867), [Dao 2022](https://arxiv.org/abs/2205.14135)).
//!
//! What a query gets does not depend on the other queries, rows or heads of the call, nor on how the work is shared:
//! scores and outputs are sums in a fixed order, blocks start at key 0 and are of one size. So a sequence's result is
//! bitwise the same alone, in any batch, with any padding, on any number of threads.

use std::cell::RefCell;

use rayon::prelude::*;

use super::batch::Batch;
use super::blocks::Floats;
use super::blocks_pairs::Halves;
use super::core::{BLOCK, Core, Tokens};
use super::element::Element;
use super::heads::Heads;
use super::isa::{Isa, Kernel};
use super::mask::Mask;
use super::output::Output;
use super::pairs::{PairDot, PairKernel};
use super::simd::Simd;
use super::soften::{Place, sees_any, soften};

/// Queries that go through a block of keys before the next one is fetched.
const QUERIES: usize = 64;
/// Multiply-adds below which a second thread costs more than it brings.
const SERIAL: usize = 1 << 18;

/// One call: `q` `(b, s_q, h, d)`, `k` `(b, keys, h_kv, d)`, `v` `(b, keys, h_kv, d_v)`; ragged, `b` is 1 and the tokens
/// of all rows follow each other.
#[derive(Debug)]
pub(crate) struct Attention<'a, T> {
    pub q: Heads<'a, T>,
    pub k: Heads<'a, T>,
    pub v: Heads<'a, T>,
    pub batch: Batch<'a>,
    /// Keys after those under the mask, which every query sees.
    pub appended: usize,
    pub h: usize,
    pub h_kv: usize,
    pub d: usize,
    pub d_v: usize,
    pub scale: f32,
    /// Scores become `softcap · tanh(score / softcap)` before they are masked.
    pub softcap: Option<f32>,
    /// A score a head that takes part in the softmax and has no value.
    pub sinks: Option<&'a [f32]>,
    pub mask: Mask<'a>,
    /// Whether the products may round their operands to bf16, where there are instructions for that; sums stay f32.
    pub bf16: bool,
}

/// Part of the queries of one row and one key-value head.
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

/// Runs the call; `to` becomes `(queries, h, d_v)`, one row's queries after the other's.
pub(crate) fn attend<T: Element>(isa: Isa, call: &Attention<T>, to: &mut Vec<T>) {
    let size = call.batch.queries() * call.h * call.d_v;
    to.clear();
    to.reserve(size);
    let output = Output(to.as_mut_ptr());
    let run = |task: &Task| {
        SCRATCH.with_borrow_mut(|scratch| {
            let work = Work { call, task: *task, scratch, output };
            match call.bf16 && isa.has_pairs() {
                true => isa.run_pairs(work),
                false => isa.run(work),
            }
        });
    };
    let tasks = tasks(call);
    match tasks.len() {
        0 => {}
        1 => run(&tasks[0]),
        _ if work(call) < SERIAL => tasks.iter().for_each(run),
        _ => tasks.par_iter().for_each(run),
    }
    // SAFETY: the tasks together are all queries of all heads, and each writes all of its own.
    unsafe { to.set_len(size) };
}

/// A task with all it needs.
struct Work<'a, T> {
    call: &'a Attention<'a, T>,
    task: Task,
    scratch: &'a mut Vec<f32>,
    output: Output<T>,
}

impl<T: Element> Kernel for Work<'_, T> {
    #[inline(always)]
    fn run<S: Simd, const MR: usize, const NR: usize>(self, s: S) {
        task_of(Floats::<S, MR, NR>(s), self);
    }
}

impl<T: Element> PairKernel for Work<'_, T> {
    #[inline(always)]
    fn run<S: Simd, D: PairDot>(self, s: S, d: D) {
        task_of(Halves(s, d), self);
    }
}

/// Multiply-adds of the whole call, if nothing is masked.
fn work<T>(call: &Attention<T>) -> usize {
    let pairs: usize = (0..call.batch.rows()).map(|b| call.batch.s_q(b) * (call.batch.s_kv(b) + call.appended)).sum();
    pairs * call.h * (call.d + call.d_v)
}

/// Floats that one thread needs beside its inputs and outputs: packed keys and values, and a little for the queries.
pub(crate) fn scratch_floats(keys: usize, d: usize, d_v: usize) -> usize {
    let d_v = d_v.next_multiple_of(16);
    keys.next_multiple_of(BLOCK) * (d + d_v) + QUERIES * (d + d_v + 2) + 8 * BLOCK + d
}

fn tasks<T>(call: &Attention<T>) -> Vec<Task> {
    let heads = call.batch.rows() * call.h_kv;
    // Each part packs the keys again, so only as many parts as keep all threads busy, and no short ones.
    let wanted = (2 * rayon::current_num_threads()).div_ceil(heads.max(1));
    let of_head = |(b, h_kv): (usize, usize)| {
        let s_q = call.batch.s_q(b);
        let rows = s_q.div_ceil(wanted.min(s_q.div_ceil(2 * QUERIES)).max(1)).next_multiple_of(QUERIES);
        (0..s_q).step_by(rows.max(1)).map(move |from| Task { b, h_kv, from, to: s_q.min(from + rows) })
    };
    (0..call.batch.rows()).flat_map(|b| (0..call.h_kv).map(move |h_kv| (b, h_kv))).flat_map(of_head).collect()
}

/// The scratch memory of a task, cut up.
struct Buffers<'a> {
    keys: &'a mut [f32],
    values: &'a mut [f32],
    queries: &'a mut [f32],
    sums: &'a mut [f32],
    max: &'a mut [f32],
    total: &'a mut [f32],
    scores: &'a mut [f32],
    row: &'a mut [f32],
}

impl<'a> Buffers<'a> {
    /// For `keys` keys, a multiple of the core's panel.
    fn cut<C: Core>(scratch: &'a mut Vec<f32>, keys: usize, d: usize, width_v: usize) -> Self {
        let (width, row) = (C::key_width(d), 2 * d + C::key_width(d) + 3 * width_v);
        let sums = QUERIES * width_v;
        let sizes =
            [keys * width, C::values_before(keys, width_v), QUERIES * width, sums, QUERIES, QUERIES, C::SCORES, row];
        let total = sizes.iter().sum();
        if scratch.len() < total {
            scratch.resize(total, 0.0);
        }
        let mut rest = scratch.as_mut_slice();
        let [keys, values, queries, sums, max, total, scores, row] = sizes.map(|size| {
            let (part, after) = std::mem::take(&mut rest).split_at_mut(size);
            rest = after;
            part
        });
        Self { keys, values, queries, sums, max, total, scores, row }
    }
}

/// One task.
#[inline(always)]
fn task_of<C: Core, T: Element>(core: C, work: Work<T>) {
    let Work { call, task: Task { b, h_kv, from, to }, scratch, output } = work;
    let (s, d, d_v) = (core.simd(), call.d, call.d_v);
    debug_assert!(BLOCK.is_multiple_of(C::PANEL) && QUERIES.is_multiple_of(C::ROWS));
    let (width, width_v) = (C::key_width(d), C::value_width(d_v));
    let (s_q, s_kv, row) = (call.batch.s_q(b), call.batch.s_kv(b), call.batch.start(b));

    // Keys that no query of the task sees are not even packed.
    let seen = (from..to).map(|i| call.mask.range(b, i, s_q, s_kv));
    let last = seen.filter(|range| !range.is_empty()).map(|range| range.end).max().unwrap_or(0);
    let keys = if call.appended > 0 { s_kv + call.appended } else { last };
    let buffers = Buffers::cut::<C>(scratch, keys.next_multiple_of(C::PANEL), d, width_v);
    core.pack_keys(Tokens { heads: &call.k, row, h: h_kv, from: 0, count: keys, d }, buffers.row, buffers.keys);
    let values = Tokens { heads: &call.v, row, h: h_kv, from: 0, count: keys, d: d_v };
    core.pack_values(values, width_v, buffers.row, buffers.values);

    let (query_factor, factor) = C::split_scale(call.scale);
    let group = call.h / call.h_kv;
    for h in h_kv * group..(h_kv + 1) * group {
        let sink = call.sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[h]);
        for first in (from..to).step_by(QUERIES) {
            let rows = QUERIES.min(to - first);
            let used = rows.next_multiple_of(C::ROWS);
            let queries = Tokens { heads: &call.q, row, h, from: first, count: rows, d };
            core.pack_queries(queries, query_factor, buffers.row, &mut buffers.queries[..used * width]);
            buffers.sums[..used * width_v].fill(0.0);
            buffers.max[..used].fill(sink);
            buffers.total[..used].fill(if sink == f32::NEG_INFINITY { 0.0 } else { 1.0 });
            for block in (0..keys).step_by(BLOCK) {
                let count = BLOCK.min(keys - block);
                for tile in (0..rows).step_by(C::ROWS) {
                    let rows = C::ROWS.min(rows - tile);
                    let place = Place { b, h, s_q, s_kv, query: first + tile, rows, start: block, count, factor };
                    if !sees_any(call, place) {
                        continue;
                    }
                    let of = |size: usize| tile * size..(tile + C::ROWS) * size;
                    let queries = &buffers.queries[of(width)];
                    core.scores(rows, queries, d, &buffers.keys[block * width..], count, buffers.scores);
                    let (max, total) = (&mut buffers.max[of(1)], &mut buffers.total[of(1)]);
                    let sums = &mut buffers.sums[of(width_v)];
                    soften(s, call, place, buffers.scores, max, total, sums, width_v);
                    let values = &buffers.values[C::values_before(block, width_v)..];
                    core.add_values(rows, buffers.scores, values, count, sums, width_v);
                }
            }
            for (i, sums) in buffers.sums.chunks_exact_mut(width_v).take(rows).enumerate() {
                let total = buffers.total[i];
                // A query that saw nothing has a total of 0 and sums of 0.
                let factor = if total == 0.0 { 0.0 } else { 1.0 / total };
                sums.iter_mut().for_each(|x| *x *= factor);
                let at = ((call.batch.queries_before(b) + first + i) * call.h + h) * d_v;
                // SAFETY: `attend` made room for the output; this query and head belong to this task alone.
                T::narrow(&sums[..d_v], unsafe { output.places(at, d_v) });
            }
        }
    }
}
