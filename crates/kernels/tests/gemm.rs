//! Products with packed weights.

use candle_attention_kernels::{Activation, Isa, PackedWeights, Packer, Team, WeightFormat};
use half::{bf16, f16};

use super::functions::{Function, evaluate};
use super::loops::LOOPS;
use super::{Random, downcast, isas, upcast};
use crate::convert::PairFormat;

const ACTIVATIONS: [Activation; 5] =
    [Activation::Identity, Activation::Gelu, Activation::GeluTanh, Activation::Silu, Activation::Relu];

#[test]
fn products_of_odd_sizes_match_the_reference() {
    let mut random = Random(5);
    for (rows, k, n) in [(1, 1, 1), (1, 7, 50), (3, 64, 48), (8, 20, 33), (13, 5, 97), (130, 40, 24), (200, 129, 100)] {
        let (a, w, bias): (Vec<f32>, Vec<f32>, Vec<f32>) =
            (random.values(rows * k), random.values(n * k), random.values(n));
        // The kernel takes bf16 weights as f32 values that are exact in bf16.
        let rounded = |values: &[f32]| upcast(&downcast::<bf16>(values));
        let (a_bf16, w_bf16) = (rounded(&a), rounded(&w));
        let [a_f16, w_f16] = [&a, &w].map(|values| upcast(&downcast::<f16>(values)));
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
                let packed = PackedWeights::new_f16(isa, &w_f16, bias, n, k).unwrap();
                check(&packed, [&a_f16, &w_f16], bias, activation, [rows, k, n], &format!("{what} f16"));
                let mut packer = Packer::with_blas(isa, Some(LOOPS), WeightFormat::F16, n, k).unwrap();
                packer.push(n, &w_f16, bias).unwrap();
                let (packed, what) = (packer.finish().unwrap(), format!("{what} f16 by a library"));
                check(&packed, [&a_f16, &w_f16], bias, activation, [rows, k, n], &what);
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

/// Weights of 16 bits stay so, and products that do not round their inputs have the bits of those with the same weights
/// in f32: for rows that are multiplied alone, in a small tile, and in all tiles.
#[test]
fn weights_of_16_bits_give_the_bits_of_f32() {
    let mut random = Random(8);
    for (k, n) in [(1, 1), (7, 50), (64, 200), (129, 97)] {
        let mut w = random.values::<f32>(n * k);
        w.iter_mut().zip([-0.0, 6e-8, 6e-5]).for_each(|(w, rare)| *w = rare);
        let bias = random.values(n);
        let [w_bf16, w_f16] = [upcast(&downcast::<bf16>(&w)), upcast(&downcast::<f16>(&w))];
        for isa in isas() {
            let bf16 = PackedWeights::new_bf16(isa, &w_bf16, Some(&bias), n, k).unwrap();
            let f16 = PackedWeights::new_f16(isa, &w_f16, Some(&bias), n, k).unwrap();
            for (packed, w, multiplies_pairs) in
                [(bf16, &w_bf16, isa.has_bf16_dot()), (f16, &w_f16, isa.has_pairs(PairFormat::F16))]
            {
                let wide = PackedWeights::new(isa, w, Some(&bias), n, k).unwrap();
                let what = format!("{} {:?} {k}×{n}", isa.name(), packed.format());
                assert_ne!(packed.format(), WeightFormat::F32, "{what}");
                if k >= 64 && !multiplies_pairs {
                    assert!(packed.bytes() * 100 <= wide.bytes() * 55, "{what}: {} bytes", packed.bytes());
                }
                if multiplies_pairs {
                    continue;
                }
                for rows in [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 17, 130] {
                    let a = random.values::<f32>(rows * k);
                    let [got, want] = [&packed, &wide].map(|weights| {
                        let mut out = Vec::<f32>::new();
                        weights.multiply(Team::ALONE, &a, rows, Activation::Gelu, &mut out).unwrap();
                        out.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
                    });
                    assert_eq!(got, want, "{what}, {rows} rows");
                }
            }
        }
    }
}

/// Conversions of each bit pattern of f16 that is a number.
#[test]
fn f16_is_converted_exactly() {
    for bits in 0..=u16::MAX {
        let (x, want) = (f16::from_bits(bits), f16::from_bits(bits).to_f32());
        let got = crate::convert::f16_to_f32(x);
        assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{bits:x}: {got}, want {want}");
    }
}

/// NaN in the inputs of a row stays NaN in its outputs, also behind activations that are maxima.
#[test]
fn activations_keep_nan() {
    const FORMATS: [WeightFormat; 6] = [
        WeightFormat::F32,
        WeightFormat::F16,
        WeightFormat::Bf16,
        WeightFormat::Int8,
        WeightFormat::Q8_0,
        WeightFormat::Q4_0,
    ];
    let (k, n) = (64, 19);
    let mut random = Random(3);
    let weight: Vec<f32> = random.values(n * k);
    for (isa, format) in isas().into_iter().flat_map(|isa| FORMATS.map(|format| (isa, format))) {
        let mut packer = Packer::new(isa, format, n, k).unwrap();
        packer.push(n, &weight, None).unwrap();
        let packed = packer.finish().unwrap();
        for (rows, activation) in [1, 5].into_iter().flat_map(|rows| ACTIVATIONS.map(|activation| (rows, activation))) {
            let mut a = random.values(rows * k);
            a[(rows - 1) * k + 7] = f32::NAN;
            let mut got = Vec::<f32>::new();
            packed.multiply(Team::ALONE, &a, rows, activation, &mut got).unwrap();
            let (finite, nan) = got.split_at((rows - 1) * n);
            let what = format!("{} {format:?} {rows} {activation:?}", isa.name());
            assert!(finite.iter().all(|x| x.is_finite()) && nan.iter().all(|x| x.is_nan()), "{what}: {got:?}");
        }
    }
}

/// No instruction makes a number of an input that f16 does not hold.
#[test]
fn inputs_that_are_infinite_in_f16_give_no_number() {
    let weight = [1.0, -1.0, 0.5, 0.0, 0.0, 0.0];
    for isa in isas().into_iter().filter(|isa| isa.has_pairs(PairFormat::F16)) {
        let packed = PackedWeights::new_f16(isa, &weight, None, 2, 3).unwrap();
        assert_eq!(packed.format(), WeightFormat::F16);
        for x in [65_520.0, -1e6, f32::INFINITY, f32::NAN] {
            let mut got = Vec::<f32>::new();
            packed
                .multiply(Team::ALONE, &[x, 1.0, 1.0, 65_504.0, 0.0, 0.0], 2, Activation::Identity, &mut got)
                .unwrap();
            assert!(!got[0].is_finite() && !got[1].is_finite(), "{} {x}: {got:?}", isa.name());
            assert_eq!(got[2..], [65_504.0, 0.0], "{}", isa.name());
        }
    }
}
