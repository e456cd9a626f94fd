//! Caches in int8: near the cache of the layer's dtype, on every backend, with errors for what integers cannot hold.

use candle_attention::position::{Alibi, Rotary};
use candle_attention::sdpa::{SdpaOptions, attend_bshd};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Backend, Error, HeadNorm, KeyValueSource,
    KvCache, LatentAttention, MultiHeadAttention, NormKind, NormOver, ObserveOptions,
};
use candle_core::{DType, Device, Tensor};
use candle_nn::{VarBuilder, VarMap};

use crate::common::{Random, assert_close, assert_within, max_diff, numbers, random_layer, says};

const CPU: Device = Device::Cpu;
/// Largest difference of outputs of about 1 from those of the cache in the dtype of the layer.
const INT8: f64 = 0.03;

fn configs() -> Vec<AttentionConfig> {
    let base = || AttentionConfig::new(48, 4).with_mask(AttentionMask::causal());
    let norm = HeadNorm::new(NormKind::Rms, NormOver::Head, 1e-6);
    vec![
        base(),
        base().with_num_key_value_heads(2).with_position(Rotary::default()),
        base().with_position(Alibi::default()).with_softcap(3.0),
        base().with_qk_norm(norm).with_value_head_dim(7),
        base().with_num_key_value_heads(1),
        base().with_latent(LatentAttention::new(16, 8, 8, 12)).with_position(Rotary::default()),
    ]
}

/// The outputs of chunks of these lengths.
fn in_chunks(layer: &MultiHeadAttention, xs: &Tensor, cache: &mut KvCache, lengths: &[usize]) -> Tensor {
    let mut start = 0;
    let chunk = |&length: &usize| {
        start += length;
        layer.step(&xs.narrow(1, start - length, length).unwrap(), cache).unwrap()
    };
    Tensor::cat(&lengths.iter().map(chunk).collect::<Vec<_>>(), 1).unwrap()
}

#[test]
fn outputs_are_near_those_of_the_cache_of_the_layer() {
    let mut random = Random::new(210);
    for config in configs() {
        let layer = random_layer(&config, 0.3, &mut random);
        let xs = random.tensor(&[2, 30, 48], DType::F32);
        for (new, what) in [(KvCache::growing as fn() -> KvCache, "growing"), (|| KvCache::fixed(30), "fixed")] {
            let want = in_chunks(&layer, &xs, &mut new(), &[30]);
            let all = in_chunks(&layer, &xs, &mut new().with_int8(), &[30]);
            let got = in_chunks(&layer, &xs, &mut new().with_int8(), &[20, 1, 1, 3, 5]);
            let what = format!("{what}, {}", config.position);
            assert_within(&what, &got, &want, INT8);
            assert!(max_diff(&got, &want) > 1e-5, "{what}: no integers");
            // Latent attention has two forms.
            assert_close(&what, &got, &all, if config.latent.is_some() { INT8 } else { 3e-6 });
        }
    }
}

#[test]
fn layers_of_every_dtype_have_caches_in_int8() {
    let mut random = Random::new(211);
    for dtype in [DType::F16, DType::BF16, DType::F64] {
        for config in configs() {
            let map = VarMap::new();
            MultiHeadAttention::new(&config, VarBuilder::from_varmap(&map, DType::F32, &CPU)).unwrap();
            let variables = map.data().lock().unwrap().clone();
            let weights =
                variables.into_iter().map(|(name, of)| (name, of.as_detached_tensor().to_dtype(dtype).unwrap()));
            let vb = VarBuilder::from_tensors(weights.collect(), dtype, &CPU);
            let layer = MultiHeadAttention::load(&config, vb).unwrap();
            let xs = random.tensor(&[2, 9, 48], DType::F32).to_dtype(dtype).unwrap();
            let want = in_chunks(&layer, &xs, &mut KvCache::growing(), &[9]);
            let got = in_chunks(&layer, &xs, &mut KvCache::growing().with_int8(), &[6, 1, 2]);
            assert_eq!(got.dtype(), dtype);
            assert_within(&format!("{dtype:?}, {}", config.position), &got, &want, 2.0 * INT8);
        }
    }
}

/// What the kernel does not run is widened, and reads the same integers.
#[test]
fn other_backends_widen_the_cache() {
    let mut random = Random::new(212);
    for config in configs() {
        let layer = random_layer(&config, 0.3, &mut random);
        let xs = random.tensor(&[2, 12, 48], DType::F32);
        let inputs = || AttentionInputs::self_attention(&xs, AttentionMask::full());
        let run = |options: &AttentionOptions| {
            layer.attend_with(&inputs().with_cache(&mut KvCache::growing().with_int8()), options).unwrap()
        };
        let want = run(&AttentionOptions::default()).output;
        let what = config.position.to_string();
        let eager = run(&AttentionOptions::default().with_backend(Backend::Eager));
        assert_close(&what, &eager.output, &want, 1e-4);
        let weights = run(&AttentionOptions::default().with_return_attention_weights(true));
        assert_close(&what, &weights.output, &want, 1e-4);
        assert_eq!(weights.attention_weights.unwrap().dims(), [2, 4, 12, 12]);
        let mut cache = KvCache::growing().with_int8();
        let what_to_observe = ObserveOptions::default().with_entropy(true);
        let inputs = inputs().with_cache(&mut cache);
        let stats = layer.observe(&inputs, &AttentionOptions::default(), &what_to_observe).unwrap();
        assert_close(&what, &stats.output, &want, 1e-4);
    }
}

