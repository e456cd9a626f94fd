//! SIMD128 against the portable instruction set: the same bits.

use candle_attention_kernels::{Activation, Isa, Mask, MaskStructure, PackedWeights, RowNorm, Team, attend};

use super::functions::{Function, evaluate};
use super::support::reference::{Sizes, problem, qkv};
use super::{Random, isas};

/// Asserts that both instruction sets make the same of each case.
fn assert_same_bits(what: &str, run: impl Fn(Isa) -> Vec<f32>) {
    let [simd128, portable] = ["simd128", "portable"].map(|name| {
        let isa = isas().into_iter().find(|isa| isa.name() == name).unwrap();
        run(isa).into_iter().map(f32::to_bits).collect::<Vec<_>>()
    });
    assert!(!portable.is_empty() && simd128 == portable, "{what}");
}

#[test]
fn attention_has_the_bits_of_portable() {
    let mut random = Random(1);
    for (s_q, s_kv, d, d_v) in [(1, 1, 1, 1), (5, 7, 7, 5), (9, 192, 16, 48), (65, 193, 40, 64), (70, 400, 130, 129)] {
        let sizes = Sizes { b: 2, s_q, s_kv, appended: 0, h: 4, h_kv: 2, d, d_v };
        let [q, k, v] = qkv::<f32>(&mut random, sizes);
        for right in [None, Some(0)] {
            let structure = MaskStructure { right, ..MaskStructure::default() };
            let mut call = problem(sizes, [&q, &k, &v], Mask::from(structure));
            for softcap in [None, Some(0.7)] {
                call.softcap = softcap;
                assert_same_bits(&format!("{sizes:?} {right:?} {softcap:?}"), |isa| {
                    let mut output = vec![f32::NAN; 2 * s_q * 4 * d_v];
                    attend(isa, Team::ALONE, &call, &mut output).unwrap();
                    output
                });
            }
        }
    }
}

#[test]
fn products_have_the_bits_of_portable() {
    let mut random = Random(2);
    for (rows, k, n) in [(1, 1, 1), (1, 7, 50), (3, 64, 48), (8, 20, 33), (13, 5, 97), (130, 40, 24), (200, 129, 100)] {
        let (a, w, bias): (Vec<f32>, Vec<f32>, Vec<f32>) =
            (random.values(rows * k), random.values(n * k), random.values(n));
        for activation in [Activation::Identity, Activation::Gelu] {
            assert_same_bits(&format!("{rows}×{k}×{n} {activation:?}"), |isa| {
                let packed = PackedWeights::new(isa, &w, Some(&bias), n, k).unwrap();
                let mut output = vec![f32::NAN; rows * n];
                packed.multiply(Team::ALONE, &a, rows, activation, &mut output).unwrap();
                output
            });
        }
    }
}

#[test]
fn norms_have_the_bits_of_portable() {
    let mut random = Random(3);
    for (rows, width) in [(1, 1), (3, 7), (5, 16), (300, 33), (2, 384)] {
        let (xs, residual): (Vec<f32>, Vec<f32>) = (random.values(rows * width), random.values(rows * width));
        let (weight, bias): (Vec<f32>, Vec<f32>) = (random.values(width), random.values(width));
        for rms in [false, true] {
            assert_same_bits(&format!("{rows}×{width} {rms}"), |isa| {
                let mut output = xs.clone();
                let norm = RowNorm { weight: &weight, bias: &bias, eps: 1e-5, rms };
                norm.apply(isa, Team::ALONE, &mut output, Some(&residual)).unwrap();
                output
            });
        }
    }
}

#[test]
fn functions_have_the_bits_of_portable() {
    let activations = [Activation::Gelu, Activation::GeluTanh, Activation::Silu, Activation::Relu];
    let functions = activations.map(Function::Activation).into_iter().chain([Function::Exp, Function::Tanh]);
    let special = [0.0, -0.0, f32::MIN_POSITIVE, -87.336_54, -87.4, -1e30, f32::NEG_INFINITY, f32::NAN];
    for function in functions {
        let xs = special.into_iter().chain((0..20_000).map(|i| i as f32 * -0.004_37));
        let both = |x: f32| [x, if matches!(function, Function::Exp) { x } else { -x }];
        let xs: Vec<f32> = xs.flat_map(both).collect();
        assert_same_bits(&format!("{function:?}"), |isa| {
            // The sign of a NaN has no meaning.
            let value = |x: &f32| Some(evaluate(isa, function, *x)).filter(|y| !y.is_nan()).unwrap_or(f32::NAN);
            xs.iter().map(value).collect()
        });
    }
}
