//! Score tiles over keys and values in int8, which are read as they are: nothing of a cache is widened in memory.
//!
//! A query is rounded to two rows of int8: its integers, and those of what the rounding left. So queries have 15 bits,
//! and the error of outputs is that of keys and values alone. With one row it was larger by 1 to 45 %, and the
//! second one costs little beside reading the keys. The products of both with a key are exact sums of integers.
//!
//! Values are widened in registers. Attention weights times the scale of a value are rounded to 16 bits, so that a
//! product with a value is exact, and fused or not makes no difference. What is left, the softmax, has vectors of
//! [16 lanes](Wide) and no fused operations. So **all instruction sets give the same bits**.

use bytemuck::Zeroable;

use super::elements::Elements;
use super::int8::dot::{InputRows, Int8Dot};
use super::int8::heads;
use super::int8::inputs::quantize;
use super::int8::wide::Wide;
use super::isa::microkernel::{Prefetch, StridedRows, pack_rows};
use super::isa::simd::{Simd, VectorKernel};
use super::mask::KEY_BLOCK;
use super::row_products::Values;
use super::score_tile::{PrefetchRows, ScoreTile, Step, StepMemory, Tokens};
use super::tile_f32::{TileF32, add_value_tile};
use super::unroll::{by_rows, unroll};

/// Score tiles of `MR` queries, computed `NR` vectors of keys at a time.
#[derive(Clone, Copy)]
pub(super) struct TileInt8<D, const MR: usize, const NR: usize>(pub D);

/// Integers in an f32 value of packed memory.
const QUAD: usize = 4;

impl<D: Int8Dot, const MR: usize, const NR: usize> TileInt8<D, MR, NR> {
    /// The integers of a packed key of `d` values.
    const fn integers(d: usize) -> usize {
        d.next_multiple_of(if D::STEP > QUAD { D::STEP } else { QUAD })
    }

    /// The size of one row of a packed query.
    fn row_width(d: usize) -> usize {
        Self::integers(d) * size_of::<D::Input>() / QUAD
    }
}

impl<D: Int8Dot, const MR: usize, const NR: usize> ScoreTile for TileInt8<D, MR, NR> {
    type S = Wide<D>;
    const ROWS: usize = MR;
    const PANEL: usize = NR * D::S::LANES;
    const STEP: usize = Self::PANEL;

    #[inline(always)]
    fn simd(self) -> Wide<D> {
        Wide(self.0)
    }
    /// Integers and a scale.
    fn key_width(d: usize) -> usize {
        Self::integers(d) / QUAD + 1
    }
    /// Two rows, the scale of each, and what the sums of each start with.
    fn query_width(d: usize) -> usize {
        2 * Self::row_width(d) + 4
    }
    fn value_width(d_v: usize) -> usize {
        d_v.next_multiple_of(D::S::LANES)
    }
    /// A value is `width_v` integers and a scale.
    #[inline(always)]
    fn values_offset(key: usize, width_v: usize) -> usize {
        key * (width_v / QUAD + 1)
    }

    #[inline(always)]
    fn key_rows(self, keys: Tokens, buffer: &mut [f32]) -> StridedRows {
        let rows = keys.int8_rows(D::S::LANES, Self::integers(keys.d), align_of::<f32>(), buffer);
        StridedRows { at: rows.at.cast(), stride: rows.stride / QUAD }
    }

    /// A panel holds the first integers of each key, as many as a step of a product has, then the next; and then the
    /// scales.
    #[inline(always)]
    fn pack_keys(self, keys: Tokens, buffer: &mut [f32], to: &mut [f32]) {
        self.pack_panels(keys, PrefetchRows::NONE, buffer, to);
    }

    #[inline(always)]
    fn pack_values(self, values: Tokens, width_v: usize, _: &mut [f32], to: &mut [f32]) {
        for (key, to) in to.chunks_exact_mut(width_v / QUAD + 1).take(values.count).enumerate() {
            let (integers, scale) = to.split_at_mut(width_v / QUAD);
            values.write_int8(key, bytemuck::cast_slice_mut(integers));
            scale[0] = values.int8_scale(key);
        }
    }

