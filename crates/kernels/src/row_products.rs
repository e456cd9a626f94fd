//! Products of the few rows of one tile with keys and values in f32 where they are, without packing them.
//!
//! The terms of a sum have the order that they have in the products with packed keys and values. A score is a sum over
//! the values of a key in order, so a vector holds scores of neighboring keys, and their values are transposed on the
//! way, as many at a time as a vector has lanes.

use super::isa::simd::{MAX_LANES, Simd};
use super::score_tile::{KEY_BLOCK, Tokens};

/// The most vectors of keys that are multiplied together.
const MAX_VECTORS: usize = 3;
/// Values of a cache line.
const LINE: usize = 16;
/// How many values are fetched ahead of their use. Processors fetch ahead themselves, but only within a page.
const VALUES_AHEAD: usize = 16;

/// Writes the products of `R` queries `(R, d)` with the keys of a block to scores `(R, KEY_BLOCK)`.
#[inline(always)]
pub(super) fn key_products<S: Simd, const R: usize, const NR: usize>(
    s: S,
    queries: &[f32],
    keys: Tokens<f32>,
    scores: &mut [f32],
) {
    const { assert!(NR <= MAX_VECTORS && KEY_BLOCK.is_multiple_of(NR * S::LANES)) };
    assert!(keys.count <= KEY_BLOCK && queries.len() >= R * keys.d && scores.len() >= R * KEY_BLOCK);
    for start in (0..keys.count).step_by(NR * S::LANES) {
        let left = keys.count - start;
        // SAFETY: the assertions check the lengths; there are keys from `start` on, and scores of `NR` vectors.
        unsafe {
            let to = scores.as_mut_ptr().add(start);
            match left.div_ceil(S::LANES).min(NR) {
                1 => vectors_of_keys::<S, R, 1>(s, queries.as_ptr(), keys, start, to),
                2 => vectors_of_keys::<S, R, 2>(s, queries.as_ptr(), keys, start, to),
                _ => vectors_of_keys::<S, R, NR>(s, queries.as_ptr(), keys, start, to),
            }
        }
    }
}

/// The products with `NV` vectors of keys from `start` on. After the last key it comes again.
///
/// # Safety
/// `queries` can be read for `R` rows of `keys.d` values, and `to` written for `R` rows of `NV` vectors, `KEY_BLOCK`
/// values apart. `start < keys.count`.
#[inline(always)]
unsafe fn vectors_of_keys<S: Simd, const R: usize, const NV: usize>(
    s: S,
    queries: *const f32,
    keys: Tokens<f32>,
    start: usize,
    to: *mut f32,
) {
    let d = keys.d;
    let mut rows = [[std::ptr::null::<f32>(); MAX_LANES]; NV];
    for (v, rows) in rows.iter_mut().enumerate() {
        for (lane, row) in rows.iter_mut().take(S::LANES).enumerate() {
            *row = keys.as_f32((start + v * S::LANES + lane).min(keys.count - 1), &mut []).as_ptr();
        }
    }
    let ahead = NV * S::LANES * keys.heads.strides[1];
    let mut sums = [[s.splat(0.0); NV]; R];
    // The values of the keys at some places, first those at the first one.
    let mut columns = Columns([0.0; MAX_LANES * MAX_VECTORS * MAX_LANES]);
    for at in (0..d).step_by(S::LANES) {
        let count = S::LANES.min(d - at);
        for (v, rows) in rows.iter().enumerate() {
            if at % LINE == 0 {
                rows[..S::LANES].iter().for_each(|row| s.prefetch(row.wrapping_add(ahead + at)));
            }
            let to = columns.0[v * S::LANES..].as_mut_ptr();
            let part = rows.map(|row| row.wrapping_add(at));
            // SAFETY: each row has `count` values from `at` on, and `columns` has room for `LANES` places of `NV`
            // vectors.
            unsafe {
                if count == S::LANES {
                    s.transpose(&part, to, NV * S::LANES);
                    continue;
                }
                for (lane, row) in part[..S::LANES].iter().enumerate() {
                    (0..count).for_each(|i| *to.add(i * NV * S::LANES + lane) = *row.add(i));
                }
            }
        }
        for i in 0..count {
            // SAFETY: `i < LANES`, and `at + i < d`.
            unsafe {
                let mut column = [s.splat(0.0); NV];
                for (v, column) in column.iter_mut().enumerate() {
                    *column = s.load(columns.0.as_ptr().add((i * NV + v) * S::LANES));
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    let x = s.splat(*queries.add(r * d + at + i));
                    for (sum, column) in sums.iter_mut().zip(column) {
                        *sum = s.mul_add(x, column, *sum);
                    }
                }
            }
        }
    }
    for (r, sums) in sums.into_iter().enumerate() {
        for (v, sum) in sums.into_iter().enumerate() {
            // SAFETY: the caller promises it.
            unsafe { s.store(to.add(r * KEY_BLOCK + v * S::LANES), sum) };
        }
    }
}

