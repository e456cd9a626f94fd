//! The products of attention in bf16: queries, keys, values and weights are rounded to bf16, sums are f32.

use super::blocks::vectors_at_once;
use super::core::{BLOCK, Core, Tokens};
use super::element::Element;
use super::pairs::{COLUMNS, PairDot, Tile, as_pairs, as_pairs_mut};
use super::simd::Simd;

/// Tiles of [`PairDot`]; softmax by the f32 instructions.
#[derive(Clone, Copy)]
pub(super) struct Halves<S, D>(pub S, pub D);

impl<S: Simd, D: PairDot> Core for Halves<S, D> {
    type S = S;
    const ROWS: usize = D::ROWS;
    const PANEL: usize = D::VECTORS * COLUMNS;
    const SCORES: usize = D::ROWS * (BLOCK + BLOCK / 2);

    #[inline(always)]
    fn simd(self) -> S {
        self.0
    }
    #[inline(always)]
    fn key_width(d: usize) -> usize {
        d.div_ceil(2).next_multiple_of(D::STEP)
    }
    fn value_width(d_v: usize) -> usize {
        d_v.next_multiple_of(COLUMNS)
    }
    #[inline(always)]
    fn values_before(keys: usize, width_v: usize) -> usize {
        keys.div_ceil(2) * width_v
    }
    /// A power of two scales the rounded queries exactly; anything else waits for the f32 scores.
    fn split_scale(scale: f32) -> (f32, f32) {
        const FRACTION: u32 = (1 << 23) - 1;
        if scale.is_normal() && scale.to_bits() & FRACTION == 0 { (scale, 1.0) } else { (1.0, scale) }
    }

    /// In a panel, the first two numbers of each key, then the next two.
    #[inline(always)]
    fn pack_keys<T: Element>(self, keys: Tokens<T>, row: &mut [f32], to: &mut [f32]) {
        let width = Self::key_width(keys.d);
        let (numbers, rest) = row.split_at_mut(keys.d);
        let rounded = &mut as_pairs_mut(rest)[..width];
        for (panel, to) in as_pairs_mut(to).chunks_exact_mut(Self::PANEL * width).enumerate() {
            for lane in 0..Self::PANEL {
                keys.pairs(self.1, panel * Self::PANEL + lane, numbers, rounded);
                for (column, pair) in to.chunks_exact_mut(Self::PANEL).zip(&*rounded) {
                    column[lane] = *pair;
                }
            }
        }
    }

    /// The numbers of two keys side by side.
    #[inline(always)]
    fn pack_values<T: Element>(self, values: Tokens<T>, width_v: usize, row: &mut [f32], to: &mut [f32]) {
        let (numbers, rest) = row.split_at_mut(width_v);
        let (low, rest) = as_pairs_mut(rest).split_at_mut(width_v / 2);
        let high = &mut rest[..width_v / 2];
        for (i, to) in as_pairs_mut(to).chunks_exact_mut(width_v).enumerate() {
            values.pairs(self.1, 2 * i, numbers, low);
            values.pairs(self.1, 2 * i + 1, numbers, high);
            for ((to, low), high) in to.chunks_exact_mut(2).zip(&*low).zip(&*high) {
                to[0] = low & 0xffff | high << 16;
                to[1] = low >> 16 | high & 0xffff_0000;
            }
        }
    }

    #[inline(always)]
    fn pack_queries<T: Element>(self, queries: Tokens<T>, factor: f32, row: &mut [f32], to: &mut [f32]) {
        let (numbers, rest) = row.split_at_mut(queries.d);
        let scaled = &mut rest[..queries.d];
        for (i, to) in as_pairs_mut(to).chunks_exact_mut(Self::key_width(queries.d)).enumerate() {
            if factor == 1.0 {
                queries.pairs(self.1, i, numbers, to);
                continue;
            }
            let numbers = queries.floats(i, numbers);
            scaled.iter_mut().zip(numbers).for_each(|(to, x)| *to = x * factor);
            self.1.round(scaled, to);
        }
    }

    #[inline(always)]
    fn scores(self, rows: usize, queries: &[f32], d: usize, keys: &[f32], count: usize, scores: &mut [f32]) {
        let pairs = Self::key_width(d);
        assert!(queries.len() >= Self::ROWS * pairs && scores.len() >= Self::ROWS * BLOCK && count <= BLOCK);
        assert!(keys.len() >= count.next_multiple_of(Self::PANEL) * pairs);
        for start in (0..count).step_by(Self::PANEL) {
            let vectors = D::VECTORS.min((count - start).div_ceil(COLUMNS));
            let tile = Tile { rows, vectors, pairs, a_row: pairs, b_row: Self::PANEL, c_row: BLOCK, add: false };
            let keys = as_pairs(&keys[start * pairs..]).as_ptr();
            // SAFETY: the lengths were checked above: `ROWS` queries, a panel of keys, `ROWS` rows of `BLOCK` scores, of
            // which `start` and a panel are inside.
            unsafe { self.1.tile(tile, as_pairs(queries).as_ptr(), keys, scores.as_mut_ptr().add(start)) };
        }
    }

    #[inline(always)]
    fn add_values(
        self,
        rows: usize,
        scores: &mut [f32],
        values: &[f32],
        count: usize,
        sums: &mut [f32],
        width_v: usize,
    ) {
        let (scores, weights) = scores.split_at_mut(Self::ROWS * BLOCK);
        let weights = as_pairs_mut(weights);
        let pairs = count.div_ceil(2).next_multiple_of(D::STEP);
        assert!(weights.len() >= Self::ROWS * (BLOCK / 2) && pairs <= BLOCK / 2);
        assert!(values.len() >= pairs * width_v && sums.len() >= Self::ROWS * width_v);
        for (row, to) in scores.chunks_exact(BLOCK).zip(weights.chunks_exact_mut(BLOCK / 2)).take(rows) {
            self.1.round(&row[..count], &mut to[..pairs]);
        }
        let mut column = 0;
        while column < width_v {
            let vectors = vectors_at_once((width_v - column) / COLUMNS).min(D::VECTORS);
            let tile = Tile { rows, vectors, pairs, a_row: BLOCK / 2, b_row: width_v, c_row: width_v, add: true };
            // SAFETY: the lengths were checked above; `column` and `vectors` stay within `width_v`.
            unsafe {
                let values = as_pairs(values).as_ptr().add(column);
                self.1.tile(tile, weights.as_ptr(), values, sums.as_mut_ptr().add(column));
            }
            column += vectors * COLUMNS;
        }
    }
}
