//! Attention with few queries for each key-value head, as in a step of decoding: every key and value is read once.
//!
//! The general kernel packs all keys and values of a task first, which pays where many queries read them again. For one
//! query, packing is most of the work, and what is packed does not stay in the cache. So here the blocks of keys are
//! the outer loop, and all queries of all query heads that share a key-value head go through a block together. If they
//! fit into one tile, its keys and values are not packed at all.
//!
//! The sums are those of the general kernel, in the same order: a sequence has the same bits in chunks of any size and
//! in one run. So the keys of a head are not divided between threads either.

use std::ops::Range;

use super::attention::store_row;
use super::elements::ElementsOut;
use super::error::Result;
use super::isa::Isa;
use super::isa::simd::{MAX_LANES, Simd, VectorKernel};
use super::memory::ScratchPool;
use super::non_finite::{FiniteValues, all_finite};
use super::online_softmax::{OnlineSoftmaxUpdate, SoftmaxState, TilePos, any_in_range};
use super::problem::Problem;
use super::score_tile::{KEY_BLOCK, Packing, PrefetchRows, ScoreTile, Step, StepMemory, Tokens, pack};
use super::team::Team;
use super::tile_kernel::{TileKernel, run_on_tiles};

/// The most queries of all query heads of a key-value head. Their sums stay in the L2 cache beside a block of keys.
const MAX_ROWS: usize = 128;
/// Keys for each query: with fewer, packing is a small part of the work.
const MIN_KEYS: usize = 4;
/// The most keys. Far more than any cache holds, they would be those of a view without memory, and the general kernel
/// refuses what it cannot pack.
const MAX_KEYS: usize = 1 << 24;

/// f32 values in a cache line.
const LINE: usize = 16;

/// Whether the queries of a problem are so few.
pub(super) fn applies(problem: &Problem) -> bool {
    let Problem { batch, appended, h, h_kv, .. } = *problem;
    let few = |b: usize| {
        let (s_q, keys) = (batch.s_q(b), batch.s_kv(b).saturating_add(appended));
        s_q.saturating_mul(h / h_kv) <= MAX_ROWS && keys >= MIN_KEYS * s_q && keys <= MAX_KEYS
    };
    problem.mask.embeddings.is_none() && batch.sequences().all(few)
}

/// Runs all tasks of a problem that was checked. `out` is memory for its output.
pub(super) fn run_tasks(isa: Isa, team: Team, problem: &Problem, out: ElementsOut) -> Result<()> {
    let (pool, batch, h_kv) = (ScratchPool::default(), problem.batch, problem.h_kv);
    let (sequences, group) = (batch.sequences(), problem.h / h_kv);
    // As few parts of a sequence as give each thread as much to do: the heads of a token lie side by side in memory.
    let parts = match sequences.len() % team.threads() {
        0 => 1,
        _ => team.threads(),
    };
    let heads = h_kv.div_ceil(parts);
    // The heads of one key-value head are divided only if there are more threads than those.
    let queries = if parts > h_kv { group.div_ceil(parts.div_ceil(h_kv)) } else { group };
    let (parts, parts_of_group) = (h_kv.div_ceil(heads), group.div_ceil(queries));
    team.try_for_each(sequences.len() * parts * parts_of_group, |i| {
        let (part, of_group) = (i / parts_of_group, i % parts_of_group);
        let (b, first) = (sequences.start + part / parts, part % parts * heads);
        let task = Task {
            b,
            kv_heads: first..h_kv.min(first + heads),
            group: of_group * queries..group.min((of_group + 1) * queries),
        };
        run_on_tiles(isa, problem.tile_numbers(), TaskKernel { problem, task, pool: &pool, out })
    })
}

/// Key-value heads of one sequence, with some of the query heads of each: those in a range, counted from the first.
struct Task {
    b: usize,
    kv_heads: Range<usize>,
    group: Range<usize>,
}

/// A task as a kernel.
struct TaskKernel<'a> {
    problem: &'a Problem<'a>,
    task: Task,
    pool: &'a ScratchPool,
    out: ElementsOut,
}

/// The scratch memory of a task. The first five have a part for each key-value head.
struct Scratch<'a> {
    queries: &'a mut [f32],
    output: &'a mut [f32],
    row_max: &'a mut [f32],
    row_sum: &'a mut [f32],
    scores: &'a mut [f32],
    /// Sums of a block of values.
    sums: &'a mut [f32],
    /// Packed keys and values of a block, or of a part of it.
    keys: &'a mut [f32],
    values: &'a mut [f32],
    tokens: &'a mut [f32],
}

