//! Score tiles: the two products of attention, and the memory layouts of their operands. They are all that differs
//! between attention in f32, bf16 and int8.

use std::ops::Range;

use half::{bf16, f16};

use super::convert::Pair;
use super::elements::Elements;
use super::error::Result;
use super::exp::exp;
use super::isa::microkernel::{StridedRows, pack_rows};
use super::isa::pair_dot::PairDot;
use super::isa::simd::{MAX_LANES, Simd, VectorKernel};
use super::mask::KEY_BLOCK;
use super::problem::{Heads, Problem};

/// Queries that are multiplied with a key block before the next key block is fetched; with some more in whole tiles.
pub(super) const QUERY_BLOCK: usize = 64;

/// The smallest number of whole tiles of `rows` queries from [`QUERY_BLOCK`] on.
pub(super) const fn query_block(rows: usize) -> usize {
    QUERY_BLOCK.next_multiple_of(rows)
}

/// Bytes that are fetched into the cache together.
const CACHE_LINE: usize = 64;

/// One head of consecutive tokens.
#[derive(Clone, Copy)]
pub(super) struct Tokens<'a> {
    pub heads: Heads<'a>,
    /// Where the sequence starts: the batch row, and the token in it.
    pub start: (usize, usize),
    pub h: usize,
    /// The first token, counted from the start of the sequence.
    pub from: usize,
    pub count: usize,
    /// Values per token.
    pub d: usize,
}

impl<'a> Tokens<'a> {
    /// The first keys of a key-value head of a sequence.
    pub fn keys(problem: &Problem<'a>, b: usize, h: usize, count: usize) -> Self {
        Self { heads: problem.k, start: problem.batch.start(b), h, from: 0, count, d: problem.d }
    }

    /// The first values of a key-value head of a sequence.
    pub fn values(problem: &Problem<'a>, b: usize, h: usize, count: usize) -> Self {
        Self { heads: problem.v, d: problem.d_v, ..Self::keys(problem, b, h, count) }
    }

