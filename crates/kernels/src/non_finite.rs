//! Values that are not finite, under a mask.
//!
//! The contents of a hidden key have no influence on a query, NaN and infinities included. Scores of hidden keys are
//! replaced, whatever they are. But values are multiplied with weights of 0, and 0 · NaN is NaN. So where an output is
//! not finite, such values are packed again as zeros, and added to the outputs of the queries that see them after the
//! products. This costs nothing for values that are finite. It is the same for every query that sees such a value,
//! whether or not the queries of its task see all keys, because tasks depend on the number of threads.

use super::elements::Elements;
use super::error::Result;
use super::memory::try_reserve;
use super::online_softmax::all_below;
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

    /// The values to pack, in place of `values`.
    pub fn tokens(&self, values: Tokens) -> Tokens<'_> {
        let heads = Heads { data: Elements::F32(&self.data), strides: [0, values.d, 0] };
        Tokens { heads, start: (0, 0), h: 0, ..values }
    }

    /// Multiplies the output of the query that `sees` a token or not with `factor`, and adds what was left out.
    #[cold]
    pub fn add_visible<C: ScoreTile>(
        &self,
        values: Tokens,
        sees: impl Fn(usize) -> bool,
        buffer: &mut [f32],
        (output, factor): (&mut [f32], f32),
    ) {
        output.iter_mut().for_each(|x| *x = *x * factor + 0.0);
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
