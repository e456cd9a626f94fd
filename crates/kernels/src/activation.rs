//! Activations, and their functions on vectors: GELU ([Hendrycks 2016](https://arxiv.org/abs/1606.08415)) by the error
//! function and by the hyperbolic tangent, SiLU, ReLU, and the hyperbolic tangent itself; the functions of gates.

use super::exp::{exp, polynomial};
use super::isa::simd::Simd;

/// An element-wise activation that a matrix product can end with. The discriminants are fixed, because kernels for GPUs
/// read them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x`.
    Identity = 0,
    /// `x · Φ(x)`, exact by the error function ([Hendrycks 2016](https://arxiv.org/abs/1606.08415)).
    Gelu = 1,
    /// `x · Φ(x)`, approximated by the hyperbolic tangent.
    GeluTanh = 2,
    /// `x / (1 + e^-x)`, also called Swish ([Elfwing 2017](https://arxiv.org/abs/1702.03118)).
    Silu = 3,
    /// `max(x, 0)`.
    Relu = 4,
}

impl Activation {
    /// The activation of each lane.
    #[inline(always)]
    pub(crate) fn apply<S: Simd>(self, s: S, x: S::V) -> S::V {
        match self {
            Self::Identity => x,
            Self::Gelu => gelu(s, x),
            Self::GeluTanh => gelu_tanh(s, x),
            Self::Silu => silu(s, x),
            Self::Relu => relu(s, x),
        }
    }
}

/// [`Activation::apply`], for results that are then rounded to bf16.
#[inline(always)]
pub(crate) fn activate_bf16<S: Simd>(s: S, activation: Activation, x: S::V) -> S::V {
    match activation {
        Activation::Gelu if S::HAS_LOOKUP => gelu_bf16(s, x),
        _ => activation.apply(s, x),
    }
}

/// An odd function as `x · P(x²) / Q(x²)` for `|x| <= limit`; beyond the limit it is constant in f32. Coefficients of
/// the highest powers come first.
struct Rational<const M: usize, const N: usize> {
    limit: f32,
    p: [f32; M],
    q: [f32; N],
}

/// The error function, with the coefficients of Eigen and XLA.
#[allow(clippy::excessive_precision)]
const ERF: Rational<7, 5> = Rational {
    limit: 4.0,
    p: [
        -2.726_142_258_013_06e-10,
        2.770_681_424_959_02e-8,
        -2.101_024_020_825_08e-6,
        -5.692_506_394_623_46e-5,
        -7.349_906_303_268_55e-4,
        -2.954_599_808_540_25e-3,
        -1.609_603_332_624_15e-2,
    ],
    q: [
        -1.456_607_184_649_96e-5,
        -2.133_740_552_789_05e-4,
        -1.682_826_974_382_03e-3,
        -7.373_329_167_204_68e-3,
        -1.426_473_905_141_89e-2,
    ],
};

/// The hyperbolic tangent, with the coefficients of Eigen and XLA.
#[allow(clippy::excessive_precision)]
const TANH: Rational<7, 4> = Rational {
    limit: 9.0,
    p: [
        -2.760_768_477_423_55e-16,
        2.000_187_904_824_77e-13,
        -8.604_671_522_137_35e-11,
        5.122_297_090_371_14e-8,
        1.485_722_357_179_79e-5,
        6.372_619_288_754_36e-4,
        4.893_524_558_917_86e-3,
    ],
    q: [1.198_258_394_667_02e-6, 1.185_347_056_866_54e-4, 2.268_434_632_439_00e-3, 4.893_525_185_543_85e-3],
};

impl<const M: usize, const N: usize> Rational<M, N> {
    #[inline(always)]
    fn evaluate<S: Simd>(&self, s: S, x: S::V) -> S::V {
        // `min` and `max` return their second argument if one is NaN, so NaN passes.
        let x = s.max(s.splat(-self.limit), s.min(s.splat(self.limit), x));
        let square = s.mul(x, x);
        s.div(s.mul(x, polynomial(s, &self.p, square)), polynomial(s, &self.q, square))
    }
}

