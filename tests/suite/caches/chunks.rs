//! Key-value caches: a sequence run in chunks gives the result of one call.

use std::collections::HashMap;

use candle_attention::position::{Alibi, Rotary, T5RelativeBias};
use candle_attention::weights::QkvWeights;
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Backend, Error, HeadNorm, KvCache,
    MultiHeadAttention, NormKind, NormOver, Position,
};
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::VarBuilder;

use crate::common::{Random, assert_close, random_layer, says};

const CPU: Device = Device::Cpu;
const TOLERANCE: f64 = 2e-6;

fn layer(config: &AttentionConfig, random: &mut Random) -> MultiHeadAttention {
    random_layer(config, 0.4, random)
}

fn configs() -> Vec<AttentionConfig> {
    let base = || AttentionConfig::new(24, 4);
    let norm = HeadNorm::new(NormKind::Rms, NormOver::Head, 1e-6);
    vec![
        base(),
        base().with_num_key_value_heads(2).with_position(Position::Rotary(Rotary::default().with_theta(50.0))),
        base().with_position(Position::Alibi(Alibi::default())).with_softcap(3.0),
        base().with_position(Position::T5RelativeBias(T5RelativeBias::new(8, 12, false))),
        base().with_qk_norm(norm).with_position(Position::Rotary(Rotary::default().with_dim(4))).with_clip_qkv(0.9),
    ]
}

fn options() -> AttentionOptions<'static> {
    AttentionOptions::default()
}

/// Runs `xs` in chunks of these lengths.
fn in_chunks(
    layer: &MultiHeadAttention,
    xs: &Tensor,
    mask: &AttentionMask,
    cache: &mut KvCache,
    lengths: &[usize],
) -> Tensor {
    let mut start = 0;
    let chunk = |&length: &usize| {
        let xs = xs.narrow(1, start, length).unwrap();
        start += length;
        layer.attend_with(&AttentionInputs::self_attention(&xs, mask).with_cache(cache), &options()).unwrap().output
    };
    let outputs: Vec<Tensor> = lengths.iter().map(chunk).collect();
    Tensor::cat(&outputs, 1).unwrap()
}

/// Lengths that add up to `total`.
fn split(random: &mut Random, total: usize) -> Vec<usize> {
    let mut lengths = Vec::new();
    while lengths.iter().sum::<usize>() < total {
        let left = total - lengths.iter().sum::<usize>();
        lengths.push(
            1 + (random.booleans(&[9], 0.5).sum_all().unwrap().to_scalar::<u8>().unwrap() as usize).min(left - 1),
        );
    }
    lengths
}

#[test]
fn chunks_of_any_length_equal_one_call() {
    let mut random = Random::new(70);
    for config in configs() {
        let layer = layer(&config, &mut random);
        let xs = random.tensor(&[2, 23, 24], DType::F32);
        for round in 0..6 {
            let lengths = split(&mut random, 23);
            let what = format!("{:?} in {lengths:?}", config.position);
            for mask in [AttentionMask::causal(), AttentionMask::window(Some(3), Some(0))] {
                let want = layer.attend(&xs, &xs, &xs, &mask).unwrap();
                for mut cache in [KvCache::growing(), KvCache::fixed(23)] {
                    // A cache that was used before and reset is as good as new.
                    if round % 2 == 0 {
                        in_chunks(&layer, &xs, &mask, &mut cache, &[5, 2]);
                        cache.reset();
                    }
                    assert_close(&what, &in_chunks(&layer, &xs, &mask, &mut cache, &lengths), &want, TOLERANCE);
                    assert_eq!(cache.len(), 23);
                }
            }
            // A streaming cache is a window, whether or not the mask is one.
            let window = AttentionMask::window(Some(4), Some(0));
            let want = layer.attend(&xs, &xs, &xs, &window).unwrap();
            let caches = [KvCache::rotating(5), KvCache::rotating(7), KvCache::streaming(5), KvCache::streaming(5)];
            for (mask, mut cache) in [&window, &window, &window, &AttentionMask::causal()].into_iter().zip(caches) {
                let got = in_chunks(&layer, &xs, mask, &mut cache, &lengths);
                assert_close(&format!("{what}, {cache:?}"), &got, &want, TOLERANCE);
            }
        }
    }
}

