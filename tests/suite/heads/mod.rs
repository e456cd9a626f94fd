//! Heads seen, masked, ranked and removed.

mod importance;
mod masked;
mod models;
mod observed;
mod pruned;

use candle_attention::encoder::SentenceEncoder;
use candle_attention::{AttentionConfig, MultiHeadAttention};
use candle_core::{DType, Device};
use candle_nn::{VarBuilder, VarMap};

use crate::common::Random;

const CPU: Device = Device::Cpu;

/// A layer of fixed random weights: what runs on the fused kernel.
fn layer(config: &AttentionConfig, seed: u64) -> MultiHeadAttention {
    let map = VarMap::new();
    MultiHeadAttention::new(config, VarBuilder::from_varmap(&map, DType::F32, &CPU)).unwrap();
    let mut random = Random::new(seed);
    let data = map.data().lock().unwrap();
    let mut names: Vec<&String> = data.keys().collect();
    names.sort();
    let fixed = names.iter().map(|name| {
        // Large enough for heads to look in different directions.
        let numbers = (random.tensor(data[*name].dims(), DType::F32) * 0.8).unwrap();
        ((*name).clone(), numbers)
    });
    MultiHeadAttention::load(config, VarBuilder::from_tensors(fixed.collect(), DType::F32, &CPU)).unwrap()
}

/// The tiny sentence encoder of the fixtures.
fn encoder(folder: &std::path::Path) -> SentenceEncoder {
    SentenceEncoder::from_folder(folder, DType::F32, &CPU).unwrap()
}

const TEXTS: [&str; 5] = ["a cat sat", "the dog ran to the mat", "on", "the cat and the dog sat on the mat", "a dog"];
