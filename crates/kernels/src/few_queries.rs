//! Attention with few queries for each key-value head, as in a step of decoding: every key and value is read once.
//!
//! The kernel of [`attention`](crate::attention) packs all keys and values of a task first, which pays where many
//! queries read them again. For one query, packing is most of the work, and what is packed does not stay in the cache.
//! So here the blocks of keys are the outer loop, and all queries of all query heads that share a key-value head go
//! through a block together. If they fit into one tile, its keys and values are not packed at all.
//!
//! That kernel is the reference of this one: the sums are the same, in the same order, so a sequence has the same bits
//! in chunks of any size and in one run. So the keys of a head are not divided between threads either.

use std::ops::Range;

use super::elements::ElementsOut;
use super::error::Result;
use super::isa::simd::{MAX_LANES, Simd, VectorKernel};
use super::mask::KEY_BLOCK;
use super::memory::{ScratchPool, try_reserve};
use super::non_finite::FiniteValues;
use super::online_softmax::{OnlineSoftmaxUpdate, SoftmaxState, TilePos, any_in_range, store_row};
use super::problem::Problem;
use super::score_tile::{Packing, PrefetchRows, ScoreTile, Step, StepMemory, TileKernel, Tokens, pack};

/// Divides the key-value heads of all sequences. As few parts of a sequence as give each thread as much to do: the
/// heads of a token lie side by side in memory.
pub(super) fn tasks(problem: &Problem, threads: usize) -> Result<Vec<Task>> {
    let (sequences, h_kv, group) = (problem.batch.sequences(), problem.h_kv, problem.h / problem.h_kv);
    let parts = if sequences.len().is_multiple_of(threads) { 1 } else { threads };
    let heads = h_kv.div_ceil(parts);
    // The heads of one key-value head are divided only if there are more threads than those.
    let queries = if parts > h_kv { group.div_ceil(parts.div_ceil(h_kv)) } else { group };
    let mut tasks = Vec::new();
    let count = sequences.len() * h_kv.div_ceil(heads) * group.div_ceil(queries);
    try_reserve("the tasks of attention", &mut tasks, count)?;
    for b in sequences {
        for first in (0..h_kv).step_by(heads) {
            for query in (0..group).step_by(queries) {
                let (kv_heads, group) = (first..h_kv.min(first + heads), query..group.min(query + queries));
                tasks.push(Task { b, kv_heads, group });
            }
        }
    }
    Ok(tasks)
}

/// Key-value heads of one sequence, with some of the query heads of each: those in a range, counted from the first.
pub(super) struct Task {
    b: usize,
    kv_heads: Range<usize>,
    group: Range<usize>,
}

/// A task as a kernel.
pub(super) struct FewQueries<'a> {
    pub problem: &'a Problem<'a>,
    pub task: &'a Task,
    pub pool: &'a ScratchPool,
    pub out: ElementsOut,
}

