//! Products with packed weights, and passes over rows.

use half::bf16;

use super::{Random, convert, isas, scalar, wide};
use crate::kernels::Activation;
use crate::kernels::cpu::gemm::Packed;
use crate::kernels::cpu::simd::Portable;

#[test]
fn products_of_odd_sizes() {
    let mut random = Random(5);
    for (rows, k, n) in [(1, 1, 1), (1, 7, 50), (3, 64, 48), (8, 20, 33), (13, 5, 97), (130, 40, 24), (200, 129, 100)] {
        let (a, w, bias): (Vec<f32>, Vec<f32>, Vec<f32>) =
            (random.numbers(rows * k), random.numbers(n * k), random.numbers(n));
        // What bf16 weights and inputs are to the kernel: floats with a bf16's digits.
        let rounded = |numbers: &[f32]| wide(&convert::<bf16>(numbers));
        let (a_bf16, w_bf16) = (rounded(&a), rounded(&w));
        for isa in isas() {
            for (activation, bias) in [
                (Activation::Identity, Some(&bias[..])),
                (Activation::Gelu, Some(&bias)),
                (Activation::GeluTanh, Some(&bias)),
                (Activation::Identity, None),
            ] {
                let what = format!("{} {rows}×{k}×{n} {activation:?}", isa.name());
                let packed = Packed::new(isa, &w, bias, n, k);
                check(&packed, [&a, &w], bias, activation, [rows, k, n], &what);
                let packed = Packed::new_bf16(isa, &w_bf16, bias, n, k);
                check(&packed, [&a_bf16, &w_bf16], bias, activation, [rows, k, n], &format!("{what} bf16"));
            }
        }
    }
}

fn check(
    packed: &Packed,
    [a, w]: [&[f32]; 2],
    bias: Option<&[f32]>,
    activation: Activation,
    [rows, k, n]: [usize; 3],
    what: &str,
) {
    let mut got = vec![f32::NAN; rows * n];
    packed.multiply(a, rows, activation, &mut got); // what is not written shows
    for (i, got) in got.iter().enumerate() {
        let (row, column) = (i / n, i % n);
        let pairs = a[row * k..][..k].iter().zip(&w[column * k..][..k]);
        let sum: f64 = pairs.map(|(a, w)| f64::from(*a) * f64::from(*w)).sum();
        let sum = sum + bias.map_or(0.0, |bias| f64::from(bias[column]));
        // The activations themselves have tests of their own; here it tells only that they were applied.
        let want = f64::from(scalar(Portable, |v| activation.apply(Portable, v), sum as f32));
        let error = (f64::from(*got) - want).abs();
        assert!(error < 2e-5 + 2e-6 * want.abs(), "{what} [{row}, {column}]: {got}, want {want}");
    }
    // A row alone is the same row.
    let mut alone = vec![f32::NAN; n];
    let last = rows - 1;
    packed.multiply(&a[last * k..], 1, activation, &mut alone);
    assert_eq!(alone, got[last * n..], "{what}");
}

#[cfg(feature = "encoder")]
#[test]
fn rows_are_normalised() {
    let mut random = Random(6);
    for (rows, width) in [(1, 1), (3, 7), (5, 16), (300, 33), (2, 384)] {
        let (xs, add): (Vec<f32>, Vec<f32>) = (random.numbers(rows * width), random.numbers(rows * width));
        let (weight, bias): (Vec<f32>, Vec<f32>) = (random.numbers(width), random.numbers(width));
        for isa in isas() {
            for add in [None, Some(&add[..])] {
                let mut got = xs.clone();
                crate::kernels::cpu::rows::add_norm(isa, &mut got, add, &weight, &bias, 1e-5);
                for (row, got) in got.chunks(width).enumerate() {
                    let number = |i: usize| {
                        let at = row * width + i;
                        // What is added is added in f32.
                        f64::from(xs[at] + add.map_or(0.0, |add| add[at]))
                    };
                    let mean = (0..width).map(number).sum::<f64>() / width as f64;
                    let variance = (0..width).map(|i| (number(i) - mean).powi(2)).sum::<f64>() / width as f64;
                    for (i, got) in got.iter().enumerate() {
                        let normal = (number(i) - mean) / (variance + 1e-5).sqrt();
                        let want = normal * f64::from(weight[i]) + f64::from(bias[i]);
                        assert!((f64::from(*got) - want).abs() < 1e-5, "{} {rows}×{width}: {got}, {want}", isa.name());
                    }
                }
            }
        }
    }
}