#[test]
fn keys_and_values_of_ones_own_come_back_widened() {
    let mut random = Random::new(213);
    let mut cache = KvCache::fixed(9).with_int8();
    let (mut all, mut last) = (Vec::new(), None);
    for s in [5, 1, 3] {
        let (k, v) = (random.tensor(&[2, s, 2, 8], DType::F32), random.tensor(&[2, s, 2, 6], DType::F32));
        let (wide_k, wide_v) = cache.append(&k, &v).unwrap();
        let q = random.tensor(&[2, s, 4, 8], DType::F32);
        attend_bshd(&q, &wide_k, &wide_v, &SdpaOptions::new(AttentionMask::causal())).unwrap();
        all.push(k);
        last = Some(wide_k);
    }
    let (all, last) = (Tensor::cat(&all, 1).unwrap(), last.unwrap());
    for (head, widened) in numbers(&all).chunks(8).zip(numbers(&last).chunks(8)) {
        let largest = head.iter().fold(0f64, |largest, x| largest.max(x.abs()));
        for (x, y) in head.iter().zip(widened) {
            assert!((x - y).abs() <= largest / 127.0 * 0.501, "{x} became {y}");
        }
    }
    let none = random.tensor(&[2, 1, 2, 8], DType::F32);
    assert!(matches!(cache.append(&none, &none.narrow(3, 0, 6).unwrap()), Err(Error::CacheFull { .. })));
    let empty = Tensor::zeros((0, 2, 1, 4), DType::F32, &CPU).unwrap();
    assert_eq!(KvCache::growing().with_int8().append(&empty, &empty).unwrap().0.dims(), [0, 0, 1, 4]);
}

#[test]
fn layers_without_keys_take_those_of_a_cache_in_int8() {
    let mut random = Random::new(214);
    let config = AttentionConfig::new(24, 4).with_mask(AttentionMask::causal());
    let first = random_layer(&config, 0.4, &mut random);
    let second = config.with_key_value_source(KeyValueSource::Shared { layer: Some(0) });
    let second = random_layer(&second, 0.4, &mut random);
    let xs = random.tensor(&[1, 6, 24], DType::F32);
    let outputs = [KvCache::growing(), KvCache::growing().with_int8()].map(|mut cache| {
        let inputs = AttentionInputs::self_attention(&xs, AttentionMask::full()).with_cache(&mut cache);
        let (attended, shared) = first.attend_sharing(&inputs, &AttentionOptions::default()).unwrap();
        assert_eq!(shared.tensors()[0].dtype(), DType::F32);
        let inputs = AttentionInputs::shared(&attended.output, &shared, AttentionMask::full());
        second.attend_with(&inputs, &AttentionOptions::default()).unwrap().output
    });
    assert_within("shared", &outputs[1], &outputs[0], INT8);
}

#[test]
fn what_is_not_finite_is_an_error_with_its_place() {
    let mut random = Random::new(215);
    let config = AttentionConfig::new(12, 3).with_mask(AttentionMask::causal());
    let layer = random_layer(&config, 0.4, &mut random);
    let mut cache = KvCache::growing().with_int8();
    let xs = random.tensor(&[2, 4, 12], DType::F32);
    layer.step(&xs, &mut cache).unwrap();
    for bad in [f32::NAN, f32::INFINITY] {
        let mut token = vec![0.5f32; 2 * 2 * 12];
        token[12 * 3 + 1] = bad;
        let xs = Tensor::from_vec(token, (2, 2, 12), &CPU).unwrap();
        says(layer.step(&xs, &mut cache), &["the keys of sequence 1, token 5, head 0", "finite numbers"]);
        assert_eq!(cache.lengths(), [4, 4]);
    }
    let mut values = vec![1f32; 3 * 2 * 4];
    values[2 * 8 + 5] = f32::NEG_INFINITY;
    let (k, v) = (random.tensor(&[1, 3, 2, 4], DType::F32), Tensor::from_vec(values, (1, 3, 2, 4), &CPU).unwrap());
    let mut cache = KvCache::fixed(9).with_int8();
    says(cache.append(&k, &v), &["the values of sequence 0, token 2, head 1 is -inf", "finite numbers"]);
    assert!(cache.is_empty());
    // f64 beyond f32.
    let large = (k.to_dtype(DType::F64).unwrap() * 1e300).unwrap();
    says(cache.append(&large, &large), &["the keys of sequence 0, token 0, head 0"]);
    // Padding is not read.
    let mut xs = vec![0.5f32; 2 * 3 * 12];
    xs[3 * 12 + 12..].fill(f32::NAN);
    let xs = Tensor::from_vec(xs, (2, 3, 12), &CPU).unwrap();
    let inputs = AttentionInputs::self_attention(&xs, AttentionMask::full());
    let mut cache = KvCache::growing().with_int8();
    layer.attend_with(&inputs.with_cache_lengths(&mut cache, &[3, 1]), &AttentionOptions::default()).unwrap();
    assert_eq!(cache.lengths(), [3, 1]);
}

