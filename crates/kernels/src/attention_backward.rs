//! The backward pass of fused attention: gradients of queries, keys and values without a score matrix.
//!
//! Scores are computed again, a block of queries by a block of keys at a time, from what the forward pass has kept of
//! each row of the softmax ([Dao 2023](https://arxiv.org/abs/2307.08691), algorithm 2). With `P` the attention weights,
//! `S` the scores and `O` the output of a head:
//!
//! ```text
//! dV = Pᵀ dO    dP = dO Vᵀ    dS = P ∘ (dP - D), D = rowsum(dO ∘ O)    dQ = scale · dS K    dK = scale · dSᵀ Q
//! ```
//!
//! A task is one key-value head of one sequence with all of its query heads, so that no gradient is a sum over tasks,
//! and sums have the same order on any number of threads. The alternative, tasks over blocks of keys, would need either
//! a sum of the gradients of queries over tasks, or all scores twice.

use std::ops::Range;

use super::attention::SoftmaxRow;
use super::backward_products::{add_column_products, dot, panel_products};
use super::dropout::Dropout;
use super::error::{Error, Result};
use super::exp::exp;
use super::isa::kernel::Kernel;
use super::isa::simd::{MAX_LANES, Simd};
use super::mask::{DistanceTable, KEY_BLOCK};
use super::memory::{ScratchPool, element_count, zeros};
use super::online_softmax::{TilePos, apply_mask, scale_and_softcap, score_derivatives};
use super::problem::{AttentionProblem, Batch, KeyValueView};
use super::registry::Isa;
use super::score_tile::{Packing, QUERY_BLOCK, Tokens, pack, query_block};
use super::team::{Output, SharedOut, Team};
use super::tile_f32::{TileF32, add_value_tile};

/// The backward pass of one call of attention in f32.
#[derive(Debug)]
pub struct AttentionGradient<'a> {
    /// The call.
    pub problem: &'a AttentionProblem<'a, f32>,
    /// That of the forward pass.
    pub dropout: Option<Dropout>,
    /// `(queries, h)`: what [`attend_for_training`](crate::attend_for_training) has kept.
    pub rows: &'a [SoftmaxRow],
    /// `(queries, h, d_v)`: the output of the forward pass.
    pub output: &'a [f32],
    /// `(queries, h, d_v)`: the gradient of the output.
    pub gradient: &'a [f32],
    /// Whether the gradient of the mask's biases by distance is computed, of which there is one table without factors.
    pub learns_table: bool,
}

/// The gradients that [`attention_backward`] computes.
#[derive(Debug, Default)]
pub struct Gradients {
    /// Of queries, `(queries, h, d)`.
    pub q: Vec<f32>,
    /// Of keys, `(keys, h_kv, d)`.
    pub k: Vec<f32>,
    /// Of values, `(keys, h_kv, d_v)`.
    pub v: Vec<f32>,
    /// Of the biases by distance, `(h, distances)`; empty if they are not learned.
    pub table: Vec<f32>,
}

impl AttentionGradient<'_> {
    /// The sizes of the gradients of queries, keys and values, if the call is consistent.
    fn checked_sizes(&self) -> Result<[usize; 3]> {
        let AttentionProblem { h_kv, d, d_v, batch, appended, .. } = *self.problem;
        let size = self.problem.erase().checked_output_size()?;
        if self.problem.mask.embeddings.is_some() {
            return Err(Error::value("a mask of a backward pass", "embeddings of distances", "a mask without them"));
        }
        if self.learns_table && self.table().is_none() {
            let expected = "one table of biases by distance, without factors";
            return Err(Error::value("a mask that learns", "another one", expected));
        }
        if self.dropout.is_some() && !matches!(batch, Batch::Padded { .. }) {
            return Err(Error::value("dropout", "in a ragged batch", "in a padded one"));
        }
        let queries = if size == 0 { 0 } else { size / d_v };
        for (what, found, expected) in [
            ("the rows of the softmax", self.rows.len(), queries),
            ("the output of attention", self.output.len(), size),
            ("the gradient of the output of attention", self.gradient.len(), size),
        ] {
            if found != expected {
                return Err(Error::shape(what, &[found], format!("[{expected}]")));
            }
        }
        let keys = match batch {
            Batch::Padded { b, s_kv, .. } => element_count("the keys", &[b, s_kv.saturating_add(appended)])?,
            _ => batch.queries(),
        };
        let sizes = [[queries, 1, d], [keys, h_kv, d], [keys, h_kv, d_v]];
        let [q, k, v] = sizes.map(|sizes| element_count("a gradient of attention", &sizes));
        Ok([q?, k?, v?])
    }

    /// The biases that learn.
    fn table(&self) -> Option<&DistanceTable<'_>> {
        match &self.problem.mask.tables[..] {
            [table] if self.learns_table && table.factors.is_none() => Some(table),
            _ => None,
        }
    }
}

