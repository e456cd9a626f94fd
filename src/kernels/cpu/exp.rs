//! `e^x` on vectors.

use super::simd::Simd;

/// Below this `e^x` is less than the smallest normal f32; it becomes 0.
const UNDERFLOW: f32 = -87.336_54;

/// ln 2 with so few bits that its product with a small integer is exact, and what it is too large by.
#[allow(clippy::excessive_precision)]
const LN2_HIGH: f32 = 0.693_359_375;
const LN2_HIGH_ERROR: f32 = 2.121_944_4e-4;

/// `(e^r - 1 - r) / r²`, highest power first.
#[allow(clippy::excessive_precision)]
const POLYNOMIAL: [f32; 6] = [
    1.987_569_150_0e-4,
    1.398_199_950_7e-3,
    8.333_451_907_3e-3,
    4.166_579_589_4e-2,
    1.666_666_545_9e-1,
    5.000_000_120_1e-1,
];

/// `e^x` for `x <= 0`, and for NaN, which stays NaN.
///
/// `x = n · ln 2 + r` with `|r| <= ln 2 / 2`, `e^x = 2^n · e^r`, `e^r` by a polynomial of degree 6 (coefficients of
/// Cephes' `expf`, Moshier). Within 2 units in the last place of the true value where FMA exists, 3 elsewhere; exactly 1
/// at 0, exactly 0 at -inf and wherever the result would not be a normal number.
#[inline(always)]
pub(super) fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    let c = |x: f32| s.splat(x);
    let n = s.round(s.mul(s.max(x, c(UNDERFLOW)), c(std::f32::consts::LOG2_E)));
    // From x itself, not from its clamped copy, so that a NaN is not lost in `max`.
    let r = s.mul_add(n, c(-LN2_HIGH), x);
    let r = s.mul_add(n, c(LN2_HIGH_ERROR), r);
    let mut p = c(POLYNOMIAL[0]);
    for coefficient in &POLYNOMIAL[1..] {
        p = s.mul_add(p, r, c(*coefficient));
    }
    let e = s.add(s.mul_add(s.mul(r, r), p, r), c(1.0));
    s.zero_below(x, c(UNDERFLOW), s.scale_by_power(e, n))
}
