//! What holds for every layer, for the layer as it is usually configured.

use candle_attention::position::{Alibi, Rotary, T5RelativeBias};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Backend, HeadNorm, KvCache, NormKind, NormOver,
    Quantization,
};
use candle_core::{DType, Module};

use crate::common::everywhere::Everywhere;
use crate::common::{LAYER, Random, assert_close, random_layer};

#[test]
fn an_encoder_and_decoders_give_the_same_everywhere() {
    let config = AttentionConfig::new(12, 4).with_num_key_value_heads(2);
    let norm = HeadNorm::new(NormKind::Rms, NormOver::Head, 1e-6);
    Everywhere::new(config.clone()).check(1);
    let decoder = config.clone().with_mask(AttentionMask::causal()).with_position(Rotary::default());
    Everywhere::new(decoder.clone().with_head_dim(4).with_qk_norm(norm)).check(2);
    let windowed = config.clone().with_mask(AttentionMask::window(Some(3), Some(0)));
    Everywhere::new(windowed.with_position(Alibi::default()).with_head_dim(5).with_value_head_dim(2)).check(3);
    Everywhere::new(config.with_position(T5RelativeBias::new(8, 12, true)).with_softcap(2.0)).check(4);
}

/// Scores are in f32 whatever holds the weights, so a call that returns its weights, another backend and a cache give
/// what `forward` gives.
#[test]
fn layers_in_few_bits_give_the_same_on_every_route() {
    let mut random = Random::new(6);
    let layer = random_layer(&AttentionConfig::new(64, 4).with_mask(AttentionMask::causal()), 0.5, &mut random);
    let xs = random.tensor(&[2, 37, 64], DType::F32);
    for format in [Quantization::Int8, Quantization::Q8_0, Quantization::Q4_0] {
        let layer = layer.quantized(format).unwrap();
        let want = layer.forward(&xs).unwrap();
        let inputs = AttentionInputs::self_attention(&xs, None);
        let options = AttentionOptions::default();
        let run = |inputs: &AttentionInputs, options: &AttentionOptions, what: &str| {
            let output = layer.attend_with(inputs, options).unwrap().output;
            assert_close(&format!("{format:?} {what}"), &output, &want, LAYER);
        };
        run(&inputs, &options.with_return_attention_weights(true), "with weights");
        run(&inputs, &options.with_backend(Backend::Eager), "eager");
        run(&inputs.with_cache(&mut KvCache::growing()), &options, "with a cache");
        let ragged = xs.reshape((74, 64)).unwrap();
        let output = layer.attend_with(&AttentionInputs::ragged(&ragged, &[37, 37], None), &options).unwrap().output;
        assert_close(&format!("{format:?} ragged"), &output.reshape(want.shape()).unwrap(), &want, LAYER);
    }
}
