//! The softmax of a tile, carried along from block to block.

use super::attention::Attention;
use super::core::BLOCK;
use super::exp::exp;
use super::gelu::tanh;
use super::simd::Simd;

/// A tile: `rows` queries from `query` of head `h` in row `b`, with `count` keys from `start`.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub b: usize,
    pub h: usize,
    pub s_q: usize,
    pub s_kv: usize,
    pub query: usize,
    pub rows: usize,
    pub start: usize,
    pub count: usize,
    /// What the scores are still to be multiplied with.
    pub factor: f32,
}

/// Whether any query of a tile sees any of its keys.
pub(super) fn sees_any<T>(call: &Attention<T>, place: Place) -> bool {
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
pub(super) fn soften<S: Simd, T>(
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
        shape(s, place.factor, call.softcap, row);
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

/// Multiplies scores with `factor` and bends them towards `softcap`.
#[inline(always)]
fn shape<S: Simd>(s: S, factor: f32, softcap: Option<f32>, row: &mut [f32]) {
    if factor == 1.0 && softcap.is_none() {
        return;
    }
    for j in (0..row.len()).step_by(S::LANES) {
        // SAFETY: the row's length is a multiple of `LANES`.
        unsafe {
            let score = s.mul(s.load(row.as_ptr().add(j)), s.splat(factor));
            let score = match softcap {
                Some(cap) => s.mul(s.splat(cap), tanh(s, s.div(score, s.splat(cap)))),
                None => score,
            };
            s.store(row.as_mut_ptr().add(j), score);
        }
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
    if call.mask.changes_scores() && from < to {
        let position = call.mask.position(b, i, s_q, s_kv);
        call.mask.apply(&mut row[from..to], (b, h, i), position, start + from);
    }
}
