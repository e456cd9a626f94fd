//! The exponential function on vectors.

use super::isa::simd::Simd;

/// Below this value `e^x` is less than the smallest normal f32, and the result is 0.
const UNDERFLOW: f32 = -87.336_54;

/// ln 2, rounded up to so few bits that its product with a small integer is exact, and the rounding error.
#[allow(clippy::excessive_precision)]
const LN2_HIGH: f32 = 0.693_359_375;
const LN2_HIGH_ERROR: f32 = 2.121_944_4e-4;

/// Coefficients of the polynomial with the value 1 at 0 and the least relative error to `e^r` for `|r| <= ln 2 / 2`,
/// 9.2e-8; highest power first.
#[allow(clippy::excessive_precision)]
const POLYNOMIAL: [f32; 6] =
    [8.290_272_206e-3, 4.189_816_117_3e-2, 1.666_763_871_9e-1, 4.999_914_765_4e-1, 9.999_997_019_8e-1, 1.0];

/// `e^x` for `x <= 0`. NaN stays NaN.
///
/// 1. Write `x = n · ln 2 + r` with an integral `n` and `|r| <= ln 2 / 2`, so that `e^x = 2^n · e^r`.
/// 2. Compute `e^r` by a polynomial of degree 5: softmax over short rows is mostly exponentials, and one more degree
///    would not be seen in its results.
///
/// The error is at most 2 units in the last place where the processor has FMA, 3 elsewhere. The result is exactly 1 at
/// 0, and exactly 0 at -inf and wherever it would be subnormal.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    let c = |x: f32| s.splat(x);
    let n = s.round(s.mul(s.max(x, c(UNDERFLOW)), c(std::f32::consts::LOG2_E)));
    // From `x` itself, not from its clamped copy: `max` would lose a NaN.
    let r = s.mul_add(n, c(-LN2_HIGH), x);
    let r = s.mul_add(n, c(LN2_HIGH_ERROR), r);
    s.zero_below(x, c(UNDERFLOW), s.ldexp(polynomial(s, &POLYNOMIAL, r), n))
}

/// Coefficients of the polynomials with the value 1 at 0 and the least relative error to `2^r`: 1.0e-4 for
/// `|r| <= 1/2`, and 8.6e-5 for `0 <= r <= 1`; highest power first.
const EXP2_OF_REST: [f32; 4] = [0.055_008_93, 0.242_210_95, 0.693_282_9, 1.0];
const EXP2_OF_FRACTION: [f32; 4] = [0.077_067_24, 0.227_644_98, 0.695_116_64, 1.0];

/// `2^x` for `x <= 0`, to be rounded to bf16: relatively within 1.1e-4 of the true value, a small part of what rounding
/// changes. NaN stays NaN. The result is exactly 1 at 0, and exactly 0 at -inf and below `2^-126`
/// (which may also be subnormal).
#[inline(always)]
pub(crate) fn exp2_bf16<S: Simd>(s: S, x: S::V) -> S::V {
    if S::HAS_FRACTION {
        return s.ldexp(polynomial(s, &EXP2_OF_FRACTION, s.fraction(x)), x);
    }
    let c = |x: f32| s.splat(x);
    // If one is NaN, `max` returns its second argument.
    let clamped = s.max(c(-126.0), x);
    let n = s.round(clamped);
    let p = polynomial(s, &EXP2_OF_REST, s.sub(clamped, n));
    s.zero_below(x, c(-126.0), s.ldexp(p, n))
}

/// A polynomial by its coefficients, highest power first.
#[inline(always)]
pub(crate) fn polynomial<S: Simd, const N: usize>(s: S, coefficients: &[f32; N], x: S::V) -> S::V {
    let mut sum = s.splat(coefficients[0]);
    for coefficient in &coefficients[1..] {
        sum = s.mul_add(sum, x, s.splat(*coefficient));
    }
    sum
}
