//! Softmax attention without a score matrix: keys are taken in blocks, the softmax is carried along
//! ([Milakov 2018](https://arxiv.org/abs/1805.02867), [Dao 2022](https://arxiv.org/abs/2205.14135)).
//!
//! What a query gets does not depend on the other queries, rows or heads of the call, nor on how the work is shared:
//! scores and outputs are sums in a fixed order, blocks start at key 0 and are of one size. So a sequence's result is
//! bitwise the same alone, in any batch, with any padding, on any number of threads.

use std::cell::RefCell;

use rayon::prelude::*;

use super::batch::Batch;
use super::blocks::{BLOCK, add_values, scores};
use super::element::Element;
use super::exp::exp;
use super::isa::{Isa, Kernel};
use super::mask::Mask;
use super::output::Output;
use super::pack::{self, Heads};
use super::simd::Simd;

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
    pub mask: Mask<'a>,
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

/// Runs the call; `output` is `(queries, h, d_v)`, one row's queries after the other's.
pub(crate) fn attend<T: Element>(isa: Isa, call: &Attention<T>, output: &mut [T]) {
    assert_eq!(output.len(), call.batch.queries() * call.h * call.d_v, "the output's size");
    let output = Output(output.as_mut_ptr());
    let run = |task: &Task| SCRATCH.with_borrow_mut(|scratch| isa.run(Work { call, task: *task, scratch, output }));
    let tasks = tasks(call);
    match tasks.len() {
        0 => {}
        1 => run(&tasks[0]),
        _ if work(call) < SERIAL => tasks.iter().for_each(run),
        _ => tasks.par_iter().for_each(run),
    }
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
        task_of::<S, T, MR, NR>(s, self.call, self.task, self.scratch, self.output);
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
    fn cut(scratch: &'a mut Vec<f32>, keys: usize, d: usize, width_v: usize, rows: usize) -> Self {
        let sizes = [keys * d, keys * width_v, QUERIES * d, QUERIES * width_v, QUERIES, QUERIES, rows * BLOCK, d];
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

/// One task. `MR` rows by `NR` vectors are held in registers.
#[inline(always)]
fn task_of<S: Simd, T: Element, const MR: usize, const NR: usize>(
    s: S,
    call: &Attention<T>,
    task: Task,
    scratch: &mut Vec<f32>,
    output: Output<T>,
) {
    let Task { b, h_kv, from, to } = task;
    let (d, d_v, panel) = (call.d, call.d_v, NR * S::LANES);
    debug_assert!(BLOCK.is_multiple_of(panel) && QUERIES.is_multiple_of(MR));
    let width_v = d_v.next_multiple_of(S::LANES);

    let (s_q, s_kv, start) = (call.batch.s_q(b), call.batch.s_kv(b), call.batch.start(b));

    // Keys that no query of the task sees are not even packed.
    let seen = (from..to).map(|i| call.mask.range(b, i, s_q, s_kv));
    let last = seen.filter(|range| !range.is_empty()).map(|range| range.end).max().unwrap_or(0);
    let keys = if call.appended > 0 { s_kv + call.appended } else { last };
    let padded = keys.next_multiple_of(panel);
    let buffers = Buffers::cut(scratch, padded, d, width_v, MR);
    pack::keys(&call.k, (start, h_kv), (keys, d, panel), buffers.row, buffers.keys);
    pack::values(&call.v, (start, h_kv), (keys, d_v, width_v), buffers.values);

    let group = call.h / call.h_kv;
    for h in h_kv * group..(h_kv + 1) * group {
        for first in (from..to).step_by(QUERIES) {
            let rows = QUERIES.min(to - first);
            let used = rows.next_multiple_of(MR);
            pack::queries(&call.q, (start, h), (first, rows, d), call.scale, &mut buffers.queries[..used * d]);
            buffers.sums[..used * width_v].fill(0.0);
            buffers.max[..used].fill(f32::NEG_INFINITY);
            buffers.total[..used].fill(0.0);
            for block in (0..keys).step_by(BLOCK) {
                let count = BLOCK.min(keys - block);
                for tile in (0..rows).step_by(MR) {
                    let rows = MR.min(rows - tile);
                    let place = Place { b, h, s_q, s_kv, query: first + tile, rows, start: block, count };
                    if !sees_any(call, place) {
                        continue;
                    }
                    let of = |size: usize| tile * size..(tile + MR) * size;
                    let queries = &buffers.queries[of(d)];
                    scores::<S, MR, NR>(s, queries, d, &buffers.keys[block * d..], count, buffers.scores);
                    let (max, total) = (&mut buffers.max[of(1)], &mut buffers.total[of(1)]);
                    let sums = &mut buffers.sums[of(width_v)];
                    soften(s, call, place, buffers.scores, max, total, sums, width_v);
                    let values = &buffers.values[block * width_v..];
                    add_values::<S, MR>(s, buffers.scores, values, count, sums, width_v);
                }
            }
            for (i, sums) in buffers.sums.chunks_exact_mut(width_v).take(rows).enumerate() {
                let total = buffers.total[i];
                // A query that saw nothing has a total of 0 and sums of 0.
                let factor = if total == 0.0 { 0.0 } else { 1.0 / total };
                sums.iter_mut().for_each(|x| *x *= factor);
                let at = ((call.batch.queries_before(b) + first + i) * call.h + h) * d_v;
                // SAFETY: `attend` checked the output's size, and this query and head belong to this task alone.
                let to = unsafe { std::slice::from_raw_parts_mut(output.0.add(at), d_v) };
                T::narrow(&sums[..d_v], to);
            }
        }
    }
}

/// A tile: `rows` queries from `query` of head `h` in row `b`, with `count` keys from `start`.
#[derive(Clone, Copy)]
struct Place {
    b: usize,
    h: usize,
    s_q: usize,
    s_kv: usize,
    query: usize,
    rows: usize,
    start: usize,
    count: usize,
}

fn sees_any<T>(call: &Attention<T>, place: Place) -> bool {
    let (start, end) = (place.start, place.start + place.count);
    let in_reach = |i: usize| {
        let range = call.mask.range(place.b, i, place.s_q, place.s_kv);
        range.start.max(start) < range.end.min(end)
    };
    end > place.s_kv || (place.query..place.query + place.rows).any(in_reach)
}

/// Masks the scores of a tile and turns them into `e^(score - max)`, `max` being the largest of the row so far; what
/// was summed under an earlier, smaller `max` is scaled down.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn soften<S: Simd, T>(
    s: S,
    call: &Attention<T>,
    place: Place,
    scores: &mut [f32],
    max: &mut [f32],
    total: &mut [f32],
    sums: &mut [f32],
    width_v: usize,
) {
    let Place { query, rows, count, .. } = place;
    let padded = count.next_multiple_of(S::LANES);
    for (r, row) in scores.chunks_exact_mut(BLOCK).take(rows).enumerate() {
        let row = &mut row[..padded];
        row[count..].fill(f32::NEG_INFINITY);
        hide(call, place, query + r, &mut row[..count]);
        // Loops, not closures: a closure does not inherit the instruction set of the function around it.
        let mut largest = s.splat(f32::NEG_INFINITY);
        for j in (0..padded).step_by(S::LANES) {
            // SAFETY: `padded` is the length of `row` and a multiple of `LANES`; so for the loop below.
            largest = unsafe { s.max(s.load(row.as_ptr().add(j)), largest) };
        }
        let new = s.largest(largest).max(max[r]);
        if new == f32::NEG_INFINITY && !row.iter().any(|x| x.is_nan()) {
            // Nothing seen so far: the scores become weights of 0.
            row.fill(0.0);
            continue;
        }
        let (offset, mut sum) = (s.splat(new), s.splat(0.0));
        for j in (0..padded).step_by(S::LANES) {
            // SAFETY: as above.
            unsafe {
                let e = exp(s, s.sub(s.load(row.as_ptr().add(j)), offset));
                s.store(row.as_mut_ptr().add(j), e);
                sum = s.add(sum, e);
            }
        }
        let factor = first(s, exp(s, s.splat(max[r] - new)));
        total[r] = total[r] * factor + s.sum(sum);
        if factor != 1.0 {
            sums[r * width_v..(r + 1) * width_v].iter_mut().for_each(|x| *x *= factor);
        }
        max[r] = new;
    }
}

#[inline(always)]
fn first<S: Simd>(s: S, a: S::V) -> f32 {
    let mut lanes = [0.0; 16];
    const { assert!(S::LANES <= 16) };
    // SAFETY: there is room for `LANES` numbers.
    unsafe { s.store(lanes.as_mut_ptr(), a) };
    lanes[0]
}

/// Sets the scores of query `i` with hidden keys to -inf; `row` holds those with the keys of `place`.
#[inline(always)]
fn hide<T>(call: &Attention<T>, place: Place, i: usize, row: &mut [f32]) {
    let Place { b, h, s_q, s_kv, start, .. } = place;
    let masked = row.len().min(s_kv.saturating_sub(start));
    // What lies after it is appended, and seen.
    let row = &mut row[..masked];
    let range = call.mask.range(b, i, s_q, s_kv);
    let inside = |key: usize| key.saturating_sub(start).min(masked);
    let (from, to) = (inside(range.start), inside(range.end));
    row[..from].fill(f32::NEG_INFINITY);
    row[to.max(from)..].fill(f32::NEG_INFINITY);
    if call.mask.has_tensors() && from < to {
        call.mask.apply(&mut row[from..to], b, h, i, start + from);
    }
}