impl TileKernel for FewQueries<'_> {
    #[inline(always)]
    fn run<C: ScoreTile>(self, tile: C) -> Result<()> {
        let Self { problem, task: Task { b, kv_heads, group }, pool, .. } = self;
        let s_q = problem.batch.s_q(*b);
        let rows = group.len() * s_q;
        if rows == 0 {
            return Ok(());
        }
        let (d, width_v, padded_rows) = (problem.d, C::value_width(problem.d_v), rows.next_multiple_of(C::ROWS));
        let (heads, in_place) = (kv_heads.len(), <C::S as Simd>::TRANSPOSES && rows <= C::ROWS);
        let [packed_keys, packed_values] = if in_place {
            [d, width_v].map(StepMemory::packed_size::<C>)
        } else {
            [KEY_BLOCK * C::key_width(d), C::values_offset(KEY_BLOCK, width_v)]
        };
        let sizes = [
            heads * padded_rows * C::query_width(d),
            heads * padded_rows * width_v,
            heads * padded_rows,
            heads * padded_rows,
            heads * C::SCORES,
            heads * C::ROWS * width_v,
            packed_keys,
            packed_values,
            (MAX_LANES + 2) * d.max(C::key_width(d)) + 3 * width_v,
        ];
        let mut memory = pool.take_parts(sizes)?;
        let [queries, output, row_max, row_sum, scores, sums, packed_keys, packed_values, tokens] = memory.parts(sizes);
        let (query_factor, score_factor) = C::split_scale(problem.scale, problem.q.data.is_f32());
        let mut running = Running {
            call: &self,
            tile,
            s_q,
            rows,
            padded_rows,
            in_place,
            score_factor,
            queries,
            state: SoftmaxState { row_max, row_sum, output, width_v },
            scores,
            sums,
            packed_keys,
            packed_values,
            tokens,
        };
        running.pack_queries(query_factor);
        let count = problem.visible_keys(*b, 0..s_q);
        let (keys, values) = (Tokens::keys(problem, *b, 0, count), Tokens::values(problem, *b, 0, count));
        tile.simd().call(AddKeys { running: &mut running, kv_heads: kv_heads.clone(), tokens: [keys, values] });
        for h_kv in kv_heads.clone() {
            let values = Tokens { h: h_kv, ..values };
            // The values without what is not finite, if an output is not.
            let finite = if running.state_of(h_kv, 0..rows).is_finite() {
                None
            } else {
                FiniteValues::new::<C>(values, running.tokens)?
            };
            if let Some(finite) = &finite {
                let tokens = [keys, finite.tokens(values)];
                tile.simd().call(AddKeys { running: &mut running, kv_heads: h_kv..h_kv + 1, tokens });
            }
            running.store(h_kv, values, finite.as_ref());
        }
        Ok(())
    }
}

/// A task while it runs, with its memory. The rows of a key-value head are the queries of its first query head, then
/// those of the next.
struct Running<'a, 'm, C> {
    call: &'a FewQueries<'a>,
    tile: C,
    s_q: usize,
    /// Rows of a key-value head, and as many as whole tiles have.
    rows: usize,
    padded_rows: usize,
    /// Whether keys and values are multiplied where they are: the rows of a key-value head fit into a tile.
    in_place: bool,
    score_factor: f32,
    /// Queries, what they have accumulated, scores and sums of a block of values, each with a part for each key-value
    /// head.
    queries: &'m mut [f32],
    state: SoftmaxState<'m>,
    scores: &'m mut [f32],
    sums: &'m mut [f32],
    /// Packed keys and values of a block, or of a part of it.
    packed_keys: &'m mut [f32],
    packed_values: &'m mut [f32],
    tokens: &'m mut [f32],
}

/// [`Running::add_keys`] as a function of its own.
struct AddKeys<'r, 'a, 'm, C> {
    running: &'r mut Running<'a, 'm, C>,
    kv_heads: Range<usize>,
    tokens: [Tokens<'r>; 2],
}

impl<C: ScoreTile> VectorKernel for AddKeys<'_, '_, '_, C> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        self.running.add_keys(self.kv_heads, self.tokens);
    }
}

impl<C: ScoreTile> Running<'_, '_, C> {
    /// The number of a key-value head in the task.
    fn index(&self, h_kv: usize) -> usize {
        h_kv - self.call.task.kv_heads.start
    }

    /// The query head and the query of a row of a key-value head.
    fn query(&self, h_kv: usize, row: usize) -> (usize, usize) {
        let FewQueries { problem, task, .. } = self.call;
        (h_kv * (problem.h / problem.h_kv) + task.group.start + row / self.s_q, row % self.s_q)
    }

