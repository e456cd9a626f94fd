//! Differential attention: pairs of heads of which one softmax is taken from the other. Its values are transformers', in
//! the fixture of `diffllama`.

use candle_attention::position::{RelativeKeyValue, Rotary};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Differential, KeyValueSource, KvCache,
    ObserveOptions, ProjectionBias,
};
use candle_core::{DType, Device, Tensor};

use crate::common::everywhere::Everywhere;
use crate::common::{Random, assert_close, random_layer, says};

const CPU: Device = Device::Cpu;

fn config() -> AttentionConfig {
    AttentionConfig::new(12, 4)
        .with_num_key_value_heads(2)
        .with_head_dim(4)
        .with_bias(ProjectionBias::NONE)
        .with_mask(AttentionMask::causal())
        .with_position(Rotary::default())
        .with_differential(Differential::new(0.3, 1e-5))
}

#[test]
fn differential_attention_gives_the_same_everywhere() {
    Everywhere::new(config()).without_pruning().check(1);
    let wide = AttentionConfig::new(8, 4).with_value_head_dim(3).with_differential(Differential::new(0.8, 1e-3));
    Everywhere::new(wide).without_pruning().check(2);
}

/// A factor on a head is one on its softmax: without its second head, a pair is the first one, normalized.
#[test]
fn heads_are_scaled_before_they_are_subtracted() {
    let mut random = Random::new(3);
    let layer = random_layer(&config(), 0.5, &mut random);
    let xs = random.tensor(&[2, 5, 12], DType::F32);
    let inputs = AttentionInputs::self_attention(&xs, None);
    let call = |factors: [f32; 4]| {
        let factors = Tensor::new(&factors, &CPU).unwrap();
        layer.attend_with(&inputs, &AttentionOptions::default().with_head_mask(&factors)).unwrap().output
    };
    // The norm takes a factor of all heads of a pair away.
    assert_close("half of both", &call([0.5; 4]), &call([1.0; 4]), 1e-3);
    assert!(crate::common::max_diff(&call([1.0, 1.0, 0.0, 0.0]), &call([1.0; 4])) > 0.01);
    let none = call([0.0; 4]);
    assert_close("without heads", &none, &none.zeros_like().unwrap(), 0.0);
}

#[test]
fn caches_in_int8_statistics_and_empty_calls_have_pairs_too() {
    let mut random = Random::new(4);
    let layer = random_layer(&config(), 0.5, &mut random);
    let xs = random.tensor(&[2, 7, 12], DType::F32);
    let inputs = AttentionInputs::self_attention(&xs, None);
    let want = layer.attend(&xs, &xs, &xs, None).unwrap();
    let mut cache = KvCache::growing().with_int8();
    let cached = layer.attend_with(&inputs.with_cache(&mut cache), &AttentionOptions::default()).unwrap().output;
    assert_close("int8", &cached, &want, 0.05);

    let returned = AttentionOptions::default().with_return_attention_weights(true);
    let weights = layer.attend_with(&inputs, &returned).unwrap().attention_weights.unwrap();
    assert_eq!(weights.dims(), [2, 4, 7, 7]);
    let what = ObserveOptions::default().with_attention_weights(true);
    let stats = layer.observe(&inputs, &AttentionOptions::default(), &what).unwrap();
    assert_close("observed", &stats.attention_weights.unwrap(), &weights, 1e-6);
    assert_close("beside statistics", &stats.output, &want, 1e-6);

    for [b, s] in [[0, 5], [2, 0]] {
        let xs = Tensor::zeros((b, s, 12), DType::F32, &CPU).unwrap();
        assert_eq!(layer.attend(&xs, &xs, &xs, None).unwrap().dims(), [b, s, 12]);
    }
    says(layer.attend_sharing(&inputs, &AttentionOptions::default()), &["keys are to be shared", "pairs of heads"]);
}

#[test]
fn what_is_no_pair_is_refused() {
    let refused = |config: AttentionConfig, parts: &[&str]| says(config.validate(), parts);
    refused(config().with_num_key_value_heads(1), &["differential", "an odd number of key-value heads"]);
    refused(config().with_query_pool(2), &["pooled queries"]);
    refused(config().with_position(RelativeKeyValue::new(3)), &["differential", "values by distance"]);
    refused(config().with_key_value_source(KeyValueSource::KeysAsValues), &["differential", "keys of another kind"]);
    refused(config().with_global_tokens(true), &["global_tokens"]);
    for [lambda, eps] in [[f64::NAN, 1e-5], [0.3, 0.0], [0.3, f64::INFINITY]] {
        refused(config().with_differential(Differential::new(lambda, eps)), &["differential", "finite"]);
    }
    let layer = random_layer(&config(), 0.5, &mut Random::new(5));
    says(layer.prune_heads(&[0]), &["a layer to prune", "pairs"]);
    let plain = config().with_differential(None);
    let weights = layer.weights().unwrap();
    says(candle_attention::MultiHeadAttention::from_weights(&plain, weights), &["differential", "lambda_"]);
}
