//! Attention with few queries for each key-value head, as in a step of decoding: every key and value is read once.
//!
//! The general kernel packs all keys and values of a task first, which pays where many queries read them again. For one
//! query, packing is most of the work, and what is packed does not stay in the cache. So here the blocks of keys are
//! the outer loop, and all queries of all query heads that share a key-value head go through a block together. If they
//! fit into one tile, its keys and values are not packed at all.
//!
//! The sums are those of the general kernel, in the same order: a sequence has the same bits in chunks of any size and
//! in one run. So the keys of a head are not divided between threads either.

use std::cell::OnceCell;
use std::ops::Range;

use super::attention::{Scratch, weighted_mean};
use super::convert::Convert;
use super::error::Result;
use super::isa::Isa;
use super::isa::kernel::{Kernel, PairKernel};
use super::isa::pair_dot::PairDot;
use super::isa::simd::Simd;
use super::memory::ScratchPool;
use super::non_finite::{FiniteValues, all_finite};
use super::online_softmax::{SoftmaxState, TilePos, any_visible, online_softmax_update};
use super::problem::{AttentionProblem, HeadsView};
use super::score_tile::{KEY_BLOCK, ScoreTile, Tokens, UnpackedMemory};
use super::team::{SharedOut, Team};
use super::tile_bf16::TileBf16;
use super::tile_f32::TileF32;

/// The most queries of all query heads of a key-value head. Their sums stay in the L2 cache beside a block of keys.
const MAX_ROWS: usize = 128;
/// Keys for each query: with fewer, packing is a small part of the work.
const MIN_KEYS: usize = 4;
/// The most keys. Far more than any cache holds, they would be those of a view without memory, and the general kernel
/// refuses what it cannot pack.
const MAX_KEYS: usize = 1 << 24;

/// Whether the queries of a problem are so few.
pub(super) fn applies<T>(problem: &AttentionProblem<T>) -> bool {
    let AttentionProblem { batch, appended, h, h_kv, .. } = *problem;
    let few = |b: usize| {
        let (s_q, keys) = (batch.s_q(b), batch.s_kv(b).saturating_add(appended));
        s_q.saturating_mul(h / h_kv) <= MAX_ROWS && keys >= MIN_KEYS * s_q && keys <= MAX_KEYS
    };
    problem.mask.embeddings.is_none() && batch.sequences().all(few)
}

/// Runs all tasks of a problem that was checked. `out` is memory for its output.
pub(super) fn run_tasks<T: Convert>(
    isa: Isa,
    team: Team,
    problem: &AttentionProblem<T>,
    out: SharedOut<T>,
) -> Result<()> {
    let (pool, sequences) = (ScratchPool::default(), problem.batch.sequences());
    let (group, pairs) = (problem.h / problem.h_kv, sequences.len() * problem.h_kv);
    // Tasks with the same keys read them once each, so there are only as many as keep all threads busy.
    let wanted = if team.threads() == 1 { 1 } else { (2 * team.threads()).div_ceil(pairs.max(1)) };
    let heads = group.div_ceil(wanted.min(group));
    let parts = group.div_ceil(heads);
    team.try_for_each(pairs * parts, |i| {
        let (b, h_kv) = (sequences.start + i / parts / problem.h_kv, i / parts % problem.h_kv);
        let first = h_kv * group + i % parts * heads;
        let heads = first..(first + heads).min((h_kv + 1) * group);
        let mut result = Ok(());
        let kernel = TaskKernel { problem, b, h_kv, heads, pool: &pool, out, result: &mut result };
        if problem.bf16 && isa.has_bf16_dot() {
            isa.run_bf16(kernel);
        } else {
            isa.run(kernel);
        }
        result
    })
}

/// Query heads of one sequence that share a key-value head.
struct TaskKernel<'a, T> {
    problem: &'a AttentionProblem<'a, T>,
    b: usize,
    h_kv: usize,
    heads: Range<usize>,
    pool: &'a ScratchPool,
    out: SharedOut<T>,
    result: &'a mut Result<()>,
}

impl<T: Convert> Kernel for TaskKernel<'_, T> {
    #[inline(always)]
    fn run<S: Simd, const MR: usize, const NR: usize>(self, s: S) {
        *self.result = self.run_with(TileF32::<S, MR, NR>(s));
    }
}

impl<T: Convert> PairKernel for TaskKernel<'_, T> {
    #[inline(always)]
    fn run<S: Simd, D: PairDot>(self, s: S, dot: D) {
        *self.result = self.run_with(TileBf16(s, dot));
    }
}

