//! Online softmax: the update for one tile of scores ([Milakov 2018](https://arxiv.org/abs/1805.02867)).

use std::ops::Range;

use super::activation::tanh;
use super::distance_products::DistanceProducts;
use super::elements::ElementsOut;
use super::exp::exp;
use super::isa::simd::{MAX_LANES, Simd, VectorKernel};
use super::mask::{KEY_BLOCK, Lengths, Mask, PairRule, Seen};
use super::problem::Problem;
use super::score_tile::ScoreTile;
use super::unroll::unroll;

/// Position of a tile of scores: `rows` queries from `query`, of head `h` in sequence `b`, by `count` keys from
/// `start`.
#[derive(Clone, Copy)]
pub(super) struct TilePos {
    pub b: usize,
    pub h: usize,
    pub s_q: usize,
    pub s_kv: usize,
    pub query: usize,
    pub rows: usize,
    pub start: usize,
    pub count: usize,
}

impl TilePos {
    /// The index of the first score of row `r` in `(b, h, s_q, keys)`.
    pub fn place(&self, problem: &Problem, r: usize) -> u64 {
        let row = (self.b * problem.h + self.h) * self.s_q + self.query + r;
        row as u64 * (self.s_kv + problem.appended) as u64 + self.start as u64
    }

    /// The keys of its block that each query of the tile sees by a rule over pairs.
    fn seen<'a>(&self, rule: &'a dyn PairRule) -> impl Iterator<Item = Seen> + use<'a> {
        let Self { b, h, query, rows, start, .. } = *self;
        (query..query + rows).map(move |i| rule.seen((b, h, i), start / KEY_BLOCK))
    }
}

/// Sums that rows of queries have accumulated over the key blocks so far.
pub(super) struct SoftmaxState<'a> {
    /// Largest score per query.
    pub row_max: &'a mut [f32],
    /// Sum of `e^(score - row_max)` per query.
    pub row_sum: &'a mut [f32],
    /// Sum of `e^(score - row_max) · value`, `(rows, width_v)`.
    pub output: &'a mut [f32],
    pub width_v: usize,
}

impl SoftmaxState<'_> {
    /// The state of some of the rows.
    #[inline(always)]
    pub fn rows(&mut self, rows: Range<usize>) -> SoftmaxState<'_> {
        let width_v = self.width_v;
        SoftmaxState {
            row_max: &mut self.row_max[rows.clone()],
            row_sum: &mut self.row_sum[rows.clone()],
            output: &mut self.output[rows.start * width_v..rows.end * width_v],
            width_v,
        }
    }

    /// Before the first key. A sink is a score that was seen before, with a value of 0; -inf if there is none.
    #[inline(always)]
    pub fn start(&mut self, sink: f32) {
        self.output.fill(0.0);
        self.row_max.fill(sink);
        self.row_sum.fill(if sink == f32::NEG_INFINITY { 0.0 } else { 1.0 });
    }

    /// The factor that makes the output of a row of its sums. A query that sees no key has sums of 0, and its output is
    /// 0.
    #[inline(always)]
    pub fn factor(&self, row: usize) -> f32 {
        if self.row_sum[row] == 0.0 { 0.0 } else { 1.0 / self.row_sum[row] }
    }

    /// Whether all outputs are finite.
    #[inline(always)]
    pub fn is_finite(&self) -> bool {
        all_below(f32::INFINITY, self.output)
    }
}

/// Whether any query of a tile sees any of its keys, by lengths, causal masks, windows and each rule over pairs.
pub(super) fn any_visible(mask: &Mask, pos: TilePos) -> bool {
    let has_appended = pos.start + pos.count > pos.s_kv;
    let mut rules = mask.rules.iter();
    any_in_range(mask, pos) && (has_appended || rules.all(|rule| pos.seen(*rule).any(|seen| seen != Seen::None)))
}

/// Whether any query of a tile sees any of its keys, by lengths, causal masks and windows.
pub(super) fn any_in_range(mask: &Mask, pos: TilePos) -> bool {
    let (start, end) = (pos.start, pos.start + pos.count);
    let sees_block = |i: usize| {
        let range = mask.structure.range(pos.b, i, pos.s_q, pos.s_kv);
        range.start.max(start) < range.end.min(end)
    };
    end > pos.s_kv || (pos.query..pos.query + pos.rows).any(sees_block)
}

/// Whether every query of a tile sees all of its keys, without a change of scores.
fn all_visible(mask: &Mask, pos: TilePos) -> bool {
    let (start, end) = (pos.start, pos.s_kv.min(pos.start + pos.count));
    let sees_block = |i: usize| {
        let range = mask.structure.range(pos.b, i, pos.s_q, pos.s_kv);
        range.start <= start && end <= range.end
    };
    let last = pos.query + pos.rows - 1;
    // Causal masks and windows move with the query, so that the first and the last one suffice.
    let each = mask.structure.lengths.iter().any(|lengths| matches!(lengths, Lengths::PerQuery(_)));
    let seen = if each { (pos.query..=last).all(sees_block) } else { sees_block(pos.query) && sees_block(last) };
    let by_rules = || mask.rules.iter().all(|rule| pos.seen(*rule).all(|seen| seen == Seen::All));
    start >= pos.s_kv || !mask.changes_scores() && seen && by_rules()
}