    #[inline(always)]
    fn pack_queries(self, queries: Tokens, factor: f32, buffer: &mut [f32], to: &mut [f32]) {
        let (d, width) = (queries.d, Self::row_width(queries.d));
        let (upcast, left) = buffer.split_at_mut(d);
        let left = &mut left[..d];
        for (i, to) in to.chunks_exact_mut(Self::query_width(d)).enumerate() {
            let query = queries.as_f32(i, upcast);
            let (first, rest) = to.split_at_mut(width);
            let (second, rest) = rest.split_at_mut(width);
            let (scales, starts) = rest.split_at_mut(2);
            let starts: &mut [i32] = bytemuck::cast_slice_mut(starts);
            let start = |sum: i32| sum.wrapping_mul(-i32::from(D::OFFSET));
            let first: &mut [D::Input] = bytemuck::cast_slice_mut(first);
            let (scale, sum) = quantize(self.0, query, first);
            (scales[0], starts[0]) = (scale * factor, start(sum));
            for (left, (x, integer)) in left.iter_mut().zip(query.iter().zip(&*first)) {
                let rounded: f32 = (*integer).into();
                *left = x - rounded * scale;
            }
            let (scale, sum) = quantize(self.0, left, bytemuck::cast_slice_mut(second));
            (scales[1], starts[1]) = (scale * factor, start(sum));
        }
    }

    #[inline(always)]
    fn scores(self, rows: usize, queries: &[f32], d: usize, keys: &[f32], count: usize, scores: &mut [f32]) {
        assert!(count <= KEY_BLOCK && (1..=MR).contains(&rows));
        let panel = Self::PANEL * Self::key_width(d);
        for (start, keys) in (0..count).step_by(Self::PANEL).zip(keys.chunks_exact(panel)) {
            let scores = &mut scores[start..];
            by_rows!(rows, MR => self.panel_scores, (queries, d, keys, scores))
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
        let width = width_v / QUAD + 1;
        let mut scales = [0.0; KEY_BLOCK];
        scales.iter_mut().zip(values.chunks_exact(width)).for_each(|(to, value)| *to = value[width - 1]);
        multiply_weights(rows, attention_weights, &scales[..count]);
        let values = (bytemuck::cast_slice(values), QUAD * width);
        self.0.call(AddValues { tile: self, attention_weights, values, count, output, width_v });
    }

    #[inline(always)]
    fn scores_of_step(self, rows: usize, queries: &[f32], keys: Tokens, memory: StepMemory, scores: &mut [f32]) {
        let StepMemory { buffer, packed, ahead, .. } = memory;
        let packed = &mut packed[..Self::PANEL * Self::key_width(keys.d)];
        self.pack_panels(keys, ahead, buffer, packed);
        self.scores(rows, queries, keys.d, packed, keys.count, scores);
    }

    #[inline(always)]
    fn accumulate_step(
        self,
        rows: usize,
        attention_weights: &mut [f32],
        values: Tokens,
        Step { before, block, width_v }: Step,
        StepMemory { packed, sums, ahead, .. }: StepMemory,
        output: &mut [f32],
    ) {
        let (weights, mut scales) = (&mut attention_weights[before..], [0.0; KEY_BLOCK]);
        let scales = &mut scales[..values.count];
        values.write_scales(scales);
        multiply_weights(rows, weights, scales);
        let of_values = values.int8_rows(values.count, width_v, 1, packed);
        let of_values = Values { rows: of_values, count: values.count, ahead };
        let ends = [before == 0, before + values.count == block];
        self.0.call(AddStep { tile: self, rows, weights, values: of_values, ends, to: [sums, output], width_v });
    }
}

impl<D: Int8Dot, const MR: usize, const NR: usize> TileInt8<D, MR, NR> {
    /// [`ScoreTile::pack_keys`], while other rows are fetched.
    #[inline(always)]
    fn pack_panels(self, keys: Tokens, mut ahead: PrefetchRows, buffer: &mut [f32], to: &mut [f32]) {
        let quads = Self::integers(keys.d) / QUAD;
        for (panel, to) in to.chunks_exact_mut(Self::PANEL * (quads + 1)).enumerate() {
            let (integers, scales) = to.split_at_mut(Self::PANEL * quads);
            for first in (0..Self::PANEL).step_by(D::S::LANES) {
                ahead.fetch(self.0.simd(), D::S::LANES);
                let keys = keys.after(panel * Self::PANEL + first);
                let rows = self.key_rows(keys, buffer);
                // SAFETY: the rows are `quads` fours of bytes, which are moved as they are.
                unsafe { pack_rows(self.0.simd(), rows, quads, &mut integers[first..], Self::PANEL) };
                keys.write_scales(&mut scales[first..][..D::S::LANES]);
            }
            order_by_steps::<D>(bytemuck::cast_slice_mut(integers), Self::PANEL);
        }
    }