impl<T: Convert> TaskKernel<'_, T> {
    /// Rows are the queries of the first head, then those of the next.
    #[inline(always)]
    fn run_with<C: ScoreTile>(&self, tile: C) -> Result<()> {
        let Self { problem, b, h_kv, .. } = *self;
        let AttentionProblem { batch, d, d_v, .. } = *problem;
        let (s_q, s_kv, start) = (batch.s_q(b), batch.s_kv(b), batch.start(b));
        let (width, width_v) = (C::key_width(d), C::value_width(d_v));
        let rows = self.heads.len() * s_q;
        if rows == 0 {
            return Ok(());
        }

        let ranges = (0..s_q).map(|i| problem.mask.range(b, i, s_q, s_kv));
        let visible = ranges.filter(|range| !range.is_empty()).map(|range| range.end).max().unwrap_or(0);
        let count = if problem.appended > 0 { s_kv + problem.appended } else { visible };
        let block = KEY_BLOCK.min(count).next_multiple_of(C::PANEL);
        let (sizes, total) = Scratch::sizes::<C>([block, rows.next_multiple_of(C::ROWS)], [d, d_v], 0)?;
        let mut memory = self.pool.take(total)?;
        let mut scratch = Scratch::divide(&mut memory, sizes);

        let (query_factor, score_factor) = C::split_scale::<T>(problem.scale);
        for (h, to) in self.heads.clone().zip(scratch.queries.chunks_exact_mut((s_q * width).max(1))) {
            let queries = Tokens { heads: &problem.q, start, h, from: 0, count: s_q, d };
            tile.pack_queries(queries, query_factor, scratch.tokens, to);
        }
        scratch.queries[rows * width..].fill(0.0);

        let keys = Tokens { heads: &problem.k, start, h: h_kv, from: 0, count, d };
        let values = Tokens { heads: &problem.v, d: d_v, ..keys };
        // The values without what is not finite, if an output is not.
        let (finite, view) = (OnceCell::<FiniteValues<T>>::new(), OnceCell::<HeadsView<T>>::new());
        let mut of_pass = values;
        loop {
            self.add_keys(tile, [keys, of_pass], score_factor, &mut scratch);
            if finite.get().is_some() || all_finite(&scratch.output[..rows * width_v]) {
                break;
            }
            let Some(found) = FiniteValues::new::<C>(values, scratch.tokens)? else { break };
            let heads = view.get_or_init(|| finite.get_or_init(|| found).view(d_v));
            of_pass = Tokens { heads, start: (0, 0), h: 0, ..values };
        }

        for (row, output) in scratch.output.chunks_exact_mut(width_v).take(rows).enumerate() {
            let (h, i) = (self.heads.start + row / s_q, row % s_q);
            weighted_mean(output, scratch.row_sum[row]);
            if let Some(finite) = finite.get() {
                let sees = |key: usize| problem.mask.sees((b, h, i), key, [s_q, s_kv]);
                finite.add_visible::<C>(values, sees, scratch.tokens, output);
            }
            let at = (batch.queries_before(b) + i) * problem.h + h;
            // SAFETY: the callers have reserved the output; only this task writes this query and head.
            T::downcast(&output[..d_v], unsafe { self.out.part(at * d_v, d_v) });
        }
        Ok(())
    }

    /// Computes the sums of all rows over all keys.
    #[inline(always)]
    fn add_keys<C: ScoreTile>(
        &self,
        tile: C,
        [keys, values]: [Tokens<T>; 2],
        score_factor: f32,
        scratch: &mut Scratch,
    ) {
        let Self { problem, b, .. } = *self;
        let (s_q, s_kv) = (problem.batch.s_q(b), problem.batch.s_kv(b));
        let (width, width_v) = (C::key_width(keys.d), C::value_width(values.d));
        let rows = self.heads.len() * s_q;
        scratch.output.fill(0.0);
        for row in 0..scratch.row_max.len() {
            // A sink is a score that was seen before the first key, with a value of 0.
            let head = self.heads.start + row / s_q;
            let sink = problem.sinks.filter(|_| row < rows).map_or(f32::NEG_INFINITY, |sinks| sinks[head]);
            scratch.row_max[row] = sink;
            scratch.row_sum[row] = if sink == f32::NEG_INFINITY { 0.0 } else { 1.0 };
        }
        let one_tile = rows <= C::ROWS;
        for start in (0..keys.count).step_by(KEY_BLOCK) {
            let count = KEY_BLOCK.min(keys.count - start);
            let (keys, values) = (Tokens { from: start, count, ..keys }, Tokens { from: start, count, ..values });
            let pos = TilePos { b, h: self.heads.start, s_q, s_kv, query: 0, rows: s_q, start, count };
            if !any_visible(&problem.mask, pos) {
                continue;
            }
            let panels = count.next_multiple_of(C::PANEL);
            let [packed_keys, packed_values] = [panels * width, C::values_offset(panels, width_v)];
            if !one_tile {
                tile.pack_keys(keys, scratch.tokens, &mut scratch.keys[..packed_keys]);
                tile.pack_values(values, width_v, scratch.tokens, &mut scratch.values[..packed_values]);
            }
            for first in (0..rows).step_by(C::ROWS) {
                let rows = C::ROWS.min(rows - first);
                let range = |size: usize| first * size..(first + C::ROWS) * size;
                let of_tile = &scratch.queries[range(width)];
                if one_tile {
                    let memory = UnpackedMemory { buffer: scratch.tokens, packed: scratch.keys };
                    tile.scores_of_unpacked(rows, of_tile, keys, memory, scratch.scores);
                } else {
                    tile.scores(rows, of_tile, keys.d, &scratch.keys[..packed_keys], count, scratch.scores);
                }
                let mut row = first;
                while row < first + rows {
                    let (head, query) = (row / s_q, row % s_q);
                    let same_head = (s_q - query).min(first + rows - row);
                    let pos = TilePos { h: self.heads.start + head, query, rows: same_head, ..pos };
                    let mut state = SoftmaxState {
                        row_max: &mut scratch.row_max[row..row + pos.rows],
                        row_sum: &mut scratch.row_sum[row..row + pos.rows],
                        output: &mut scratch.output[row * width_v..(row + pos.rows) * width_v],
                        width_v,
                    };
                    let scores = &mut scratch.scores[(row - first) * KEY_BLOCK..];
                    online_softmax_update(tile.simd(), problem, pos, score_factor, None, scores, &mut state);
                    row += pos.rows;
                }
                let output = &mut scratch.output[range(width_v)];
                if one_tile {
                    let memory = UnpackedMemory { buffer: scratch.tokens, packed: scratch.values };
                    tile.accumulate_unpacked(rows, scratch.scores, values, memory, output, width_v);
                } else {
                    let values = &scratch.values[..packed_values];
                    tile.accumulate_values(rows, scratch.scores, values, count, output, width_v);
                }
            }
        }
    }
}
