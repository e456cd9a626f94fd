//! This crate's encoders against candle-transformers, and the golden values that were made with it.
//!
//! Run: `cargo test --release --manifest-path benches/Cargo.toml`.

use std::path::{Path, PathBuf};

use candle_attention::AttentionMask;
use candle_attention::checkpoint::Checkpoint;
use candle_attention_text::{TextModel, TextModelConfig};
use candle_core::{DType, Device, Module, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::{bert, jina_bert};

const CPU: Device = Device::Cpu;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
}

/// Asserts `|got - want| <= tolerance + tolerance * |want|` for every element.
#[track_caller]
fn assert_close(got: &Tensor, want: &Tensor, tolerance: f64) {
    let numbers = |t: &Tensor| t.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1::<f64>().unwrap();
    assert_eq!(got.dims(), want.dims());
    for (i, (got, want)) in numbers(got).into_iter().zip(numbers(want)).enumerate() {
        assert!((got - want).abs() <= tolerance + tolerance * want.abs(), "element {i} is {got}, want {want}");
    }
}

/// The fixture holds the weights, `golden.ids` and `golden.output`; `tests/suite/jina.rs` runs this crate's model on it.
#[test]
fn jina_bert_golden_values_are_the_output_of_candle_transformers() {
    let tensors = candle_core::safetensors::load(fixture("jina_bert.safetensors"), &CPU).unwrap();
    // The sizes and settings of `tests/suite/jina.rs`.
    let config: jina_bert::Config = serde_json::from_value(serde_json::json!({
        "model_type": "bert", "position_embedding_type": "alibi", "feed_forward_type": "geglu", "vocab_size": 19,
        "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 10,
        "hidden_act": "gelu", "max_position_embeddings": 16, "type_vocab_size": 2, "initializer_range": 0.02,
        "layer_norm_eps": 1e-3, "pad_token_id": 0,
    }))
    .unwrap();
    let (ids, want) = (tensors["golden.ids"].clone(), tensors["golden.output"].clone());
    let model = jina_bert::BertModel::new(VarBuilder::from_tensors(tensors, DType::F32, &CPU), &config).unwrap();
    assert_close(&model.forward(&ids).unwrap(), &want, 2e-5);
}

#[test]
fn bert_equals_candle_transformers() {
    let folder = fixture("tiny-bert");
    let json = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let theirs: bert::Config = serde_json::from_str(&json).unwrap();
    let tensors = candle_core::safetensors::load(folder.join("model.safetensors"), &CPU).unwrap();
    let theirs = bert::BertModel::load(VarBuilder::from_tensors(tensors, DType::F32, &CPU), &theirs).unwrap();
    let config: TextModelConfig = serde_json::from_str(&json).unwrap();
    let source = Checkpoint::open(&folder).unwrap().at("", DType::F32, &CPU);
    let ours = TextModel::load(&config, source).unwrap();
    let ids = Tensor::new(&[[2u32, 17, 5, 99, 3], [2, 8, 3, 0, 0]], &CPU).unwrap();
    let types = Tensor::new(&[[0u32, 0, 1, 1, 1], [0, 0, 0, 0, 0]], &CPU).unwrap();
    let keep = Tensor::new(&[[1u8, 1, 1, 1, 1], [1, 1, 1, 0, 0]], &CPU).unwrap();
    let want = theirs.forward(&ids, &types, Some(&keep)).unwrap();
    let got = ours.forward(&ids, Some(&types), &AttentionMask::lengths(&[5, 3])).unwrap();
    assert_close(&got.get(0).unwrap(), &want.get(0).unwrap(), 1e-5);
    let tokens = |t: &Tensor| t.get(1).unwrap().narrow(0, 0, 3).unwrap();
    assert_close(&tokens(&got), &tokens(&want), 1e-5);
}
