//! Score tiles: the two products of attention, and the memory layouts of their operands. They are all that differs
//! between attention in f32 and in bf16.

use super::convert::Convert;
use super::isa::pair_dot::{Pair, PairDot};
use super::isa::simd::Simd;
use super::problem::HeadsView;

/// Keys per key block, a multiple of every tile's panel. The scores of a tile and the packed keys and values of a block
/// stay in the L1 and L2 cache.
pub(super) const KEY_BLOCK: usize = 192;

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

    /// The view of the heads, if they are f32.
    #[inline(always)]
    pub fn f32_heads(&self) -> Option<HeadsView<'_, f32>> {
        T::IS_F32.then(|| HeadsView { data: T::as_f32(self.heads.data, &mut []), strides: self.heads.strides })
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

    /// [`scores`](Self::scores) of one tile with keys that no other tile reads, at most a block. `memory` is for keys
    /// in packed form: not all need it.
    fn scores_of_unpacked<T: Convert>(
        self,
        rows: usize,
        queries: &[f32],
        keys: Tokens<T>,
        memory: UnpackedMemory,
        scores: &mut [f32],
    );
    /// [`accumulate_values`](Self::accumulate_values) of values that no other tile reads, at most a block.
    fn accumulate_unpacked<T: Convert>(
        self,
        rows: usize,
        attention_weights: &mut [f32],
        values: Tokens<T>,
        memory: UnpackedMemory,
        output: &mut [f32],
        width_v: usize,
    );
}

/// Memory for a block of keys or values that is packed for one tile.
pub(super) struct UnpackedMemory<'a> {
    /// That of [`ScoreTile::pack_keys`] and [`ScoreTile::pack_values`].
    pub buffer: &'a mut [f32],
    /// For the packed block, whole panels.
    pub packed: &'a mut [f32],
}

/// [`ScoreTile::scores_of_unpacked`] by packing the keys.
#[inline(always)]
pub(super) fn scores_of_packed<C: ScoreTile, T: Convert>(
    tile: C,
    rows: usize,
    queries: &[f32],
    keys: Tokens<T>,
    memory: UnpackedMemory,
    scores: &mut [f32],
) {
    let packed = &mut memory.packed[..keys.count.next_multiple_of(C::PANEL) * C::key_width(keys.d)];
    tile.pack_keys(keys, memory.buffer, packed);
    tile.scores(rows, queries, keys.d, packed, keys.count, scores);
}

/// [`ScoreTile::accumulate_unpacked`] by packing the values.
#[inline(always)]
pub(super) fn accumulate_packed<C: ScoreTile, T: Convert>(
    tile: C,
    rows: usize,
    attention_weights: &mut [f32],
    values: Tokens<T>,
    memory: UnpackedMemory,
    output: &mut [f32],
    width_v: usize,
) {
    let packed = &mut memory.packed[..C::values_offset(values.count.next_multiple_of(C::PANEL), width_v)];
    tile.pack_values(values, width_v, memory.buffer, packed);
    tile.accumulate_values(rows, attention_weights, packed, values.count, output, width_v);
}