    /// Sums that rows of a key-value head have accumulated.
    #[inline(always)]
    fn state_of(&mut self, h_kv: usize, rows: Range<usize>) -> SoftmaxState<'_> {
        let first = self.index(h_kv) * self.padded_rows;
        self.state.rows(first + rows.start..first + rows.end)
    }

    /// Packs the queries of all heads.
    #[inline(always)]
    fn pack_queries(&mut self, factor: f32) {
        let FewQueries { problem, task: Task { b, kv_heads, group }, .. } = self.call;
        let width = C::query_width(problem.d);
        let heads = self.queries.chunks_exact_mut(self.padded_rows * width);
        for (h_kv, to) in kv_heads.clone().zip(heads) {
            let first = h_kv * problem.h / problem.h_kv;
            for (h, to) in group.clone().zip(to.chunks_exact_mut(self.s_q * width)) {
                let queries = Tokens { heads: problem.q, ..Tokens::keys(problem, *b, first + h, self.s_q) };
                pack(self.tile, Packing::Queries { factor }, queries, self.tokens, to);
            }
            to[self.rows * width..].fill(0.0);
        }
    }

    /// Accumulates all keys for all rows of `kv_heads`.
    #[inline(always)]
    fn add_keys(&mut self, kv_heads: Range<usize>, [keys, values]: [Tokens; 2]) {
        let FewQueries { problem, task: &Task { b, .. }, .. } = *self.call;
        for h_kv in kv_heads.clone() {
            for row in 0..self.padded_rows {
                let sink = if row < self.rows { problem.sink(self.query(h_kv, row).0) } else { f32::NEG_INFINITY };
                self.state_of(h_kv, row..row + 1).start(sink);
            }
        }
        for start in (0..keys.count).step_by(KEY_BLOCK) {
            let (s_q, s_kv, count) = (self.s_q, problem.batch.s_kv(b), KEY_BLOCK.min(keys.count - start));
            let pos = TilePos { b, h: 0, s_q, s_kv, query: 0, rows: s_q, start, count };
            // The tile has queries of several heads, which rules over pairs may tell apart.
            if !any_in_range(problem.mask, pos) {
                continue;
            }
            if <C::S as Simd>::TRANSPOSES && self.in_place {
                self.add_block_in_place(kv_heads.clone(), [keys, values], pos);
                continue;
            }
            for h_kv in kv_heads.clone() {
                let tokens = [keys, values].map(|tokens| Tokens { h: h_kv, from: start, count, ..tokens });
                self.add_packed_block(h_kv, tokens, pos);
            }
        }
    }

    /// Accumulates a block of keys of a head, which is packed.
    #[inline(always)]
    fn add_packed_block(&mut self, h_kv: usize, [keys, values]: [Tokens; 2], pos: TilePos) {
        let (tile, count, index, width_v) = (self.tile, pos.count, self.index(h_kv), self.state.width_v);
        let (panels, query_width) = (count.next_multiple_of(C::PANEL), C::query_width(keys.d));
        let packed_keys = &mut self.packed_keys[..panels * C::key_width(keys.d)];
        pack(tile, Packing::Keys, keys, self.tokens, packed_keys);
        let packed_values = &mut self.packed_values[..C::values_offset(panels, width_v)];
        pack(tile, Packing::Values { width_v }, values, self.tokens, packed_values);
        for first in (0..self.rows).step_by(C::ROWS) {
            let rows = C::ROWS.min(self.rows - first);
            let queries = &self.queries[(index * self.padded_rows + first) * query_width..][..C::ROWS * query_width];
            let scores = &mut self.scores[index * C::SCORES..][..C::SCORES];
            tile.scores(rows, queries, keys.d, self.packed_keys, count, scores);
            self.update(h_kv, first, pos);
            let scores = &mut self.scores[index * C::SCORES..][..C::SCORES];
            let row = index * self.padded_rows + first;
            let output = self.state.rows(row..row + C::ROWS).output;
            tile.accumulate_values(rows, scores, self.packed_values, count, output, width_v);
        }
    }

    /// Accumulates a block of keys of all heads where it is in memory. The heads of a token lie side by side, so all
    /// are read before the next step.
    #[inline(always)]
    fn add_block_in_place(&mut self, kv_heads: Range<usize>, [keys, values]: [Tokens; 2], pos: TilePos) {
        let (tile, rows, width_v) = (self.tile, self.rows, self.state.width_v);
        let query_width = C::query_width(keys.d);
        let (start, end) = (pos.start, pos.start + pos.count);
        // The memory after a step, as the next one reads it: a part for each head.
        let ahead = |tokens: Tokens, i: usize| {
            let tokens = Tokens { h: kv_heads.start, ..tokens };
            PrefetchRows::new(tokens, kv_heads.len(), i * C::STEP..(i + 1) * C::STEP)
        };
        for from in (start..end).step_by(C::STEP) {
            let next = match from + C::STEP {
                next if next < end => keys.step::<C>(next, end),
                _ => values.step::<C>(start, end),
            };
            for (i, h) in kv_heads.clone().enumerate() {
                let (index, keys) = (self.index(h), Tokens { h, ..keys.step::<C>(from, end) });
                let queries = &self.queries[index * self.padded_rows * query_width..][..self.padded_rows * query_width];
                let ahead = ahead(next, i);
                let memory = StepMemory { buffer: self.tokens, packed: self.packed_keys, sums: &mut [], ahead };
                let scores = &mut self.scores[index * C::SCORES..][..C::SCORES][from - start..];
                tile.scores_of_step(rows, queries, keys, memory, scores);
            }
        }
        for h_kv in kv_heads.clone() {
            self.update(h_kv, 0, pos);
        }
        for from in (start..end).step_by(C::STEP) {
            let next = match from + C::STEP {
                next if next < end => values.step::<C>(next, end),
                _ => keys.step::<C>(end, keys.count),
            };
            for (i, h) in kv_heads.clone().enumerate() {
                let (index, values) = (self.index(h), Tokens { h, ..values.step::<C>(from, end) });
                let ahead = ahead(next, i);
                let sums = &mut self.sums[index * C::ROWS * width_v..][..C::ROWS * width_v];
                let memory = StepMemory { buffer: self.tokens, packed: self.packed_values, sums, ahead };
                let weights = &mut self.scores[index * C::SCORES..][..C::SCORES];
                let row = index * self.padded_rows;
                let output = self.state.rows(row..row + self.padded_rows).output;
                let step = Step { before: from - start, block: pos.count, width_v };
                tile.accumulate_step(rows, weights, values, step, memory, output);
            }
        }
    }

    /// Updates the softmax of the rows of a tile, which is the one from row `first` of a key-value head on, head by
    /// head.
    #[inline(always)]
    fn update(&mut self, h_kv: usize, first: usize, pos: TilePos) {
        let (tile, problem, score_factor) = (self.tile, self.call.problem, self.score_factor);
        let index = self.index(h_kv);
        let last = self.rows.min(first + C::ROWS);
        let mut row = first;
        while row < last {
            let (h, query) = self.query(h_kv, row);
            let rows = (self.s_q - query).min(last - row);
            let (pos, place) = (TilePos { h, query, rows, ..pos }, index * self.padded_rows + row);
            let state = self.state.rows(place..place + rows);
            let scores = &mut self.scores[index * C::SCORES + (row - first) * KEY_BLOCK..];
            let products = None;
            tile.simd().call(OnlineSoftmaxUpdate { tile, problem, pos, score_factor, products, scores, state });
            row += rows;
        }
    }

    /// Stores the outputs of a key-value head.
    #[inline(always)]
    fn store(&mut self, h_kv: usize, values: Tokens, finite: Option<&FiniteValues>) {
        let FewQueries { problem, task: &Task { b, .. }, out, .. } = *self.call;
        for row in 0..self.rows {
            let (h, query) = self.query(h_kv, row);
            let place = self.index(h_kv) * self.padded_rows + row;
            let state = self.state.rows(place..place + 1);
            let mut factor = state.factor(0);
            if let Some(finite) = finite {
                let sees = |key: usize| problem.sees((b, h, query), key);
                finite.add_visible::<C>(values, sees, self.tokens, (&mut *state.output, factor));
                factor = 1.0;
            }
            let at = (problem.batch.queries_before(b) + query) * problem.h + h;
            // SAFETY: the callers have reserved the output; only this task writes this query and head.
            unsafe {
                store_row(self.tile.simd(), &mut state.output[..problem.d_v], factor, out, at * problem.d_v);
            }
        }
    }
}
