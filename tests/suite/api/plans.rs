//! Plans of every kind of call: what would run it, with which instructions, without running it.

use candle_attention::position::Alibi;
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, AttentionStats, Backend, Error, KvCache,
    MultiHeadAttention, ObserveOptions,
};
use candle_core::{DType, Device, Tensor};
use candle_nn::{VarBuilder, VarMap};

use crate::common::{Random, assert_close, random_layer, says};

fn trainable(config: &AttentionConfig) -> MultiHeadAttention {
    MultiHeadAttention::new(config, VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu)).unwrap()
}

#[test]
fn an_f32_layer_never_uses_instructions_for_bf16() {
    let layer = |dtype: DType| {
        let tensors = ["q_proj", "k_proj", "v_proj", "o_proj"]
            .map(|name| (format!("{name}.weight"), Tensor::ones((8, 8), dtype, &Device::Cpu).unwrap()));
        let vb = VarBuilder::from_tensors(tensors.into_iter().collect(), dtype, &Device::Cpu);
        MultiHeadAttention::load(&AttentionConfig::new(8, 2), vb).unwrap()
    };
    let instructions = |dtype: DType| {
        let xs = Tensor::ones((1, 3, 8), dtype, &Device::Cpu).unwrap();
        let inputs = AttentionInputs::self_attention(&xs, AttentionMask::causal());
        layer(dtype).plan(&inputs, &AttentionOptions::default()).unwrap().instructions.unwrap()
    };
    for dtype in [DType::F32, DType::F16] {
        assert!(["avx512", "avx2", "neon", "portable"].contains(&instructions(dtype)), "{}", instructions(dtype));
    }
    if std::env::var_os("CANDLE_ATTENTION_ISA").is_none() {
        let faster = ["amx", "avx512_bf16"].contains(&instructions(DType::BF16));
        assert_eq!(instructions(DType::BF16) == instructions(DType::F32), !faster);
    }
}

#[test]
fn cached_calls_have_plans_and_stay_as_they_were() {
    let config = AttentionConfig::new(12, 3).with_position(Alibi::default());
    let (fixed, learning) = (random_layer(&config, 0.5, &mut Random::new(90)), trainable(&config));
    let xs = Random::new(91).tensor(&[2, 3, 12], DType::F32);
    let (mask, options) = (AttentionMask::causal(), AttentionOptions::default());
    let inputs = AttentionInputs::self_attention(&xs, &mask);
    for cache in [KvCache::growing, || KvCache::fixed(8), || KvCache::streaming(4)] {
        for lengths in [None, Some(&[3, 1][..])] {
            for layer in [&fixed, &learning] {
                let mut cache = cache();
                for _ in 0..2 {
                    let (before, held) = (cache.len(), cache.retained_len());
                    let next = match lengths {
                        Some(lengths) => inputs.with_cache_lengths(&mut cache, lengths),
                        None => inputs.with_cache(&mut cache),
                    };
                    assert_eq!(layer.plan(&next, &options).unwrap().backend, Backend::Cpu);
                    let forced = options.with_backend(Backend::Eager);
                    assert_eq!(layer.plan(&next, &forced).unwrap().backend, Backend::Eager);
                    assert_eq!((cache.len(), cache.retained_len()), (before, held), "a plan changes nothing");
                    let next = match lengths {
                        Some(lengths) => inputs.with_cache_lengths(&mut cache, lengths),
                        None => inputs.with_cache(&mut cache),
                    };
                    layer.attend_with(&next, &options).unwrap();
                }
            }
        }
    }
    // Memory is that of all keys, and errors are those of the call.
    let mut cache = KvCache::fixed(8);
    let scratch = |cache: &mut KvCache| {
        let eager = options.with_backend(Backend::Eager);
        fixed.plan(&inputs.with_cache(cache), &eager).unwrap().scratch_bytes
    };
    let first = scratch(&mut cache);
    fixed.attend_with(&inputs.with_cache(&mut cache), &options).unwrap();
    assert!(scratch(&mut cache) > first);
    fixed.attend_with(&inputs.with_cache(&mut cache), &options).unwrap();
    let full = fixed.plan(&inputs.with_cache(&mut cache), &options);
    assert!(matches!(full, Err(Error::CacheFull { tokens: 9, capacity: 8, .. })));
    // A layer that is fixed, and cached keys that learn.
    let mut cache = KvCache::growing();
    let variable = candle_core::Var::from_tensor(&xs).unwrap();
    fixed.attend_with(&AttentionInputs::self_attention(&variable, &mask).with_cache(&mut cache), &options).unwrap();
    let metal = fixed.plan(&inputs.with_cache(&mut cache), &options.with_backend(Backend::Metal));
    says(metal, &["not on an Apple GPU"]);
    assert_eq!(fixed.plan(&inputs.with_cache(&mut cache), &options).unwrap().backend, Backend::Cpu);
}

