//! The products of the backward pass of attention, a block of queries by a block of keys at a time.

use super::isa::simd::{MAX_LANES, Simd};
use super::microkernel::{Lhs, Prefetch, Rhs, add_to_rows, microkernel, store_rows};
use super::online_softmax::TilePos;
use super::score_tile::KEY_BLOCK;
use super::tile_f32::vectors_per_step;

/// Σ a · b, always added in the same order.
#[inline(always)]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; MAX_LANES];
    let (a_chunks, b_chunks) = (a.chunks_exact(MAX_LANES), b.chunks_exact(MAX_LANES));
    let rest: f32 = a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a_chunks.zip(b_chunks) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    sums.iter().sum::<f32>() + rest
}

/// Writes the products of `MR` rows with the columns `seen` of panels of `d` terms to a tile `(MR, KEY_BLOCK)`.
#[inline(always)]
pub(super) fn panel_products<S: Simd, const MR: usize, const NR: usize>(
    s: S,
    (rows, stride): (&[f32], usize),
    (panels, d): (&[f32], usize),
    (from, to): (usize, usize),
    tile: &mut [f32],
) {
    let panel = NR * S::LANES;
    assert!(from.is_multiple_of(panel) && to <= KEY_BLOCK && KEY_BLOCK.is_multiple_of(panel));
    assert!(d <= stride && rows.len() >= MR * stride && tile.len() >= MR * KEY_BLOCK);
    assert!(panels.len() >= to.next_multiple_of(panel) * d);
    for start in (from..to).step_by(panel) {
        let a = Lhs::rows(rows.as_ptr(), stride);
        // SAFETY: the assertions check the lengths. `start` is a multiple of `panel` below `to`, and so `start + panel`
        // at most `KEY_BLOCK`, which is a multiple of `panel`.
        unsafe {
            let b = Rhs::new(panels.as_ptr().add(start * d), panel);
            let sums = microkernel::<S, _, MR, NR>(s, d, a, b, Prefetch::NONE);
            store_rows(s, &sums, tile.as_mut_ptr().add(start), KEY_BLOCK);
        }
    }
}

/// Adds `Wᵀ · rows` to `to` `(keys, width)`, for weights or gradients `W` `(queries, KEY_BLOCK)` of a block, `MR` keys
/// at a time, from the first tile of queries that sees one of them to the last.
#[inline(always)]
pub(super) fn add_column_products<S: Simd, const MR: usize, const NR: usize>(
    s: S,
    weights: &[f32],
    (rows, width): (&[f32], usize),
    pos: TilePos,
    seen: &[(usize, usize)],
    to: &mut [f32],
) {
    for key in (0..pos.count).step_by(MR) {
        let sees = |(from, to): &(usize, usize)| *from < key + MR && key < *to;
        let Some(first) = seen.iter().position(sees) else { continue };
        let last = seen.iter().rposition(sees).unwrap_or(first);
        let (first, last) = (first * MR, pos.rows.min((last + 1) * MR));
        let weights = &weights[first * KEY_BLOCK..last * KEY_BLOCK];
        let rows = &rows[first * width..last * width];
        let to = &mut to[key * width..][..MR * width];
        assert!(key + MR <= KEY_BLOCK && width.is_multiple_of(S::LANES));
        let mut column = 0;
        while column < width {
            let step = vectors_per_step((width - column) / S::LANES, NR);
            // SAFETY: `weights` has `last - first` rows of `KEY_BLOCK` values, of which those from `key` on are at
            // least `MR`; `rows` has as many of `width`, and `to` `MR`. `column + step · LANES` is at most `width`.
            unsafe {
                let a = weights.as_ptr().add(key);
                let b = rows.as_ptr().add(column);
                let to = to.as_mut_ptr().add(column);
                match step {
                    1 => add_columns::<S, MR, 1>(s, last - first, a, b, to, width),
                    3 if NR >= 3 => add_columns::<S, MR, 3>(s, last - first, a, b, to, width),
                    _ => add_columns::<S, MR, 2>(s, last - first, a, b, to, width),
                }
            }
            column += step * S::LANES;
        }
    }
}

/// # Safety
/// `a` can be read for `terms` rows of `MR` values, `KEY_BLOCK` values apart, `b` for as many of `NV` vectors, `width`
/// values apart, and `to` can be written for `MR` rows like these.
#[inline(always)]
unsafe fn add_columns<S: Simd, const MR: usize, const NV: usize>(
    s: S,
    terms: usize,
    a: *const f32,
    b: *const f32,
    to: *mut f32,
    width: usize,
) {
    // SAFETY: the caller promises it.
    unsafe {
        let sums =
            microkernel::<S, _, MR, NV>(s, terms, Lhs::columns(a, KEY_BLOCK), Rhs::new(b, width), Prefetch::NONE);
        add_to_rows(s, &sums, to, width);
    }
}

/// Adds the products of `MR` rows of a tile `(MR, KEY_BLOCK)` with `count` rows of `width` values to `to`
/// `(MR, width)`.
#[inline(always)]
pub(super) fn add_row_products<S: Simd, const MR: usize, const NR: usize>(
    s: S,
    tile: &[f32],
    (rows, count): (&[f32], usize),
    to: &mut [f32],
    width: usize,
) {
    if count == 0 {
        return;
    }
    assert!(width.is_multiple_of(S::LANES) && rows.len() >= count * width && to.len() >= MR * width);
    assert!(tile.len() >= (MR - 1) * KEY_BLOCK + count);
    let a = Lhs::rows(tile.as_ptr(), KEY_BLOCK);
    let mut column = 0;
    while column < width {
        let step = vectors_per_step((width - column) / S::LANES, NR);
        // SAFETY: the assertions check the lengths; `column + step · LANES` is at most `width`.
        unsafe {
            let (b, to) = (Rhs::new(rows.as_ptr().add(column), width), to.as_mut_ptr().add(column));
            match step {
                1 => add_to_rows(s, &microkernel::<S, _, MR, 1>(s, count, a, b, Prefetch::NONE), to, width),
                3 if NR >= 3 => add_to_rows(s, &microkernel::<S, _, MR, 3>(s, count, a, b, Prefetch::NONE), to, width),
                _ => add_to_rows(s, &microkernel::<S, _, MR, 2>(s, count, a, b, Prefetch::NONE), to, width),
            }
        }
        column += step * S::LANES;
    }
}
