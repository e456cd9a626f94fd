//! Products of pairs of 16-bit numbers: instructions that multiply them and add the products in f32.

use super::microkernel::Prefetch;
use crate::convert::{Convert, Pair, PairFormat, copy_pairs};

/// Values in a vector of columns.
pub(crate) const VECTOR_COLUMNS: usize = 16;

/// A tile of a product `C = A · B`: `rows` rows by `vectors` vectors of 16 columns, summed over `pairs` pairs.
#[derive(Clone, Copy)]
pub(crate) struct PairTile {
    pub rows: usize,
    pub vectors: usize,
    pub pairs: usize,
    pub layout: TileLayout,
    /// From one row of C to the next, in f32 values.
    pub c_stride: usize,
    /// Whether the product is added to C. Otherwise it replaces C.
    pub accumulate: bool,
    /// Memory that is fetched meanwhile, by AVX-512.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "has been measured with AVX-512 only"))]
    pub prefetch: Prefetch,
}

/// How A and B lie in memory.
#[derive(Clone, Copy)]
pub(crate) enum TileLayout {
    /// Row by row. From one row to the next there are `a` pairs of A, and `b` of B.
    Rows { a: usize, b: usize },
    /// In the [`PairDot::ORDER`] of the instructions, without gaps. B has the columns of the largest tile.
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
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "the order of AMX"))]
    Blocks,
    /// Two neighboring pairs of a row of A, and those of the next row: two rows along their pairs, and then the next
    /// two. Two neighboring pairs of a column of B, and those of the next column; and then the next two pairs.
    #[cfg_attr(not(target_arch = "aarch64"), allow(dead_code, reason = "the order of BFMMLA"))]
    Quads,
}

impl PairOrder {
    /// Neighboring pairs of a row that stay together, and the number of rows that do, unless they are whole rows.
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

/// Instructions that multiply pairs. A value is a capability token: see
/// [`InstructionSet`](super::kernel::InstructionSet).
///
/// An element of a product is a sum over the pairs in order, whichever other elements are computed with it. Products
/// are exact and sums are f32. Subnormal values of bf16 may count as 0.
///
/// # Safety
/// `multiply_tile` accesses the memory that its own safety section names, and nothing else.
pub(crate) unsafe trait PairDot: Copy + Send + Sync {
    /// The numbers of its pairs.
    const FORMAT: PairFormat;
    /// The largest number of rows of a tile. The memory of A and C must always have this many.
    const MAX_ROWS: usize;
    /// The largest number of vectors of a tile.
    const MAX_VECTORS: usize;
    /// The number of pairs of a product must be a multiple of this.
    const PAIR_STEP: usize;
    /// Whether [`Simd::dot_pairs`](super::simd::Simd::dot_pairs) of the vectors beside these instructions gives the
    /// bits of their sums.
    const BY_VECTORS: bool = false;
    /// The order in which A and B may be [`TileLayout::Packed`], and are faster so. [`PairOrder::Rows`] if there is
    /// none.
    const ORDER: PairOrder;

    /// Rounds to nearest, ties to even, and fills the rest of `to` with zeros.
    fn round_to_pairs(self, from: &[f32], to: &mut [Pair]);

    /// Rounds values of any dtype. `buffer` is at least as long as `from`.
    #[inline(always)]
    fn to_pairs<T: Convert>(self, from: &[T], buffer: &mut [f32], to: &mut [Pair]) {
        match T::as_halves(Self::FORMAT, from) {
            Some(halves) => copy_pairs(halves, to),
            None => self.round_to_pairs(T::as_f32(from, buffer), to),
        }
    }

    /// Computes one tile of a product.
    ///
    /// # Safety
    /// - A can be read for `MAX_ROWS` rows of `pairs` pairs, B for `pairs` rows of `16 · vectors` pairs, in the layout
    ///   of the tile, which is one that these instructions take. C can be written (and read, to accumulate) for
    ///   `MAX_ROWS` rows of `16 · vectors` values. A packed tile has all vectors.
    /// - `rows` and `vectors` are from 1 to their largest; `pairs` is a multiple of `PAIR_STEP`.
    /// - The caller is a kernel under [`InstructionSet::run_pairs`](super::kernel::InstructionSet::run_pairs) of the
    ///   format.
    unsafe fn multiply_tile(self, tile: PairTile, a: *const Pair, b: *const Pair, c: *mut f32);
}

/// Rounds the values of `from` after the first `done` (an even number), and fills the rest of `to` with zeros.
#[inline(always)]
pub(crate) fn round_tail(format: PairFormat, from: &[f32], to: &mut [Pair], done: usize) {
    let (pairs, zeros) = to.split_at_mut(from.len().div_ceil(2));
    for (to, from) in pairs[done / 2..].iter_mut().zip(from[done..].chunks(2)) {
        *to = format.pair(from[0], from.get(1).copied().unwrap_or(0.0));
    }
    zeros.fill(0);
}