#[test]
fn cross_attention_with_a_cache_has_a_plan() {
    let layer = random_layer(&AttentionConfig::new(12, 3), 0.5, &mut Random::new(92));
    let [query, memory] = [2, 5].map(|s| Random::new(93).tensor(&[2, s, 12], DType::F32));
    let (cache, options) = (layer.cross_cache(&memory, &memory).unwrap(), AttentionOptions::default());
    let lengths = AttentionMask::lengths(&[5, 3]);
    assert_eq!(
        layer.plan(&AttentionInputs::cross_cached(&query, &cache, &lengths), &options).unwrap().backend,
        Backend::Cpu
    );
    let weights = options.with_return_attention_weights(true);
    assert_eq!(
        layer.plan(&AttentionInputs::cross_cached(&query, &cache, &lengths), &weights).unwrap().backend,
        Backend::Eager
    );
    says(
        layer.plan(&AttentionInputs::cross_cached(&query, &cache, AttentionMask::lengths(&[5])), &options),
        &["lengths", "2"],
    );
    says(
        layer.plan(&AttentionInputs::cross_cached(&memory.narrow(0, 0, 1).unwrap(), &cache, lengths), &options),
        &["batch size is 1"],
    );
}

#[test]
fn ragged_batches_have_plans() {
    let mask = AttentionMask::causal();
    let (xs, lengths) = (Random::new(94).tensor(&[9, 12], DType::F32), [4, 0, 5]);
    let plan = |layer: &MultiHeadAttention, options: &AttentionOptions| {
        layer.attend_with(&AttentionInputs::ragged(&xs, &lengths, &mask), options).unwrap();
        layer.plan(&AttentionInputs::ragged(&xs, &lengths, &mask), options).unwrap()
    };
    let plain = AttentionConfig::new(12, 3);
    let options = AttentionOptions::default();
    for config in [plain.clone(), plain.clone().with_add_zero_attn(true), plain.clone().with_position(Alibi::default())]
    {
        let layer = random_layer(&config, 0.5, &mut Random::new(95));
        assert_eq!(plan(&layer, &options).backend, Backend::Cpu);
        assert_eq!(plan(&layer, &options.with_return_attention_weights(true)).backend, Backend::Eager);
        let learned = plan(&trainable(&config), &options);
        assert_eq!(learned.backend, Backend::Cpu);
        let train = options.with_train(true).with_return_attention_weights(true);
        assert_eq!(plan(&trainable(&config), &train).backend, Backend::Eager);
    }
    let layer = random_layer(&plain, 0.5, &mut Random::new(95));
    says(layer.plan(&AttentionInputs::ragged(&xs, &[4, 4], &mask), &options), &["the sum of lengths is 8", "9"]);
    let flash = options.with_backend(Backend::FlashAttn);
    says(
        layer.plan(&AttentionInputs::ragged(&xs, &lengths, &mask), &flash),
        &["backend flash-attn cannot run this call"],
    );
    says(
        layer.attend_with(&AttentionInputs::ragged(&xs, &lengths, &mask), &flash),
        &["backend flash-attn cannot run this call"],
    );
}

/// `observe` takes cached and ragged inputs, too: its statistics are those of one padded call.
#[test]
fn cached_and_ragged_inputs_are_observed() {
    let config = AttentionConfig::new(12, 3).with_mask(AttentionMask::causal());
    let layer = random_layer(&config, 0.5, &mut Random::new(96));
    let xs = Random::new(97).tensor(&[1, 5, 12], DType::F32);
    let (full, options) = (AttentionMask::full(), AttentionOptions::default());
    let what = ObserveOptions::default().with_attention_weights(true).with_mean_distance(true);
    let want = layer.observe(&AttentionInputs::self_attention(&xs, &full), &options, &what).unwrap();
    let parts = |stats: AttentionStats| [stats.attention_weights.unwrap(), stats.mean_distance.unwrap()];
    let (output, want) = (want.output.clone(), parts(want));

    let (first, last) = (xs.narrow(1, 0, 3).unwrap(), xs.narrow(1, 3, 2).unwrap());
    let mut cache = KvCache::growing();
    layer.attend_with(&AttentionInputs::self_attention(&first, &full).with_cache(&mut cache), &options).unwrap();
    let inputs = AttentionInputs::self_attention(&last, &full);
    let got = layer.observe(&inputs.with_cache(&mut cache), &options, &what).unwrap();
    assert_close("cached output", &got.output, &output.narrow(1, 3, 2).unwrap(), 1e-6);
    for (got, want) in parts(got).iter().zip(&want) {
        assert_close("cached statistics", got, &want.narrow(2, 3, 2).unwrap(), 1e-6);
    }
    assert_eq!(cache.len(), 5);
    let nobody = ObserveOptions::default().with_top_k(8);
    says(layer.observe(&inputs.with_cache(&mut cache), &options, &nobody), &["top_k = 8", "1 to 7"]);
    says(layer.observe(&inputs.with_cache_lengths(&mut cache, &[1]), &options, &what), &["mean_distance", "unequal"]);
    assert_eq!(cache.len(), 5, "an error leaves the cache as it was");

    let both = Tensor::cat(&[xs.squeeze(0).unwrap(), first.squeeze(0).unwrap()], 0).unwrap();
    let inputs = AttentionInputs::ragged(&both, &[5, 3], &full);
    let got = layer.observe(&inputs, &options, &what).unwrap();
    assert_close("ragged output", &got.output.narrow(0, 0, 5).unwrap(), &output.squeeze(0).unwrap(), 1e-6);
    assert_close(
        "ragged output",
        &got.output.narrow(0, 5, 3).unwrap(),
        &output.get(0).unwrap().narrow(0, 0, 3).unwrap(),
        1e-6,
    );
    for (got, want) in parts(got).iter().zip(&want) {
        assert_close("ragged statistics", &got.narrow(0, 0, 1).unwrap(), want, 1e-6);
    }
    let two = ["inputs with a key-value cache", "ragged"];
    says(layer.attend_with(&inputs.with_cache(&mut cache), &options), &two);
}