/// The update of the online softmax for one tile: masks its scores `(rows, KEY_BLOCK)`, turns them into
/// `e^(score - row_max)` with the updated `row_max`, and rescales `row_sum` and `output`, which were accumulated under
/// the old one.
pub(super) struct OnlineSoftmaxUpdate<'a, C> {
    pub tile: C,
    pub problem: &'a Problem<'a>,
    pub pos: TilePos,
    pub score_factor: f32,
    /// Products with embeddings of distances; those of the tile's queries start at a row of the query block.
    pub products: Option<(&'a DistanceProducts<'a>, usize)>,
    pub scores: &'a mut [f32],
    pub state: SoftmaxState<'a>,
}

impl<C: ScoreTile> VectorKernel for OnlineSoftmaxUpdate<'_, C> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { tile, problem, pos, score_factor, products, scores, state } = self;
        let s = tile.simd();
        let lanes = const { <C::S as Simd>::LANES };
        let padded = pos.count.next_multiple_of(lanes);
        let mask = problem.mask;
        // Where nothing is masked, one pass scales the scores and finds the largest.
        let one_pass = problem.softcap.is_none() && products.is_none() && score_factor > 0.0 && all_visible(mask, pos);
        for (r, row) in scores.chunks_exact_mut(KEY_BLOCK).take(pos.rows).enumerate() {
            let row = &mut row[..padded];
            // Loops, not closures: a closure does not inherit the target features of the function around it.
            let old_max = state.row_max[r];
            let largest = if one_pass {
                row[pos.count..].fill(f32::NEG_INFINITY);
                scale_and_find_largest(s, score_factor, row)
            } else {
                let products = products.map(|(products, row)| (products, row + r, score_factor));
                // A cap is on the sum of a score and its products.
                let capped = products.filter(|_| problem.softcap.is_some());
                if let Some((products, row_of_block, factor)) = capped {
                    scale_and_softcap(s, factor, None, row);
                    let (_, (from, to)) = visible_keys(mask, pos, pos.query + r, pos.count);
                    let position = mask.structure.position(pos.b, pos.query + r, pos.s_q, pos.s_kv);
                    products.add(s, row_of_block, position, pos.start + from, factor, &mut row[from.min(to)..to]);
                }
                scale_and_softcap(s, if capped.is_some() { 1.0 } else { score_factor }, problem.softcap, row);
                row[pos.count..].fill(f32::NEG_INFINITY);
                apply_mask(s, mask, pos, pos.query + r, products.xor(capped), &mut row[..pos.count]);
                scale_and_find_largest(s, 1.0, row)
            };
            let new_max = largest.max(old_max);
            if new_max == f32::NEG_INFINITY && !row.iter().any(|x| x.is_nan()) {
                // No key seen so far: all attention weights of the tile are 0.
                row.fill(0.0);
                continue;
            }
            let (offset, mut sum) = (s.splat(new_max), s.splat(0.0));
            let row = row.as_mut_ptr();
            for key in (0..padded).step_by(lanes) {
                // SAFETY: the row has `padded` scores, whole vectors of them.
                unsafe {
                    let e = tile.exp(s.sub(s.load(row.add(key)), offset));
                    tile.store_weights(row, key, e);
                    sum = s.add(sum, e);
                }
            }
            state.row_max[r] = new_max;
            if old_max == f32::NEG_INFINITY {
                // Sum and output are still 0.
                state.row_sum[r] += s.reduce_add(sum);
                continue;
            }
            let rescale = s.lanes(exp(s, s.splat(old_max - new_max)))[0];
            state.row_sum[r] = state.row_sum[r] * rescale + s.reduce_add(sum);
            if rescale != 1.0 {
                let width_v = state.width_v;
                s.scale(&mut state.output[r * width_v..(r + 1) * width_v], rescale);
            }
        }
    }
}

