//! Caches and their layers: another layer, other weights and a mask without the window are errors.

use candle_attention::checkpoint::ModelConfig;
use candle_attention::position::Rotary;
use candle_attention::weights::QkvWeights;
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, KvCache, MultiHeadAttention,
};
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};

use crate::common::{LAYER, Random, assert_close, family, family_config, max_diff, random_layer, says};

const CPU: Device = Device::Cpu;
const TOLERANCE: f64 = 2e-6;

fn config() -> AttentionConfig {
    AttentionConfig::new(24, 4).with_position(Rotary::default().with_theta(50.0)).with_mask(AttentionMask::causal())
}

fn trainable(config: &AttentionConfig) -> (VarMap, MultiHeadAttention) {
    let map = VarMap::new();
    let layer = MultiHeadAttention::new(config, VarBuilder::from_varmap(&map, DType::F32, &CPU)).unwrap();
    (map, layer)
}

/// Gives all variables other values.
fn train(map: &VarMap, random: &mut Random) {
    for variable in map.all_vars() {
        variable.set(&random.tensor(variable.dims(), DType::F32)).unwrap();
    }
}

#[test]
fn a_step_is_a_call_with_a_cache() {
    let mut random = Random::new(110);
    let layer = random_layer(&config(), 0.4, &mut random);
    let xs = random.tensor(&[2, 7, 24], DType::F32);
    let want = layer.attend(&xs, &xs, &xs, AttentionMask::full()).unwrap();
    let mut cache = KvCache::growing();
    for (start, len) in [(0, 4), (4, 1), (5, 2)] {
        let got = layer.step(&xs.narrow(1, start, len).unwrap(), &mut cache).unwrap();
        assert_close("step", &got, &want.narrow(1, start, len).unwrap(), TOLERANCE);
    }
    says(layer.step(&xs.narrow(2, 0, 7).unwrap(), &mut cache), &["query has shape [2, 7, 7]"]);
    assert_eq!(cache.lengths(), [7, 7]);
}

#[test]
fn a_cache_of_another_layer_is_an_error() {
    let mut random = Random::new(111);
    // Equal sizes, as all layers of a model have them, and even equal weights.
    let layers = [1, 2, 1].map(|seed| random_layer(&config(), 0.4, &mut Random::new(seed)));
    let xs = random.tensor(&[1, 3, 24], DType::F32);
    for new in [KvCache::growing, || KvCache::fixed(20), || KvCache::streaming(4)] {
        let mut cache = new();
        layers[0].step(&xs, &mut cache).unwrap();
        for other in &layers[1..] {
            let expected =
                &["the key-value cache is one of another layer", "each layer has a cache of its own", "reset"];
            says(other.step(&xs, &mut cache), expected);
            let inputs = AttentionInputs::self_attention(&xs, AttentionMask::full());
            says(other.plan(&inputs.with_cache(&mut cache), &AttentionOptions::default()), expected);
        }
        assert_eq!(cache.lengths(), [3]);
        // The layer itself, a clone and a frozen copy.
        layers[0].step(&xs, &mut cache).unwrap();
        layers[0].clone().step(&xs, &mut cache).unwrap();
        layers[0].frozen().unwrap().step(&xs, &mut cache).unwrap();
        layers[0].step(&xs, &mut cache).unwrap();
        says(layers[1].step(&xs, &mut cache.try_clone().unwrap()), &["one of another layer"]);
        // Without a token there is no key of any layer.
        cache.reset();
        layers[1].step(&xs, &mut cache).unwrap();
        cache.truncate(0).unwrap();
        layers[2].step(&xs, &mut cache).unwrap();
        says(layers[1].step(&xs, &mut cache), &["one of another layer"]);
    }
}