#[test]
fn gradients_and_other_caches_are_errors() {
    let mut random = Random::new(216);
    let config = AttentionConfig::new(12, 3).with_mask(AttentionMask::causal());
    let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &CPU);
    let layer = MultiHeadAttention::new(&config, vb).unwrap();
    let xs = random.tensor(&[1, 4, 12], DType::F32);
    let mut cache = KvCache::growing().with_int8();
    let tracked = &["a call with a cache in int8 is one that tracks a gradient", "frozen"];
    says(layer.step(&xs, &mut cache), tracked);
    let inputs = || AttentionInputs::self_attention(&xs, AttentionMask::full());
    says(layer.plan(&inputs().with_cache(&mut cache), &AttentionOptions::default()), tracked);
    let frozen = layer.frozen().unwrap();
    let variable = candle_core::Var::from_tensor(&xs).unwrap();
    says(frozen.step(&variable, &mut cache), tracked);
    frozen.step(&xs, &mut cache).unwrap();
    let plan = frozen.plan(&inputs().with_cache(&mut cache), &AttentionOptions::default()).unwrap();
    assert_eq!(plan.backend, Backend::Cpu);

    let mut other = KvCache::growing();
    frozen.step(&xs, &mut other).unwrap();
    says(other.append_sequences(&cache), &["a cache to append is Growing in int8", "Growing, as the cache"]);
    let another = random_layer(&config, 0.4, &mut random);
    says(another.step(&xs, &mut cache), &["one of another layer"]);
    says(frozen.step(&random.tensor(&[2, 1, 12], DType::F32), &mut cache), &["batch of 2", "batch of 1", "int8"]);
    says(frozen.step(&xs, &mut KvCache::fixed(3).with_int8()), &["3"]);
    says(frozen.step(&xs, &mut KvCache::streaming(0).with_int8()), &["at least 1"]);
    assert!(format!("{cache:?}").contains("int8: true"));
    assert!(cache.with_int8().is_empty());
}

/// The table of `docs/decoding.md`: the root of the mean squared difference of attention outputs from those of f32 keys
/// and values, relative to the outputs.
#[test]
#[ignore = "a measurement, which prints a table"]
fn loss_of_attention_outputs() {
    const D: usize = 128;
    let normal = |s: usize, deviation: f32| Tensor::randn(0f32, deviation, (1, s, 8, D), &CPU).unwrap();
    let large = Tensor::from_iter((0..D).map(|i| if i % 32 == 7 { 10f32 } else { 0.0 }), &CPU).unwrap();
    for (what, query, offset) in [
        ("even attention", 1.0, 0.0),
        ("sharp attention", 4.0, 0.0),
        ("even, 4 large channels of keys", 1.0, 1.0),
        ("sharp, 4 large channels of keys", 4.0, 1.0),
    ] {
        let (q, k, v) = (normal(64, query), normal(4096, 1.0), normal(4096, 1.0));
        let k = k.broadcast_add(&(&large * offset).unwrap()).unwrap();
        for rotated in [false, true] {
            let (mut q, mut k) = (q.clone(), k.clone());
            if rotated {
                let at = |from: u32, s: u32| Tensor::arange(from, from + s, &CPU).unwrap();
                q = Rotary::default().apply(&q, &at(4096, 64)).unwrap();
                k = Rotary::default().apply(&k, &at(0, 4096)).unwrap();
            }
            let attend = |k: &Tensor, v: &Tensor| attend_bshd(&q, k, v, &SdpaOptions::default()).unwrap().output;
            let want = attend(&k, &v);
            let squares = |xs: &Tensor| xs.sqr().unwrap().mean_all().unwrap().to_scalar::<f32>().unwrap();
            let loss = |got: Tensor| (squares(&(got - &want).unwrap()) / squares(&want)).sqrt();
            let (k8, v8) = KvCache::growing().with_int8().append(&k, &v).unwrap();
            let bf16 = |xs: &Tensor| xs.to_dtype(DType::BF16).unwrap().to_dtype(DType::F32).unwrap();
            println!(
                "{what}, rotated {rotated}: int8 {:.4} (keys {:.4}, values {:.4}), bf16 {:.4}",
                loss(attend(&k8, &v8)),
                loss(attend(&k8, &v)),
                loss(attend(&k, &v8)),
                loss(attend(&bf16(&k), &bf16(&v)))
            );
        }
    }
}