    /// The scores of `R` queries with a panel of keys.
    #[inline(always)]
    fn panel_scores<const R: usize>(self, queries: &[f32], d: usize, keys: &[f32], scores: &mut [f32]) {
        self.0.call(PanelScores::<D, MR, NR, R> { tile: self, queries, d, keys, scores });
    }
}

/// [`TileInt8::panel_scores`] as a function of its own, in which the sums have all registers.
struct PanelScores<'a, D, const MR: usize, const NR: usize, const R: usize> {
    tile: TileInt8<D, MR, NR>,
    queries: &'a [f32],
    d: usize,
    keys: &'a [f32],
    scores: &'a mut [f32],
}

impl<D: Int8Dot, const MR: usize, const NR: usize, const R: usize> VectorKernel for PanelScores<'_, D, MR, NR, R> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { tile, queries, d, keys, scores } = self;
        let s = tile.0.simd();
        let (width, query_width) = (TileInt8::<D, MR, NR>::row_width(d), TileInt8::<D, MR, NR>::query_width(d));
        let (integers, scales) = keys.split_at(keys.len() - NR * D::S::LANES);
        let steps = TileInt8::<D, MR, NR>::integers(d) / D::STEP;
        assert!(queries.len() >= R * query_width && scores.len() >= (R - 1) * KEY_BLOCK + NR * D::S::LANES);
        assert!(integers.len() >= NR * D::S::LANES * steps * D::STEP / QUAD);
        let starts: &[i32] = bytemuck::cast_slice(queries);
        let rows = |row: usize| InputRows {
            values: queries[row * width..].as_ptr().cast(),
            stride: query_width * size_of::<f32>(),
            starts: starts[2 * width + 2 + row..].as_ptr(),
            starts_stride: query_width,
        };
        let (panel, mut no_prefetch) = (integers.as_ptr().cast(), Prefetch::NONE);
        // SAFETY: the assertions check the queries, each with two rows of `steps` steps and what they start with, and
        // the panel. This is a kernel under `run_int8`.
        let [first, second] = unsafe {
            if R == 1 {
                // More sums side by side: one row would wait for each sum before the next.
                let rows = InputRows { stride: width * size_of::<f32>(), starts_stride: 1, ..rows(0) };
                let [first, second] = tile.0.sums::<2, NR, false>(steps, rows, panel, &mut no_prefetch);
                let mut sums: [[[_; NR]; R]; 2] = Zeroable::zeroed();
                [sums[0][0], sums[1][0]] = [first, second];
                sums
            } else {
                [
                    tile.0.sums::<R, NR, false>(steps, rows(0), panel, &mut no_prefetch),
                    tile.0.sums::<R, NR, false>(steps, rows(1), panel, &mut no_prefetch),
                ]
            }
        };
        unroll!(r in 0..R => {
            // SAFETY: as above; after both rows of a query are their factors, and there are scales and room for scores
            // of `NR` vectors.
            unsafe {
                let factors = queries.as_ptr().add(r * query_width + 2 * width);
                let factors = [s.splat(*factors), s.splat(*factors.add(1))];
                unroll!(v in 0..NR => {
                    let sum = s.add(s.mul(first[r][v], factors[0]), s.mul(second[r][v], factors[1]));
                    let at = v * D::S::LANES;
                    s.store(scores.as_mut_ptr().add(r * KEY_BLOCK + at), s.mul(sum, s.load(scales.as_ptr().add(at))));
                });
            }
        });
    }
}

/// [`add_value_tile`] as a function of its own.
struct AddValues<'a, D, const MR: usize, const NR: usize> {
    tile: TileInt8<D, MR, NR>,
    attention_weights: &'a [f32],
    values: (&'a [i8], usize),
    count: usize,
    output: &'a mut [f32],
    width_v: usize,
}

impl<D: Int8Dot, const MR: usize, const NR: usize> VectorKernel for AddValues<'_, D, MR, NR> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { tile, attention_weights, values, count, output, width_v } = self;
        add_value_tile::<D::S, i8, MR, NR>(tile.0.simd(), attention_weights, values, count, output, width_v);
    }
}

/// [`TileF32::add_values`] of values in int8 as a function of its own. The values are rows of `width_v` integers.
struct AddStep<'a, D, const MR: usize, const NR: usize> {
    tile: TileInt8<D, MR, NR>,
    rows: usize,
    weights: &'a [f32],
    values: Values<i8>,
    ends: [bool; 2],
    to: [&'a mut [f32]; 2],
    width_v: usize,
}

