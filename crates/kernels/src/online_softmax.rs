//! Online softmax: the update for one tile of scores ([Milakov 2018](https://arxiv.org/abs/1805.02867)).

use super::activation::tanh;
use super::distance_products::DistanceProducts;
use super::exp::exp;
use super::isa::simd::Simd;
use super::mask::Mask;
use super::problem::AttentionProblem;
use super::score_tile::{KEY_BLOCK, ScoreTile};

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
    pub fn place<T>(&self, problem: &AttentionProblem<T>, r: usize) -> u64 {
        let row = (self.b * problem.h + self.h) * self.s_q + self.query + r;
        row as u64 * (self.s_kv + problem.appended) as u64 + self.start as u64
    }
}

/// What the queries of a tile have accumulated over the key blocks so far.
pub(super) struct SoftmaxState<'a> {
    /// Largest score per query.
    pub row_max: &'a mut [f32],
    /// Sum of `e^(score - row_max)` per query.
    pub row_sum: &'a mut [f32],
    /// Sum of `e^(score - row_max) · value`, `(rows, width_v)`.
    pub output: &'a mut [f32],
    pub width_v: usize,
}

/// Whether any query of a tile sees any of its keys, by lengths, causal masks and windows.
pub(super) fn any_visible(mask: &Mask, pos: TilePos) -> bool {
    let (start, end) = (pos.start, pos.start + pos.count);
    let sees_block = |i: usize| {
        let range = mask.range(pos.b, i, pos.s_q, pos.s_kv);
        range.start.max(start) < range.end.min(end)
    };
    end > pos.s_kv || (pos.query..pos.query + pos.rows).any(sees_block)
}

/// The products with embeddings of distances that a tile reads: those of its queries start at a row of the query block.
#[derive(Clone, Copy)]
pub(super) struct TileProducts<'a> {
    pub products: &'a DistanceProducts<'a>,
    pub row: usize,
}

/// Masks a tile of scores `(rows, KEY_BLOCK)`, turns them into `e^(score - row_max)` with the updated `row_max`, and
/// rescales `row_sum` and `output`, which were accumulated under the old one.
#[inline(always)]
pub(super) fn online_softmax_update<C: ScoreTile, T>(
    tile: C,
    problem: &AttentionProblem<T>,
    pos: TilePos,
    score_factor: f32,
    products: Option<TileProducts>,
    scores: &mut [f32],
    state: &mut SoftmaxState,
) {
    let s = tile.simd();
    let lanes = const { <C::S as Simd>::LANES };
    let padded = pos.count.next_multiple_of(lanes);
    for (r, row) in scores.chunks_exact_mut(KEY_BLOCK).take(pos.rows).enumerate() {
        let row = &mut row[..padded];
        scale_and_softcap(s, score_factor, problem.softcap, row);
        row[pos.count..].fill(f32::NEG_INFINITY);
        let products = products.map(|of| (of.products, of.row + r, score_factor));
        apply_mask(s, &problem.mask, pos, pos.query + r, products, &mut row[..pos.count]);
        // Loops, not closures: a closure does not inherit the target features of the function around it.
        let old_max = state.row_max[r];
        let new_max = largest(s, row).max(old_max);
        if new_max == f32::NEG_INFINITY && !row.iter().any(|x| x.is_nan()) {
            // No key seen so far: all attention weights of the tile are 0.
            row.fill(0.0);
            continue;
        }
        let (offset, mut sum) = (s.splat(new_max), s.splat(0.0));
        for scores in row.chunks_exact_mut(lanes) {
            let e = tile.exp(s.sub(s.load_slice(scores), offset));
            s.store_slice(scores, e);
            sum = s.add(sum, e);
        }
        state.row_max[r] = new_max;
        if old_max == f32::NEG_INFINITY {
            // Sum and output are still 0.
            state.row_sum[r] += s.reduce_add(sum);
            continue;
        }
        let rescale = s.first_lane(exp(s, s.splat(old_max - new_max)));
        state.row_sum[r] = state.row_sum[r] * rescale + s.reduce_add(sum);
        if rescale != 1.0 {
            let width_v = state.width_v;
            state.output[r * width_v..(r + 1) * width_v].iter_mut().for_each(|x| *x *= rescale);
        }
    }
}

/// The largest value; NaN is left out. The length of `row` is a multiple of `LANES`.
#[inline(always)]
fn largest<S: Simd>(s: S, row: &[f32]) -> f32 {
    // Side by side: one alone would wait for each comparison before the next.
    let mut largest = [s.splat(f32::NEG_INFINITY); 4];
    let blocks = row.chunks_exact(4 * S::LANES);
    for scores in blocks.remainder().chunks_exact(S::LANES) {
        largest[0] = s.max(s.load_slice(scores), largest[0]);
    }
    for block in blocks {
        for (largest, scores) in largest.iter_mut().zip(block.chunks_exact(S::LANES)) {
            *largest = s.max(s.load_slice(scores), *largest);
        }
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
    // Keys from `s_kv` on are appended and always visible.
    let masked = row.len().min(s_kv.saturating_sub(start));
    let row = &mut row[..masked];
    let range = mask.range(b, i, s_q, s_kv);
    let in_tile = |key: usize| key.saturating_sub(start).min(masked);
    let (from, to) = (in_tile(range.start), in_tile(range.end));
    row[..from].fill(f32::NEG_INFINITY);
    row[to.max(from)..].fill(f32::NEG_INFINITY);
    if from >= to {
        return;
    }
    let position = mask.position(b, i, s_q, s_kv);
    if let Some((products, query, factor)) = products {
        products.add(s, query, position, start + from, factor, &mut row[from..to]);
    }
    if mask.changes_scores() {
        mask.apply(&mut row[from..to], (b, h, i), position, start + from);
    }
}
