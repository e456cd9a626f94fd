//! Layer and RMS normalization.

use candle_attention_kernels::{RowNorm, Team};

use super::{Random, isas};

#[test]
fn rows_of_odd_sizes_match_the_reference() {
    let mut random = Random(6);
    for (rows, width) in [(1, 1), (3, 7), (5, 16), (300, 33), (2, 384)] {
        let (xs, residual): (Vec<f32>, Vec<f32>) = (random.values(rows * width), random.values(rows * width));
        let (weight, bias): (Vec<f32>, Vec<f32>) = (random.values(width), random.values(width));
        for isa in isas() {
            for (residual, rms) in [None, Some(&residual[..])].into_iter().flat_map(|r| [(r, false), (r, true)]) {
                let mut got = xs.clone();
                let norm = RowNorm { weight: &weight, bias: &bias, eps: 1e-5, rms };
                norm.apply(isa, Team::ALONE, &mut got, residual).unwrap();
                for (row, got) in got.chunks(width).enumerate() {
                    let value = |i: usize| {
                        let at = row * width + i;
                        // The residual is added in f32.
                        f64::from(xs[at] + residual.map_or(0.0, |residual| residual[at]))
                    };
                    let mean = if rms { 0.0 } else { (0..width).map(value).sum::<f64>() / width as f64 };
                    let variance = (0..width).map(|i| (value(i) - mean).powi(2)).sum::<f64>() / width as f64;
                    for (i, got) in got.iter().enumerate() {
                        let normal = (value(i) - mean) / (variance + 1e-5).sqrt();
                        let want = normal * f64::from(weight[i]) + f64::from(bias[i]);
                        assert!((f64::from(*got) - want).abs() < 1e-5, "{} {rows}×{width}: {got}, {want}", isa.name());
                    }
                }
            }
        }
    }
}
