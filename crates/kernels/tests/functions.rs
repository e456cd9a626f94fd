//! Functions of single values.

use candle_attention_kernels::{Activation, Isa};

use super::isas;
use crate::activation::{activate_bf16, tanh};
use crate::convert::PairFormat;
use crate::exp::{exp, exp2_bf16};
use crate::isa::kernel::{Kernel, PairKernel};
use crate::isa::pair_dot::PairDot;
use crate::isa::simd::Simd;

#[derive(Debug, Clone, Copy)]
pub(super) enum Function {
    Exp,
    /// Those that are then rounded to bf16.
    Exp2Bf16,
    GeluBf16,
    Tanh,
    Activation(Activation),
}

/// Applies a function to each value by itself.
struct Evaluate<'a> {
    function: Function,
    xs: &'a mut [f32],
}

impl Evaluate<'_> {
    #[inline(always)]
    fn with<S: Simd>(self, s: S) {
        for x in self.xs {
            let v = s.splat(*x);
            *x = s.lanes(match self.function {
                Function::Exp => exp(s, v),
                Function::Exp2Bf16 => exp2_bf16(s, v),
                Function::GeluBf16 => activate_bf16(s, Activation::Gelu, v),
                Function::Tanh => tanh(s, v),
                Function::Activation(activation) => activation.apply(s, v),
            })[0];
        }
    }
}

impl Kernel for Evaluate<'_> {
    #[inline(always)]
    fn run<S: Simd, const MR: usize, const NR: usize>(self, s: S) {
        self.with(s);
    }
}

impl PairKernel for Evaluate<'_> {
    #[inline(always)]
    fn run<S: Simd, D: PairDot>(self, s: S, _: D) {
        self.with(s);
    }
}

/// The function of `x`, with the given instruction set.
pub(super) fn evaluate(isa: Isa, function: Function, x: f32) -> f32 {
    let mut xs = [x];
    isa.run(Evaluate { function, xs: &mut xs });
    xs[0]
}

/// Calls `check` with the name of each instruction set and the function on it.
fn on_each_isa(function: Function, check: impl Fn(&str, &dyn Fn(f32) -> f32)) {
    for isa in isas() {
        check(isa.name(), &|x| evaluate(isa, function, x));
    }
}

fn check_exp(name: &str, exp: impl Fn(f32) -> f32, ulps: f64) {
    assert_eq!(exp(0.0), 1.0, "{name}");
    assert_eq!(exp(f32::NEG_INFINITY), 0.0, "{name}");
    assert_eq!(exp(-1e30), 0.0, "{name}");
    assert!(exp(f32::NAN).is_nan(), "{name}");
    let mut worst: f64 = 0.0;
    let mut x = 0.0f32;
    while x > -87.0 {
        let want = f64::from(x).exp();
        let ulp = f64::from(f32::from_bits((want as f32).to_bits() + 1)) - f64::from(want as f32);
        worst = worst.max((f64::from(exp(x)) - want).abs() / ulp);
        x -= 0.000_731;
    }
    println!("{name}: exp is within {worst:.2} units in the last place");
    assert!(worst <= ulps, "{name}: {worst}");
}

#[test]
fn exp_is_within_its_error_bound() {
    on_each_isa(Function::Exp, |name, f| {
        // Without a fused multiply-add each term of the polynomial is rounded twice.
        let is_fused = !["portable", "simd128"].iter().any(|start| name.starts_with(start));
        check_exp(name, f, if is_fused { 2.0 } else { 3.0 });
    });
}

#[test]
fn exp2_for_bf16_is_within_its_error_bound() {
    let check = |name: &str, exp2: &dyn Fn(f32) -> f32| {
        assert_eq!((exp2(0.0), exp2(f32::NEG_INFINITY), exp2(-1e30)), (1.0, 0.0, 0.0), "{name}");
        assert!(exp2(f32::NAN).is_nan(), "{name}");
        for i in -10..126_000 {
            let x = i as f32 * -0.001;
            let want = f64::from(x).exp2();
            assert!((f64::from(exp2(x)) - want).abs() < 1.1e-4 * want, "{name}: {x}");
        }
    };
    on_each_isa(Function::Exp2Bf16, check);
    for isa in isas().into_iter().filter(|isa| isa.has_bf16_dot()) {
        check(isa.name(), &|x| {
            let mut xs = [x];
            isa.run_pairs(PairFormat::Bf16, Evaluate { function: Function::Exp2Bf16, xs: &mut xs });
            xs[0]
        });
    }
}