/// Computes the gradients of queries, keys and values. All elements of queries, keys, values, output and its gradient
/// must be finite, or gradients of others may become NaN.
///
/// # Errors
/// If the sizes, views and masks contradict each other, if the mask has embeddings of distances, dropout in a ragged
/// batch, and if there is not enough memory.
pub fn attention_backward(isa: Isa, team: Team, call: &AttentionGradient) -> Result<Gradients> {
    let [q_size, k_size, v_size] = call.checked_sizes()?;
    // The gradients of the biases of each sequence, which are then added in order.
    let h = call.problem.h;
    let heads = call.table().map_or(0, |table| h.saturating_mul(table.distances));
    let sequences = call.problem.batch.sequences().len();
    let zeros = |size: usize| zeros("gradients of attention", size);
    let mut tables = zeros(element_count("gradients of biases", &[sequences, heads])?)?;
    if q_size == 0 {
        // No query: nothing depends on keys and values.
        return Ok(Gradients { q: Vec::new(), k: zeros(k_size)?, v: zeros(v_size)?, table: zeros(heads)? });
    }
    let mut gradients = Gradients::default();
    let [q, k, v] = [&mut gradients.q, &mut gradients.k, &mut gradients.v].map(Output::Vec);
    let table = SharedOut(tables.as_mut_ptr());
    // SAFETY: the tasks cover all sequences and key-value heads, and each task that returns `Ok` has written the
    // gradients of all its queries, keys and values.
    unsafe {
        q.write("the gradient of queries", q_size, |q| {
            k.write("the gradient of keys", k_size, |k| {
                v.write("the gradient of values", v_size, |v| run_tasks(isa, team, call, [q, k, v], table))
            })
        })?;
    }
    if heads > 0 {
        gradients.table = zeros(heads)?;
        for sequence in tables.chunks_exact(heads) {
            gradients.table.iter_mut().zip(sequence).for_each(|(sum, x)| *sum += x);
        }
    }
    Ok(gradients)
}

/// Runs the tasks of a call that was checked. `out` is memory for all gradients, and `table` for those of the biases of
/// each sequence, if they learn.
fn run_tasks(
    isa: Isa,
    team: Team,
    call: &AttentionGradient,
    out: [SharedOut<f32>; 3],
    table: SharedOut<f32>,
) -> Result<()> {
    let (pool, heads, sequences) = (ScratchPool::default(), call.problem.h_kv, call.problem.batch.sequences());
    team.try_for_each(sequences.len() * heads, |i| {
        let mut result = Ok(());
        let (b, h_kv) = (sequences.start + i / heads, i % heads);
        isa.run(TaskKernel { call, b, h_kv, pool: &pool, out, table, result: &mut result });
        result
    })
}

/// Size in f32 values of the memory that one thread needs beside inputs and outputs. An estimate, which saturates.
pub fn backward_floats(keys: usize, d: usize, d_v: usize) -> usize {
    let widths = d.saturating_add(d_v).saturating_add(32);
    let per_key = keys.saturating_add(KEY_BLOCK).saturating_mul(widths).saturating_mul(3);
    per_key.saturating_add(QUERY_BLOCK.saturating_mul(widths.saturating_mul(2).saturating_add(2 * KEY_BLOCK)))
}

