//! What differs between attention in f32 and in bf16: the two products, and how their operands lie in memory.

use super::element::Element;
use super::heads::Heads;
use super::pairs::{Pair, PairDot};
use super::simd::Simd;

/// Keys a block, a multiple of every core's panel.
pub(super) const BLOCK: usize = 192;

/// Some tokens of one head.
#[derive(Clone, Copy)]
pub(super) struct Tokens<'a, T> {
    pub heads: &'a Heads<'a, T>,
    /// The row and the token in it where the row starts.
    pub row: (usize, usize),
    pub h: usize,
    /// The first token, and how many.
    pub from: usize,
    pub count: usize,
    /// Numbers a head.
    pub d: usize,
}

impl<T: Element> Tokens<'_, T> {
    /// Token `i` of these in f32, by way of `buffer` if need be; zeros past the last.
    #[inline(always)]
    pub fn floats<'b>(&'b self, i: usize, buffer: &'b mut [f32]) -> &'b [f32] {
        if i < self.count {
            T::floats(self.heads.row(self.row, self.from + i, self.h, self.d), buffer)
        } else {
            buffer[..self.d].fill(0.0);
            &buffer[..self.d]
        }
    }

    /// As [`floats`](Self::floats), rounded to bf16.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    #[inline(always)]
    pub fn pairs<D: PairDot>(&self, d: D, i: usize, buffer: &mut [f32], to: &mut [Pair]) {
        if i < self.count {
            T::to_pairs(d, self.heads.row(self.row, self.from + i, self.h, self.d), buffer, to);
        } else {
            to.fill(0);
        }
    }
}

/// The products of a tile of `ROWS` queries with a block of keys, and with their values. Memory is counted in floats,
/// whatever a core keeps in it.
pub(super) trait Core: Copy {
    type S: Simd;
    /// Queries a tile; memory of a tile is for all of them, also where there are fewer.
    const ROWS: usize;
    /// Keys that are packed together.
    const PANEL: usize;
    /// The scores of a tile, and what `add_values` makes of them.
    const SCORES: usize;

    fn simd(self) -> Self::S;
    /// A query or a key of `d` numbers.
    fn key_width(d: usize) -> usize;
    /// A row of the output of `d_v` numbers.
    fn value_width(d_v: usize) -> usize;
    /// The values before key `keys`.
    fn values_before(keys: usize, width_v: usize) -> usize;
    /// Factors on the queries and on the scores whose product is `scale`.
    fn split_scale(scale: f32) -> (f32, f32);

    /// Keys as panels of `PANEL`, filled up with zeros; `row` has room for two rows of them.
    fn pack_keys<T: Element>(self, keys: Tokens<T>, row: &mut [f32], to: &mut [f32]);
    /// Values, each filled up with zeros to `width_v`; so for [`pack_keys`](Self::pack_keys).
    fn pack_values<T: Element>(self, values: Tokens<T>, width_v: usize, row: &mut [f32], to: &mut [f32]);
    /// Queries times `factor`; those that fill up the last tile are zero.
    fn pack_queries<T: Element>(self, queries: Tokens<T>, factor: f32, row: &mut [f32], to: &mut [f32]);

    /// `queries` of a tile times `count` keys of a block → the first `ROWS · BLOCK` of `scores`.
    fn scores(self, rows: usize, queries: &[f32], d: usize, keys: &[f32], count: usize, scores: &mut [f32]);
    /// The first `count` weights of each row of `scores`, times `values`, added to `sums` `(ROWS, width_v)`.
    fn add_values(
        self,
        rows: usize,
        scores: &mut [f32],
        values: &[f32],
        count: usize,
        sums: &mut [f32],
        width_v: usize,
    );
}
