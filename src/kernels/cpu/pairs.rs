//! Products of bf16 numbers by instructions that take two terms of a sum at a time and add in f32.

use half::bf16;

use super::simd::Simd;

/// Two bf16 numbers: the first in the low half.
pub(crate) type Pair = u32;

/// A tile of a product: `rows` rows by `vectors` vectors of 16 columns, over `pairs` pairs of terms.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    pub rows: usize,
    pub vectors: usize,
    pub pairs: usize,
    /// Numbers from one row of A (pairs), of B (pairs) and of C (floats) to the next.
    pub a_row: usize,
    pub b_row: usize,
    pub c_row: usize,
    /// Whether the product is added to C or replaces it.
    pub add: bool,
}

/// Numbers a vector of columns.
pub(super) const COLUMNS: usize = 16;

/// Instructions that multiply bf16 numbers. As with [`Simd`], a value is the proof that the processor has them.
///
/// An element of a product is a sum over the pairs in order, whichever others are computed with it. Products are exact
/// and sums are in f32; numbers below the smallest normal one count as 0.
///
/// # Safety
/// `tile` touches what it says and nothing else.
pub(crate) unsafe trait PairDot: Copy + Send + Sync {
    /// Rows that a tile may have at most; memory of A and C has to reach that far.
    const ROWS: usize;
    /// Vectors of columns that a tile may have at most.
    const VECTORS: usize;
    /// The number of pairs of a product is a multiple of this.
    const STEP: usize;

    /// Prepares the thread; between this and `end`, nothing else may use the instructions on it.
    fn begin(self);
    fn end(self);

    /// Rounds to nearest, ties to even; `to` beyond `from` becomes 0.
    fn round(self, from: &[f32], to: &mut [Pair]);

    /// `C = A · B` or `C += A · B`.
    ///
    /// # Safety
    /// A can be read for `ROWS` rows of `pairs`; B for `pairs` rows of `16 · vectors`; C can be written for `ROWS` rows of
    /// `16 · vectors`; `rows` and `vectors` are from 1 to the largest; `pairs` is a multiple of `STEP`; the thread is
    /// between `begin` and `end`.
    unsafe fn tile(self, tile: Tile, a: *const Pair, b: *const Pair, c: *mut f32);
}

/// Work that has a version for [`PairDot`]. `run` has to be `#[inline(always)]`.
pub(super) trait PairKernel {
    fn run<S: Simd, D: PairDot>(self, s: S, d: D);
}

pub(super) fn pair(low: f32, high: f32) -> Pair {
    u32::from(bf16::from_f32(low).to_bits()) | u32::from(bf16::from_f32(high).to_bits()) << 16
}

/// The last floats of `from`, after `done` of them (an even number), and zeros behind.
#[inline(always)]
pub(super) fn round_rest(from: &[f32], to: &mut [Pair], done: usize) {
    let (numbers, zeros) = to.split_at_mut(from.len().div_ceil(2));
    for (to, from) in numbers[done / 2..].iter_mut().zip(from[done..].chunks(2)) {
        *to = pair(from[0], from.get(1).copied().unwrap_or(0.0));
    }
    zeros.fill(0);
}

/// Floats as the pairs that lie in their memory.
#[inline(always)]
pub(super) fn as_pairs(slots: &[f32]) -> &[Pair] {
    // SAFETY: same size and alignment, and any bits are valid.
    unsafe { std::slice::from_raw_parts(slots.as_ptr().cast(), slots.len()) }
}

/// As [`as_pairs`], to write.
#[inline(always)]
pub(super) fn as_pairs_mut(slots: &mut [f32]) -> &mut [Pair] {
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts_mut(slots.as_mut_ptr().cast(), slots.len()) }
}
