//! Score tiles in bf16: queries, keys, values and attention weights are rounded to bf16, sums are f32.

use std::f32::consts::LOG2_E;

use bytemuck::{cast_slice, cast_slice_mut};

use super::convert::Pair;
use super::exp::exp2_bf16;
use super::isa::microkernel::{Prefetch, StridedRows, vectors_per_step};
use super::isa::pair_dot::{PairDot, PairTile, TileLayout, VECTOR_COLUMNS};
use super::isa::simd::Simd;
use super::mask::KEY_BLOCK;
use super::row_products::{Values, add_pair_products, row_scores};
use super::score_tile::{ScoreTile, Step, StepMemory, Tokens};

/// Score tiles by [`PairDot`]. The softmax between the products is f32, by [`Simd`].
#[derive(Clone, Copy)]
pub(super) struct TileBf16<S, D>(pub S, pub D);

impl<S: Simd, D: PairDot> ScoreTile for TileBf16<S, D> {
    type S = S;
    const ROWS: usize = D::MAX_ROWS;
    const PANEL: usize = D::MAX_VECTORS * VECTOR_COLUMNS;
    const STEP: usize = if D::BY_VECTORS { S::LANES } else { Self::PANEL };
    const SCORES: usize = D::MAX_ROWS * if D::BY_VECTORS { KEY_BLOCK } else { KEY_BLOCK + KEY_BLOCK / 2 };
    /// Halfway between the largest bf16 and the next power of two.
    const INFINITE: f32 = f32::from_bits(0x7f7f_8000);

    #[inline(always)]
    fn simd(self) -> S {
        self.0
    }
    #[inline(always)]
    fn exp(self, x: S::V) -> S::V {
        exp2_bf16(self.0, self.0.mul(x, self.0.splat(LOG2_E)))
    }
    /// Rounded at once where pairs are read by vectors.
    #[inline(always)]
    unsafe fn store_weights(self, row: *mut f32, key: usize, weights: S::V) {
        // SAFETY: the caller promises it; half as many bytes end no later.
        unsafe {
            if D::BY_VECTORS {
                self.0.store_bf16(row.add(key / 2).cast(), weights)
            } else {
                self.0.store(row.add(key), weights)
            }
        }
    }
    #[inline(always)]
    fn key_width(d: usize) -> usize {
        d.div_ceil(2).next_multiple_of(D::PAIR_STEP)
    }
    fn value_width(d_v: usize) -> usize {
        d_v.next_multiple_of(VECTOR_COLUMNS)
    }
    #[inline(always)]
    fn values_offset(key: usize, width_v: usize) -> usize {
        key.div_ceil(2) * width_v
    }
    /// Queries in f32 are rounded once, scaled or not. A power of two scales rounded queries exactly. Any other scale
    /// is left to the f32 scores.
    fn split_scale(scale: f32, queries_are_f32: bool) -> (f32, f32) {
        const FRACTION: u32 = (1 << 23) - 1;
        let is_power_of_two = scale.is_normal() && scale.to_bits() & FRACTION == 0;
        if queries_are_f32 || is_power_of_two { (scale, 1.0) } else { (1.0, scale) }
    }

    #[inline(always)]
    fn key_rows(self, keys: Tokens, buffer: &mut [f32]) -> StridedRows {
        let width = Self::key_width(keys.d);
        let (upcast, rest) = buffer.split_at_mut(keys.d);
        keys.pair_rows((self.0, self.1), width, upcast, cast_slice_mut(&mut rest[..S::LANES * width]))
    }

    /// A pair holds one column of the values of two neighboring keys.
    #[inline(always)]
    fn pack_values(self, values: Tokens, width_v: usize, buffer: &mut [f32], to: &mut [f32]) {
        let (upcast, rest) = buffer.split_at_mut(width_v);
        let (low, rest) = cast_slice_mut(rest).split_at_mut(width_v / 2);
        let high = &mut rest[..width_v / 2];
        for (i, to) in cast_slice_mut(to).chunks_exact_mut(width_v).enumerate() {
            let low = values.as_pairs(self.1, 2 * i, upcast, low);
            let high = values.as_pairs(self.1, 2 * i + 1, upcast, high);
            for ((to, low), high) in to.chunks_exact_mut(2).zip(low).zip(high) {
                to[0] = low & 0xffff | high << 16;
                to[1] = low >> 16 | high & 0xffff_0000;
            }
        }
    }

