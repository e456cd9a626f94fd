//! Products of the few rows of one tile with keys and values in f32, a part of a block at a time.
//!
//! The terms of a sum have the order that they have in the products of many rows.

use super::isa::simd::Simd;
use super::microkernel::{StridedRows, microkernel};
use super::score_tile::{CACHE_LINE, KEY_BLOCK, TOKENS_AHEAD};

/// Writes the products of `R` queries `(R, d)` with the first `count` keys of a packed panel to `scores`, rows of
/// `KEY_BLOCK`.
#[inline(always)]
pub(super) fn panel_scores<S: Simd, const R: usize, const NR: usize>(
    s: S,
    queries: &[f32],
    (panel, d): (&[f32], usize),
    count: usize,
    scores: &mut [f32],
) {
    assert!(count <= NR * S::LANES && panel.len() >= NR * S::LANES * d);
    assert!(queries.len() >= R * d && scores.len() >= (R - 1) * KEY_BLOCK + NR * S::LANES);
    // SAFETY: the assertions check the lengths; no more than `NR` vectors are multiplied and written.
    unsafe {
        match count.div_ceil(S::LANES) {
            1 => vectors_of_scores::<S, R, 1>(s, queries, (panel, d), NR * S::LANES, scores),
            2 => vectors_of_scores::<S, R, 2>(s, queries, (panel, d), NR * S::LANES, scores),
            _ => vectors_of_scores::<S, R, NR>(s, queries, (panel, d), NR * S::LANES, scores),
        }
    }
}

/// # Safety
/// The slices have the lengths that [`panel_scores`] checks, for `NV` of the vectors of a row of the panel.
#[inline(always)]
unsafe fn vectors_of_scores<S: Simd, const R: usize, const NV: usize>(
    s: S,
    queries: &[f32],
    (panel, d): (&[f32], usize),
    width: usize,
    scores: &mut [f32],
) {
    let queries = StridedRows { at: queries.as_ptr(), stride: d };
    // SAFETY: the caller promises it.
    unsafe {
        let sums = microkernel::<S, R, NV, false>(s, d, queries, panel.as_ptr(), width);
        for (r, sums) in sums.into_iter().enumerate() {
            for (v, sum) in sums.into_iter().enumerate() {
                s.store(scores.as_mut_ptr().add(r * KEY_BLOCK + v * S::LANES), sum);
            }
        }
    }
}

/// Values of consecutive tokens.
#[derive(Clone, Copy)]
pub(super) struct Values<'a> {
    /// From the first one on.
    pub data: &'a [f32],
    pub stride: usize,
    pub count: usize,
    /// Whether they come from memory.
    pub fetch: bool,
}

/// Adds the products of `R` rows of attention weights, `KEY_BLOCK` apart, with values of `width` to `sums`
/// `(R, width)`, which start at 0 with the first of `ends` and are added to `output` with the last. A tile has `MR` by
/// `NR` registers.
#[inline(always)]
pub(super) fn add_value_products<S: Simd, const R: usize, const MR: usize, const NR: usize>(
    s: S,
    weights: &[f32],
    values: Values,
    ends: [bool; 2],
    sums: &mut [f32],
    output: &mut [f32],
    width: usize,
) {
    assert!(width.is_multiple_of(S::LANES) && sums.len() >= R * width && output.len() >= R * width);
    assert!(values.count > 0 && values.data.len() >= (values.count - 1) * values.stride + width);
    assert!(weights.len() >= (R - 1) * KEY_BLOCK + values.count);
    let mut column = 0;
    while column < width {
        let left = (width - column) / S::LANES;
        let fits = |vectors: usize| vectors <= left && R * vectors <= MR * NR;
        let (sums, output) = (&mut sums[column..], &mut output[column..]);
        // SAFETY: the assertions check the lengths; `column` and the vectors stay within `width`.
        let vectors = unsafe {
            match () {
                () if fits(8) => add_columns::<S, R, 8>(s, weights, values, ends, column, [sums, output], width),
                () if fits(4) => add_columns::<S, R, 4>(s, weights, values, ends, column, [sums, output], width),
                () if fits(3) => add_columns::<S, R, 3>(s, weights, values, ends, column, [sums, output], width),
                () if fits(2) => add_columns::<S, R, 2>(s, weights, values, ends, column, [sums, output], width),
                () => add_columns::<S, R, 1>(s, weights, values, ends, column, [sums, output], width),
            }
        };
        column += vectors * S::LANES;
    }
}

/// Adds the products with `NV` vectors from `column` on, and returns `NV`.
///
/// # Safety
/// The slices have the lengths that [`add_value_products`] checks; the sums and the output start at `column`, and
/// `column + NV · LANES <= width`.
#[inline(always)]
unsafe fn add_columns<S: Simd, const R: usize, const NV: usize>(
    s: S,
    weights: &[f32],
    values: Values,
    [is_first, is_last]: [bool; 2],
    column: usize,
    [sums_of_block, output]: [&mut [f32]; 2],
    width: usize,
) -> usize {
    let sums_of_block = sums_of_block.as_mut_ptr();
    let mut sums = [[s.splat(0.0); NV]; R];
    // SAFETY: a row of sums, of the output and a value have `NV` vectors from `column` on, and each row of weights has
    // one for each key.
    unsafe {
        if !is_first {
            for (r, sums) in sums.iter_mut().enumerate() {
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = s.load(sums_of_block.add(r * width + v * S::LANES));
                }
            }
        }
        for key in 0..values.count {
            let row = values.data.as_ptr().add(key * values.stride + column);
            let mut columns = [s.splat(0.0); NV];
            for (v, column) in columns.iter_mut().enumerate() {
                if values.fetch && (v * S::LANES * size_of::<f32>()).is_multiple_of(CACHE_LINE) {
                    s.prefetch(row.wrapping_add(TOKENS_AHEAD * values.stride + v * S::LANES));
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
        for (r, sums) in sums.into_iter().enumerate() {
            for (v, sum) in sums.into_iter().enumerate() {
                let at = r * width + v * S::LANES;
                let to = output.as_mut_ptr().add(at);
                match is_last {
                    true => s.store(to, s.add(s.load(to), sum)),
                    false => s.store(sums_of_block.add(at), sum),
                }
            }
        }
    }
    NV
}