    /// Token `i`.
    #[inline(always)]
    pub fn token(&self, i: usize) -> Elements<'a> {
        self.heads.head(self.start, self.from + i, self.h, self.d)
    }

    /// Token `i` in f32, upcast into `buffer` unless it is f32 already. Zeros after the last token.
    #[inline(always)]
    pub fn as_f32<'b>(&self, i: usize, buffer: &'b mut [f32]) -> &'b [f32]
    where
        'a: 'b,
    {
        if i < self.count {
            self.token(i).as_f32(buffer)
        } else {
            buffer[..self.d].fill(0.0);
            &buffer[..self.d]
        }
    }

    /// Rows of the first `LANES` tokens in f32, each with `width` values: where they are, or copied to `to` and padded
    /// with zeros. The tokens after the last one are zeros.
    #[inline(always)]
    pub fn f32_rows<S: Simd>(&self, _: S, width: usize, to: &mut [f32]) -> StridedRows {
        if self.heads.data.is_f32() && width == self.d && self.count >= S::LANES {
            return self.in_place();
        }
        assert!(to.len() >= S::LANES * width);
        for (i, to) in to.chunks_exact_mut(width).take(S::LANES).enumerate() {
            let (values, padding) = to.split_at_mut(self.d);
            if i < self.count {
                self.token(i).upcast(values)
            } else {
                values.fill(0.0)
            }
            padding.fill(0.0);
        }
        StridedRows { at: to.as_ptr(), stride: width }
    }

    /// [`f32_rows`](Self::f32_rows) in the dtype of the tokens, if they are read where they are.
    #[inline(always)]
    pub fn rows<S: Simd>(&self, s: S, width: usize, to: &mut [f32]) -> Rows {
        if width == self.d && self.count >= S::LANES && S::MULTIPLIES_HALVES {
            let stride = self.heads.strides[1];
            let (first, _last) = (self.token(0), self.token(self.count - 1)); // both are checked to be in memory
            match first {
                Elements::F16(values) => return Rows::F16(StridedRows { at: values.as_ptr(), stride }),
                Elements::Bf16(values) => return Rows::Bf16(StridedRows { at: values.as_ptr(), stride }),
                Elements::F32(_) | Elements::Int8(_) => {}
            }
        }
        Rows::F32(self.f32_rows(s, width, to))
    }

    /// [`f32_rows`](Self::f32_rows) of `width` pairs. `buffer` has room for one token.
    #[inline(always)]
    pub fn pair_rows<S: Simd, D: PairDot>(
        &self,
        (_, dot): (S, D),
        width: usize,
        buffer: &mut [f32],
        to: &mut [Pair],
    ) -> StridedRows {
        let whole = self.d == 2 * width && self.heads.strides[1].is_multiple_of(2) && self.count >= S::LANES;
        if whole && self.token(0).as_pairs(D::FORMAT).is_some() {
            return self.in_place();
        }
        assert!(to.len() >= S::LANES * width);
        for (i, to) in to.chunks_exact_mut(width).take(S::LANES).enumerate() {
            self.write_pairs(dot, i, buffer, to);
        }
        StridedRows { at: to.as_ptr().cast(), stride: width }
    }

    /// The rows of the tokens where they are, if these are whole f32 values or pairs.
    #[inline(always)]
    fn in_place(&self) -> StridedRows {
        let (first, _last) = (self.token(0), self.token(self.count - 1)); // both are checked to be in memory
        let stride = self.heads.strides[1] * first.size() / size_of::<f32>();
        StridedRows { at: first.start().cast(), stride }
    }

    /// The tokens of one step, from `from` on and before `end`.
    pub fn step<C: ScoreTile>(self, from: usize, end: usize) -> Self {
        Self { from, count: C::STEP.min(end.saturating_sub(from)), ..self }
    }

    /// The tokens after the first `count`.
    pub fn after(self, count: usize) -> Self {
        Self { from: self.from + count, count: self.count.saturating_sub(count), ..self }
    }

    /// Token `i` as pairs: where it is, if it is that in memory, and else rounded to `to`. Zeros after the last token.
    #[inline(always)]
    pub fn as_pairs<'b, D: PairDot>(&self, dot: D, i: usize, buffer: &mut [f32], to: &'b mut [Pair]) -> &'b [Pair]
    where
        'a: 'b,
    {
        if i < self.count
            && let Some(pairs) = self.token(i).as_pairs(D::FORMAT)
            && pairs.len() == to.len()
        {
            return pairs;
        }
        self.write_pairs(dot, i, buffer, to);
        to
    }

    /// Writes token `i` as bf16 pairs. Zeros after the last token.
    #[inline(always)]
    pub fn write_pairs<D: PairDot>(&self, dot: D, i: usize, buffer: &mut [f32], to: &mut [Pair]) {
        if i < self.count {
            self.token(i).to_pairs(dot, buffer, to);
        } else {
            to.fill(0);
        }
    }
}

/// Rows of tokens.
#[derive(Clone, Copy)]
pub(super) enum Rows {
    F32(StridedRows),
    F16(StridedRows<f16>),
    Bf16(StridedRows<bf16>),
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
    /// Keys that few queries are multiplied with at a time.
    const STEP: usize;
    /// Size of the scores of a tile, with the memory that `accumulate_values` needs beside them.
    const SCORES: usize = Self::ROWS * KEY_BLOCK;
    /// The smallest magnitude of a value that is packed as infinity.
    const INFINITE: f32 = f32::INFINITY;

    fn simd(self) -> Self::S;
    /// `e^x` for `x <= 0`, as precise as attention weights are.
    #[inline(always)]
    fn exp(self, x: <Self::S as Simd>::V) -> <Self::S as Simd>::V {
        exp(self.simd(), x)
    }
    /// Stores the attention weights of the keys from `key` on in their row, where the products with values read them:
    /// not after their scores.
    ///
    /// # Safety
    /// The scores of these keys, as many as a vector has lanes, can be written in `row`.
    #[inline(always)]
    unsafe fn store_weights(self, row: *mut f32, key: usize, weights: <Self::S as Simd>::V) {
        // SAFETY: the caller promises it.
        unsafe { self.simd().store(row.add(key), weights) };
    }
    /// Size of a packed key of `d` values.
    fn key_width(d: usize) -> usize;
    /// Size of a packed query of `d` values.
    fn query_width(d: usize) -> usize {
        Self::key_width(d)
    }
    /// Size of an output row of `d_v` values.
    fn value_width(d_v: usize) -> usize;
    /// Where the packed values of key `key` start.
    fn values_offset(key: usize, width_v: usize) -> usize;
    /// Splits `scale` into a factor on the queries and a factor on the scores.
    fn split_scale(scale: f32, _queries_are_f32: bool) -> (f32, f32) {
        (scale, 1.0)
    }