/// The sizes of a task.
#[derive(Clone, Copy)]
struct Sizes {
    s_q: usize,
    s_kv: usize,
    /// Rows of a key-value head, and as many as whole tiles have.
    rows: usize,
    padded_rows: usize,
    query_width: usize,
    width: usize,
    width_v: usize,
    /// Whether keys and values are multiplied where they are: the rows of a key-value head fit into a tile.
    one_tile: bool,
}

impl TileKernel for TaskKernel<'_> {
    /// The rows of a key-value head are the queries of its first query head, then those of the next.
    #[inline(always)]
    fn run<C: ScoreTile>(self, tile: C) -> Result<()> {
        let Self { problem, task: Task { b, kv_heads, group }, .. } = &self;
        let (b, batch, d, d_v) = (*b, problem.batch, problem.d, problem.d_v);
        let (s_q, s_kv, start) = (batch.s_q(b), batch.s_kv(b), batch.start(b));
        let rows = group.len() * s_q;
        let sizes = Sizes {
            s_q,
            s_kv,
            rows,
            padded_rows: rows.next_multiple_of(C::ROWS),
            query_width: C::query_width(d),
            width: C::key_width(d),
            width_v: C::value_width(d_v),
            one_tile: <C::S as Simd>::TRANSPOSES && rows <= C::ROWS,
        };
        let Sizes { padded_rows, query_width, width, width_v, .. } = sizes;
        if rows == 0 {
            return Ok(());
        }

        let ranges = (0..s_q).map(|i| problem.mask.range(b, i, s_q, s_kv));
        let visible = ranges.filter(|range| !range.is_empty()).map(|range| range.end).max().unwrap_or(0);
        let count = if problem.appended > 0 { s_kv + problem.appended } else { visible };

        let heads = kv_heads.len();
        let packed = if sizes.one_tile {
            [d, width_v].map(StepMemory::packed_size::<C>)
        } else {
            [KEY_BLOCK * width, C::values_offset(KEY_BLOCK, width_v)]
        };
        let of_scratch = [
            heads * padded_rows * query_width,
            heads * padded_rows * width_v,
            heads * padded_rows,
            heads * padded_rows,
            heads * C::SCORES,
            heads * C::ROWS * width_v,
            packed[0],
            packed[1],
            (MAX_LANES + 2) * d.max(width) + 3 * width_v,
        ]
        .map(|size| size.next_multiple_of(LINE)); // each part starts at a cache line
        let mut memory = self.pool.take(of_scratch.iter().sum())?;
        let mut scratch = Scratch::divide(&mut memory, of_scratch);

        let (query_factor, score_factor) = C::split_scale(problem.scale, problem.q.data.is_f32());
        for (h_kv, of_head) in kv_heads.clone().zip(scratch.queries.chunks_exact_mut(padded_rows * query_width)) {
            let first = h_kv * problem.h / problem.h_kv;
            for (h, to) in group.clone().zip(of_head.chunks_exact_mut(s_q * query_width)) {
                let queries = Tokens { heads: problem.q, start, h: first + h, from: 0, count: s_q, d };
                pack(tile, Packing::Queries { factor: query_factor }, queries, scratch.tokens, to);
            }
            of_head[rows * query_width..].fill(0.0);
        }
        let keys = Tokens { heads: problem.k, start, h: 0, from: 0, count, d };
        let values = Tokens { heads: problem.v, d: d_v, ..keys };
        let tokens = [keys, values];
        let task = &self;
        let add =
            AddKeys { task, tile, sizes, kv_heads: kv_heads.clone(), tokens, score_factor, scratch: &mut scratch };
        tile.simd().call(add);

        for h_kv in kv_heads.clone() {
            let of_head = h_kv - kv_heads.start;
            let range = of_head * padded_rows * width_v..(of_head * padded_rows + rows) * width_v;
            // The values without what is not finite, if an output is not.
            let mut finite = None;
            let values = Tokens { h: h_kv, ..values };
            if !all_finite(&scratch.output[range.clone()]) {
                finite = FiniteValues::new::<C>(values, scratch.tokens)?;
            }
            if let Some(finite) = &finite {
                let tokens = [keys, Tokens { heads: finite.view(d_v), start: (0, 0), ..values }];
                let kv_heads = h_kv..h_kv + 1;
                tile.simd().call(AddKeys { task, tile, sizes, kv_heads, tokens, score_factor, scratch: &mut scratch });
            }
            for (row, output) in scratch.output[range].chunks_exact_mut(width_v).enumerate() {
                let (h, i) = (self.head(h_kv, row / s_q), row % s_q);
                let row_sum = scratch.row_sum[of_head * padded_rows + row];
                let mut factor = if row_sum == 0.0 { 0.0 } else { 1.0 / row_sum };
                if let Some(finite) = &finite {
                    output.iter_mut().for_each(|x| *x = *x * factor + 0.0);
                    factor = 1.0;
                    let sees = |key: usize| problem.mask.sees((b, h, i), key, [s_q, s_kv]);
                    finite.add_visible::<C>(values, sees, scratch.tokens, output);
                }
                let at = (batch.queries_before(b) + i) * problem.h + h;
                // SAFETY: the callers have reserved the output; only this task writes this query and head.
                unsafe { store_row(tile.simd(), &mut output[..d_v], factor, self.out, at * d_v) };
            }
        }
        Ok(())
    }
}

