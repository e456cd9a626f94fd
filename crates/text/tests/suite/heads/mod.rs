//! Attention heads: observed, masked, ranked and pruned.

mod importance;
mod masked;
mod models;
mod observed;
mod pruned;

use candle_attention::{AttentionConfig, MultiHeadAttention};
use candle_attention_text::SentenceEncoder;
use candle_core::{DType, Device};

use crate::common::{Random, random_layer};

const CPU: Device = Device::Cpu;

/// A layer with random weights, large enough for its heads to attend in different directions.
fn layer(config: &AttentionConfig, seed: u64) -> MultiHeadAttention {
    random_layer(config, 0.8, &mut Random::new(seed))
}

/// The tiny sentence encoder of the fixtures.
fn encoder(folder: &std::path::Path) -> SentenceEncoder {
    SentenceEncoder::from_folder(folder, DType::F32, &CPU).unwrap()
}

const TEXTS: [&str; 5] = ["a cat sat", "the dog ran to the mat", "on", "the cat and the dog sat on the mat", "a dog"];