    /// The rows of the first keys, as many as a vector has lanes, each as large as a packed key, zeros after the last
    /// one. `buffer` has room for as many tokens, and two more.
    fn key_rows(self, keys: Tokens, buffer: &mut [f32]) -> StridedRows;
    /// Packs keys into panels of `PANEL`: the first value, or pair, of each key, then the second, and so on. The last
    /// panel is zero-padded. `buffer` is that of `key_rows`.
    #[inline(always)]
    fn pack_keys(self, keys: Tokens, buffer: &mut [f32], to: &mut [f32]) {
        let (lanes, width) = (const { <Self::S as Simd>::LANES }, Self::key_width(keys.d));
        for (panel, to) in to.chunks_exact_mut(Self::PANEL * width).enumerate() {
            for first in (0..Self::PANEL).step_by(lanes) {
                let rows = self.key_rows(keys.after(panel * Self::PANEL + first), buffer);
                // SAFETY: the rows have `width` values, which are moved as they are.
                unsafe { pack_rows(self.simd(), rows, width, &mut to[first..], Self::PANEL) };
            }
        }
    }
    /// Packs values, each zero-padded to `width_v`. `buffer` has room for two tokens.
    fn pack_values(self, values: Tokens, width_v: usize, buffer: &mut [f32], to: &mut [f32]);
    /// Packs queries times `factor`; the last tile is zero-padded. `buffer` has room for two tokens.
    fn pack_queries(self, queries: Tokens, factor: f32, buffer: &mut [f32], to: &mut [f32]);

    /// Writes the products of the tile's queries with `count` keys of a block: `(ROWS, KEY_BLOCK)`, the start of
    /// `scores`.
    fn scores(self, rows: usize, queries: &[f32], d: usize, keys: &[f32], count: usize, scores: &mut [f32]);
    /// Adds the products of the first `count` attention weights of each row, as [`store_weights`](Self::store_weights)
    /// has stored them, with `values` to `output` `(ROWS, width_v)`.
    fn accumulate_values(
        self,
        rows: usize,
        attention_weights: &mut [f32],
        values: &[f32],
        count: usize,
        output: &mut [f32],
        width_v: usize,
    );

    /// [`scores`](Self::scores) with at most `STEP` keys that no other tile reads. `scores` starts at the first of
    /// them.
    fn scores_of_step(self, rows: usize, queries: &[f32], keys: Tokens, memory: StepMemory, scores: &mut [f32]);
    /// [`accumulate_values`](Self::accumulate_values) of at most `STEP` keys of a block that no other tile reads. The
    /// steps of a block follow each other, and its attention weights start at the first one.
    fn accumulate_step(
        self,
        rows: usize,
        attention_weights: &mut [f32],
        values: Tokens,
        step: Step,
        memory: StepMemory,
        output: &mut [f32],
    );
}

/// A kernel on score tiles: written once, it runs in f32, bf16 or int8. `run` must be `#[inline(always)]`, for the
/// reason given at [`Kernel`](super::isa::kernel::Kernel).
pub(super) trait TileKernel {
    fn run<C: ScoreTile>(self, tile: C) -> Result<()>;
}

/// The tokens that are packed.
#[derive(Clone, Copy)]
pub(super) enum Packing {
    /// [`ScoreTile::pack_keys`].
    Keys,
    /// [`ScoreTile::pack_values`].
    Values { width_v: usize },
    /// [`ScoreTile::pack_queries`].
    Queries { factor: f32 },
}

/// Packs tokens for a tile, with a `buffer` for two tokens and for as many as a vector has lanes.
pub(super) fn pack<C: ScoreTile>(tile: C, packing: Packing, tokens: Tokens, buffer: &mut [f32], to: &mut [f32]) {
    tile.simd().call(Pack { tile, packing, tokens, buffer, to });
}