#[test]
fn keys_of_weights_that_have_changed_are_an_error() {
    let mut random = Random::new(112);
    let (map, layer) = trainable(&config());
    let xs = random.tensor(&[2, 3, 24], DType::F32);
    let mut cache = KvCache::growing();
    layer.step(&xs, &mut cache).unwrap();
    // As long as nothing changes, the layer and its frozen copy continue each other.
    let before = layer.frozen().unwrap();
    before.step(&xs, &mut cache).unwrap();
    layer.clone().step(&xs, &mut cache).unwrap();
    let mut of_copy = KvCache::growing();
    before.step(&xs, &mut of_copy).unwrap();
    layer.step(&xs, &mut of_copy).unwrap();

    train(&map, &mut random);
    let expected =
        &["the key-value cache is one of this layer with other weights than it has now", "`reset` empties one"];
    says(layer.step(&xs, &mut cache), expected);
    says(layer.frozen().unwrap().step(&xs, &mut cache), expected);
    says(layer.step(&xs, &mut of_copy), expected);
    assert_eq!((cache.len(), of_copy.len()), (9, 6));
    // The copy of the old weights has them still.
    before.step(&xs, &mut cache).unwrap();
    cache.reset();
    let want = layer.attend(&xs, &xs, &xs, AttentionMask::full()).unwrap();
    assert_close("after a reset", &layer.step(&xs, &mut cache).unwrap(), &want, TOLERANCE);
}

/// Keys of fixed weights stay right while the queries are trained, as LoRA on queries does.
#[test]
fn changes_that_keys_do_not_depend_on_are_none() {
    let mut random = Random::new(115);
    let mut weights = random_layer(&config(), 0.4, &mut random).weights().unwrap();
    let QkvWeights::Split(parts) = &mut weights.qkv else { panic!("a layer gives its projections apart") };
    let query = Var::from_tensor(&parts[0].weight).unwrap();
    parts[0].weight = query.as_tensor().clone();
    let layer = MultiHeadAttention::from_weights(&config(), weights).unwrap();
    let xs = random.tensor(&[2, 5, 24], DType::F32);
    let mut cache = KvCache::growing();
    layer.step(&xs.narrow(1, 0, 3).unwrap(), &mut cache).unwrap();
    query.set(&random.tensor(&[24, 24], DType::F32)).unwrap();
    let got = layer.step(&xs.narrow(1, 3, 1).unwrap(), &mut cache).unwrap();
    let last = layer.frozen().unwrap().step(&xs.narrow(1, 4, 1).unwrap(), &mut cache).unwrap();
    let want = layer.attend(&xs, &xs, &xs, AttentionMask::full()).unwrap().narrow(1, 3, 2).unwrap();
    assert_close("trained queries", &Tensor::cat(&[got, last], 1).unwrap(), &want, TOLERANCE);
}

#[test]
fn a_memory_projected_with_old_weights_is_an_error() {
    let mut random = Random::new(113);
    let (map, layer) = trainable(&AttentionConfig::new(24, 4));
    let (memory, xs) = (random.tensor(&[2, 5, 24], DType::F32), random.tensor(&[2, 1, 24], DType::F32));
    let attend = |layer: &MultiHeadAttention, memory| {
        let inputs = AttentionInputs::cross_cached(&xs, memory, AttentionMask::full());
        layer.attend_with(&inputs, &AttentionOptions::default()).map(|attended| attended.output)
    };
    let (cache, before) = (layer.cross_cache(&memory, &memory).unwrap(), layer.frozen().unwrap());
    let of_copy = before.cross_cache(&memory, &memory).unwrap();
    for cache in [&cache, &of_copy] {
        assert_close("layer and copy", &attend(&layer, cache).unwrap(), &attend(&before, cache).unwrap(), TOLERANCE);
    }
    train(&map, &mut random);
    let what = "the cache for cross-attention is one of this layer with other weights than it has now";
    for cache in [&cache, &of_copy] {
        says(attend(&layer, cache), &[what, "`cross_cache`"]);
        attend(&before, cache).unwrap();
    }
    let again = layer.cross_cache(&memory, &memory).unwrap();
    let want = layer.attend(&xs, &memory, &memory, AttentionMask::full()).unwrap();
    assert_close("projected again", &attend(&layer, &again).unwrap(), &want, TOLERANCE);
}

