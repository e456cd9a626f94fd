//! The products of the backward pass of attention, a block of queries by a block of keys at a time.

use super::isa::microkernel::{Lhs, Prefetch, Rhs, add_product, microkernel, store_rows};
use super::isa::simd::{MAX_LANES, Simd};
use super::mask::KEY_BLOCK;
use super::online_softmax::TilePos;

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
        let a = Lhs::columns(weights[key..].as_ptr(), KEY_BLOCK);
        // SAFETY: `weights` has `last - first` rows of `KEY_BLOCK` values, of which those from `key` on are at least
        // `MR`; `rows` has as many of `width`, and `to` `MR`.
        unsafe { add_product::<S, f32, MR, NR>(s, last - first, a, (rows.as_ptr(), width), to.as_mut_ptr(), width) };
    }
}