struct Pack<'a, C> {
    tile: C,
    packing: Packing,
    tokens: Tokens<'a>,
    buffer: &'a mut [f32],
    to: &'a mut [f32],
}

impl<C: ScoreTile> VectorKernel for Pack<'_, C> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { tile, packing, tokens, buffer, to } = self;
        match packing {
            Packing::Keys => tile.pack_keys(tokens, buffer, to),
            Packing::Values { width_v } => tile.pack_values(tokens, width_v, buffer, to),
            Packing::Queries { factor } => tile.pack_queries(tokens, factor, buffer, to),
        }
    }
}

/// A part of a block of keys.
#[derive(Clone, Copy)]
pub(super) struct Step {
    /// The keys of the block before it, a multiple of [`ScoreTile::STEP`].
    pub before: usize,
    /// The keys of the block.
    pub block: usize,
    pub width_v: usize,
}

/// Memory for one step.
pub(super) struct StepMemory<'a> {
    /// That of [`ScoreTile::pack_keys`] and [`ScoreTile::pack_values`].
    pub buffer: &'a mut [f32],
    /// For keys or values, packed or in rows.
    pub packed: &'a mut [f32],
    /// `(ROWS, width_v)`: sums over the steps of a block so far.
    pub sums: &'a mut [f32],
    /// Memory that the next step reads.
    pub ahead: PrefetchRows,
}

impl StepMemory<'_> {
    /// The size of `packed` for heads of `width` values.
    pub fn packed_size<C: ScoreTile>(width: usize) -> usize {
        C::STEP * (width + 2 * MAX_LANES)
    }
}

/// Rows of heads that are fetched into the cache while others are computed.
///
/// They follow each other by token and then by head, which is mostly the order of memory: so they come faster than head
/// by head. Processors fetch ahead themselves, but only within a page.
#[derive(Clone, Copy)]
pub(super) struct PrefetchRows {
    /// The next row, its head, and how many rows are still to be fetched.
    at: *const f32,
    head: usize,
    left: usize,
    heads: usize,
    /// In bytes: a row, and from one to the next, of the same token or not.
    row: usize,
    of_head: usize,
    of_token: usize,
}

impl PrefetchRows {
    /// No rows.
    pub const NONE: Self = Self { at: std::ptr::null(), head: 0, left: 0, heads: 0, row: 0, of_head: 0, of_token: 0 };

    /// Rows `range` of all rows of `tokens` and so many heads from theirs on.
    #[inline(always)]
    pub fn new(tokens: Tokens, heads: usize, range: Range<usize>) -> Self {
        let Tokens { heads: view, start, h, from, count, d } = tokens;
        let ([_, of_token, of_head], size) = (view.strides, view.data.size());
        let (token, head) = (range.start / heads, range.start % heads);
        let at = view.offset(start, from + token, h + head);
        Self {
            at: view.data.start().wrapping_add(at * size).cast(),
            head,
            left: range.end.min(count * heads).saturating_sub(range.start),
            heads,
            row: view.data.head_size(d) * size,
            of_head: of_head * size,
            of_token: of_token.wrapping_sub((heads - 1) * of_head).wrapping_mul(size),
        }
    }

    /// Fetches the next `rows` rows, if there are as many.
    #[inline(always)]
    pub fn fetch<S: Simd>(&mut self, s: S, rows: usize) {
        for _ in 0..rows.min(self.left) {
            self.fetch_row(s);
        }
    }

    /// Fetches the next row, if there is one.
    #[inline(always)]
    pub fn fetch_row<S: Simd>(&mut self, s: S) {
        if self.left > 0 {
            self.left -= 1;
            for byte in (0..self.row).step_by(CACHE_LINE) {
                s.prefetch(self.at.wrapping_byte_add(byte));
            }
            let is_last = self.head + 1 == self.heads;
            self.head = if is_last { 0 } else { self.head + 1 };
            self.at = self.at.wrapping_byte_add(if is_last { self.of_token } else { self.of_head });
        }
    }
}
