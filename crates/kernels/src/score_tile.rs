//! Score tiles: the two products of attention, and the memory layouts of their operands. They are all that differs
//! between attention in f32 and in bf16.

use std::ops::Range;

use super::convert::Convert;
use super::isa::pair_dot::{Pair, PairDot};
use super::isa::simd::Simd;
use super::problem::HeadsView;

/// Keys per key block, a multiple of every tile's panel. The scores of a tile and the packed keys and values of a block
/// stay in the L1 and L2 cache.
pub(super) const KEY_BLOCK: usize = 192;

/// Bytes that are fetched into the cache together.
const CACHE_LINE: usize = 64;

/// One head of consecutive tokens.
#[derive(Clone, Copy)]
pub(super) struct Tokens<'a, T> {
    pub heads: &'a HeadsView<'a, T>,
    /// Where the sequence starts: the batch row, and the token in it.
    pub start: (usize, usize),
    pub h: usize,
    /// The first token, counted from the start of the sequence.
    pub from: usize,
    pub count: usize,
    /// Values per token.
    pub d: usize,
}

impl<T: Convert> Tokens<'_, T> {
    /// Token `i` in f32, upcast into `buffer` unless it is f32 already. Zeros after the last token.
    #[inline(always)]
    pub fn as_f32<'b>(&'b self, i: usize, buffer: &'b mut [f32]) -> &'b [f32] {
        if i < self.count {
            T::as_f32(self.heads.head(self.start, self.from + i, self.h, self.d), buffer)
        } else {
            buffer[..self.d].fill(0.0);
            &buffer[..self.d]
        }
    }

    /// Fetches tokens `range` into the cache.
    #[inline(always)]
    pub fn prefetch<S: Simd>(&self, s: S, range: Range<usize>) {
        let [of_batch, of_token, of_head] = self.heads.strides;
        for i in range {
            let at = self.start.0 * of_batch + (self.start.1 + self.from + i) * of_token + self.h * of_head;
            let token = self.heads.data.as_ptr().wrapping_add(at).cast::<f32>();
            for byte in (0..self.d * size_of::<T>()).step_by(CACHE_LINE) {
                s.prefetch(token.wrapping_byte_add(byte));
            }
        }
    }

    /// Token `i` as pairs: where it is, if it is that in memory, and else rounded to `to`. Zeros after the last token.
    #[cfg_attr(
        not(any(target_arch = "x86_64", target_arch = "aarch64")),
        allow(dead_code, reason = "no bf16 products")
    )]
    #[inline(always)]
    pub fn as_pairs<'b, D: PairDot>(&'b self, dot: D, i: usize, buffer: &mut [f32], to: &'b mut [Pair]) -> &'b [Pair] {
        if i < self.count
            && let Some(pairs) = T::as_pairs(D::FORMAT, self.heads.head(self.start, self.from + i, self.h, self.d))
            && pairs.len() == to.len()
        {
            return pairs;
        }
        self.write_pairs(dot, i, buffer, to);
        to
    }

    /// Writes token `i` as bf16 pairs. Zeros after the last token.
    #[cfg_attr(
        not(any(target_arch = "x86_64", target_arch = "aarch64")),
        allow(dead_code, reason = "no bf16 products")
    )]
    #[inline(always)]
    pub fn write_pairs<D: PairDot>(&self, dot: D, i: usize, buffer: &mut [f32], to: &mut [Pair]) {
        if i < self.count {
            T::to_pairs(dot, self.heads.head(self.start, self.from + i, self.h, self.d), buffer, to);
        } else {
            to.fill(0);
        }
    }
}

/// Computes a tile of scores, `ROWS` queries by one key block, and multiplies it with the values.
///
/// Packed operands are kept in f32 slices, whatever a tile stores in them, and all sizes count f32 values.
pub(super) trait ScoreTile: Copy {
    type S: Simd;
    /// Queries per tile. The memory of a tile is for all of them, even if fewer are used.
    const ROWS: usize;
    /// Keys that are packed together.
    const PANEL: usize;
    /// Size of the scores of a tile, with the memory that `accumulate_values` needs beside them.
    const SCORES: usize;
    /// The smallest magnitude of a value that is packed as infinity.
    const INFINITE: f32;

    fn simd(self) -> Self::S;
    /// `e^x` for `x <= 0`, as precise as attention weights are.
    fn exp(self, x: <Self::S as Simd>::V) -> <Self::S as Simd>::V;
    /// Size of a packed query or key of `d` values.
    fn key_width(d: usize) -> usize;
    /// Size of an output row of `d_v` values.
    fn value_width(d_v: usize) -> usize;
    /// Where the packed values of key `key` start.
    fn values_offset(key: usize, width_v: usize) -> usize;
    /// Splits `scale` into a factor on queries of type `T` and a factor on the scores.
    fn split_scale<T: Convert>(scale: f32) -> (f32, f32);

    /// Packs keys into panels of `PANEL`; the last panel is zero-padded. `buffer` has room for as many tokens as a
    /// vector has lanes, and two more.
    fn pack_keys<T: Convert>(self, keys: Tokens<T>, buffer: &mut [f32], to: &mut [f32]);
    /// Packs values, each zero-padded to `width_v`. `buffer` has room for two tokens.
    fn pack_values<T: Convert>(self, values: Tokens<T>, width_v: usize, buffer: &mut [f32], to: &mut [f32]);
    /// Packs queries times `factor`; the last tile is zero-padded. `buffer` has room for two tokens.
    fn pack_queries<T: Convert>(self, queries: Tokens<T>, factor: f32, buffer: &mut [f32], to: &mut [f32]);

    /// Writes the products of the tile's queries with `count` keys of a block: `(ROWS, KEY_BLOCK)`, the start of
    /// `scores`.
    fn scores(self, rows: usize, queries: &[f32], d: usize, keys: &[f32], count: usize, scores: &mut [f32]);
    /// Adds the products of the first `count` attention weights of each row with `values` to `output` `(ROWS,
    /// width_v)`.
    fn accumulate_values(
        self,
        rows: usize,
        attention_weights: &mut [f32],
        values: &[f32],
        count: usize,
        output: &mut [f32],
        width_v: usize,
    );
}
