//! Products of the few rows of one tile with keys and values where they are in memory, as many as a vector has lanes at
//! a time.
//!
//! The terms of a sum have the order that they have in the products of many rows. For that keys are transposed, in
//! registers.

use std::marker::PhantomData;

use bytemuck::Zeroable;

use super::convert::{Convert, Pair};
use super::isa::microkernel::{CONVERSION, StridedRows, add_products, add_to_rows, hide_addresses, store_rows};
use super::isa::pair_dot::VECTOR_COLUMNS;
use super::isa::simd::{MAX_LANES, Simd};
use super::mask::KEY_BLOCK;
use super::score_tile::{PrefetchRows, ScoreTile};
use super::unroll::unroll;

/// Writes the products of `rows` queries `(rows, width)` with `LANES` keys to `scores`, rows of `KEY_BLOCK`. Their
/// terms are values, or with `PAIRS` pairs of bf16, in f32. There may be as many rows as a tile has, up to 8, and
/// memory for those that are computed: 1, 2, 4, 6 or 8.
///
/// # Safety
/// `width` values, and those that fill the last vector, can be read at each of the keys.
#[inline(always)]
pub(super) unsafe fn row_scores<C: ScoreTile, T: Convert, const PAIRS: bool>(
    s: C::S,
    rows: usize,
    queries: (&[f32], usize),
    keys: StridedRows<T>,
    ahead: PrefetchRows,
    scores: &mut [f32],
) {
    // SAFETY: the caller promises it.
    unsafe {
        match rows {
            1 => scores_of::<_, T, 1, PAIRS>(s, queries, keys, ahead, scores),
            2 => scores_of::<_, T, 2, PAIRS>(s, queries, keys, ahead, scores),
            5 | 6 if C::ROWS > 4 => scores_of::<_, T, 6, PAIRS>(s, queries, keys, ahead, scores),
            7.. if C::ROWS > 6 => scores_of::<_, T, 8, PAIRS>(s, queries, keys, ahead, scores),
            _ => scores_of::<_, T, 4, PAIRS>(s, queries, keys, ahead, scores),
        }
    }
}

/// # Safety
/// That of [`row_scores`].
#[inline(always)]
unsafe fn scores_of<S: Simd, T: Convert, const R: usize, const PAIRS: bool>(
    s: S,
    (queries, width): (&[f32], usize),
    keys: StridedRows<T>,
    mut ahead: PrefetchRows,
    scores: &mut [f32],
) {
    assert!(queries.len() >= R * width && scores.len() >= (R - 1) * KEY_BLOCK + S::LANES);
    let fetched = S::LANES.div_ceil(width.div_ceil(S::COLUMNS));
    let mut sums: [S::V; R] = Zeroable::zeroed();
    let whole = width / S::COLUMNS * S::COLUMNS;
    for at in (0..whole).step_by(S::COLUMNS) {
        ahead.fetch(s, fetched);
        // SAFETY: the caller promises the keys, and the assertion checks the queries.
        unsafe {
            let columns = s.transposed(&keys.pointers::<S>(at));
            let queries = queries.as_ptr().add(at);
            unroll!(i in 0..S::COLUMNS => add_column::<S, R, PAIRS>(s, queries.add(i), width, columns[i], &mut sums));
        }
    }
    if whole < width {
        ahead.fetch(s, fetched);
        // SAFETY: as above.
        unsafe {
            let columns = s.transposed(&keys.pointers::<S>(whole));
            for (i, column) in columns.into_iter().take(width - whole).enumerate() {
                add_column::<S, R, PAIRS>(s, queries.as_ptr().add(whole + i), width, column, &mut sums);
            }
        }
    }
    // SAFETY: the assertion checks the scores.
    unroll!(r in 0..R => unsafe { s.store(scores.as_mut_ptr().add(r * KEY_BLOCK), sums[r]) });
}

/// # Safety
/// `R` values can be read at `queries`, `stride` values apart.
#[inline(always)]
unsafe fn add_column<S: Simd, const R: usize, const PAIRS: bool>(
    s: S,
    queries: *const f32,
    stride: usize,
    column: S::V,
    sums: &mut [S::V; R],
) {
    unroll!(r in 0..R => {
        // SAFETY: the caller promises it.
        let x = unsafe { *queries.add(r * stride) };
        sums[r] = if PAIRS { s.dot_pairs(x.to_bits(), column, sums[r]) } else { s.mul_add(s.splat(x), column, sums[r]) };
    });
}

