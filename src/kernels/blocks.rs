//! The two products of attention, for a tile of `MR` queries and a block of keys.

use super::simd::Simd;
use super::tile::{Rows, product};

/// Keys a block, a multiple of every instruction set's panel.
pub(super) const BLOCK: usize = 192;

/// `queries` `(MR, d)` times the keys of a block → `scores` `(MR, BLOCK)`.
#[inline(always)]
pub(super) fn scores<S: Simd, const MR: usize, const NR: usize>(
    s: S,
    queries: &[f32],
    d: usize,
    keys: &[f32],
    count: usize,
    scores: &mut [f32],
) {
    let panel = NR * S::LANES;
    assert!(queries.len() >= MR * d && keys.len() >= count.next_multiple_of(panel) * d && scores.len() >= MR * BLOCK);
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

/// `weights` `(MR, count)` times `values` `(count, width_v)`, added to `sums` `(MR, width_v)`.
#[inline(always)]
pub(super) fn add_values<S: Simd, const MR: usize>(
    s: S,
    weights: &[f32],
    values: &[f32],
    count: usize,
    sums: &mut [f32],
    width_v: usize,
) {
    assert!(weights.len() >= MR * BLOCK && values.len() >= count * width_v && sums.len() >= MR * width_v);
    let mut column = 0;
    while column < width_v {
        let left = (width_v - column) / S::LANES;
        // Four vectors as two pairs: the registers hold three.
        let step = match left {
            1 => 1,
            2 | 4 => 2,
            _ => 3,
        };
        // SAFETY: the lengths were checked above; `column + step · LANES` is at most `width_v`.
        unsafe {
            match step {
                1 => add_columns::<S, MR, 1>(s, weights, values, count, sums, width_v, column),
                2 => add_columns::<S, MR, 2>(s, weights, values, count, sums, width_v, column),
                _ => add_columns::<S, MR, 3>(s, weights, values, count, sums, width_v, column),
            }
        }
        column += step * S::LANES;
    }
}

/// # Safety
/// As [`add_values`] checks; `column + NV · LANES <= width_v`.
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
