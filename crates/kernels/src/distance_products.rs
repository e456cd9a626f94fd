//! Products of queries and keys with embeddings of distances, within a task of the attention kernel.
//!
//! A task computes the products of a query block, and once per head those of its keys, with each embedding that it
//! meets: `(queries, embeddings)` and `(keys, embeddings)`. A pair of query and key finds its two products by the
//! embedding of its distance. Memory per thread is linear in the number of keys, and the same whatever the batch. Two
//! alternatives were rejected. The same products for the whole call would take the memory of all heads and sequences at
//! once. The products of a block of keys with only the distances to one query block need no memory per key, and no
//! lookup; but a key meets as many embeddings in each query block as in all of them together, so they are several times
//! more work than the scores themselves.
//!
//! The products are computed by the [`ScoreTile`], with embeddings in place of keys: they have the precision of scores.
//! Only embeddings of distances that occur are multiplied: few in a short sequence, and one or two for keys far from
//! the queries of a task. Distances beyond the first and the last embedding make most of a long sequence. There a query
//! has one product for all keys, and those of the keys are contiguous.

use std::ops::Range;

use super::elements::Elements;
use super::error::Result;
use super::isa::simd::{Simd, VectorKernel};
use super::mask::{DistanceEmbeddings, KEY_BLOCK};
use super::memory::{divide, element_count};
use super::problem::{Heads, Problem};
use super::score_tile::{Packing, ScoreTile, Tokens, pack};

/// Values between the products of one token and those of the next, beside the products: without them the products of
/// many keys with one embedding, if their number is a power of two, would share a few sets of the L1 cache.
const PADDING: usize = 16;

/// The products of a task with embeddings of distances.
pub(super) struct DistanceProducts<'a> {
    embeddings: DistanceEmbeddings<'a>,
    /// Values per token.
    stride: usize,
    /// The batch row and the token in it where the sequence starts.
    start: (usize, usize),
    /// Where the first query of the sequence stands.
    position: i64,
    /// The queries of the task.
    queries: Range<usize>,
    /// Keys that have a distance: those that are not appended.
    keys: usize,
    /// The places in `indices` between those of the last embedding and those of the first.
    between: Range<usize>,
    /// Embeddings of one head, packed like keys.
    packed: &'a mut [f32],
    /// `(queries of a block, stride)`, if there are embeddings for queries.
    of_queries: &'a mut [f32],
    /// `(keys, stride)`, if there are embeddings for keys.
    of_keys: &'a mut [f32],
    /// `(2, keys)`: the products of the keys with the last and with the first embedding.
    ends: &'a mut [f32],
}

/// An estimate of the scratch memory per thread in f32 values for so many embeddings of queries and of keys, which
/// saturates.
pub fn distance_floats([of_queries, of_keys]: [usize; 2], keys: usize, d: usize) -> usize {
    let products = |count: usize, tokens: usize| match count {
        0 => 0,
        count => tokens.saturating_mul(count.saturating_add(PADDING + 2)),
    };
    let packed = of_queries.max(of_keys).saturating_mul(d.saturating_add(16));
    products(of_queries, KEY_BLOCK).saturating_add(products(of_keys, keys)).saturating_add(packed)
}

impl<'a> DistanceProducts<'a> {
    /// Sizes of `packed`, `of_queries`, `of_keys` and `ends`.
    fn sizes<C: ScoreTile>(embeddings: &DistanceEmbeddings, block: usize, keys: usize, d: usize) -> [usize; 4] {
        let stride = embeddings.count + PADDING;
        let (c2p, p2c) = (usize::from(embeddings.c2p.is_some()), usize::from(embeddings.p2c.is_some()));
        let packed = embeddings.count.next_multiple_of(C::PANEL) * C::key_width(d);
        [packed, c2p * block * stride, p2c * keys * stride, p2c * 2 * keys]
    }

    /// Size of the memory for `block` queries and `keys` keys of `d` values.
    pub fn size<C: ScoreTile>(embeddings: &DistanceEmbeddings, d: usize, block: usize, keys: usize) -> Result<usize> {
        let (count, tokens) = (embeddings.count.saturating_add(PADDING + 2), keys.saturating_add(block));
        // The sum is at most this product: then nothing in it wraps around.
        let widths = tokens.saturating_add(2 * C::key_width(d)).saturating_add(2 * C::PANEL);
        element_count("the products with embeddings of distances", &[count, widths, 2])?;
        Ok(Self::sizes::<C>(embeddings, block, keys, d).iter().sum())
    }