/// `tanh(x)`, within 6 units in the last place and never beyond ±1. NaN stays NaN.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(s: S, x: S::V) -> S::V {
    s.max(s.splat(-1.0), s.min(s.splat(1.0), TANH.evaluate(s, x)))
}

/// GELU: `x / 2 · (1 + erf(x / √2))`, within 4e-7 · max(1, |x|) of the true value. NaN stays NaN.
#[inline(always)]
pub(crate) fn gelu<S: Simd>(s: S, x: S::V) -> S::V {
    let half = s.mul(x, s.splat(0.5));
    s.mul_add(half, ERF.evaluate(s, s.mul(x, s.splat(std::f32::consts::FRAC_1_SQRT_2))), half)
}

/// The largest `|x|` that [`GELU_PARABOLAS`] are for, and the parabolas per unit of `|x|`.
const GELU_LIMIT: f32 = 5.5;
const GELU_STEP: f32 = 31.0 / GELU_LIMIT;

/// Coefficients of `a · Φ(-a)` around `a = i / GELU_STEP` as a parabola of `a`, with the least relative error; those of
/// the highest power first.
#[rustfmt::skip]
const GELU_PARABOLAS: [[f32; 32]; 3] = [
    [
        -3.984_086_5e-1, -3.868_293_5e-1, -3.511_492e-1, -2.972_333_7e-1, -2.319_996e-1, -1.632_046_1e-1,
        -9.807_198_5e-2, -4.220_798_6e-2, 1.013_776_2e-3, 3.054_373_3e-2, 4.730_324e-2, 5.355_763_8e-2,
        5.220_036_6e-2, 4.614_595_7e-2, 3.787_871e-2, 2.923_841_6e-2, 2.138_568_3e-2, 1.489_573_9e-2, 9.914_265e-3,
        6.321_110_3e-3, 3.867_804_3e-3, 2.274_547_7e-3, 1.287_009_7e-3, 7.013_634_3e-4, 3.684_385_4e-4,
        1.867_504_6e-4, 9.144_055e-5, 4.330_581e-5, 1.984_700_8e-5, 8.791_588e-6, 3.758_035_7e-6, 1.914_765e-6,
    ],
    [
        4.999_904_6e-1, 4.974_479e-1, 4.781_423_8e-1, 4.300_626_8e-1, 3.489_065_5e-1, 2.390_447e-1, 1.120_396_4e-1,
        -1.660_563_6e-2, -1.313_724_2e-1, -2.201_617_5e-1, -2.763_954_7e-1, -2.994_738_8e-1, -2.937_588_4e-1,
        -2.667_781_7e-1, -2.270_930_3e-1, -1.825_897_8e-1, -1.393_769_2e-1, -1.013_720_86e-1, -7.044e-2,
        -4.685_763_6e-2, -2.988_81e-2, -1.830_356_6e-2, -1.077_358e-2, -6.100_673_7e-3, -3.326_390_6e-3,
        -1.748_084_7e-3, -8.864_482e-4, -4.343_103_8e-4, -2.057_01e-4, -9.407_889e-5, -4.148_699e-5,
        -2.162_207_4e-5,
    ],
    [
        0.0, 1.397_241_6e-4, 2.774_432_8e-3, 1.352_858e-2, 3.881_263_7e-2, 8.271_865e-2, 1.446_744_8e-1,
        2.187_728_6e-1, 2.949_857e-1, 3.617_461_3e-1, 4.089_265_5e-1, 4.302_180_4e-1, 4.242_066_4e-1, 3.941_442e-1,
        3.465_138_7e-1, 2.892_029_3e-1, 2.297_486_2e-1, 1.741_056_9e-1, 1.260_848e-1, 8.738_887e-2, 5.804_267e-2,
        3.698_390_7e-2, 2.262_921e-2, 1.330_748_8e-2, 7.527_708_5e-3, 4.099_948e-3, 2.152_511_6e-3, 1.090_730_5e-3,
        5.337_589e-4, 2.520_017_7e-4, 1.146_254_2e-4, 6.110_427e-5,
    ],
];

