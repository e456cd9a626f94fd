//! The activation `x · Φ(x)` ([Hendrycks 2016](https://arxiv.org/abs/1606.08415)) on vectors.

use super::simd::Simd;

/// Beyond this the error function is 1 in f32.
const ERF_IS_ONE: f32 = 4.0;

/// `erf(x)` as `x · P(x²) / Q(x²)` on `[-4, 4]`, highest power first (the rational approximation of Eigen and XLA).
#[allow(clippy::excessive_precision)]
const P: [f32; 7] = [
    -2.726_142_258_013_06e-10,
    2.770_681_424_959_02e-8,
    -2.101_024_020_825_08e-6,
    -5.692_506_394_623_46e-5,
    -7.349_906_303_268_55e-4,
    -2.954_599_808_540_25e-3,
    -1.609_603_332_624_15e-2,
];
#[allow(clippy::excessive_precision)]
const Q: [f32; 5] = [
    -1.456_607_184_649_96e-5,
    -2.133_740_552_789_05e-4,
    -1.682_826_974_382_03e-3,
    -7.373_329_167_204_68e-3,
    -1.426_473_905_141_89e-2,
];

#[inline(always)]
fn polynomial<S: Simd, const N: usize>(s: S, coefficients: &[f32; N], x: S::V) -> S::V {
    let mut sum = s.splat(coefficients[0]);
    for coefficient in &coefficients[1..] {
        sum = s.mul_add(sum, x, s.splat(*coefficient));
    }
    sum
}

/// `x / 2 · (1 + erf(x / √2))`, within 4e-7 · max(1, |x|) of the true value; NaN stays NaN.
#[inline(always)]
pub(super) fn gelu<S: Simd>(s: S, x: S::V) -> S::V {
    let z = s.mul(x, s.splat(std::f32::consts::FRAC_1_SQRT_2));
    // `max(limit, z)` gives the second where one is NaN, so that NaN goes through.
    let z = s.max(s.splat(-ERF_IS_ONE), s.min(s.splat(ERF_IS_ONE), z));
    let square = s.mul(z, z);
    let erf = s.div(s.mul(z, polynomial(s, &P, square)), polynomial(s, &Q, square));
    let half = s.mul(x, s.splat(0.5));
    s.mul_add(half, erf, half)
}