/// The values of consecutive tokens, and what is fetched meanwhile.
#[derive(Clone, Copy)]
pub(super) struct Values<T = f32> {
    pub rows: StridedRows<T>,
    /// Tokens, or pairs of them.
    pub count: usize,
    pub ahead: PrefetchRows,
}

/// Adds the products of `R` rows of attention weights, `KEY_BLOCK` apart, with `values` of `width` to `sums`
/// `(R, width)`, which start at 0 with the first of `ends` and are added to `output` with the last.
///
/// # Safety
/// `width` values can be read at each of the rows.
#[inline(always)]
pub(super) unsafe fn add_value_products<S: Simd, T: Convert, const R: usize>(
    s: S,
    weights: &[f32],
    mut values: Values<T>,
    ends: [bool; 2],
    sums: &mut [f32],
    output: &mut [f32],
    width: usize,
) {
    assert!(width.is_multiple_of(S::LANES) && sums.len() >= R * width && output.len() >= R * width);
    assert!(values.count <= KEY_BLOCK && weights.len() >= (R - 1) * KEY_BLOCK + values.count);
    let mut column = 0;
    while column < width {
        let left = (width - column) / S::LANES;
        let (sums, output) = (&mut sums[column..], &mut output[column..]);
        let (values, sums) = ((&mut values, column), [sums, output]);
        // SAFETY: the assertions check the lengths, and the caller promises the values; `column` and the vectors stay
        // within `width`.
        column += S::LANES
            * unsafe {
                match left {
                    8.. if Fits::<S, T, R, 8>::TILE => add_columns::<S, T, R, 8>(s, weights, values, ends, sums, width),
                    4.. if Fits::<S, T, R, 4>::TILE => add_columns::<S, T, R, 4>(s, weights, values, ends, sums, width),
                    2.. if Fits::<S, T, R, 2>::TILE => add_columns::<S, T, R, 2>(s, weights, values, ends, sums, width),
                    _ => add_columns::<S, T, R, 1>(s, weights, values, ends, sums, width),
                }
            };
    }
}

/// Whether the sums of `R` rows by `NV` vectors, with what a conversion of values takes, stay in registers. A constant
/// of a type, so that what does not fit is not compiled.
struct Fits<S, T, const R: usize, const NV: usize>(PhantomData<(S, T)>);

impl<S: Simd, T: Convert, const R: usize, const NV: usize> Fits<S, T, R, NV> {
    const TILE: bool = R * NV + if T::IS_F32 { 0 } else { CONVERSION } <= S::SUMS
        // Integers take two instructions each, and with eight vectors of AVX2 the compiler keeps a sum on the stack.
        && (size_of::<T>() > 1 || NV < 8 || 2 * R * NV < S::SUMS);
}

/// Adds the products with `NV` vectors from `column` on, and returns `NV`.
///
/// # Safety
/// The slices have the lengths that [`add_value_products`] checks; the sums and the output start at `column`, and
/// `column + NV · LANES` values can be read at each of the rows.
#[inline(always)]
unsafe fn add_columns<S: Simd, T: Convert, const R: usize, const NV: usize>(
    s: S,
    weights: &[f32],
    (Values { rows: values, count, ahead }, column): (&mut Values<T>, usize),
    [is_first, is_last]: [bool; 2],
    [sums_of_block, output]: [&mut [f32]; 2],
    width: usize,
) -> usize {
    let (sums_of_block, output) = (sums_of_block.as_mut_ptr(), output.as_mut_ptr());
    let mut sums: [[S::V; NV]; R] = Zeroable::zeroed();
    // SAFETY: a row of sums, of the output and a value have `NV` vectors from `column` on, and each row of weights has
    // one for each key.
    unsafe {
        if !is_first {
            unroll!(r in 0..R => sums[r] = load_row::<_, f32, NV>(s, sums_of_block.add(r * width)));
        }
        let (mut weights, mut row) = (weights.as_ptr(), values.at.wrapping_add(column));
        for _ in 0..*count {
            ahead.fetch_row(s);
            let columns: [S::V; NV] = load_row::<_, T, NV>(s, row);
            unroll!(r in 0..R => add_products(s, s.splat(*weights.add(r * KEY_BLOCK)), &columns, &mut sums[r]));
            (weights, row) = (weights.wrapping_add(1), row.wrapping_add(values.stride));
            hide_addresses(&mut weights, &mut row);
        }
        if is_last {
            add_to_rows(s, &sums, output, width);
        } else {
            store_rows(s, &sums, sums_of_block, width);
        }
    }
    NV
}

