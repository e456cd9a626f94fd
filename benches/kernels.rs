//! Benchmarks of the kernels, without a model around them: `cargo bench --manifest-path benches/Cargo.toml`.
//!
//! `RAYON_NUM_THREADS` sets the number of threads, `CANDLE_ATTENTION_ISA` the instruction set. The group
//! `instruction sets` runs on all instruction sets of the machine and on one thread, whatever these say: whoever changes
//! a kernel compares it before and after (`cargo bench --manifest-path benches/Cargo.toml -- 'instruction sets'`).

use std::collections::HashMap;
use std::hint::black_box;

use candle_attention::sdpa::{SdpaOptions, attend_bshd};
use candle_attention::{AttentionConfig, AttentionMask, MultiHeadAttention, ProjectionBias};
use candle_attention_kernels as kernels;
use candle_attention_kernels::{
    Activation, AttentionProblem, Batch, HeadsView, Int8Heads, Isa, Mask, Packer, SCALE_BYTES, Team, WeightFormat,
    quantize_heads,
};
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

/// Products and attention by each instruction set of the machine, in floating-point or integer operations per second:
/// two for each multiply-add. `multiply-adds` is what one core can do: independent ones on registers.
fn instruction_sets(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("instruction sets");
    peak::add(&mut group);
    let values = |count: usize| (0..count).map(|i| (i % 97) as f32 / 97.0 - 0.5).collect::<Vec<f32>>();
    for isa in Isa::all() {
        for (format, [rows, inputs, outputs]) in [
            (WeightFormat::F32, [128, 384, 1536]),
            (WeightFormat::F32, [128, 1536, 384]),
            (WeightFormat::F32, [1, 384, 1536]),
            (WeightFormat::Bf16, [128, 384, 1536]),
            (WeightFormat::Bf16, [1, 384, 1536]),
            (WeightFormat::F16, [1, 384, 1536]),
            (WeightFormat::Int8, [128, 384, 1536]),
            (WeightFormat::Int8, [1, 384, 1536]),
        ] {
            let mut packer = Packer::new(isa, format, outputs, inputs).expect("room for weights");
            packer.push(outputs, &values(outputs * inputs), None).expect("weights");
            let (weights, xs) = (packer.finish().expect("packed weights"), values(rows * inputs));
            let mut ys = Vec::<f32>::new();
            group.throughput(Throughput::Elements(2 * weights.multiply_adds(rows) as u64));
            let id = BenchmarkId::new(format!("product {format:?} {rows}x{inputs}x{outputs}"), isa.name());
            group.bench_function(id, |bencher| {
                bencher.iter(|| weights.multiply(Team::ALONE, black_box(&xs), rows, Activation::Identity, &mut ys));
            });
        }
        for (b, s_q, s_kv) in [(8, 128, 128), (1, 1, 1024), (1, 1, 4096)] {
            const H: usize = 12;
            const D: usize = 64;
            const HEAD: usize = SCALE_BYTES + D;
            let [q, kv] = [s_q, s_kv].map(|s| values(b * s * H * D));
            let [q, k, v] = [(&q, s_q), (&kv, s_kv), (&kv, s_kv)]
                .map(|(data, s)| HeadsView { data: &data[..], strides: [s * H * D, H * D, D] });
            let mut int8 = vec![0; b * s_kv * H * HEAD];
            quantize_heads(&kv, D, &mut int8).expect("finite values");
            let heads = Int8Heads(HeadsView { data: &int8, strides: [s_kv * H * HEAD, H * HEAD, HEAD] });
            let batch = Batch::Padded { b, s_q, s_kv };
            let (wide, int8) = (problem::<_, H, D>(batch, q, [k, v]), problem::<_, H, D>(batch, q, [heads, heads]));
            let mut to = Vec::new();
            group.throughput(Throughput::Elements(4 * (b * H * D * s_q * s_kv) as u64));
            group.bench_function(BenchmarkId::new(format!("attention {b}x{s_q}x{s_kv}"), isa.name()), |bencher| {
                bencher.iter(|| kernels::attend(isa, Team::ALONE, black_box(&wide), &mut to));
            });
            group.bench_function(BenchmarkId::new(format!("attention int8 {b}x{s_q}x{s_kv}"), isa.name()), |bencher| {
                bencher.iter(|| kernels::attend(isa, Team::ALONE, black_box(&int8), &mut to));
            });
        }
    }
    group.finish();
}

/// Attention of `H` heads of `D` values without a mask.
fn problem<'a, K, const H: usize, const D: usize>(
    batch: Batch<'a>,
    q: HeadsView<'a, f32>,
    [k, v]: [K; 2],
) -> AttentionProblem<'a, f32, K> {
    let (scale, mask) = ((D as f32).powf(-0.5), Mask::default());
    let (appended, softcap, sinks, bf16) = (0, None, None, false);
    AttentionProblem { q, k, v, batch, appended, h: H, h_kv: H, d: D, d_v: D, scale, softcap, sinks, mask, bf16 }
}

/// Independent multiply-adds on registers.
#[cfg(target_arch = "x86_64")]
mod peak {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use criterion::measurement::WallTime;
    use criterion::{BenchmarkGroup, BenchmarkId, Throughput};

    const STEPS: usize = 10_000;
    /// More than hide the latency on two ports, and few enough for 16 registers.
    const SUMS: usize = 12;

    pub fn add(group: &mut BenchmarkGroup<WallTime>) {
        let mut bench = |name: &str, lanes: usize, run: &dyn Fn() -> f32| {
            group.throughput(Throughput::Elements((2 * STEPS * SUMS * lanes) as u64));
            group.bench_function(BenchmarkId::new("multiply-adds", name), |bencher| bencher.iter(run));
        };
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor has the instructions.
            bench("avx2", 8, &|| unsafe { avx2() });
        }
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has the instructions.
            bench("avx512", 16, &|| unsafe { avx512() });
        }
    }

    #[target_feature(enable = "avx2,fma")]
    fn avx2() -> f32 {
        let (a, b) = (_mm256_set1_ps(black_box(0.5)), _mm256_set1_ps(black_box(0.25)));
        let mut sums = [a; SUMS];
        for _ in 0..STEPS {
            sums.iter_mut().for_each(|sum| *sum = _mm256_fmadd_ps(*sum, a, b));
        }
        _mm256_cvtss_f32(sums.into_iter().fold(b, |all, sum| _mm256_add_ps(all, sum)))
    }

    #[target_feature(enable = "avx512f")]
    fn avx512() -> f32 {
        let (a, b) = (_mm512_set1_ps(black_box(0.5)), _mm512_set1_ps(black_box(0.25)));
        let mut sums = [a; SUMS];
        for _ in 0..STEPS {
            sums.iter_mut().for_each(|sum| *sum = _mm512_fmadd_ps(*sum, a, b));
        }
        _mm512_cvtss_f32(sums.into_iter().fold(b, |all, sum| _mm512_add_ps(all, sum)))
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod peak {
    pub fn add(_: &mut criterion::BenchmarkGroup<criterion::measurement::WallTime>) {}
}

criterion_group!(benches, attention, layer, instruction_sets);
criterion_main!(benches);
