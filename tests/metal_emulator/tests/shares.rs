//! Which calls of an encoder's and of a decoder's layers run on candle's fused kernels: those that `docs/devices.md` lists.

use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Backend, KvCache, MultiHeadAttention,
};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;

/// Tokens that a query of a windowed layer sees before its own.
const WINDOW: usize = 5;

/// A layer in f16 with the head size, the grouping and the mask of a published model, and fewer heads.
fn layer([h, h_kv, d]: [usize; 3], mask: AttentionMask, device: &Device) -> MultiHeadAttention {
    let config = AttentionConfig::new(h * d, h).with_num_key_value_heads(h_kv).with_mask(mask);
    MultiHeadAttention::new(&config, VarBuilder::zeros(DType::F16, device)).unwrap()
}

fn tokens(dims: &[usize], device: &Device) -> Tensor {
    Tensor::zeros(dims, DType::F16, device).unwrap()
}

/// The plans of a layer's calls on whole texts, padded and ragged.
fn texts(layer: &MultiHeadAttention, width: usize, device: &Device) -> Vec<(&'static str, Backend)> {
    let (padded, ragged) = (tokens(&[2, 9, width], device), tokens(&[12, width], device));
    let plan = |inputs: AttentionInputs| layer.plan(&inputs, &AttentionOptions::default()).unwrap().backend;
    vec![
        ("equal lengths", plan(AttentionInputs::self_attention(&padded, AttentionMask::full()))),
        ("padded", plan(AttentionInputs::self_attention(&padded, AttentionMask::padding(&[9, 3])))),
        ("ragged", plan(AttentionInputs::ragged(&ragged, &[9, 3], AttentionMask::full()))),
    ]
}

/// The plans of a layer's calls with a cache.
fn steps(layer: &MultiHeadAttention, width: usize, windowed: bool, device: &Device) -> Vec<(&'static str, Backend)> {
    let options = AttentionOptions::default();
    let mut found = Vec::new();
    for lengths in [[9, 9], [9, 3]] {
        let kinds: &[fn() -> KvCache] =
            if windowed { &[KvCache::growing, || KvCache::rotating(WINDOW + 1)] } else { &[KvCache::growing] };
        for cache in kinds {
            let mut cache = cache();
            let chunks = [("prompt", 9, lengths), ("next tokens", 4, [4, 4]), ("step", 1, [1, 1])];
            for (call, s, lengths) in chunks {
                let xs = tokens(&[2, s, width], device);
                let inputs = AttentionInputs::self_attention(&xs, AttentionMask::full());
                let plan = layer.plan(&inputs.with_cache_lengths(&mut cache, &lengths), &options).unwrap();
                layer.attend_with(&inputs.with_cache_lengths(&mut cache, &lengths), &options).unwrap();
                found.push((call, plan.backend));
            }
        }
    }
    found
}

#[test]
fn every_call_of_four_models_is_fused() {
    let device = candle_attention::metal_device(0).unwrap();
    let window = |right| AttentionMask::window(Some(WINDOW), Some(right));
    let models = [
        ("MiniLM", [2, 2, 32], vec![AttentionMask::full()], false),
        ("ModernBERT", [2, 2, 64], vec![AttentionMask::full(), window(WINDOW)], false),
        ("Qwen 3", [2, 1, 128], vec![AttentionMask::causal()], true),
        ("Gemma 3", [2, 1, 256], vec![AttentionMask::causal(), window(0)], true),
    ];
    let mut eager = Vec::new();
    for (name, heads, masks, decodes) in models {
        let (mut calls, mut fused) = (0, 0);
        for (number, mask) in masks.into_iter().enumerate() {
            let width = heads[0] * heads[2];
            let layer = layer(heads, mask, &device);
            let mut plans = texts(&layer, width, &device);
            if decodes {
                plans.extend(steps(&layer, width, number > 0, &device));
            }
            calls += plans.len();
            fused += plans.iter().filter(|(_, backend)| *backend == Backend::Metal).count();
            eager.extend(
                plans.into_iter().filter(|(_, backend)| *backend != Backend::Metal).map(|(call, _)| (name, call)),
            );
        }
        println!("{name}: {fused} of {calls} calls are fused");
    }
    assert_eq!(eager, []);
}