    #[inline(always)]
    fn pack_queries(self, queries: Tokens, factor: f32, buffer: &mut [f32], to: &mut [f32]) {
        let (upcast, rest) = buffer.split_at_mut(queries.d);
        let scaled = &mut rest[..queries.d];
        for (i, to) in cast_slice_mut(to).chunks_exact_mut(Self::key_width(queries.d)).enumerate() {
            if factor == 1.0 {
                queries.write_pairs(self.1, i, upcast, to);
                continue;
            }
            let upcast = queries.as_f32(i, upcast);
            scaled.copy_from_slice(upcast);
            self.0.scale(scaled, factor);
            self.1.round_to_pairs(scaled, to);
        }
    }

    #[inline(always)]
    fn scores(self, rows: usize, queries: &[f32], d: usize, keys: &[f32], count: usize, scores: &mut [f32]) {
        let pairs = Self::key_width(d);
        assert!((1..=Self::ROWS).contains(&rows) && count <= KEY_BLOCK);
        assert!(
            queries.len() >= Self::ROWS * pairs
                && scores.len() >= (Self::ROWS - 1) * KEY_BLOCK + count.next_multiple_of(Self::PANEL)
        );
        assert!(keys.len() >= count.next_multiple_of(Self::PANEL) * pairs);
        for start in (0..count).step_by(Self::PANEL) {
            let vectors = D::MAX_VECTORS.min((count - start).div_ceil(VECTOR_COLUMNS));
            let tile = PairTile {
                rows,
                vectors,
                pairs,
                layout: TileLayout::Rows { a: pairs, b: Self::PANEL },
                c_stride: KEY_BLOCK,
                accumulate: false,
                prefetch: Prefetch::NONE,
            };
            let keys = cast_slice(&keys[start * pairs..]).as_ptr();
            // SAFETY: the assertions check the number of rows, and the lengths of `ROWS` queries, a panel of keys, and
            // `ROWS` rows of `KEY_BLOCK` scores, in which a panel from `start` fits. Only `run_pairs` makes a value of
            // this type.
            unsafe { self.1.multiply_tile(tile, cast_slice(queries).as_ptr(), keys, scores.as_mut_ptr().add(start)) };
        }
    }

    #[inline(always)]
    fn accumulate_values(
        self,
        rows: usize,
        attention_weights: &mut [f32],
        values: &[f32],
        count: usize,
        output: &mut [f32],
        width_v: usize,
    ) {
        let pairs = count.div_ceil(2).next_multiple_of(D::PAIR_STEP);
        let weights = self.weights_in_pairs(rows, attention_weights, Some(count));
        self.add_products(rows, weights, values, pairs, output, width_v);
    }

    #[inline(always)]
    fn scores_of_step(self, rows: usize, queries: &[f32], keys: Tokens, memory: StepMemory, scores: &mut [f32]) {
        let (width, StepMemory { buffer, packed, mut ahead, .. }) = (Self::key_width(keys.d), memory);
        if D::BY_VECTORS {
            let (upcast, packed) = (&mut buffer[..keys.d], cast_slice_mut(packed));
            let keys = keys.pair_rows((self.0, self.1), width.next_multiple_of(S::LANES), upcast, packed);
            // SAFETY: the rows have whole vectors.
            return unsafe { row_scores::<Self, _, true>(self.0, rows, (queries, width), keys, ahead, scores) };
        }
        ahead.fetch(self.0, usize::MAX);
        let packed = &mut packed[..keys.count.next_multiple_of(Self::PANEL) * width];
        self.pack_keys(keys, buffer, packed);
        self.scores(rows, queries, keys.d, packed, keys.count, scores);
    }

