//! The functions of single numbers.

use super::{isas, scalar};
use crate::kernels::cpu::exp::exp;
use crate::kernels::cpu::gelu::{gelu, gelu_tanh, silu, tanh};
use crate::kernels::cpu::isa::Isa;
use crate::kernels::cpu::simd::Portable;

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

/// Calls `$check` with a scalar version of `$function` for each instruction set.
macro_rules! for_each_isa {
    ($function:ident, $check:expr) => {
        for isa in isas() {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Amx(_) | Isa::Avx512Bf16(_) => {} // as AVX-512
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512(s) => $check(isa, &|x| scalar(s, |v| $function(s, v), x)),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2(s) => $check(isa, &|x| scalar(s, |v| $function(s, v), x)),
                #[cfg(target_arch = "aarch64")]
                Isa::Neon(s) => $check(isa, &|x| scalar(s, |v| $function(s, v), x)),
                Isa::PortablePairs => {} // as portable
                Isa::Portable => $check(isa, &|x| scalar(Portable, |v| $function(Portable, v), x)),
            }
        }
    };
}

#[test]
fn exp_is_right() {
    for_each_isa!(exp, |isa: Isa, f: &dyn Fn(f32) -> f32| {
        check_exp(isa.name(), f, if matches!(isa, Isa::Portable) { 3.0 } else { 2.0 });
    });
}

/// Against the series of the error function in f64.
#[test]
fn gelu_is_right() {
    let erf = |x: f64| {
        let mut term = x;
        let mut sum = x;
        for n in 1..200 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * 2.0 / std::f64::consts::PI.sqrt()
    };
    for_each_isa!(gelu, |isa: Isa, f: &dyn Fn(f32) -> f32| {
        let name = isa.name();
        assert_eq!((f(0.0), f(10.0), f(1e10)), (0.0, 10.0, 1e10), "{name}");
        assert!(f(-10.0).abs() < 1e-5 && f(f32::NAN).is_nan(), "{name}");
        let mut worst: f64 = 0.0;
        for i in -5000..=5000 {
            let x = i as f32 * 0.001;
            let want = f64::from(x) / 2.0 * (1.0 + erf(f64::from(x) / 2f64.sqrt()));
            worst = worst.max((f64::from(f(x)) - want).abs() / f64::from(x.abs().max(1.0)));
        }
        println!("{name}: gelu is within {worst:.1e}");
        assert!(worst < 4e-7, "{name}: {worst}");
    });
}

/// In units in the last place of the true value.
#[test]
fn tanh_is_right() {
    for_each_isa!(tanh, |isa: Isa, f: &dyn Fn(f32) -> f32| {
        let name = isa.name();
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
fn gelu_by_tanh_is_right() {
    for_each_isa!(gelu_tanh, |isa: Isa, f: &dyn Fn(f32) -> f32| {
        let name = isa.name();
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
fn silu_is_right() {
    for_each_isa!(silu, |isa: Isa, f: &dyn Fn(f32) -> f32| {
        let name = isa.name();
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