/// # Safety
/// `NV` vectors can be read.
#[inline(always)]
unsafe fn load_row<S: Simd, T: Convert, const NV: usize>(s: S, from: *const T) -> [S::V; NV] {
    let mut row: [S::V; NV] = Zeroable::zeroed();
    // SAFETY: the caller promises it.
    unroll!(v in 0..NV => row[v] = unsafe { s.load_as(from.add(v * S::LANES)) });
    row
}

/// Adds the products of `rows` rows of pairs of attention weights, `KEY_BLOCK` apart, with pairs of neighboring
/// `values`, of 16-bit numbers, to `output` `(rows, width)`. There is memory for as many rows as in [`row_scores`].
///
/// # Safety
/// `width` numbers, rounded up to whole vectors of pairs, can be read at both rows of each pair.
#[inline(always)]
pub(super) unsafe fn add_pair_products<S: Simd>(
    s: S,
    rows: usize,
    weights: &[Pair],
    values: Values,
    output: &mut [f32],
    width: usize,
) {
    // SAFETY: the caller promises it.
    unsafe {
        match rows {
            1 => pair_products_of::<S, 1, 8>(s, weights, values, output, width),
            2 => pair_products_of::<S, 2, 8>(s, weights, values, output, width),
            3 | 4 => pair_products_of::<S, 4, 4>(s, weights, values, output, width),
            5 | 6 => pair_products_of::<S, 6, 4>(s, weights, values, output, width),
            _ => pair_products_of::<S, 8, 2>(s, weights, values, output, width),
        }
    }
}

/// # Safety
/// That of [`add_pair_products`]. `NV` is even.
#[inline(always)]
unsafe fn pair_products_of<S: Simd, const R: usize, const NV: usize>(
    s: S,
    weights: &[Pair],
    Values { rows: values, count: pairs, mut ahead }: Values,
    output: &mut [f32],
    width: usize,
) {
    const { assert!(NV.is_multiple_of(2)) };
    assert!(width.is_multiple_of(VECTOR_COLUMNS) && output.len() >= R * width);
    assert!(2 * pairs <= MAX_LANES && weights.len() >= (R - 1) * KEY_BLOCK + pairs);
    for column in (0..width).step_by(NV * VECTOR_COLUMNS) {
        let vectors = NV.min((width - column) / VECTOR_COLUMNS);
        let output = output[column..].as_mut_ptr();
        let mut sums: [[S::V; R]; NV] = Zeroable::zeroed();
        // SAFETY: a row of the output has `vectors` vectors from `column` on, and each row of weights a pair for each
        // pair of values; the caller promises the values.
        unsafe {
            unroll!(v in 0..NV => {
                if v < vectors {
                    let from = output.add(v * VECTOR_COLUMNS);
                    unroll!(r in 0..R => sums[v][r] = s.load(from.add(r * width)));
                }
            });
            for pair in 0..pairs {
                ahead.fetch(s, 2);
                let first = values.at.add(2 * pair * values.stride + column / 2);
                let second = first.add(values.stride);
                unroll!(half in 0..NV / 2 => {
                    if 2 * half < vectors {
                        let at = half * VECTOR_COLUMNS;
                        let columns = s.pair_up(s.load(first.add(at)), s.load(second.add(at)));
                        unroll!(r in 0..R => {
                            let x = *weights.as_ptr().add(r * KEY_BLOCK + pair);
                            sums[2 * half][r] = s.dot_pairs(x, columns[0], sums[2 * half][r]);
                            sums[2 * half + 1][r] = s.dot_pairs(x, columns[1], sums[2 * half + 1][r]);
                        });
                    }
                });
            }
            unroll!(v in 0..NV => {
                if v < vectors {
                    let to = output.add(v * VECTOR_COLUMNS);
                    unroll!(r in 0..R => s.store(to.add(r * width), sums[v][r]));
                }
            });
        }
    }
}
