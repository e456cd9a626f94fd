//! A convolution of the values beside the heads: by its formula, on every path, and where it cannot be.

use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Differential, KvCache, MultiHeadAttention,
};
use candle_core::{DType, Device, Tensor};
use candle_nn::{VarBuilder, VarMap};

use crate::common::everywhere::Everywhere;
use crate::common::{Random, assert_close, numbers, says};

fn config() -> AttentionConfig {
    AttentionConfig::new(12, 3).with_value_convolution(4)
}

fn layer() -> MultiHeadAttention {
    let map = VarMap::new();
    MultiHeadAttention::new(&config(), VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu)).unwrap();
    let data = map.data().lock().unwrap();
    let tensors = data.iter().map(|(name, var)| (name.clone(), var.as_detached_tensor())).collect();
    let source = VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
    MultiHeadAttention::load(&config(), source).unwrap()
}

#[test]
fn it_is_the_same_everywhere() {
    Everywhere::new(config()).without_pruning().check(97);
    let causal = config().with_mask(AttentionMask::causal());
    Everywhere::new(causal).without_pruning().without_cache().check(98);
}

/// Without it the layer is an ordinary one, whose output lacks the sum over neighbors.
#[test]
fn it_adds_neighbors_and_values_and_no_hidden_ones() {
    let (layer, mut random) = (layer(), Random::new(5));
    let mut weights = layer.weights().unwrap();
    let taps = numbers(&weights.parameters.remove("value_convolution.weight").unwrap());
    let plain = MultiHeadAttention::from_weights(&AttentionConfig::new(12, 3), weights.clone()).unwrap();
    let [_, _, v] = weights.qkv.split([12, 12, 12], 3).unwrap();
    let xs = random.tensor(&[1, 6, 12], DType::F32);
    let values = xs.broadcast_matmul(&v.weight.t().unwrap()).unwrap().broadcast_add(&v.bias.unwrap()).unwrap();
    let values = numbers(&values);
    // Of four neighbors one is before a token.
    let mut sums = values[..4 * 12].to_vec();
    for (place, sum) in sums.iter_mut().enumerate() {
        let (token, element) = (place / 12, place % 12);
        for tap in 0..4 {
            if let Some(neighbor) = (token + tap).checked_sub(1).filter(|neighbor| *neighbor < 4) {
                *sum += taps[element * 4 + tap] * values[neighbor * 12 + element];
            }
        }
    }
    let mask = AttentionMask::lengths(&[4]);
    let narrow = |xs: Tensor| xs.narrow(1, 0, 4).unwrap();
    let attend = |layer: &MultiHeadAttention, xs: &Tensor| narrow(layer.attend(xs, xs, xs, &mask).unwrap());
    let sums = Tensor::from_vec(sums, (1, 4, 12), &Device::Cpu).unwrap().to_dtype(DType::F32).unwrap();
    let want = (attend(&plain, &xs) + sums).unwrap();
    assert_close("the sum over neighbors", &attend(&layer, &xs), &want, 1e-5);
    // What padding holds changes nothing.
    let spoiled =
        Tensor::cat(&[xs.narrow(1, 0, 4).unwrap(), Tensor::full(f32::NAN, (1, 2, 12), &Device::Cpu).unwrap()], 1);
    assert_close("padding that is not finite", &attend(&layer, &spoiled.unwrap()), &want, 1e-5);
}

#[test]
fn what_it_does_not_go_with_is_an_error() {
    let (layer, xs) = (layer(), Random::new(6).tensor(&[1, 5, 12], DType::F32));
    let mut cache = KvCache::growing();
    let inputs = AttentionInputs::self_attention(&xs, AttentionMask::full()).with_cache(&mut cache);
    let cached = layer.attend_with(&inputs, &AttentionOptions::default());
    says(cached, &["a convolution of its values is a cache or a memory"]);
    let memory = xs.narrow(1, 0, 3).unwrap();
    let crossed = layer.attend(&xs, &memory, &memory, AttentionMask::full());
    says(crossed, &["expected self-attention of whole sequences"]);
    says(layer.prune_heads(&[0]), &["2 heads with 8 elements of values", "expected 2 heads with 12 elements"]);
    for (config, found) in [
        (config().with_num_key_value_heads(1), "1 heads with 4 elements of values"),
        (config().with_output_size(6), "3 heads with 12 elements of values"),
        (config().with_add_zero_attn(true), "value_convolution = 4 is not allowed: expected none beside"),
        (config().with_query_pool(2), "value_convolution = 4 is not allowed: expected none beside"),
        (
            AttentionConfig::new(12, 4).with_value_convolution(4).with_differential(Differential::new(0.3, 1e-5)),
            "value_convolution = 4 is",
        ),
        (config().with_global_tokens(true), "value_convolution = 4 is not allowed: expected none beside"),
        (config().with_value_convolution(0), "value_convolution = 0"),
        (config().with_value_convolution(1 << 20), "expected 1 to 1024"),
    ] {
        says(config.validate(), &[found]);
    }
}