/// GELU by the series of the error function.
fn exact_gelu(x: f32) -> f64 {
    let x = f64::from(x);
    let z = x / 2f64.sqrt();
    let (mut term, mut sum) = (z, z);
    for n in 1..200 {
        term *= -z * z / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    x / 2.0 * (1.0 + sum * 2.0 / std::f64::consts::PI.sqrt())
}

#[test]
fn gelu_for_bf16_is_within_its_error_bound() {
    on_each_isa(Function::GeluBf16, |name, f| {
        assert_eq!((f(0.0), f(10.0), f(1e10)), (0.0, 10.0, 1e10), "{name}");
        assert!(f(-10.0).abs() < 1e-5 && f(f32::NAN).is_nan(), "{name}");
        let mut squares = 0.0;
        for i in -6000..=6000 {
            let x = i as f32 * 0.001;
            let want = exact_gelu(x);
            let error = (f64::from(f(x)) - want).abs();
            assert!(error < want.abs() / 512.0 + 4e-7 * f64::from(x.abs().max(1.0)), "{name}: {x}");
            if x > -3.0 && x != 0.0 {
                squares += (error / want).powi(2) / 9000.0;
            }
        }
        assert!(squares.sqrt() < 1.0 / 8192.0, "{name}: {}", squares.sqrt());
    });
}

/// The reference is the series of the error function in f64.
#[test]
fn gelu_is_within_its_error_bound() {
    on_each_isa(Function::Activation(Activation::Gelu), |name, f| {
        assert_eq!((f(0.0), f(10.0), f(1e10)), (0.0, 10.0, 1e10), "{name}");
        assert!(f(-10.0).abs() < 1e-5 && f(f32::NAN).is_nan(), "{name}");
        let mut worst: f64 = 0.0;
        for i in -5000..=5000 {
            let x = i as f32 * 0.001;
            worst = worst.max((f64::from(f(x)) - exact_gelu(x)).abs() / f64::from(x.abs().max(1.0)));
        }
        println!("{name}: gelu is within {worst:.1e}");
        assert!(worst < 4e-7, "{name}: {worst}");
    });
}

/// The error is in units in the last place of the true value.
#[test]
fn tanh_is_within_its_error_bound() {
    on_each_isa(Function::Tanh, |name, f| {
        assert_eq!((f(0.0), f(f32::INFINITY), f(-20.0)), (0.0, 1.0, -1.0), "{name}");
        assert!(f(f32::NAN).is_nan(), "{name}");
        let mut worst: f64 = 0.0;
        for i in 1..12_000 {
            let x = 1.0023f32.powi(i - 10_000);
            let want = f64::from(x).tanh();
            let ulp = f64::from(f32::from_bits((want as f32).to_bits() + 1)) - f64::from(want as f32);
            worst = worst.max((f64::from(f(x)) - want).abs() / ulp);
        }
        println!("{name}: tanh is within {worst:.2} units in the last place");
        assert!(worst <= 6.0, "{name}: {worst}");
    });
}

#[test]
fn gelu_by_tanh_is_within_its_error_bound() {
    on_each_isa(Function::Activation(Activation::GeluTanh), |name, f| {
        assert_eq!((f(0.0), f(10.0)), (0.0, 10.0), "{name}");
        assert!(f(-10.0).abs() < 2e-6 && f(f32::NAN).is_nan(), "{name}");
        let mut worst: f64 = 0.0;
        for i in -5000..=5000 {
            let x = i as f32 * 0.001;
            let wide = f64::from(x);
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (wide + 0.044_715 * wide.powi(3));
            worst = worst.max((f64::from(f(x)) - wide / 2.0 * (1.0 + inner.tanh())).abs() / wide.abs().max(1.0));
        }
        println!("{name}: gelu by tanh is within {worst:.1e}");
        assert!(worst < 4e-7, "{name}: {worst}");
    });
}

#[test]
fn silu_is_within_its_error_bound() {
    on_each_isa(Function::Activation(Activation::Silu), |name, f| {
        assert_eq!((f(0.0), f(100.0), f(-100.0)), (0.0, 100.0, 0.0), "{name}");
        assert!(f(f32::NAN).is_nan(), "{name}");
        let mut worst: f64 = 0.0;
        for i in -20000..=20000 {
            let x = i as f32 * 0.001;
            let wide = f64::from(x);
            worst = worst.max((f64::from(f(x)) - wide / (1.0 + (-wide).exp())).abs() / wide.abs().max(1.0));
        }
        println!("{name}: silu is within {worst:.1e}");
        assert!(worst < 4e-7, "{name}: {worst}");
    });
}

#[test]
fn relu_is_exact() {
    on_each_isa(Function::Activation(Activation::Relu), |name, f| {
        assert_eq!([-1.5, -0.0, 0.0, 1.5, f32::INFINITY].map(f), [0.0, 0.0, 0.0, 1.5, f32::INFINITY], "{name}");
    });
}
