//! Score tiles in f32.

use super::convert::Convert;
use super::elements::with_elements;
use super::isa::microkernel::{Lhs, Prefetch, Rhs, StridedRows, add_product, microkernel, store_rows};
use super::isa::simd::Simd;
use super::mask::KEY_BLOCK;
use super::row_products::{Values, add_value_products, row_scores};
use super::score_tile::{Rows, ScoreTile, Step, StepMemory, Tokens};
use super::unroll::by_rows;

/// Score tiles of `MR` queries, computed `NR` vectors of keys at a time.
#[derive(Clone, Copy)]
pub(super) struct TileF32<S, const MR: usize, const NR: usize>(pub S);

impl<S: Simd, const MR: usize, const NR: usize> ScoreTile for TileF32<S, MR, NR> {
    type S = S;
    const ROWS: usize = MR;
    const PANEL: usize = NR * S::LANES;
    const STEP: usize = S::LANES;

    #[inline(always)]
    fn simd(self) -> S {
        self.0
    }
    fn key_width(d: usize) -> usize {
        d
    }
    fn value_width(d_v: usize) -> usize {
        d_v.next_multiple_of(S::LANES)
    }
    #[inline(always)]
    fn values_offset(key: usize, width_v: usize) -> usize {
        key * width_v
    }

    #[inline(always)]
    fn key_rows(self, keys: Tokens, buffer: &mut [f32]) -> StridedRows {
        keys.f32_rows(self.0, keys.d, buffer)
    }

    #[inline(always)]
    fn pack_values(self, values: Tokens, width_v: usize, buffer: &mut [f32], to: &mut [f32]) {
        for (key, to) in to.chunks_exact_mut(width_v).take(values.count).enumerate() {
            let (value, padding) = to.split_at_mut(values.d);
            value.iter_mut().zip(values.as_f32(key, buffer)).for_each(|(to, x)| *to = *x);
            padding.fill(0.0);
        }
    }

    #[inline(always)]
    fn pack_queries(self, queries: Tokens, factor: f32, buffer: &mut [f32], to: &mut [f32]) {
        for (i, to) in to.chunks_exact_mut(queries.d).enumerate() {
            let query = queries.as_f32(i, buffer);
            to.copy_from_slice(query);
            self.0.scale(to, factor);
        }
    }

    #[inline(always)]
    fn scores(self, _: usize, queries: &[f32], d: usize, keys: &[f32], count: usize, scores: &mut [f32]) {
        let (s, panel) = (self.0, Self::PANEL);
        assert!(
            count <= KEY_BLOCK
                && queries.len() >= MR * d
                && keys.len() >= count.next_multiple_of(panel) * d
                && scores.len() >= MR * KEY_BLOCK
        );
        for start in (0..count).step_by(panel) {
            let a = Lhs::rows(queries.as_ptr(), d);
            // SAFETY: the assertion checks the lengths. `start` is a multiple of `panel` below `count`, and `count` is
            // at most `KEY_BLOCK`, which is a multiple of `panel`.
            unsafe {
                let b = Rhs::new(keys.as_ptr().add(start * d), panel);
                let sums = microkernel::<S, _, MR, NR>(s, d, a, b, Prefetch::NONE);
                store_rows(s, &sums, scores.as_mut_ptr().add(start), KEY_BLOCK);
            }
        }
    }

    #[inline(always)]
    fn accumulate_values(
        self,
        _: usize,
        attention_weights: &mut [f32],
        values: &[f32],
        count: usize,
        output: &mut [f32],
        width_v: usize,
    ) {
        add_value_tile::<S, f32, MR, NR>(self.0, attention_weights, (values, width_v), count, output, width_v);
    }

    #[inline(always)]
    fn scores_of_step(self, rows: usize, queries: &[f32], keys: Tokens, memory: StepMemory, scores: &mut [f32]) {
        let (s, ahead, queries) = (self.0, memory.ahead, (queries, keys.d));
        let rows_of_keys = keys.rows(s, keys.d.next_multiple_of(S::LANES), memory.packed);
        // SAFETY: the rows have whole vectors.
        unsafe {
            with_elements!(Rows(rows_of_keys), keys => row_scores::<Self, _, false>(s, rows, queries, keys, ahead, scores))
        }
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
        let (s, weights) = (self.0, &attention_weights[before..]);
        let ends = [before == 0, before + values.count == block];
        let (count, to) = (values.count, [sums, output]);
        // SAFETY: the rows have `width_v` values.
        unsafe {
            with_elements!(
                Rows(values.rows(s, width_v, packed)),
                of_values => {
                    let values = Values { rows: of_values, count, ahead };
                    Self::add_values(s, rows, weights, values, ends, to, width_v)
                }
            )
        }
    }
}

impl<S: Simd, const MR: usize, const NR: usize> TileF32<S, MR, NR> {
    /// [`add_value_products`] for a number of rows.
    ///
    /// # Safety
    /// `width` values can be read at each of the rows of values.
    #[inline(always)]
    pub unsafe fn add_values<T: Convert>(
        s: S,
        rows: usize,
        weights: &[f32],
        values: Values<T>,
        ends: [bool; 2],
        [sums, output]: [&mut [f32]; 2],
        width: usize,
    ) {
        // SAFETY: the caller promises it.
        unsafe { by_rows!(rows, MR => add_value_products[S, T], (s, weights, values, ends, sums, output, width)) }
    }
}

/// [`ScoreTile::accumulate_values`] with values of any type, so many of them from one token to the next.
#[inline(always)]
pub(super) fn add_value_tile<S: Simd, T: Convert, const MR: usize, const NR: usize>(
    s: S,
    weights: &[f32],
    (values, stride): (&[T], usize),
    count: usize,
    output: &mut [f32],
    width_v: usize,
) {
    assert!(weights.len() >= (MR - 1) * KEY_BLOCK + count && count <= KEY_BLOCK && width_v.is_multiple_of(S::LANES));
    assert!(width_v <= stride && values.len() >= count * stride && output.len() >= MR * width_v);
    let a = Lhs::rows(weights.as_ptr(), KEY_BLOCK);
    // SAFETY: the assertions check the lengths.
    unsafe { add_product::<S, T, MR, NR>(s, count, a, (values.as_ptr(), stride), output.as_mut_ptr(), width_v) };
}