/// [`gelu`], to be rounded to bf16: `max(x, 0) - |x| · Φ(-|x|)`, within 2^-9 of the true value, relatively, and on
/// average within 2^-13, or within 2e-7. NaN stays NaN.
#[inline(always)]
pub(crate) fn gelu_bf16<S: Simd>(s: S, x: S::V) -> S::V {
    let zero = s.splat(0.0);
    // If one is NaN, `min` and `max` return their second argument.
    let a = s.min(s.splat(GELU_LIMIT), s.max(x, s.sub(zero, x)));
    // The low bits of a float of 2^23 and more are an integer.
    let index = s.mul_add(a, s.splat(GELU_STEP), s.splat((1 << 23) as f32));
    let [second, first, constant] = &GELU_PARABOLAS;
    let line = s.mul_add(s.lookup(second, index), a, s.lookup(first, index));
    s.sub(s.max(x, zero), s.mul_add(line, a, s.lookup(constant, index)))
}

/// GELU by the hyperbolic tangent: `x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 · x³)))`, within 4e-7 · max(1, |x|) of the
/// true value. NaN stays NaN.
#[inline(always)]
pub(crate) fn gelu_tanh<S: Simd>(s: S, x: S::V) -> S::V {
    const ROOT: f32 = 0.797_884_6;
    let cubic = s.mul_add(s.mul(x, x), s.splat(0.044_715 * ROOT), s.splat(ROOT));
    let half = s.mul(x, s.splat(0.5));
    s.mul_add(half, tanh(s, s.mul(x, cubic)), half)
}

/// SiLU, also called Swish: `x / (1 + e^-x)`, within 4e-7 · max(1, |x|) of the true value. NaN stays NaN.
#[inline(always)]
pub(crate) fn silu<S: Simd>(s: S, x: S::V) -> S::V {
    s.mul(x, sigmoid(s, x))
}

/// The logistic function: `1 / (1 + e^-x)`, within 4e-7 of the true value. NaN stays NaN.
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(s: S, x: S::V) -> S::V {
    let (zero, one) = (s.splat(0.0), s.splat(1.0));
    let negative = s.sub(zero, x);
    // `exp` is defined for x <= 0 only. Above 0 the fraction is 1 / (1 + e^-x), below it is e^x / (1 + e^x).
    let below = exp(s, s.min(zero, x));
    let total = s.add(one, exp(s, s.min(x, negative)));
    s.div(below, total)
}

/// Coefficients of `artanh(z) / z` in powers of `z²`, highest power first.
const ARTANH: [f32; 8] = [1.0 / 15.0, 1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0];

/// Softplus: `ln(1 + e^x)`, within 4e-7 · max(1, |x|) of the true value. NaN stays NaN.
#[inline(always)]
pub(crate) fn softplus<S: Simd>(s: S, x: S::V) -> S::V {
    let zero = s.splat(0.0);
    // max(x, 0) + ln(1 + u) with u = e^-|x|, and ln(1 + u) = 2 artanh(z) with z = u / (2 + u), at most 1/3.
    let u = exp(s, s.min(x, s.sub(zero, x)));
    let z = s.div(u, s.add(s.splat(2.0), u));
    let series = polynomial(s, &ARTANH, s.mul(z, z));
    s.mul_add(s.add(z, z), series, s.max(x, zero))
}

/// ReLU: `max(0, x)`, in this order, which keeps NaN.
#[inline(always)]
pub(crate) fn relu<S: Simd>(s: S, x: S::V) -> S::V {
    s.max(s.splat(0.0), x)
}
