//! The products of attention in f32.

use super::core::{BLOCK, Core, Tokens};
use super::element::Element;
use super::simd::Simd;
use super::tile::{Rows, product};

/// Tiles of `MR` queries by `NR` vectors of keys.
#[derive(Clone, Copy)]
pub(super) struct Floats<S, const MR: usize, const NR: usize>(pub S);

impl<S: Simd, const MR: usize, const NR: usize> Core for Floats<S, MR, NR> {
    type S = S;
    const ROWS: usize = MR;
    const PANEL: usize = NR * S::LANES;
    const SCORES: usize = MR * BLOCK;

    #[inline(always)]
    fn simd(self) -> S {
        self.0
    }
    fn key_width(d: usize) -> usize {
        d
    }
    fn value_width(d_v: usize) -> usize {
        d_v.next_multiple_of(S::LANES)
    }
    #[inline(always)]
    fn values_before(keys: usize, width_v: usize) -> usize {
        keys * width_v
    }
    fn split_scale(scale: f32) -> (f32, f32) {
        (scale, 1.0)
    }

    /// In a panel, the first number of each key, then the second.
    #[inline(always)]
    fn pack_keys<T: Element>(self, keys: Tokens<T>, row: &mut [f32], to: &mut [f32]) {
        for (panel, to) in to.chunks_exact_mut(Self::PANEL * keys.d).enumerate() {
            for lane in 0..Self::PANEL {
                let numbers = keys.floats(panel * Self::PANEL + lane, row);
                for (column, x) in to.chunks_exact_mut(Self::PANEL).zip(numbers) {
                    column[lane] = *x;
                }
            }
        }
    }

    #[inline(always)]
    fn pack_values<T: Element>(self, values: Tokens<T>, width_v: usize, row: &mut [f32], to: &mut [f32]) {
        for (key, to) in to.chunks_exact_mut(width_v).take(values.count).enumerate() {
            let (numbers, rest) = to.split_at_mut(values.d);
            f32::widen(values.floats(key, row), numbers);
            rest.fill(0.0);
        }
    }

    #[inline(always)]
    fn pack_queries<T: Element>(self, queries: Tokens<T>, factor: f32, row: &mut [f32], to: &mut [f32]) {
        for (i, to) in to.chunks_exact_mut(queries.d).enumerate() {
            let numbers = queries.floats(i, row);
            to.iter_mut().zip(numbers).for_each(|(to, x)| *to = x * factor);
        }
    }

    #[inline(always)]
    fn scores(self, _: usize, queries: &[f32], d: usize, keys: &[f32], count: usize, scores: &mut [f32]) {
        let (s, panel) = (self.0, Self::PANEL);
        assert!(
            queries.len() >= MR * d && keys.len() >= count.next_multiple_of(panel) * d && scores.len() >= MR * BLOCK
        );
        for start in (0..count).step_by(panel) {
            let a = Rows { at: queries.as_ptr(), row: d, column: 1 };
            // SAFETY: the lengths were checked above; `start` is a multiple of `panel` below `count`, which is at most
            // `BLOCK`, itself a multiple of `panel`.
            unsafe {
                let sums = product::<S, MR, NR>(s, d, a, keys.as_ptr().add(start * d), panel);
                for (r, sums) in sums.into_iter().enumerate() {
                    for (n, sum) in sums.into_iter().enumerate() {
                        s.store(scores.as_mut_ptr().add(r * BLOCK + start + n * S::LANES), sum);
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn add_values(self, _: usize, scores: &mut [f32], values: &[f32], count: usize, sums: &mut [f32], width_v: usize) {
        let s = self.0;
        assert!(scores.len() >= MR * BLOCK && values.len() >= count * width_v && sums.len() >= MR * width_v);
        let mut column = 0;
        while column < width_v {
            let step = vectors_at_once((width_v - column) / S::LANES);
            // SAFETY: the lengths were checked above; `column + step · LANES` is at most `width_v`.
            unsafe {
                match step {
                    1 => add_columns::<S, MR, 1>(s, scores, values, count, sums, width_v, column),
                    2 => add_columns::<S, MR, 2>(s, scores, values, count, sums, width_v, column),
                    _ => add_columns::<S, MR, 3>(s, scores, values, count, sums, width_v, column),
                }
            }
            column += step * S::LANES;
        }
    }
}

/// Of the vectors that are left, those to take together. Four as two pairs: the registers hold three.
#[inline(always)]
pub(super) fn vectors_at_once(left: usize) -> usize {
    match left {
        1 => 1,
        2 | 4 => 2,
        _ => 3,
    }
}

/// # Safety
/// As `add_values` checks; `column + NV · LANES <= width_v`.
#[inline(always)]
unsafe fn add_columns<S: Simd, const MR: usize, const NV: usize>(
    s: S,
    weights: &[f32],
    values: &[f32],
    count: usize,
    sums: &mut [f32],
    width_v: usize,
    column: usize,
) {
    let a = Rows { at: weights.as_ptr(), row: BLOCK, column: 1 };
    // SAFETY: promised by the caller.
    unsafe {
        let added = product::<S, MR, NV>(s, count, a, values.as_ptr().add(column), width_v);
        for (r, added) in added.into_iter().enumerate() {
            for (n, added) in added.into_iter().enumerate() {
                let at = sums.as_mut_ptr().add(r * width_v + column + n * S::LANES);
                s.store(at, s.add(s.load(at), added));
            }
        }
    }
}