/// One key-value head of one sequence.
struct TaskKernel<'a> {
    call: &'a AttentionGradient<'a>,
    b: usize,
    h_kv: usize,
    pool: &'a ScratchPool,
    /// Gradients of queries, keys and values.
    out: [SharedOut<f32>; 3],
    /// `(sequences, h, distances)`, if biases learn.
    table: SharedOut<f32>,
    result: &'a mut Result<()>,
}

impl Kernel for TaskKernel<'_> {
    #[inline(always)]
    fn run<S: Simd, const MR: usize, const NR: usize>(self, s: S) {
        *self.result = self.run_with::<S, MR, NR>(s);
    }
}

/// The scratch memory of a task, divided by purpose.
struct Scratch<'a> {
    /// Keys and values in panels of columns.
    key_panels: &'a mut [f32],
    value_panels: &'a mut [f32],
    /// Keys `(keys, width)`.
    keys: &'a mut [f32],
    key_gradients: &'a mut [f32],
    value_gradients: &'a mut [f32],
    /// Of a query block: queries times the scale, gradients of outputs and of queries, each padded to whole vectors.
    queries: &'a mut [f32],
    output_gradients: &'a mut [f32],
    query_gradients: &'a mut [f32],
    /// `D` of each query of a block.
    deltas: &'a mut [f32],
    /// `(query_block, KEY_BLOCK)`: scores, then attention weights.
    weights: &'a mut [f32],
    /// `(query_block, KEY_BLOCK)`: gradients of attention weights, then of scores.
    score_gradients: &'a mut [f32],
    tokens: &'a mut [f32],
}

impl Scratch<'_> {
    /// The size of each part for `keys` keys.
    fn sizes<S: Simd, const MR: usize, const NR: usize>(keys: usize, d: usize, d_v: usize) -> Result<[usize; 12]> {
        let what = "the scratch memory of the backward pass of attention";
        let widths = d.saturating_add(d_v).saturating_add(2 * MAX_LANES);
        // All of the sum but a small constant is at most this product: then nothing in it wraps around.
        element_count(what, &[keys.saturating_add(4 * QUERY_BLOCK), widths, 4])?;
        let (width, width_v) = (d.next_multiple_of(S::LANES), d_v.next_multiple_of(S::LANES));
        // The tiles of a block start with it, so the last one may end a tile after the last key.
        let (panels, tiles) = (keys.next_multiple_of(NR * S::LANES), keys.saturating_add(MR));
        Ok([
            panels * d,
            panels * d_v,
            keys * width,
            tiles * width,
            tiles * width_v,
            query_block(MR) * width,
            query_block(MR) * width_v,
            query_block(MR) * width,
            query_block(MR),
            query_block(MR) * KEY_BLOCK,
            query_block(MR) * KEY_BLOCK,
            MAX_LANES * d.max(d_v),
        ])
    }
}