/// Whether the magnitudes of all values are below `limit`, and none is NaN. Compared as integers, many side by side, so
/// that the loop is vectorized.
#[inline(always)]
pub(super) fn all_below(limit: f32, xs: &[f32]) -> bool {
    const SIGN: u32 = 1 << 31;
    let magnitude = |x: &f32| x.to_bits() & !SIGN;
    let (blocks, rest) = xs.as_chunks::<MAX_LANES>();
    let mut largest = [0; MAX_LANES];
    for block in blocks {
        for i in 0..MAX_LANES {
            largest[i] = magnitude(&block[i]).max(largest[i]);
        }
    }
    let magnitudes = largest.into_iter().chain(rest.iter().map(magnitude));
    magnitudes.fold(0, u32::max) < limit.to_bits()
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

/// Multiplies scores with `factor`, and returns the largest; NaN is left out. The length of `row` is a multiple of
/// `LANES`.
#[inline(always)]
fn scale_and_find_largest<S: Simd>(s: S, factor: f32, row: &mut [f32]) -> f32 {
    // Side by side: one alone would wait for each comparison before the next.
    let least = s.splat(f32::NEG_INFINITY);
    let mut largest = [least, least, least, least];
    for block in row.chunks_mut(4 * S::LANES) {
        unroll!(i in 0..4 => {
            if let Some(scores) = block.get_mut(i * S::LANES..(i + 1) * S::LANES) {
                let mut score = s.load_slice(scores);
                if factor != 1.0 {
                    score = s.mul(score, s.splat(factor));
                    s.store_slice(scores, score);
                }
                largest[i] = s.max(score, largest[i]);
            }
        });
    }
    s.reduce_max(s.max(s.max(largest[0], largest[1]), s.max(largest[2], largest[3])))
}

/// Multiplies scores with `factor`, then applies the softcap `cap · tanh(score / cap)`. The length of `row` is a
/// multiple of `LANES`.
#[inline(always)]
pub(super) fn scale_and_softcap<S: Simd>(s: S, factor: f32, softcap: Option<f32>, row: &mut [f32]) {
    if factor == 1.0 && softcap.is_none() {
        return;
    }
    for scores in row.chunks_exact_mut(S::LANES) {
        let score = s.mul(s.load_slice(scores), s.splat(factor));
        let score = match softcap {
            Some(cap) => s.mul(s.splat(cap), tanh(s, s.div(score, s.splat(cap)))),
            None => score,
        };
        s.store_slice(scores, score);
    }
}

/// How many of the first `count` keys of a tile are under the mask, and from which to which of them lengths and windows
/// let query `i` see. Keys from `s_kv` on are appended and always visible.
#[inline(always)]
fn visible_keys(mask: &Mask, pos: TilePos, i: usize, count: usize) -> (usize, (usize, usize)) {
    let masked = count.min(pos.s_kv.saturating_sub(pos.start));
    let range = mask.structure.range(pos.b, i, pos.s_q, pos.s_kv);
    let in_tile = |key: usize| key.saturating_sub(pos.start).min(masked);
    (masked, (in_tile(range.start), in_tile(range.end)))
}

/// The derivatives of the mask's functions of scores at the scores of query `i`, before [`apply_mask`]: all functions
/// together, and 1 where there is none.
pub(super) fn score_derivatives(mask: &Mask, pos: TilePos, i: usize, scores: &[f32], derivatives: &mut [f32]) {
    derivatives.fill(1.0);
    let (_, (from, to)) = visible_keys(mask, pos, i, scores.len());
    if from >= to {
        return;
    }
    let (place, key, count) = ((pos.b, pos.h, i), pos.start + from, to - from);
    let (mut now, mut slopes) = ([0.0; KEY_BLOCK], [0.0; KEY_BLOCK]);
    let (now, slopes) = (&mut now[..count], &mut slopes[..count]);
    now.copy_from_slice(&scores[from..to]);
    for rule in &mask.score_rules {
        slopes.copy_from_slice(now);
        rule.differentiate(place, key, slopes);
        rule.apply(place, key, now);
        derivatives[from..to].iter_mut().zip(&*slopes).for_each(|(derivative, slope)| *derivative *= slope);
    }
}

/// Applies the mask to the scores of query `i`, and sets those with hidden keys to -inf. `row` holds the scores with
/// the keys of the tile. `products` with embeddings of distances are those of a row of a query block, with their
/// factor.
#[inline(always)]
pub(super) fn apply_mask<S: Simd>(
    s: S,
    mask: &Mask,
    pos: TilePos,
    i: usize,
    products: Option<(&DistanceProducts, usize, f32)>,
    row: &mut [f32],
) {
    let TilePos { b, h, s_q, s_kv, start, .. } = pos;
    let (masked, (from, to)) = visible_keys(mask, pos, i, row.len());
    let row = &mut row[..masked];
    row[..from].fill(f32::NEG_INFINITY);
    row[to.max(from)..].fill(f32::NEG_INFINITY);
    if from >= to {
        return;
    }
    mask.score_rules.iter().for_each(|rule| rule.apply((b, h, i), start + from, &mut row[from..to]));
    let position = mask.structure.position(b, i, s_q, s_kv);
    if let Some((products, query, factor)) = products {
        products.add(s, query, position, start + from, factor, &mut row[from..to]);
    }
    if mask.changes_scores() || !mask.rules.is_empty() {
        mask.apply(&mut row[from..to], (b, h, i), position, start + from);
    }
}
