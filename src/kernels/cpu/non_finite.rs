//! Values that are not finite, under a mask.
//!
//! What a hidden key holds has no influence on a query, NaN and infinities included. Scores of hidden keys are replaced,
//! whatever they are. But values are multiplied with weights of 0, and 0 · NaN is NaN. So such values are packed as
//! zeros, and added to the outputs of the queries that see them after the products. Compared with a branch per key this
//! costs one pass over the values of masked calls, and nothing else for values that are finite.

use super::element::Element;
use super::mask::Mask;
use super::problem::HeadsView;
use super::score_tile::Tokens;

/// The values of a task with zeros in place of what is not finite.
pub(super) struct FiniteValues<T> {
    /// `(count, d)`.
    data: Vec<T>,
    /// The tokens with values that are not finite.
    tokens: Vec<usize>,
}

impl<T: Element> FiniteValues<T> {
    /// `None` if all values are finite. `buffer` has room for a token.
    #[inline(always)]
    pub fn new(values: Tokens<T>, buffer: &mut [f32]) -> Option<Self> {
        let mut tokens = Vec::new();
        for i in 0..values.count {
            if !all_finite(values.as_f32(i, buffer)) {
                tokens.push(i);
            }
        }
        if tokens.is_empty() { None } else { Some(Self::copied(values, tokens, buffer)) }
    }

    #[cold]
    fn copied(values: Tokens<T>, tokens: Vec<usize>, buffer: &mut [f32]) -> Self {
        let mut data = Vec::with_capacity(values.count * values.d);
        for i in 0..values.count {
            let head = values.heads.head(values.start, values.from + i, values.h, values.d);
            let wide = T::as_f32(head, buffer);
            data.extend(head.iter().zip(wide).map(|(value, wide)| if wide.is_finite() { *value } else { T::ZERO }));
        }
        Self { data, tokens }
    }

    /// The values to pack.
    pub fn view(&self, d: usize) -> HeadsView<'_, T> {
        HeadsView { data: &self.data, strides: [0, d, 0] }
    }

    /// Adds what was left out to the output of the query that `sees` a token or not.
    #[cold]
    pub fn add_visible(&self, values: Tokens<T>, sees: impl Fn(usize) -> bool, buffer: &mut [f32], output: &mut [f32]) {
        for &token in self.tokens.iter().filter(|token| sees(**token)) {
            let value = values.as_f32(token, buffer);
            output.iter_mut().zip(value).filter(|(_, x)| !x.is_finite()).for_each(|(to, x)| *to += x);
        }
    }
}

/// Compared as integers, so that the loop is vectorized.
#[inline(always)]
fn all_finite(xs: &[f32]) -> bool {
    const SIGN: u32 = 1 << 31;
    xs.iter().fold(0, |largest, x| largest.max(x.to_bits() & !SIGN)) < f32::INFINITY.to_bits()
}

impl Mask<'_> {
    /// Whether any of the `queries` of sequence `b` may not see all of the first `keys` keys.
    pub(super) fn may_hide(
        &self,
        b: usize,
        queries: std::ops::Range<usize>,
        keys: usize,
        [s_q, s_kv]: [usize; 2],
    ) -> bool {
        let tensors = !(self.segments.is_empty() && self.keep.is_empty() && self.bias.is_empty());
        tensors || queries.into_iter().any(|i| self.range(b, i, s_q, s_kv) != (0..keys.min(s_kv)))
    }

    /// Whether query `i` of head `h` in sequence `b` sees the key `j`.
    pub(super) fn sees(&self, (b, h, i): (usize, usize, usize), j: usize, [s_q, s_kv]: [usize; 2]) -> bool {
        if j >= s_kv {
            return true; // an appended key
        }
        let mut score = [0.0];
        self.apply(&mut score, (b, h, i), self.position(b, i, s_q, s_kv), j);
        self.range(b, i, s_q, s_kv).contains(&j) && score[0] != f32::NEG_INFINITY
    }
}