impl TaskKernel<'_> {
    #[inline(always)]
    fn run_with<S: Simd, const MR: usize, const NR: usize>(&self, s: S) -> Result<()> {
        let learned = self.call.table();
        const {
            assert!(KEY_BLOCK.is_multiple_of(MR) && KEY_BLOCK.is_multiple_of(NR * S::LANES));
        }
        let (problem, b, h_kv) = (self.call.problem, self.b, self.h_kv);
        let AttentionProblem { d, d_v, batch, appended, .. } = *problem;
        let (s_q, s_kv, start) = (batch.s_q(b), batch.s_kv(b), batch.start(b));
        let keys = s_kv + appended;
        let sizes = Scratch::sizes::<S, MR, NR>(keys, d, d_v)?;
        let mut memory = self.pool.take_parts(sizes)?;
        let [key_panels, value_panels, keys_by_row, key_gradients, value_gradients, queries, rest @ ..] =
            memory.parts(sizes);
        let [output_gradients, query_gradients, deltas, weights, score_gradients, tokens] = rest;
        key_gradients.fill(0.0);
        value_gradients.fill(0.0);
        let mut scratch = Scratch {
            key_panels,
            value_panels,
            keys: keys_by_row,
            key_gradients,
            value_gradients,
            queries,
            output_gradients,
            query_gradients,
            deltas,
            weights,
            score_gradients,
            tokens,
        };
        let (width, width_v) = (d.next_multiple_of(S::LANES), d_v.next_multiple_of(S::LANES));

        let tile = TileF32::<S, MR, NR>(s);
        let key_tokens = Tokens { heads: problem.k.heads(), start, h: h_kv, from: 0, count: keys, d };
        let value_tokens = Tokens { heads: problem.v.heads(), d: d_v, ..key_tokens };
        pack(tile, Packing::Keys, key_tokens, scratch.tokens, scratch.key_panels);
        pack(tile, Packing::Keys, value_tokens, scratch.tokens, scratch.value_panels);
        pack(tile, Packing::Values { width_v: width }, key_tokens, scratch.tokens, scratch.keys);

        let group = problem.h / problem.h_kv;
        for h in h_kv * group..(h_kv + 1) * group {
            let mut table = learned.map(|table| {
                let at = ((b - batch.sequences().start) * problem.h + h) * table.distances;
                // SAFETY: `attention_backward` has allocated them; only this task uses those of this sequence and head.
                unsafe { std::slice::from_raw_parts_mut(self.table.start().add(at), table.distances) }
            });
            for first in (0..s_q).step_by(query_block(MR)) {
                let rows = query_block(MR).min(s_q - first);
                self.load_queries(first, rows, h, [width, width_v], &mut scratch);
                let seen = self.seen_keys(first..first + rows);
                let panel = NR * S::LANES;
                for block in (seen.start / panel * panel..seen.end).step_by(KEY_BLOCK) {
                    let count = KEY_BLOCK.min(seen.end - block);
                    let pos = TilePos { b, h, s_q, s_kv, query: first, rows, start: block, count };
                    self.add_block::<S, MR, NR>(s, pos, &mut scratch, table.as_deref_mut());
                }
                for (r, row) in scratch.query_gradients.chunks_exact(width).take(rows).enumerate() {
                    let at = ((batch.queries_before(b) + first + r) * problem.h + h) * d;
                    // SAFETY: `attention_backward` has reserved the memory; only this task writes this query and head.
                    let to = unsafe { self.out[0].part(at, d) };
                    to.iter_mut().zip(row).for_each(|(to, x)| _ = to.write(x * problem.scale));
                }
            }
        }
        let keys_before = match batch {
            Batch::Padded { .. } => b * keys,
            _ => batch.queries_before(b),
        };
        let gradients = [(scratch.key_gradients, width, d), (scratch.value_gradients, width_v, d_v)];
        for ((gradients, width, d), out) in gradients.into_iter().zip(&self.out[1..]) {
            for (key, row) in gradients.chunks_exact(width).take(keys).enumerate() {
                // SAFETY: `attention_backward` has reserved the memory; only this task writes this sequence and head.
                let to = unsafe { out.part(((keys_before + key) * problem.h_kv + h_kv) * d, d) };
                to.iter_mut().zip(row).for_each(|(to, x)| _ = to.write(*x));
            }
        }
        Ok(())
    }

    /// The keys from the first to the last that any of these queries sees.
    fn seen_keys(&self, queries: Range<usize>) -> Range<usize> {
        let AttentionProblem { mask, batch, appended, .. } = self.call.problem;
        mask.seen_keys(self.b, queries, [batch.s_q(self.b), batch.s_kv(self.b)], *appended)
    }

    /// Loads a block of queries, the gradients of their outputs and `D`, and starts their gradients.
    #[inline(always)]
    fn load_queries(&self, first: usize, rows: usize, h: usize, [width, width_v]: [usize; 2], scratch: &mut Scratch) {
        let AttentionGradient { problem, output, gradient, .. } = *self.call;
        let AttentionProblem { d, d_v, batch, scale, .. } = *problem;
        scratch.query_gradients.fill(0.0);
        for r in 0..rows {
            let at = problem.q.heads().offset(batch.start(self.b), first + r, h);
            let query = &problem.q.data[at..][..d];
            let (to, padding) = scratch.queries[r * width..][..width].split_at_mut(d);
            to.iter_mut().zip(query).for_each(|(to, x)| *to = x * scale);
            padding.fill(0.0);
            let at = ((batch.queries_before(self.b) + first + r) * problem.h + h) * d_v;
            let (output, gradient) = (&output[at..][..d_v], &gradient[at..][..d_v]);
            let (to, padding) = scratch.output_gradients[r * width_v..][..width_v].split_at_mut(d_v);
            to.iter_mut().zip(gradient).for_each(|(to, x)| *to = *x);
            padding.fill(0.0);
            scratch.deltas[r] = dot(output, gradient);
        }
    }

    /// Computes the scores of a block of queries of one head by a block of keys again, and adds what it contributes to
    /// the gradients.
    #[inline(always)]
    fn add_block<S: Simd, const MR: usize, const NR: usize>(
        &self,
        s: S,
        pos: TilePos,
        scratch: &mut Scratch,
        mut table: Option<&mut [f32]>,
    ) {
        let AttentionProblem { d, d_v, .. } = *self.call.problem;
        let (width, width_v) = (d.next_multiple_of(S::LANES), d_v.next_multiple_of(S::LANES));
        let panel = NR * S::LANES;
        // The keys of the block that the queries of each tile see, from a panel's start on.
        let mut seen = [(0, 0); QUERY_BLOCK];
        let tiles = pos.rows.div_ceil(MR);
        for (tile, seen) in seen[..tiles].iter_mut().enumerate() {
            let rows = MR.min(pos.rows - tile * MR);
            let queries = pos.query + tile * MR..pos.query + tile * MR + rows;
            let keys = self.seen_keys(queries);
            let in_block = |key: usize| key.saturating_sub(pos.start).min(pos.count);
            let (from, to) = (in_block(keys.start) / panel * panel, in_block(keys.end));
            *seen = (from, to.max(from));
            let (weights, gradients) = (
                &mut scratch.weights[tile * MR * KEY_BLOCK..][..MR * KEY_BLOCK],
                &mut scratch.score_gradients[tile * MR * KEY_BLOCK..][..MR * KEY_BLOCK],
            );
            let products = [
                (&*scratch.queries, width, &*scratch.key_panels, d, &mut *weights),
                (&*scratch.output_gradients, width_v, &*scratch.value_panels, d_v, &mut *gradients),
            ];
            for (rows, stride, panels, d, to) in products {
                let (rows, panels) = (&rows[tile * MR * stride..][..MR * stride], &panels[pos.start * d..]);
                panel_products::<S, MR, NR>(s, (rows, stride), (panels, d), *seen, to);
            }
            let tile = TilePos { query: pos.query + tile * MR, rows, ..pos };
            let deltas = &scratch.deltas[tile.query - pos.query..];
            self.score_gradients(s, tile, *seen, deltas, [weights, gradients], table.as_deref_mut());
        }
        let seen = &seen[..tiles];
        let sums = [
            (&*scratch.weights, &*scratch.output_gradients, width_v, &mut *scratch.value_gradients),
            (&*scratch.score_gradients, &*scratch.queries, width, &mut *scratch.key_gradients),
        ];
        for (weights, rows, width, to) in sums {
            add_column_products::<S, MR, NR>(s, weights, (rows, width), pos, seen, &mut to[pos.start * width..]);
        }
        for (tile, (from, to)) in seen.iter().enumerate().filter(|(_, (from, to))| from < to) {
            let gradients = &scratch.score_gradients[tile * MR * KEY_BLOCK..][..MR * KEY_BLOCK];
            let keys = &scratch.keys[(pos.start + from) * width..];
            let sums = &mut scratch.query_gradients[tile * MR * width..][..MR * width];
            add_value_tile::<S, f32, MR, NR>(s, &gradients[*from..], (keys, width), to - from, sums, width);
        }
    }

    /// Turns the scores of a tile `(rows, KEY_BLOCK)` into attention weights after dropout, and the gradients of its
    /// attention weights into those of its scores. Keys outside `seen` get zeros.
    #[inline(always)]
    fn score_gradients<S: Simd>(
        &self,
        s: S,
        pos: TilePos,
        (from, to): (usize, usize),
        deltas: &[f32],
        [weights, gradients]: [&mut [f32]; 2],
        mut table: Option<&mut [f32]>,
    ) {
        let AttentionGradient { problem, dropout, rows, .. } = self.call;
        let (count, padded) = (to - from, (to - from).next_multiple_of(S::LANES));
        let (mut capped, mut factors, mut of_biases) = ([0.0; KEY_BLOCK], [1.0; KEY_BLOCK], [0.0; KEY_BLOCK]);
        let (has_rules, mut slopes) = (!problem.mask.score_rules.is_empty(), [1.0; KEY_BLOCK]);
        let first = (problem.batch.queries_before(pos.b) + pos.query) * problem.h + pos.h;
        let tile = weights.chunks_exact_mut(KEY_BLOCK).zip(gradients.chunks_exact_mut(KEY_BLOCK));
        for (r, (weights, gradients)) in tile.take(pos.rows).enumerate() {
            for row in [&mut *weights, &mut *gradients] {
                row[..from].fill(0.0);
                row[from + padded..].fill(0.0);
            }
            let (scores, gradients) = (&mut weights[from..][..padded], &mut gradients[from..][..padded]);
            scale_and_softcap(s, 1.0, problem.softcap, scores);
            if problem.softcap.is_some() {
                capped[..padded].copy_from_slice(scores);
            }
            scores[count..].fill(f32::NEG_INFINITY);
            gradients[count..].fill(0.0);
            let keys = TilePos { start: pos.start + from, count, ..pos };
            if has_rules {
                score_derivatives(&problem.mask, keys, pos.query + r, &scores[..count], &mut slopes[..count]);
            }
            apply_mask(s, &problem.mask, keys, pos.query + r, None, &mut scores[..count]);
            if has_rules {
                // Products of a hidden key have no influence, NaN included.
                let of_keys = slopes.iter_mut().zip(&scores[..count]);
                of_keys.filter(|(_, score)| **score == f32::NEG_INFINITY).for_each(|(slope, _)| *slope = 0.0);
            }
            if let Some(dropout) = dropout {
                dropout.factors(keys.place(&problem.erase(), r), &mut factors[..padded]);
            }
            let row = rows[first + r * problem.h];
            let (max, factor, delta) = (s.splat(row.max), s.splat(row.factor), s.splat(deltas[r]));
            for i in (0..padded).step_by(S::LANES) {
                let score = s.load_slice(&scores[i..]);
                let weight = s.mul(exp(s, s.sub(score, max)), factor);
                let mut gradient = s.load_slice(&gradients[i..]);
                let mut dropped = weight;
                if dropout.is_some() {
                    let kept = s.load_slice(&factors[i..]);
                    (dropped, gradient) = (s.mul(weight, kept), s.mul(gradient, kept));
                }
                let mut gradient = s.mul(weight, s.sub(gradient, delta));
                if table.is_some() {
                    s.store_slice(&mut of_biases[i..], gradient);
                }
                if has_rules {
                    gradient = s.mul(gradient, s.load_slice(&slopes[i..]));
                }
                if let Some(cap) = problem.softcap {
                    let tanh = s.mul(s.load_slice(&capped[i..]), s.splat(1.0 / cap));
                    gradient = s.mul(gradient, s.sub(s.splat(1.0), s.mul(tanh, tanh)));
                }
                s.store_slice(&mut scores[i..], dropped);
                s.store_slice(&mut gradients[i..], gradient);
            }
            if let (Some(to), Some(table)) = (table.as_deref_mut(), self.call.table()) {
                let count = count.min(pos.s_kv.saturating_sub(keys.start));
                let position = problem.mask.structure.position(pos.b, pos.query + r, pos.s_q, pos.s_kv);
                table.add_gradients(to, position, keys.start, &of_biases[..count]);
            }
        }
    }
}
