//! Memory of attention on a long text, in a process of its own: it is measured by the most that the process has had.

use candle_attention::position::{Disentangled, Position, T5RelativeBias};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, KvCache, MultiHeadAttention,
};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;

fn layer(position: Position) -> MultiHeadAttention {
    let config = AttentionConfig::new(16, 2).with_position(position);
    MultiHeadAttention::new(&config, VarBuilder::zeros(DType::F32, &Device::Cpu)).unwrap()
}

/// What a layer takes on a long text: a matrix over queries and keys would take 1 GB per head.
#[test]
fn memory_is_linear_in_the_length() {
    appending_copies_no_cache();
    let s = 16384;
    let xs = Tensor::zeros((1, s, 16), DType::F32, &Device::Cpu).unwrap();
    let mask = AttentionMask::window(Some(1), Some(1));
    let options = AttentionOptions::default();
    for (position, embeddings) in [
        (Position::T5RelativeBias(T5RelativeBias::new(32, 128, true)), 0),
        (Position::Disentangled(Disentangled::new(128).with_position_buckets(32)), 64),
    ] {
        let (layer, before) = (layer(position), peak_bytes());
        let inputs = AttentionInputs::self_attention(&xs, &mask);
        let scratch = |s: usize| {
            let xs = xs.narrow(1, 0, s).unwrap();
            layer.plan(&AttentionInputs::self_attention(&xs, &mask), &options).unwrap().scratch_bytes
        };
        assert!(scratch(s) <= 4 * scratch(s / 4), "{} bytes, {} for a quarter", scratch(s), scratch(s / 4));
        assert!(scratch(s) > 4 * embeddings * s, "{} bytes with {embeddings} products per key", scratch(s));
        layer.attend_with(&inputs, &options).unwrap();
        let taken = peak_bytes() - before;
        assert!(taken < 128 << 20, "{taken} bytes for {s} tokens");
    }
}

/// Decoding writes into the memory of a cache, which has room for 64 MB here. It runs before the test of masks takes
/// more: the peak is that of the process.
fn appending_copies_no_cache() {
    let config = AttentionConfig::new(64, 2).with_mask(AttentionMask::causal());
    let layer = MultiHeadAttention::new(&config, VarBuilder::zeros(DType::F32, &Device::Cpu)).unwrap();
    let (token, mut cache) = (Tensor::ones((1, 1, 64), DType::F32, &Device::Cpu).unwrap(), KvCache::fixed(1 << 17));
    let prompt = token.broadcast_as((1, 1 << 10, 64)).unwrap().contiguous().unwrap();
    layer.step(&prompt, &mut cache).unwrap();
    let before = peak_bytes();
    for _ in 0..5 {
        layer.step(&token, &mut cache).unwrap();
    }
    assert_eq!(cache.len(), 5 + (1 << 10));
    assert!(peak_bytes() - before < 4 << 20, "{} bytes for five tokens", peak_bytes() - before);
}

/// The most memory that this process has had.
fn peak_bytes() -> usize {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return 0 };
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}
