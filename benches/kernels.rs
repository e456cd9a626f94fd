//! Benchmarks of the kernels, without a model around them: `cargo bench --manifest-path benches/Cargo.toml`.
//!
//! `RAYON_NUM_THREADS` sets the number of threads, `CANDLE_ATTENTION_ISA` the instruction set.

use std::collections::HashMap;
use std::hint::black_box;

use candle_attention::sdpa::{SdpaOptions, attend_bshd};
use candle_attention::{AttentionConfig, AttentionMask, MultiHeadAttention, ProjectionBias};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use criterion::{Bencher, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

fn normal(dims: &[usize], dtype: DType) -> Tensor {
    Tensor::randn(0f32, 1., dims, &Device::Cpu).and_then(|t| t.to_dtype(dtype)).expect("a random tensor")
}

/// Attention without projections, with 12 heads of 64 values. Throughput in query-key pairs per second.
fn attention(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("attention");
    for dtype in [DType::F32, DType::BF16] {
        for (b, s) in [(8, 128), (1, 512), (1, 2048)] {
            let [q, k, v] = [(); 3].map(|()| normal(&[b, s, 12, 64], dtype));
            let half: Vec<usize> = (0..b).map(|_| s / 2).collect();
            for mask in [
                AttentionMask::full(),
                AttentionMask::causal(),
                AttentionMask::lengths(&half),
                AttentionMask::window(Some(63), Some(64)),
            ] {
                let name = format!("{dtype:?} {b}x{s}");
                group.throughput(Throughput::Elements((b * 12 * s * s) as u64));
                group.bench_function(BenchmarkId::new(name, &mask), |bencher: &mut Bencher| {
                    bencher.iter(|| attend_bshd(black_box(&q), &k, &v, &SdpaOptions::new(&mask)).expect("attention"));
                });
            }
        }
    }
    group.finish();
}

/// A layer with packed weights, where most of the time goes to the projections. Throughput in tokens per second.
fn layer(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("layer");
    for dtype in [DType::F32, DType::BF16] {
        for hidden in [384, 768] {
            let tensors: HashMap<String, Tensor> = ["q_proj", "k_proj", "v_proj", "o_proj"]
                .into_iter()
                .map(|name| (format!("{name}.weight"), normal(&[hidden, hidden], dtype)))
                .collect();
            let config = AttentionConfig::new(hidden, 12).with_bias(ProjectionBias::NONE);
            let weights = VarBuilder::from_tensors(tensors, dtype, &Device::Cpu);
            let layer = MultiHeadAttention::load(&config, weights).expect("a layer");
            for tokens in [1, 16, 128, 1024] {
                let xs = normal(&[1, tokens, hidden], dtype);
                group.throughput(Throughput::Elements(tokens as u64));
                group.bench_function(BenchmarkId::new(format!("{dtype:?} {hidden}"), tokens), |bencher| {
                    let mask = AttentionMask::full();
                    bencher.iter(|| layer.attend(black_box(&xs), &xs, &xs, &mask).expect("a layer's output"));
                });
            }
        }
    }
    group.finish();
}

criterion_group!(benches, attention, layer);
criterion_main!(benches);