    /// The products of the queries `queries` of sequence `b` with `keys` keys, in memory of [`size`](Self::size).
    pub fn new<C: ScoreTile>(
        problem: &Problem,
        embeddings: DistanceEmbeddings<'a>,
        b: usize,
        queries: Range<usize>,
        [block, keys]: [usize; 2],
        memory: &'a mut [f32],
    ) -> Self {
        let sizes = Self::sizes::<C>(&embeddings, block, keys, problem.d);
        let [packed, of_queries, of_keys, ends] = divide(memory, sizes);
        let last = embeddings.count.saturating_sub(1);
        let place = |before: &dyn Fn(usize) -> bool| embeddings.indices.partition_point(|e| before(*e as usize));
        let (s_q, s_kv) = (problem.batch.s_q(b), problem.batch.s_kv(b));
        Self {
            embeddings,
            stride: embeddings.count + PADDING,
            start: problem.batch.start(b),
            position: problem.mask.structure.position(b, 0, s_q, s_kv),
            queries,
            keys: keys.min(s_kv),
            between: place(&|e| e >= last)..place(&|e| e > 0),
            packed,
            of_queries,
            of_keys,
            ends,
        }
    }

    /// The positions of queries.
    fn positions(&self, queries: Range<usize>) -> Range<i64> {
        self.position + queries.start as i64..self.position + queries.end as i64
    }

    /// Packs the embeddings of head `h` that the task meets.
    #[inline(always)]
    fn pack<C: ScoreTile>(&mut self, tile: C, problem: &Problem, values: &[f32], h: usize, buffer: &mut [f32]) {
        let range = panels::<C>(self.embeddings.range(self.positions(self.queries.clone()), 0..self.keys));
        let d = problem.d;
        let heads = Heads { data: Elements::F32(values), strides: [0, problem.h * d, d] };
        let tokens = Tokens { heads, start: (0, 0), h, from: range.start, count: range.len(), d };
        let width = C::key_width(d);
        let to = &mut self.packed[range.start * width..range.end.next_multiple_of(C::PANEL) * width];
        pack(tile, Packing::Keys, tokens, buffer, to);
    }

    /// Starts head `h`, which reads the keys of `h_kv`: multiplies the keys. The memory is that of tokens, packed
    /// queries and scores.
    #[inline(always)]
    pub fn start_head<C: ScoreTile>(
        &mut self,
        tile: C,
        problem: &Problem,
        [h, h_kv]: [usize; 2],
        [buffer, packed, scores]: [&mut [f32]; 3],
    ) {
        if self.keys == 0 {
            return;
        }
        if let Some(p2c) = self.embeddings.p2c {
            self.pack(tile, problem, p2c, h, buffer);
            let (d, width, (factor, _)) =
                (problem.d, C::key_width(problem.d), C::split_scale(problem.scale, problem.q.data.is_f32()));
            let block = packed.len() / width / C::ROWS * C::ROWS;
            let positions = self.positions(self.queries.clone());
            for from in (0..self.keys).step_by(block) {
                let count = block.min(self.keys - from);
                let tokens = Tokens { heads: problem.k, start: self.start, h: h_kv, from, count, d };
                let rows = &mut packed[..count.next_multiple_of(C::ROWS) * width];
                pack(tile, Packing::Queries { factor }, tokens, buffer, rows);
                let range = panels::<C>(self.embeddings.range(positions.clone(), from..from + count));
                let products = &mut self.of_keys[from * self.stride..(from + count) * self.stride];
                let to = (&mut *products, self.stride);
                tile.simd().call(Multiply { tile, tokens: packed, d, packed: self.packed, range, scores, to });
                let (high, low) = self.ends.split_at_mut(self.ends.len() / 2);
                let last = self.embeddings.count - 1;
                for ((products, high), low) in
                    products.chunks_exact(self.stride).zip(&mut high[from..]).zip(&mut low[from..])
                {
                    (*high, *low) = (products[last], products[0]);
                }
            }
        }
        if let Some(c2p) = self.embeddings.c2p {
            self.pack(tile, problem, c2p, h, buffer);
        }
    }

    /// Multiplies a block of packed queries.
    #[inline(always)]
    pub fn start_block<C: ScoreTile>(
        &mut self,
        tile: C,
        d: usize,
        queries: Range<usize>,
        packed: &[f32],
        scores: &mut [f32],
    ) {
        if self.keys > 0 && self.embeddings.c2p.is_some() {
            let rows = queries.len();
            let range = panels::<C>(self.embeddings.range(self.positions(queries), 0..self.keys));
            let products = &mut self.of_queries[..rows * self.stride];
            let to = (products, self.stride);
            tile.simd().call(Multiply { tile, tokens: packed, d, packed: self.packed, range, scores, to });
        }
    }