    #[inline(always)]
    fn accumulate_step(
        self,
        rows: usize,
        attention_weights: &mut [f32],
        values: Tokens,
        Step { before, block, width_v }: Step,
        StepMemory { buffer, packed, mut ahead, .. }: StepMemory,
        output: &mut [f32],
    ) {
        let pairs = values.count.div_ceil(2).next_multiple_of(D::PAIR_STEP);
        let to_round = (before == 0).then_some(block);
        let (weights, stride) = self.weights_in_pairs(rows, attention_weights, to_round);
        let weights = &weights[before / 2..];
        if D::BY_VECTORS {
            let (width, packed) = (width_v.next_multiple_of(2 * VECTOR_COLUMNS) / 2, cast_slice_mut(packed));
            let of_values = values.pair_rows((self.0, self.1), width, &mut buffer[..values.d], packed);
            let values = Values { rows: of_values, count: pairs, ahead };
            // SAFETY: the rows have whole vectors of pairs.
            return unsafe {
                add_pair_products(self.0, rows, weights, values, output, width_v);
            };
        }
        ahead.fetch(self.0, usize::MAX);
        let packed = &mut packed[..pairs * width_v];
        self.pack_values(values, width_v, buffer, packed);
        self.add_products(rows, (weights, stride), packed, pairs, output, width_v);
    }
}

impl<S: Simd, D: PairDot> TileBf16<S, D> {
    /// The attention weights as pairs, and how many there are from one row to the next. Those of `to_round` keys are
    /// rounded first, unless all are already.
    #[inline(always)]
    fn weights_in_pairs(self, rows: usize, attention_weights: &mut [f32], to_round: Option<usize>) -> (&[Pair], usize) {
        if D::BY_VECTORS {
            return (cast_slice(attention_weights), KEY_BLOCK);
        }
        let (attention_weights, rounded) = attention_weights.split_at_mut(Self::ROWS * KEY_BLOCK);
        let rounded = cast_slice_mut(rounded);
        if let Some(count) = to_round {
            let pairs = count.div_ceil(2).next_multiple_of(D::PAIR_STEP);
            let weights_of_rows = attention_weights.chunks_exact(KEY_BLOCK).take(rows);
            for (weights, to) in weights_of_rows.zip(rounded.chunks_exact_mut(KEY_BLOCK / 2)) {
                self.1.round_to_pairs(&weights[..count], &mut to[..pairs]);
            }
        }
        (rounded, KEY_BLOCK / 2)
    }

    /// Adds the products of `pairs` rounded weights of each row, `stride` apart, with packed values to `output` `(ROWS,
    /// width_v)`.
    #[inline(always)]
    fn add_products(
        self,
        rows: usize,
        (rounded, stride): (&[Pair], usize),
        values: &[f32],
        pairs: usize,
        output: &mut [f32],
        width_v: usize,
    ) {
        assert!((1..=D::MAX_ROWS).contains(&rows) && width_v.is_multiple_of(VECTOR_COLUMNS));
        assert!(pairs <= KEY_BLOCK / 2 && rounded.len() >= (D::MAX_ROWS - 1) * stride + pairs);
        assert!(values.len() >= pairs * width_v && output.len() >= D::MAX_ROWS * width_v);
        let mut column = 0;
        while column < width_v {
            let vectors = vectors_per_step((width_v - column) / VECTOR_COLUMNS, D::MAX_VECTORS);
            let layout = TileLayout::Rows { a: stride, b: width_v };
            let prefetch = Prefetch::NONE;
            let tile = PairTile { rows, vectors, pairs, layout, c_stride: width_v, accumulate: true, prefetch };
            // SAFETY: the assertions check the number of rows and the lengths; `column` and `vectors` stay within
            // `width_v`. Only `run_pairs` makes a value of this type.
            unsafe {
                let values = cast_slice::<_, Pair>(values).as_ptr().add(column);
                self.1.multiply_tile(tile, rounded.as_ptr(), values, output.as_mut_ptr().add(column));
            }
            column += vectors * VECTOR_COLUMNS;
        }
    }
}