/// [`TaskKernel::add_keys`] as a function of its own.
struct AddKeys<'a, 'b, C> {
    task: &'a TaskKernel<'a>,
    tile: C,
    sizes: Sizes,
    kv_heads: Range<usize>,
    tokens: [Tokens<'a>; 2],
    score_factor: f32,
    scratch: &'a mut Scratch<'b>,
}

impl<C: ScoreTile> VectorKernel for AddKeys<'_, '_, C> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { task, tile, sizes, kv_heads, tokens, score_factor, scratch } = self;
        task.add_keys(tile, sizes, kv_heads, tokens, score_factor, scratch);
    }
}

impl TaskKernel<'_> {
    /// The query head of the rows at `index` of a key-value head.
    fn head(&self, h_kv: usize, index: usize) -> usize {
        h_kv * (self.problem.h / self.problem.h_kv) + self.task.group.start + index
    }

    /// Computes the sums of all rows of `kv_heads` over all keys.
    #[inline(always)]
    fn add_keys<C: ScoreTile>(
        &self,
        tile: C,
        sizes: Sizes,
        kv_heads: Range<usize>,
        [keys, values]: [Tokens; 2],
        score_factor: f32,
        scratch: &mut Scratch,
    ) {
        let Self { problem, task, .. } = self;
        let Sizes { s_q, s_kv, rows, padded_rows, query_width, width, width_v, one_tile } = sizes;
        let part_of =
            |h_kv: usize, size: usize| (h_kv - task.kv_heads.start) * size..(h_kv - task.kv_heads.start + 1) * size;
        for h_kv in kv_heads.clone() {
            scratch.output[part_of(h_kv, padded_rows * width_v)].fill(0.0);
            let (maxima, sums) = (part_of(h_kv, padded_rows), part_of(h_kv, padded_rows));
            let of_rows = scratch.row_max[maxima].iter_mut().zip(&mut scratch.row_sum[sums]);
            for (row, (max, sum)) in of_rows.enumerate() {
                // A sink is a score that was seen before the first key, with a value of 0.
                let sinks = problem.sinks.filter(|_| row < rows);
                *max = sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[self.head(h_kv, row / s_q)]);
                *sum = if *max == f32::NEG_INFINITY { 0.0 } else { 1.0 };
            }
        }
        for start in (0..keys.count).step_by(KEY_BLOCK) {
            let count = KEY_BLOCK.min(keys.count - start);
            let pos = TilePos { b: task.b, h: 0, s_q, s_kv, query: 0, rows: s_q, start, count };
            // The tile has queries of several heads, which rules over pairs may tell apart.
            if !any_in_range(problem.mask, pos) {
                continue;
            }
            if <C::S as Simd>::TRANSPOSES && one_tile {
                // The heads of a token lie side by side in memory, so all are read before the next step.
                let (first, heads, end) = (kv_heads.start, kv_heads.len(), start + count);
                for from in (start..end).step_by(C::STEP) {
                    let next = if from + C::STEP < end {
                        keys.step::<C>(from + C::STEP, end)
                    } else {
                        values.step::<C>(start, end)
                    };
                    for (i, h) in kv_heads.clone().enumerate() {
                        let keys = Tokens { h, ..keys.step::<C>(from, end) };
                        let queries = &scratch.queries[part_of(h, padded_rows * query_width)];
                        let ahead =
                            PrefetchRows::new(Tokens { h: first, ..next }, heads, i * C::STEP..(i + 1) * C::STEP);
                        let memory = StepMemory { buffer: scratch.tokens, packed: scratch.keys, sums: &mut [], ahead };
                        let scores = &mut scratch.scores[part_of(h, C::SCORES)][from - start..];
                        tile.scores_of_step(rows, queries, keys, memory, scores);
                    }
                }
                for h_kv in kv_heads.clone() {
                    self.update(tile, sizes, (h_kv, 0), pos, score_factor, scratch);
                }
                for from in (start..end).step_by(C::STEP) {
                    let next = if from + C::STEP < end {
                        values.step::<C>(from + C::STEP, end)
                    } else {
                        keys.step::<C>(end, keys.count)
                    };
                    for (i, h) in kv_heads.clone().enumerate() {
                        let values = Tokens { h, ..values.step::<C>(from, end) };
                        let ahead =
                            PrefetchRows::new(Tokens { h: first, ..next }, heads, i * C::STEP..(i + 1) * C::STEP);
                        let sums = &mut scratch.sums[part_of(h, C::ROWS * width_v)];
                        let memory = StepMemory { buffer: scratch.tokens, packed: scratch.values, sums, ahead };
                        let weights = &mut scratch.scores[part_of(h, C::SCORES)];
                        let output = &mut scratch.output[part_of(h, padded_rows * width_v)];
                        let step = Step { before: from - start, block: count, width_v };
                        tile.accumulate_step(rows, weights, values, step, memory, output);
                    }
                }
                continue;
            }
            for h_kv in kv_heads.clone() {
                let panels = count.next_multiple_of(C::PANEL);
                let packed_keys = &mut scratch.keys[..panels * width];
                let of_head = Tokens { h: h_kv, from: start, count, ..keys };
                pack(tile, Packing::Keys, of_head, scratch.tokens, packed_keys);
                let packed_values = &mut scratch.values[..C::values_offset(panels, width_v)];
                let of_head = Tokens { h: h_kv, from: start, count, ..values };
                pack(tile, Packing::Values { width_v }, of_head, scratch.tokens, packed_values);
                for first in (0..rows).step_by(C::ROWS) {
                    let in_tile = C::ROWS.min(rows - first);
                    let queries = &scratch.queries[part_of(h_kv, padded_rows * query_width)];
                    let queries = &queries[first * query_width..][..C::ROWS * query_width];
                    let scores = &mut scratch.scores[part_of(h_kv, C::SCORES)];
                    tile.scores(in_tile, queries, keys.d, &scratch.keys[..panels * width], count, scores);
                    self.update(tile, sizes, (h_kv, first), pos, score_factor, scratch);
                    let scores = &mut scratch.scores[part_of(h_kv, C::SCORES)];
                    let values = &scratch.values[..C::values_offset(panels, width_v)];
                    let output = &mut scratch.output[part_of(h_kv, padded_rows * width_v)];
                    let output = &mut output[first * width_v..][..C::ROWS * width_v];
                    tile.accumulate_values(in_tile, scores, values, count, output, width_v);
                }
            }
        }
    }

    /// Updates the softmax of the rows of a tile, which is the one from row `first` of a key-value head on.
    #[inline(always)]
    fn update<C: ScoreTile>(
        &self,
        tile: C,
        sizes: Sizes,
        (h_kv, first): (usize, usize),
        pos: TilePos,
        score_factor: f32,
        scratch: &mut Scratch,
    ) {
        let Sizes { s_q, rows, padded_rows, width_v, .. } = sizes;
        let index = h_kv - self.task.kv_heads.start;
        let last = rows.min(first + C::ROWS);
        let mut row = first;
        while row < last {
            let (head, query) = (self.head(h_kv, row / s_q), row % s_q);
            let count = (s_q - query).min(last - row);
            let range = |size: usize| (index * padded_rows + row) * size..(index * padded_rows + row + count) * size;
            let state = SoftmaxState {
                row_max: &mut scratch.row_max[range(1)],
                row_sum: &mut scratch.row_sum[range(1)],
                output: &mut scratch.output[range(width_v)],
                width_v,
            };
            let pos = TilePos { h: head, query, rows: count, ..pos };
            let scores = &mut scratch.scores[index * C::SCORES + (row - first) * KEY_BLOCK..];
            let problem = self.problem;
            OnlineSoftmaxUpdate { tile, problem, pos, score_factor, products: None, scores, state }.run();
            row += count;
        }
    }
}

impl<'a> Scratch<'a> {
    fn divide(mut rest: &'a mut [f32], sizes: [usize; 9]) -> Self {
        let [queries, output, row_max, row_sum, scores, sums, keys, values, tokens] = sizes.map(|size| {
            let (part, after) = std::mem::take(&mut rest).split_at_mut(size);
            rest = after;
            part
        });
        Self { queries, output, row_max, row_sum, scores, sums, keys, values, tokens }
    }
}