/// Sequences whose prompts have different lengths, each compared with itself alone.
#[test]
fn sequences_of_unequal_length_equal_themselves_alone() {
    let mut random = Random::new(71);
    let steps: [&[usize]; 4] = [&[4, 2, 6], &[1, 1, 1], &[2, 0, 1], &[1, 1, 1]];
    let window = || AttentionMask::window(Some(2), Some(0));
    for config in configs() {
        let layer = layer(&config, &mut random);
        let xs = random.tensor(&[3, 9, 24], DType::F32);
        let caches = [
            (KvCache::growing(), AttentionMask::causal(), AttentionMask::causal()),
            (KvCache::fixed(9), window(), window()),
            (KvCache::streaming(3), AttentionMask::causal(), window()),
            (KvCache::streaming(9), AttentionMask::causal(), AttentionMask::causal()),
        ];
        for (mut cache, mask, whole) in caches {
            let mut starts = [0; 3];
            let mut outputs: Vec<Vec<Tensor>> = vec![Vec::new(); 3];
            for lengths in steps {
                let longest = lengths.iter().copied().max().unwrap();
                let row = |b: usize| {
                    let tokens = xs.narrow(0, b, 1).unwrap().narrow(1, starts[b], lengths[b]).unwrap();
                    let padding = random.tensor(&[1, 9, 24], DType::F32).narrow(1, 0, longest - lengths[b]).unwrap();
                    match (lengths[b], longest - lengths[b]) {
                        (_, 0) => tokens,
                        (0, _) => padding,
                        _ => Tensor::cat(&[tokens, padding], 1).unwrap(),
                    }
                };
                let chunk = Tensor::cat(&(0..3).map(row).collect::<Vec<_>>(), 0).unwrap();
                let inputs = AttentionInputs::self_attention(&chunk, &mask);
                let output =
                    layer.attend_with(&inputs.with_cache_lengths(&mut cache, lengths), &options()).unwrap().output;
                for b in 0..3 {
                    outputs[b].push(output.narrow(0, b, 1).unwrap().narrow(1, 0, lengths[b]).unwrap());
                    starts[b] += lengths[b];
                }
            }
            assert_eq!(cache.lengths(), [8, 4, 9]);
            for (b, outputs) in outputs.iter().enumerate() {
                let xs = xs.narrow(0, b, 1).unwrap().narrow(1, 0, starts[b]).unwrap();
                let want = layer.attend(&xs, &xs, &xs, &whole).unwrap();
                let parts: Vec<&Tensor> = outputs.iter().filter(|part| part.dims()[1] > 0).collect();
                let got = Tensor::cat(&parts, 1).unwrap();
                assert_close(&format!("{:?}, row {b}", config.position), &got, &want, TOLERANCE);
            }
        }
    }
}

#[test]
fn cloned_caches_are_independent() {
    let mut random = Random::new(73);
    let layer = layer(&configs()[1], &mut random);
    let xs = random.tensor(&[1, 8, 24], DType::F32);
    let causal = AttentionMask::causal();
    let mut cache = KvCache::fixed(8);
    in_chunks(&layer, &xs, &causal, &mut cache, &[4]);
    let mut copy = cache.try_clone().unwrap();
    let other = random.tensor(&[1, 4, 24], DType::F32);
    in_chunks(&layer, &other, &causal, &mut copy, &[4]);
    let rest = xs.narrow(1, 4, 4).unwrap();
    let got = in_chunks(&layer, &rest, &causal, &mut cache, &[1, 3]);
    let want = layer.attend(&xs, &xs, &xs, &causal).unwrap().narrow(1, 4, 4).unwrap();
    assert_close("the first", &got, &want, TOLERANCE);
}

/// A trainable layer gives equal results in chunks, and its gradient flows through the cache.
#[test]
fn gradients_flow_through_a_cache() {
    let mut random = Random::new(75);
    let layer = layer(&configs()[1], &mut random);
    let xs = Var::from_tensor(&random.tensor(&[2, 7, 24], DType::F32)).unwrap();
    let causal = AttentionMask::causal();
    let gradient = |output: Tensor| output.sqr().unwrap().sum_all().unwrap().backward().unwrap().remove(&xs).unwrap();
    let want = gradient(layer.attend(&xs, &xs, &xs, &causal).unwrap());
    for mut cache in [KvCache::growing(), KvCache::fixed(7), KvCache::streaming(7)] {
        let got = gradient(in_chunks(&layer, &xs, &causal, &mut cache, &[3, 1, 3]));
        assert_close("gradient", &got, &want, 2e-5);
    }
}

/// A prompt that tracks a gradient, followed by tokens that do not: the gradient flows through the cached keys.
#[test]
fn cached_keys_keep_their_gradient() {
    let mut random = Random::new(76);
    let layer = layer(&configs()[0], &mut random);
    let prompt = Var::from_tensor(&random.tensor(&[1, 3, 24], DType::F32)).unwrap();
    let token = random.tensor(&[1, 1, 24], DType::F32);
    let causal = AttentionMask::causal();
    let all = Tensor::cat(&[prompt.as_tensor(), &token], 1).unwrap();
    let whole = layer.attend(&all, &all, &all, &causal).unwrap().narrow(1, 3, 1).unwrap();
    let gradient =
        |output: &Tensor| output.sqr().unwrap().sum_all().unwrap().backward().unwrap().remove(&prompt).unwrap();
    let mut cache = KvCache::growing();
    layer.attend_with(&AttentionInputs::self_attention(&prompt, &causal).with_cache(&mut cache), &options()).unwrap();
    let last = layer
        .attend_with(&AttentionInputs::self_attention(&token, &causal).with_cache(&mut cache), &options())
        .unwrap();
    assert_close("gradient", &gradient(&last.output), &gradient(&whole), 2e-5);
}

