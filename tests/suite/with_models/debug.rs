//! What `{:?}` prints of a layer, a cache and a model: one line that fits a log, whatever the sizes.

use candle_attention::checkpoint::Checkpoint;
use candle_attention::position::Rotary;
use candle_attention::{AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, KvCache};
use candle_attention_text::{EncodeOptions, SentenceEncoder};
use candle_core::{DType, Device, Module};

use crate::common::{Random, fixture, random_layer};

#[track_caller]
fn fits_a_log_line(value: &impl std::fmt::Debug, parts: &[&str]) {
    let text = format!("{value:?}");
    assert!(text.len() < 500 && !text.contains('\n'), "{} characters: {}", text.len(), &text[..text.len().min(1000)]);
    parts.iter().for_each(|part| assert!(text.contains(part), "`{part}` in {text}"));
}

#[test]
fn a_layer_prints_its_configuration_and_never_its_weights() {
    let mut random = Random::new(75);
    let config = AttentionConfig::new(96, 4).with_position(Rotary::default()).with_mask(AttentionMask::causal());
    let layer = random_layer(&config, 0.1, &mut random);
    let facts = ["hidden_size: 96", "num_attention_heads: 4", "rotary", "causal", "F32", "Cpu", "variables: false"];
    fits_a_log_line(&layer, &facts);
    fits_a_log_line(&layer, &["packed: false"]);
    let xs = random.tensor(&[2, 5, 96], DType::F32);
    layer.forward(&xs).unwrap();
    fits_a_log_line(&layer, &facts);
    fits_a_log_line(&layer, &["packed: true"]);

    let mut cache = KvCache::growing();
    let inputs = AttentionInputs::self_attention(&xs, AttentionMask::lengths(&[5; 2]));
    fits_a_log_line(&inputs, &["lengths(2 rows)"]);
    layer.attend_with(&inputs.with_cache(&mut cache), &AttentionOptions::default()).unwrap();
    fits_a_log_line(&cache, &["KvCache", "Growing", "sequences: 2", "len: 5", "retained_len: 5", "F32"]);
    cache.select_sequences(&[0; 50]).unwrap();
    fits_a_log_line(&cache, &["sequences: 50"]);
    fits_a_log_line(&layer.plan(&inputs, &AttentionOptions::default()).unwrap().backend, &["Cpu"]);
}

#[test]
fn a_layer_of_a_checkpoint_prints_the_name_of_its_layout() {
    let folder = fixture("compose/qwen3");
    let json: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(folder.join("config.json")).unwrap()).unwrap();
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let model = checkpoint.attention_with("model.layers.0.self_attn", &json, DType::F32, &Device::Cpu).unwrap();
    fits_a_log_line(&model, &["ModelAttention", "causal", "layout: "]);
}

#[test]
fn an_encoder_prints_what_model_it_is() {
    let encoder = SentenceEncoder::embedded(DType::F32, &Device::Cpu).unwrap();
    encoder.encode(&["A cat sleeps."], &EncodeOptions::default()).unwrap();
    fits_a_log_line(&encoder, &["SentenceEncoder", "TextModel", "num_hidden_layers: ", "vocab_size: "]);
}