/// What a rotating cache drops must be what no query sees.
#[test]
fn a_rotating_cache_wants_a_window() {
    let mut random = Random::new(114);
    let window = |tokens: usize| AttentionMask::window(Some(tokens - 1), Some(0));
    let xs = random.tensor(&[1, 9, 24], DType::F32);
    let call = |own: AttentionMask, of_call: AttentionMask, mut cache: KvCache| {
        let layer = random_layer(&config().with_mask(own), 0.4, &mut Random::new(7));
        let parts = [(0, 6), (6, 1), (7, 2)].map(|(start, len)| {
            let xs = xs.narrow(1, start, len)?;
            let inputs = AttentionInputs::self_attention(&xs, &of_call).with_cache(&mut cache);
            Ok::<_, candle_attention::Error>(layer.attend_with(&inputs, &AttentionOptions::default())?.output)
        });
        let parts = parts.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok::<_, candle_attention::Error>((Tensor::cat(&parts, 1)?, layer.attend(&xs, &xs, &xs, &of_call)?))
    };
    let (full, causal) = (AttentionMask::full, AttentionMask::causal);
    for (own, of_call) in
        [(causal(), full()), (full(), causal()), (full(), full()), (window(5), full()), (causal(), window(5))]
    {
        let refused = call(own, of_call, KvCache::rotating(4));
        says(refused, &["the mask of a call with a rotating cache is", "a window of at most 4 tokens", "streaming"]);
    }
    let keep = AttentionMask::keep_keys(&Tensor::ones((1, 6), DType::U8, &CPU).unwrap()).unwrap();
    let refused = call(causal(), keep, KvCache::rotating(4));
    says(refused, &["is keep", "and causal", "a window of at most 4 tokens"]);
    for (own, of_call) in [(window(4), full()), (causal(), window(4)), (window(3), full()), (window(9), window(2))] {
        let (got, want) = call(own, of_call, KvCache::rotating(4)).unwrap();
        assert_close("a window", &got, &want, TOLERANCE);
    }
    // Who wants a stream gets a window, and says so.
    let (got, whole) = call(causal(), full(), KvCache::streaming(4)).unwrap();
    let (_, want) = call(window(4), full(), KvCache::rotating(4)).unwrap();
    assert_close("a stream", &got, &want, TOLERANCE);
    assert!(max_diff(&got, &whole) > 1e-2);
}

/// Layers with sliding windows, as transformers decoded them in pieces with its own cache.
#[test]
fn rotating_caches_give_what_transformers_gives() {
    let mut windows = Vec::new();
    for name in
        ["cohere2", "cwm", "exaone4", "gemma2", "gemma3", "gpt_oss", "ministral", "mistral", "olmo3", "starcoder2"]
    {
        let checkpoint = family(name);
        let cases: Vec<serde_json::Value> = serde_json::from_str(&checkpoint.metadata()["cases"]).unwrap();
        for case in cases {
            let (prefix, case) = (case["prefix"].as_str().unwrap(), case["name"].as_str().unwrap());
            let get = |part: &str| {
                let full = format!("golden.{case}.{part}");
                checkpoint.contains(&full).then(|| checkpoint.tensor(&full, &CPU).unwrap())
            };
            let (Some(xs), Some(want), Some(chunks)) = (get("chunk_input"), get("chunk_output"), get("chunks")) else {
                continue;
            };
            let json = family_config(&checkpoint);
            let layer = checkpoint.attention_with(prefix, ModelConfig::new(&json), DType::F32, &CPU).unwrap().layer;
            let fits = |window: &usize| layer.step(&xs, &mut KvCache::rotating(*window)).is_ok();
            // Layers of other kinds have no window.
            let Some(window) = (1..xs.dim(1).unwrap()).find(fits) else { continue };
            windows.push(window);
            let chunks = chunks.to_vec1::<i64>().unwrap().into_iter().map(|len| len as usize).collect();
            for (chunks, extra) in [(chunks, 0), (vec![1; xs.dim(1).unwrap()], 0), (vec![xs.dim(1).unwrap()], 3)] {
                let (mut cache, mut start, mut outputs) = (KvCache::rotating(window + extra), 0, Vec::new());
                for &len in &chunks {
                    outputs.push(layer.step(&xs.narrow(1, start, len).unwrap(), &mut cache).unwrap());
                    start += len;
                }
                let got = Tensor::cat(&outputs, 1).unwrap();
                assert_close(&format!("{name} {case}, window {window}, in {chunks:?}"), &got, &want, LAYER);
            }
        }
    }
    assert!(windows.len() >= 8, "{windows:?}");
}