    /// Adds the products of query `row` of the block, which stands at `position`, and of the keys from `key` on, times
    /// `factor`, to their scores.
    ///
    /// Each is added to the score for itself, by a multiplication and an addition: the sum has the same bits whether it
    /// is computed in a vector or alone.
    #[inline(always)]
    pub fn add<S: Simd>(&self, s: S, row: usize, position: i64, key: usize, factor: f32, scores: &mut [f32]) {
        let (count, column) = (scores.len(), self.embeddings.column(position, key));
        let place = |at: usize| at.clamp(column, column + count) - column;
        let between = place(self.between.start)..place(self.between.end).max(place(self.between.start));
        let last = self.embeddings.count - 1;
        let keys = self.ends.len() / 2;
        for (range, e, ends) in [(0..between.start, last, 0), (between.end..count, 0, keys)] {
            let scores = &mut scores[range.clone()];
            if self.embeddings.c2p.is_some() {
                let added = self.of_queries[row * self.stride + e] * factor;
                scores.iter_mut().for_each(|score| *score += added);
            }
            if self.embeddings.p2c.is_some() {
                let products = &self.ends[ends + key + range.start..];
                scores.iter_mut().zip(products).for_each(|(score, product)| *score += product * factor);
            }
        }
        let indices = &self.embeddings.indices(position, key, count)[between.clone()];
        let key = key + between.start;
        let scores = &mut scores[between];
        if self.embeddings.c2p.is_some() {
            let products = &self.of_queries[row * self.stride..][..self.stride];
            add_gathered(s, scores, products, 0, indices, factor);
        }
        if self.embeddings.p2c.is_some() {
            let products = &self.of_keys[key * self.stride..][..scores.len() * self.stride];
            add_gathered(s, scores, products, self.stride, indices, factor);
        }
    }
}

/// A range of embeddings from the start of a panel on.
fn panels<C: ScoreTile>(range: Range<usize>) -> Range<usize> {
    range.start / C::PANEL * C::PANEL..range.end
}

/// Multiplies tokens, packed like queries, with the packed embeddings `range`: `(tokens, stride)`.
struct Multiply<'a, C> {
    tile: C,
    tokens: &'a [f32],
    d: usize,
    packed: &'a [f32],
    range: Range<usize>,
    scores: &'a mut [f32],
    /// Memory for the products, and the stride.
    to: (&'a mut [f32], usize),
}

impl<C: ScoreTile> VectorKernel for Multiply<'_, C> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { tile, tokens, d, packed, range, scores, to: (to, stride) } = self;
        let width = C::key_width(d);
        for block in range.clone().step_by(KEY_BLOCK) {
            let count = KEY_BLOCK.min(range.end - block);
            let tiles = tokens.chunks_exact(C::ROWS * width).zip(to.chunks_mut(C::ROWS * stride));
            for (tokens, to) in tiles {
                tile.scores(to.len() / stride, tokens, d, &packed[block * width..], count, scores);
                for (to, scores) in to.chunks_exact_mut(stride).zip(scores.chunks_exact(KEY_BLOCK)) {
                    to[block..block + count].copy_from_slice(&scores[..count]);
                }
            }
        }
    }
}

/// Adds `products[i · step + indices[i]] · factor` to score `i`.
#[inline(always)]
fn add_gathered<S: Simd>(s: S, scores: &mut [f32], products: &[f32], step: usize, indices: &[u32], factor: f32) {
    let vectors = scores.len() / S::LANES * S::LANES;
    for i in (0..vectors).step_by(S::LANES) {
        // SAFETY: `DistanceEmbeddings::check` has checked that indices are less than the number of embeddings, which is
        // less than the `stride` of `products`. There are as many tokens in `products` as scores, or, with a step of 0,
        // one for all. 16 times the stride is less than 2^31 for the most embeddings that the check allows.
        let product = unsafe { s.gather(products.as_ptr().add(i * step), step, indices[i..][..S::LANES].as_ptr()) };
        let sum = s.add(s.load_slice(&scores[i..]), s.mul(product, s.splat(factor)));
        s.store_slice(&mut scores[i..], sum);
    }
    for i in vectors..scores.len() {
        scores[i] += products[i * step + indices[i] as usize] * factor;
    }
}
