//! Products with packed weights.

use candle_attention_kernels::{Activation, Isa, PackedWeights, Team};
use half::bf16;

use super::functions::{Function, evaluate};
use super::{Random, downcast, isas, upcast};

#[test]
fn products_of_odd_sizes_match_the_reference() {
    let mut random = Random(5);
    for (rows, k, n) in [(1, 1, 1), (1, 7, 50), (3, 64, 48), (8, 20, 33), (13, 5, 97), (130, 40, 24), (200, 129, 100)] {
        let (a, w, bias): (Vec<f32>, Vec<f32>, Vec<f32>) =
            (random.values(rows * k), random.values(n * k), random.values(n));
        // The kernel takes bf16 weights as f32 values that are exact in bf16.
        let rounded = |values: &[f32]| upcast(&downcast::<bf16>(values));
        let (a_bf16, w_bf16) = (rounded(&a), rounded(&w));
        for isa in isas() {
            for (activation, bias) in [
                (Activation::Identity, Some(&bias[..])),
                (Activation::Gelu, Some(&bias)),
                (Activation::GeluTanh, Some(&bias)),
                (Activation::Silu, Some(&bias)),
                (Activation::Relu, Some(&bias)),
                (Activation::Identity, None),
            ] {
                let what = format!("{} {rows}×{k}×{n} {activation:?}", isa.name());
                let packed = PackedWeights::new(isa, &w, bias, n, k).unwrap();
                check(&packed, [&a, &w], bias, activation, [rows, k, n], &what);
                let packed = PackedWeights::new_bf16(isa, &w_bf16, bias, n, k).unwrap();
                check(&packed, [&a_bf16, &w_bf16], bias, activation, [rows, k, n], &format!("{what} bf16"));
            }
        }
    }
}

fn check(
    packed: &PackedWeights,
    [a, w]: [&[f32]; 2],
    bias: Option<&[f32]>,
    activation: Activation,
    [rows, k, n]: [usize; 3],
    what: &str,
) {
    let portable = Isa::all().into_iter().find(|isa| isa.name() == "portable").unwrap();
    let mut got = vec![f32::NAN; rows * n]; // elements that are not written stay NaN
    packed.multiply(Team::ALONE, a, rows, activation, &mut got).unwrap();
    for (i, got) in got.iter().enumerate() {
        let (row, column) = (i / n, i % n);
        let pairs = a[row * k..][..k].iter().zip(&w[column * k..][..k]);
        let sum: f64 = pairs.map(|(a, w)| f64::from(*a) * f64::from(*w)).sum();
        let sum = sum + bias.map_or(0.0, |bias| f64::from(bias[column]));
        // The activations have tests of their own. This only tests that the right one is applied.
        let want = f64::from(evaluate(portable, Function::Activation(activation), sum as f32));
        let error = (f64::from(*got) - want).abs();
        assert!(error < 2e-5 + 2e-6 * want.abs(), "{what} [{row}, {column}]: {got}, want {want}");
    }
    // A row alone gives the same bits.
    let mut alone = vec![f32::NAN; n];
    let last = rows - 1;
    packed.multiply(Team::ALONE, &a[last * k..], 1, activation, &mut alone).unwrap();
    assert_eq!(alone, got[last * n..], "{what}");
}