impl<D: Int8Dot, const MR: usize, const NR: usize> VectorKernel for AddStep<'_, D, MR, NR> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { tile, rows, weights, values, ends, to, width_v } = self;
        // SAFETY: the values are made of rows with `width_v` integers.
        unsafe { TileF32::<D::S, MR, NR>::add_values(tile.0.simd(), rows, weights, values, ends, to, width_v) };
    }
}

/// Brings the fours of integers of a panel into the order of steps, and adds what the instructions want.
#[inline(always)]
fn order_by_steps<D: Int8Dot>(panel: &mut [[u8; QUAD]], width: usize) {
    const MOST: usize = 128;
    let mut before = [[0; QUAD]; MOST];
    if D::STEP != QUAD {
        let group = if D::STEP > QUAD { 2 * width } else { width };
        for to in panel.chunks_exact_mut(group) {
            let before = &mut before[..group];
            before.copy_from_slice(to);
            if D::STEP > QUAD {
                for (i, to) in to.chunks_exact_mut(2).enumerate() {
                    (to[0], to[1]) = (before[i], before[width + i]);
                }
                continue;
            }
            let (first, second) = to.as_flattened_mut().split_at_mut(2 * width);
            let halves = first.as_chunks_mut::<2>().0.iter_mut().zip(second.as_chunks_mut::<2>().0);
            for ((first, second), &[a, b, c, d]) in halves.zip(&*before) {
                (*first, *second) = ([a, b], [c, d]);
            }
        }
    }
    if D::OFFSET != 0 {
        panel.as_flattened_mut().iter_mut().for_each(|byte| *byte = byte.wrapping_add(D::OFFSET));
    }
}

/// Multiplies the attention weights of `rows` rows, `KEY_BLOCK` apart, with the scales of values, and rounds them to 16
/// bits.
#[inline(always)]
fn multiply_weights(rows: usize, weights: &mut [f32], scales: &[f32]) {
    for row in weights.chunks_mut(KEY_BLOCK).take(rows) {
        for (weight, scale) in row.iter_mut().zip(scales) {
            *weight = f32::from_bits((*weight * scale).to_bits().wrapping_add(0x80) & !0xff);
        }
    }
}

impl Tokens<'_> {
    /// The scale and the integers of token `i`.
    #[inline(always)]
    fn int8_head(&self, i: usize) -> &[i8] {
        match self.token(i) {
            Elements::Int8(head) => head,
            _ => unreachable!("only heads in int8 have tiles in int8"),
        }
    }

    /// The scale of token `i`.
    #[inline(always)]
    fn int8_scale(&self, i: usize) -> f32 {
        heads::scale(self.int8_head(i))
    }

    /// The scales of the first tokens, 0 after the last one.
    #[inline(always)]
    fn write_scales(&self, to: &mut [f32]) {
        for (i, to) in to.iter_mut().enumerate() {
            *to = if i < self.count { self.int8_scale(i) } else { 0.0 };
        }
    }

    /// The integers of token `i` and then zeros; zeros after the last token.
    #[inline(always)]
    fn write_int8(&self, i: usize, to: &mut [i8]) {
        let (integers, padding) = to.split_at_mut(if i < self.count { self.d } else { 0 });
        if i < self.count {
            integers.copy_from_slice(&self.int8_head(i)[heads::SCALE_BYTES..]);
        }
        padding.fill(0);
    }

    /// Rows of the integers of the first `count` tokens, each `width` bytes: where they are, or copied to `to` and
    /// padded with zeros, with an alignment of `align` bytes.
    #[inline(always)]
    fn int8_rows(&self, count: usize, width: usize, align: usize, to: &mut [f32]) -> StridedRows<i8> {
        if width == self.d && count > 0 && count <= self.count {
            let (first, _last) = (self.int8_head(0), self.int8_head(count - 1)); // both are checked to be in memory
            let (at, stride) = (first[heads::SCALE_BYTES..].as_ptr(), self.heads.strides[1]);
            if at.addr().is_multiple_of(align) && stride.is_multiple_of(align) {
                return StridedRows { at, stride };
            }
        }
        let to: &mut [i8] = bytemuck::cast_slice_mut(to);
        assert!(to.len() >= count * width);
        for (i, to) in to.chunks_exact_mut(width).take(count).enumerate() {
            self.write_int8(i, to);
        }
        StridedRows { at: to.as_ptr(), stride: width }
    }
}