#[repr(align(64))]
struct Columns([f32; MAX_LANES * MAX_VECTORS * MAX_LANES]);

/// Adds the products of `R` rows of attention weights `(R, KEY_BLOCK)` with values of whole vectors to `output`
/// `(R, d_v)`. A tile has `MR` by `NR` registers.
#[inline(always)]
pub(super) fn add_value_products<S: Simd, const R: usize, const MR: usize, const NR: usize>(
    s: S,
    weights: &[f32],
    values: Tokens<f32>,
    output: &mut [f32],
) {
    let d = values.d;
    assert!(values.count <= KEY_BLOCK && d.is_multiple_of(S::LANES));
    assert!(weights.len() >= R * KEY_BLOCK && output.len() >= R * d);
    let mut column = 0;
    while column < d {
        let left = (d - column) / S::LANES;
        let fits = |vectors: usize| vectors <= left && R * vectors <= MR * NR;
        // SAFETY: the assertions check the lengths; `column` and the vectors stay within `d`.
        column += S::LANES
            * unsafe {
                match () {
                    () if fits(8) => add_columns::<S, R, 8>(s, weights, values, output, column),
                    () if fits(4) => add_columns::<S, R, 4>(s, weights, values, output, column),
                    () if fits(3) => add_columns::<S, R, 3>(s, weights, values, output, column),
                    () if fits(2) => add_columns::<S, R, 2>(s, weights, values, output, column),
                    () => add_columns::<S, R, 1>(s, weights, values, output, column),
                }
            };
    }
}

/// Adds the products with `NV` vectors from `column` on, and returns `NV`.
///
/// # Safety
/// The slices have the lengths that [`add_value_products`] checks, and `column + NV · LANES <= values.d`.
#[inline(always)]
unsafe fn add_columns<S: Simd, const R: usize, const NV: usize>(
    s: S,
    weights: &[f32],
    values: Tokens<f32>,
    output: &mut [f32],
    column: usize,
) -> usize {
    let stride = values.heads.strides[1];
    let mut sums = [[s.splat(0.0); NV]; R];
    for key in 0..values.count {
        let row = values.as_f32(key, &mut []).as_ptr();
        // SAFETY: a value has `NV` vectors from `column` on, and each row of weights one for each key.
        unsafe {
            let row = row.add(column);
            let mut columns = [s.splat(0.0); NV];
            for (v, column) in columns.iter_mut().enumerate() {
                if (v * S::LANES).is_multiple_of(LINE) {
                    s.prefetch(row.wrapping_add(VALUES_AHEAD * stride + v * S::LANES));
                }
                *column = s.load(row.add(v * S::LANES));
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let x = s.splat(*weights.as_ptr().add(r * KEY_BLOCK + key));
                for (sum, column) in sums.iter_mut().zip(columns) {
                    *sum = s.mul_add(x, column, *sum);
                }
            }
        }
    }
    for (r, sums) in sums.into_iter().enumerate() {
        for (v, sum) in sums.into_iter().enumerate() {
            // SAFETY: a row of the output has `NV` vectors from `column` on.
            unsafe {
                let to = output.as_mut_ptr().add(r * values.d + column + v * S::LANES);
                s.store(to, s.add(s.load(to), sum));
            }
        }
    }
    NV
}