/// One cache works with every backend, with and without returned attention weights, in bf16, too.
#[test]
fn cache_works_with_changing_backends() {
    let mut random = Random::new(77);
    let f32 = layer(&configs()[1], &mut random);
    let weights = f32.weights().unwrap();
    let names = ["q_proj", "k_proj", "v_proj"];
    let QkvWeights::Split(parts) = weights.qkv else { panic!("a layer gives its projections apart") };
    let mut tensors: HashMap<String, Tensor> = HashMap::new();
    for (name, dense) in names.into_iter().zip(*parts).chain([("o_proj", weights.o)]) {
        tensors.insert(format!("{name}.weight"), dense.weight);
        tensors.insert(format!("{name}.bias"), dense.bias.unwrap());
    }
    let layer = MultiHeadAttention::load(&configs()[1], VarBuilder::from_tensors(tensors, DType::BF16, &CPU)).unwrap();
    let xs = random.tensor(&[2, 6, 24], DType::BF16);
    let causal = AttentionMask::causal();
    let want = layer.attend(&xs, &xs, &xs, &causal).unwrap();
    for first_with_weights in [true, false] {
        let mut cache = KvCache::growing();
        let mut part = |start: usize, weights: bool| {
            let xs = xs.narrow(1, start, 3).unwrap();
            let inputs = AttentionInputs::self_attention(&xs, &causal);
            layer
                .attend_with(&inputs.with_cache(&mut cache), &options().with_return_attention_weights(weights))
                .unwrap()
                .output
        };
        let got = Tensor::cat(&[part(0, first_with_weights), part(3, !first_with_weights)], 1).unwrap();
        assert_close("bf16", &got, &want, 5e-2);
    }
}

#[test]
fn errors_leave_the_cache_unchanged() {
    let mut random = Random::new(74);
    let layer = layer(&AttentionConfig::new(24, 4), &mut random);
    let causal = AttentionMask::causal();
    let mut cache = KvCache::fixed(4);
    let xs = random.tensor(&[2, 3, 24], DType::F32);
    let mut call = |xs: &Tensor, mask: &AttentionMask, lengths: Option<&[usize]>| {
        let inputs = AttentionInputs::self_attention(xs, mask);
        match lengths {
            Some(lengths) => layer.attend_with(&inputs.with_cache_lengths(&mut cache, lengths), &options()),
            None => layer.attend_with(&inputs.with_cache(&mut cache), &options()),
        }
    };
    call(&xs, &causal, None).unwrap();
    assert!(matches!(call(&xs, &causal, None), Err(Error::CacheFull { tokens: 6, capacity: 4 })));
    let one = xs.narrow(1, 0, 1).unwrap();
    let row = one.narrow(0, 0, 1).unwrap();
    says(
        call(&row, &causal, None),
        &["a call with a cache is a batch of 1 with 4 key-value heads", "as in the cache, a batch of 2 with 4"],
    );
    says(call(&one, &AttentionMask::lengths(&[9, 9]), None), &["lengths[0] is 9", "at most 4"]);
    says(call(&xs, &causal, Some(&[1])), &["the number of lengths is 1", "2, the batch size"]);
    says(call(&xs, &causal, Some(&[1, 4])), &["a chunk's length is 4", "at most 3"]);
    call(&one, &causal, None).unwrap();
    assert_eq!(cache.lengths(), [4, 4]);
    let mut fresh = KvCache::growing();
    let inputs = AttentionInputs::self_attention(&xs, &causal);
    let forced = layer.attend_with(&inputs.with_cache(&mut fresh), &options().with_backend(Backend::Metal));
    says(forced, &["backend metal cannot run this call"]);
    assert!(fresh.is_empty());
    let mut endless = KvCache::fixed(usize::MAX);
    says(
        layer.attend_with(&inputs.with_cache(&mut endless), &options()),
        &["the capacity of a fixed cache", "at most 1073741824"],
    );
    assert!(endless.is_empty());
    layer.attend_with(&inputs.with_cache(&mut KvCache::streaming(usize::MAX)), &options()).unwrap();
    let appended = random_layer(&AttentionConfig::new(24, 4).with_add_zero_attn(true), 0.4, &mut random);
    let refused = appended.attend_with(&inputs.with_cache(&mut KvCache::growing()), &options());
    says(refused, &["add_bias_kv or add_zero_attn", "false with a cache"]);
}
