//! Products of bf16 pairs: instructions that multiply two terms of a sum at once and add them in f32.

use half::bf16;

/// A bf16 pair: two neighboring terms of a sum, the first in the low half.
pub(crate) type Bf16x2 = u32;

/// Values in a vector of columns.
pub(crate) const VECTOR_COLUMNS: usize = 16;

/// A tile of a product `C = A · B`: `rows` rows by `vectors` vectors of 16 columns, summed over `pairs` pairs.
#[derive(Clone, Copy)]
pub(crate) struct Bf16Tile {
    pub rows: usize,
    pub vectors: usize,
    pub pairs: usize,
    pub layout: TileLayout,
    /// From one row of C to the next, in f32 values.
    pub c_stride: usize,
    /// Whether the product is added to C. Otherwise it replaces C.
    pub accumulate: bool,
}

/// How A and B lie in memory.
#[derive(Clone, Copy)]
pub(crate) enum TileLayout {
    /// Row by row. From one row to the next there are `a` pairs of A, and `b` of B.
    Rows { a: usize, b: usize },
    /// In the [`Bf16Dot::ORDER`] of the instructions, without gaps. B has the columns of the largest tile.
    Packed,
}

/// The order of the pairs of packed weights, and of inputs that are multiplied with them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) enum PairOrder {
    /// Row by row.
    #[default]
    Rows,
    /// Blocks of 16 rows by 16 pairs: those of A along its pairs, and then those of the next 16 rows; those of B along
    /// its columns, and then those of the next 16 pairs.
    Blocks,
    /// Two neighboring pairs of a row of A, and those of the next row: two rows along their pairs, and then the next
    /// two. Two neighboring pairs of a column of B, and those of the next column; and then the next two pairs.
    Quads,
}

impl PairOrder {
    /// Rows of A in the order of which all have their part, and pairs of a row that stay together, if not all do.
    pub(crate) const fn block(self) -> usize {
        match self {
            Self::Rows => 1,
            Self::Blocks => 16,
            Self::Quads => 2,
        }
    }

    /// Where a pair of a row of A is, for rows of `pairs` pairs.
    #[inline(always)]
    pub(crate) fn place_in_rows(self, row: usize, pair: usize, pairs: usize) -> usize {
        let block = self.block();
        match self {
            Self::Rows => row * pairs + pair,
            Self::Blocks | Self::Quads => {
                (row / block * pairs + pair / block * block + row % block) * block + pair % block
            }
        }
    }

    /// Where a pair of a column of B is, for `width` columns.
    #[inline(always)]
    pub(crate) fn place_in_columns(self, pair: usize, column: usize, width: usize) -> usize {
        match self {
            Self::Rows | Self::Blocks => self.place_in_rows(pair, column, width),
            Self::Quads => (pair / 2 * width + column) * 2 + pair % 2,
        }
    }
}

/// Instructions that multiply bf16 pairs. A value is a capability token: see
/// [`InstructionSet`](super::kernel::InstructionSet).
///
/// An element of a product is a sum over the pairs in order, whichever other elements are computed with it. Products
/// are exact and sums are f32. Subnormal values count as 0.
///
/// # Safety
/// `multiply_tile` accesses the memory that its own safety section names, and nothing else.
pub(crate) unsafe trait Bf16Dot: Copy + Send + Sync {
    /// The largest number of rows of a tile. The memory of A and C must always have this many.
    const MAX_ROWS: usize;
    /// The largest number of vectors of a tile.
    const MAX_VECTORS: usize;
    /// The number of pairs of a product must be a multiple of this.
    const PAIR_STEP: usize;
    /// The order in which A and B may be [`TileLayout::Packed`], and are faster so. [`PairOrder::Rows`] if there is none.
    const ORDER: PairOrder;

    /// Rounds to nearest, ties to even, and fills the rest of `to` with zeros.
    fn round_to_bf16(self, from: &[f32], to: &mut [Bf16x2]);

    /// Computes one tile of a product.
    ///
    /// # Safety
    /// - A can be read for `MAX_ROWS` rows of `pairs` pairs, B for `pairs` rows of `16 · vectors` pairs, in the layout
    ///   of the tile, which is one that these instructions take. C can be written (and read, to accumulate) for
    ///   `MAX_ROWS` rows of `16 · vectors` values. A packed tile has all vectors.
    /// - `rows` and `vectors` are from 1 to their largest; `pairs` is a multiple of `PAIR_STEP`.
    /// - The caller is a kernel under [`InstructionSet::run_bf16`](super::kernel::InstructionSet::run_bf16).
    unsafe fn multiply_tile(self, tile: Bf16Tile, a: *const Bf16x2, b: *const Bf16x2, c: *mut f32);
}

/// Rounds two values to a bf16 pair.
pub(crate) fn bf16x2(first: f32, second: f32) -> Bf16x2 {
    u32::from(bf16::from_f32(first).to_bits()) | u32::from(bf16::from_f32(second).to_bits()) << 16
}

/// Rounds the values of `from` after the first `done` (an even number), and fills the rest of `to` with zeros.
#[inline(always)]
pub(super) fn round_tail(from: &[f32], to: &mut [Bf16x2], done: usize) {
    let (pairs, zeros) = to.split_at_mut(from.len().div_ceil(2));
    for (to, from) in pairs[done / 2..].iter_mut().zip(from[done..].chunks(2)) {
        *to = bf16x2(from[0], from.get(1).copied().unwrap_or(0.0));
    }
    zeros.fill(0);
}

/// Views f32 memory as memory of bf16 pairs.
#[inline(always)]
pub(crate) fn as_bf16x2(memory: &[f32]) -> &[Bf16x2] {
    // SAFETY: f32 and u32 have one size and alignment, and any bits are valid for both.
    unsafe { std::slice::from_raw_parts(memory.as_ptr().cast(), memory.len()) }
}

/// Views f32 memory as memory of bf16 pairs, to write.
#[inline(always)]
pub(crate) fn as_bf16x2_mut(memory: &mut [f32]) -> &mut [Bf16x2] {
    // SAFETY: f32 and u32 have one size and alignment, and any bits are valid for both.
    unsafe { std::slice::from_raw_parts_mut(memory.as_mut_ptr().cast(), memory.len()) }
}
