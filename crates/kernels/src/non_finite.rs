//! Values that are not finite, under a mask.
//!
//! What a hidden key holds has no influence on a query, NaN and infinities included. Scores of hidden keys are
//! replaced, whatever they are. But values are multiplied with weights of 0, and 0 · NaN is NaN. So where an output is
//! not finite, such values are packed again as zeros, and added to the outputs of the queries that see them after the
//! products. This costs nothing for values that are finite. It is the same for every query that sees such a value,
//! whether or not the queries of its task see all keys, because tasks depend on the number of threads.

use super::elements::Elements;
use super::error::Result;
use super::isa::simd::MAX_LANES;
use super::memory::try_reserve;
use super::problem::Heads;
use super::score_tile::{ScoreTile, Tokens};

/// The values of a task with zeros in place of what is not finite.
pub(super) struct FiniteValues {
    /// `(count, d)`.
    data: Vec<f32>,
    /// The tokens with values that are not finite.
    tokens: Vec<usize>,
}

impl FiniteValues {
    /// `None` if all values are finite as `C` packs them, as integers are. `buffer` has room for a token.
    #[cold]
    pub fn new<C: ScoreTile>(values: Tokens, buffer: &mut [f32]) -> Result<Option<Self>> {
        if values.heads.data.is_int8() {
            return Ok(None);
        }
        let mut tokens = Vec::new();
        for i in 0..values.count {
            if !all_below(C::INFINITE, values.as_f32(i, buffer)) {
                tokens.push(i);
            }
        }
        if tokens.is_empty() {
            return Ok(None);
        }
        let mut data = Vec::new();
        try_reserve("a copy of the values", &mut data, values.count * values.d)?;
        for i in 0..values.count {
            let finite = |x: &f32| all_below(C::INFINITE, std::slice::from_ref(x));
            data.extend(values.as_f32(i, buffer).iter().map(|x| if finite(x) { *x } else { 0.0 }));
        }
        Ok(Some(Self { data, tokens }))
    }

    /// The values to pack.
    pub fn view(&self, d: usize) -> Heads<'_> {
        Heads { data: Elements::F32(&self.data), strides: [0, d, 0] }
    }

    /// Adds what was left out to the output of the query that `sees` a token or not.
    #[cold]
    pub fn add_visible<C: ScoreTile>(
        &self,
        values: Tokens,
        sees: impl Fn(usize) -> bool,
        buffer: &mut [f32],
        output: &mut [f32],
    ) {
        for &token in self.tokens.iter().filter(|token| sees(**token)) {
            let value = values.as_f32(token, buffer);
            for (to, x) in output.iter_mut().zip(value) {
                if !all_below(C::INFINITE, std::slice::from_ref(x)) {
                    *to += x * f32::INFINITY; // also of what only rounds to infinity
                }
            }
        }
    }
}

/// Whether all values are finite.
#[inline(always)]
pub(super) fn all_finite(xs: &[f32]) -> bool {
    all_below(f32::INFINITY, xs)
}

/// Whether the magnitudes of all values are below `limit`, and none is NaN. Compared as integers, many side by side, so
/// that the loop is vectorized.
#[inline(always)]
fn all_below(limit: f32, xs: &[f32]) -> bool {
    const SIGN: u32 = 1 << 31;
    let magnitude = |x: &f32| x.to_bits() & !SIGN;
    let (blocks, rest) = xs.as_chunks::<MAX_LANES>();
    let mut largest = [0; MAX_LANES];
    for block in blocks {
        for i in 0..MAX_LANES {
            largest[i] = magnitude(&block[i]).max(largest[i]);
        }
    }
    let magnitudes = largest.into_iter().chain(rest.iter().map(magnitude));
    magnitudes.fold(0, u32::max) < limit.to_bits()
}
