//! Cross-attention to a memory that is projected once.

use candle_attention::position::Rotary;
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, CrossCache, HeadNorm, MultiHeadAttention,
    NormKind, NormOver, Position,
};
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};

use crate::common::{Random, assert_close, random_layer, says};

const TOLERANCE: f64 = 2e-6;

fn options() -> AttentionOptions<'static> {
    AttentionOptions::default()
}

fn attend(layer: &MultiHeadAttention, xs: &Tensor, mask: &AttentionMask, cache: &CrossCache) -> Tensor {
    layer.attend_with(&AttentionInputs::cross_cached(xs, cache, mask), &options()).unwrap().output
}

/// Every kind of layer without positions: queries alone give what queries with the memory give.
#[test]
fn queries_alone_equal_a_call_with_the_memory() {
    let mut random = Random::new(72);
    let base = || AttentionConfig::new(24, 4);
    let norm = HeadNorm::new(NormKind::Rms, NormOver::AllHeads, 1e-6);
    let configs = [
        base(),
        base().with_key_size(10).with_value_size(13).with_value_head_dim(3),
        base().with_num_key_value_heads(2).with_qk_norm(norm).with_clip_qkv(0.9),
        base().with_add_bias_kv(true).with_add_zero_attn(true).with_softcap(2.0),
    ];
    for config in configs {
        let layer = random_layer(&config, 0.4, &mut random);
        let keys = random.tensor(&[2, 5, config.resolved_key_size()], DType::F32);
        let values = random.tensor(&[2, 5, config.resolved_value_size()], DType::F32);
        let xs = random.tensor(&[2, 6, 24], DType::F32);
        let mask = AttentionMask::lengths(&[5, 3]);
        let want = layer.attend(&xs, &keys, &values, &mask).unwrap();
        let cache = layer.cross_cache(&keys, &values).unwrap();
        assert_eq!((cache.len(), cache.batch_size(), cache.is_empty()), (5, 2, false));
        let parts = [(0, 4), (4, 1), (5, 1)].map(|(start, len)| xs.narrow(1, start, len).unwrap());
        let got = parts.map(|xs| attend(&layer, &xs, &mask, &cache));
        assert_close(&format!("{config:?}"), &Tensor::cat(&got, 1).unwrap(), &want, TOLERANCE);

        let inputs = AttentionInputs::new(&xs, &keys, &values, &mask);
        let weighted = options().with_return_attention_weights(true);
        let want = layer.attend_with(&inputs, &weighted).unwrap().attention_weights.unwrap();
        let got = layer
            .attend_with(&AttentionInputs::cross_cached(&xs, &cache, &mask), &weighted)
            .unwrap()
            .attention_weights
            .unwrap();
        assert_close("weights", &got, &want, TOLERANCE);
    }
}

#[test]
fn selected_sequences_are_those_of_a_selected_memory() {
    let mut random = Random::new(73);
    let layer = random_layer(&AttentionConfig::new(24, 4), 0.4, &mut random);
    let (memory, xs) = (random.tensor(&[2, 5, 24], DType::F32), random.tensor(&[3, 1, 24], DType::F32));
    let cache = layer.cross_cache(&memory, &memory).unwrap().select_sequences(&[1, 1, 0]).unwrap();
    let rows = Tensor::new(&[1u32, 1, 0], &Device::Cpu).unwrap();
    let memory = memory.index_select(&rows, 0).unwrap();
    let full = AttentionMask::full();
    let want = layer.attend(&xs, &memory, &memory, &full).unwrap();
    assert_close("rows", &attend(&layer, &xs, &full, &cache), &want, TOLERANCE);
    says(cache.select_sequences(&[0, 3]), &["a sequence to select is 3", "less than 3"]);
    says(cache.select_sequences(&[]), &["the list of sequences to select is empty"]);
}

#[test]
fn gradients_reach_the_memory_and_the_weights() {
    let config = AttentionConfig::new(24, 4);
    let map = VarMap::new();
    let layer = MultiHeadAttention::new(&config, VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu)).unwrap();
    let mut random = Random::new(74);
    let memory = Var::from_tensor(&random.tensor(&[2, 5, 24], DType::F32)).unwrap();
    let xs = random.tensor(&[2, 3, 24], DType::F32);
    let full = AttentionMask::full();
    let loss = |output: Tensor| output.sqr().unwrap().sum_all().unwrap().backward().unwrap();
    let want = loss(layer.attend(&xs, &memory, &memory, &full).unwrap());
    let cache = layer.cross_cache(&memory, &memory).unwrap();
    let got = loss(attend(&layer, &xs, &full, &cache));
    let variables = map.all_vars();
    for var in variables.iter().chain([&memory]) {
        assert_close("gradient", got.get(var).unwrap(), want.get(var).unwrap(), 1e-5);
    }
}

#[test]
fn a_cache_is_bound_to_its_layer_and_batch() {
    let mut random = Random::new(75);
    let config = AttentionConfig::new(24, 4);
    let (layer, other) = (random_layer(&config, 0.4, &mut random), random_layer(&config, 0.4, &mut random));
    let (memory, xs) = (random.tensor(&[2, 5, 24], DType::F32), random.tensor(&[2, 1, 24], DType::F32));
    let full = AttentionMask::full();
    let cache = layer.cross_cache(&memory, &memory).unwrap();
    let call = |layer: &MultiHeadAttention, xs: &Tensor, mask: &AttentionMask| {
        layer.attend_with(&AttentionInputs::cross_cached(xs, &cache, mask), &options())
    };
    call(&layer.clone(), &xs, &full).unwrap();
    says(call(&other, &xs, &full), &["the cache for cross-attention is one of another layer"]);
    says(call(&layer, &xs.narrow(0, 0, 1).unwrap(), &full), &["the batch size is 1", "2, as in the cache"]);
    says(call(&layer, &memory.narrow(2, 0, 7).unwrap(), &full), &["query has shape [2, 5, 7]", "(b, s_q, 24)"]);
    says(call(&layer, &xs, &AttentionMask::lengths(&[6, 5])), &["lengths[0] is 6", "at most 5"]);
    let narrow = xs.narrow(2, 0, 7).unwrap();
    says(layer.cross_cache(&narrow, &narrow), &["key has shape [2, 1, 7]", "(b, s_kv, 24)"]);
    says(layer.cross_cache(&memory, &xs), &["value has shape [2, 1, 24]", "[2, 5, 24]"]);
    let rotary = random_layer(&config.with_position(Position::Rotary(Rotary::default())), 0.4, &mut random);
    says(rotary.cross_cache(&memory, &memory), &["position = rotary", "none with a cache for cross-attention"]);
}
