//! Bounds of the numbers that scores and weights are computed with.
//!
//! Configurations hold f64, kernels compute in f32: what is a number there may be zero, one or infinite here. A scale,
//! a softcap, a slope and `log2 e` are multiplied and divided with each other, so each has to stay far from the limits.

/// Largest magnitude of a scale, a slope, a softcap and a clipping limit, and the inverse of the smallest softcap and
/// clipping limit: no product or quotient of two of them overflows in f32, also after a multiplication with the number
/// of keys. Published models have scales from 0.004 to 1 and limits from 6 to 50.
pub(crate) const MAX_SCORE_FACTOR: f64 = 1e15;

/// Why a factor on scores is not allowed, as the expected value; `None` if it is.
pub(crate) fn expected_factor(x: f64) -> Option<&'static str> {
    // False for NaN.
    let fits = x.abs() <= MAX_SCORE_FACTOR;
    (!fits).then_some("a finite number from -1e15 to 1e15")
}

/// Why a limit of scores or projections is not allowed, as the expected value; `None` if it is.
pub(crate) fn expected_limit(x: f64) -> Option<&'static str> {
    let fits = (1.0 / MAX_SCORE_FACTOR..=MAX_SCORE_FACTOR).contains(&x);
    (!fits).then_some("a positive number from 1e-15 to 1e15")
}

/// Why a probability of dropout is not allowed, as the expected value; `None` if it is. 1 would divide by zero, also
/// where it comes from rounding to f32.
pub(crate) fn expected_dropout(p: f64) -> Option<&'static str> {
    let fits = p >= 0.0 && (p as f32) < 1.0;
    (!fits).then_some("a number in [0, 1), and not 1 in f32")
}
