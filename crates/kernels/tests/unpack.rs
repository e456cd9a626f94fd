//! Weights as they were before they were packed, and products with some of their outputs.

use candle_attention_kernels::{Activation, PackedWeights, Packer, Team, WeightFormat};
use half::{bf16, f16};

use super::{Random, downcast, isas, upcast};

#[test]
fn packed_weights_give_back_what_was_packed() {
    let mut random = Random(6);
    for (n, k) in [(1, 1), (50, 7), (97, 32), (48, 0), (0, 5)] {
        let mut values = random.values(n * k);
        values.iter_mut().zip([-0.0, f32::INFINITY, 1e-40]).for_each(|(value, rare)| *value = rare);
        let bias = random.values(n);
        let (f16s, bf16s) = (downcast::<f16>(&values), downcast::<bf16>(&values));
        for isa in isas() {
            let packed = PackedWeights::new(isa, &values, Some(&bias), n, k).unwrap();
            let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&packed.unpack::<f32>(0..n).unwrap()), bits(&values), "{} {n}×{k}", isa.name());
            assert_eq!(packed.bias(0..n), bias);
            for format in [WeightFormat::F32, WeightFormat::F16] {
                let mut packer = Packer::new(isa, format, n, k).unwrap();
                packer.push(n, &f16s, None).unwrap();
                let packed = packer.finish().unwrap();
                assert_eq!(bits(&upcast(&packed.unpack::<f16>(0..n).unwrap())), bits(&upcast(&f16s)));
            }
            // In two parts, as layers that share their input.
            let mut packer = Packer::new(isa, WeightFormat::Bf16, n, k).unwrap();
            for (rows, part) in [(n / 3, &bf16s[..n / 3 * k]), (n - n / 3, &bf16s[n / 3 * k..])] {
                packer.push(rows, part, None).unwrap();
            }
            let packed = packer.finish().unwrap();
            let last = packed.unpack::<bf16>(n / 2..n).unwrap();
            assert_eq!(bits(&upcast(&last)), bits(&upcast(&bf16s[n / 2 * k..])), "{} bf16 {n}×{k}", isa.name());
        }
    }
}

#[test]
fn a_range_of_outputs_gives_the_bits_of_the_whole_product() {
    let mut random = Random(7);
    let (rows, n, k) = (5, 131, 37);
    let (a, w, bias) = (random.values::<f32>(rows * k), random.values(n * k), random.values(n));
    for isa in isas() {
        for pack in [PackedWeights::new, PackedWeights::new_bf16, PackedWeights::new_f16] {
            let whole = pack(isa, &w, Some(&bias), n, k).unwrap();
            let multiply = |weights: &PackedWeights| {
                let mut out = Vec::<f32>::new();
                weights.multiply(Team::ALONE, &a, rows, Activation::Identity, &mut out).unwrap();
                out
            };
            let want = multiply(&whole);
            for range in [0..n, 0..1, 48..96, 47..49, 100..n, n..n, 130..n] {
                let (part, before) = whole.outputs(range.clone()).unwrap();
                assert_eq!(part.out_features(), before + range.len());
                let got = multiply(&part);
                for row in 0..rows {
                    let got = &got[row * part.out_features()..][before..][..range.len()];
                    assert_eq!(got, &want[row * n..][range.clone()], "{} {range:?}", isa.name());
                }
            }
        }
    }
}

#[test]
fn packing_checks_its_parts() {
    let isa = isas()[0];
    let mut packer = Packer::new(isa, WeightFormat::F32, 3, 2).unwrap();
    assert!(packer.push(2, &[1f32; 3], None).unwrap_err().to_string().contains("a weight"));
    assert!(packer.push(2, &[1f32; 4], Some(&[1.0])).unwrap_err().to_string().contains("a bias"));
    assert!(packer.push(4, &[1f32; 8], None).unwrap_err().to_string().contains("output features"));
    packer.push(2, &[1f32; 4], None).unwrap();
    assert!(packer.finish().unwrap_err().to_string().contains("output features"));
}
