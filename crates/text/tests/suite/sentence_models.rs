//! Sentence embeddings of decoders and T5 in whole folders, against sentence-transformers
//! (`tests/golden/decoder_sentences.py`).

use std::path::Path;

use candle_attention::Error;
use candle_attention_text::{EncodeOptions, SentenceEncoder};
use candle_core::{DType, Device, Tensor};
use serde_json::{Value, json};

use crate::common::{Golden, assert_close, fixture, max_diff, says};

const CPU: Device = Device::Cpu;
const MODEL: f64 = 2e-5;

fn texts() -> Vec<String> {
    serde_json::from_slice(&std::fs::read(fixture("sentence_models.json")).unwrap()).unwrap()
}

fn open(folder: &Path, dtype: DType) -> Result<SentenceEncoder, Error> {
    SentenceEncoder::from_folder(folder, dtype, &CPU)
}

/// The vectors with these prompts, ragged and padded (f64 runs on padded tensors); a text alone has the bits that it
/// has in a batch.
fn model(name: &str, prompts: &[&str]) {
    let (golden, texts) = (Golden::open("sentence_models.safetensors"), texts());
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let folder = fixture(&format!("sentence_models/{name}"));
    let (ragged, padded) = (open(&folder, DType::F32).unwrap(), open(&folder, DType::F64).unwrap());
    for prompt in [None].into_iter().chain(prompts.iter().map(Some)) {
        let mut options = EncodeOptions::default();
        options.prompt_name = prompt.copied();
        let case = prompt.map_or(name.to_string(), |prompt| format!("{name}.{prompt}"));
        let want = golden.get(&case);
        let got = ragged.encode(&texts, &options).unwrap();
        assert_close(&case, &got, &want, MODEL);
        let wide = padded.encode(&texts, &options).unwrap();
        assert_close(&format!("{case}, padded"), &wide.to_dtype(DType::F32).unwrap(), &want, MODEL);
        for (i, text) in texts.iter().enumerate() {
            let alone = ragged.encode(&[text], &options).unwrap();
            assert_eq!(max_diff(&alone, &got.narrow(0, i, 1).unwrap()), 0.0, "{case}: {text}");
        }
    }
}

#[test]
fn qwen3() {
    model("qwen3", &["query", "document"]);
}

#[test]
fn mistral() {
    model("mistral", &["query"]);
}

#[test]
fn llama() {
    model("llama", &["query"]);
}

#[test]
fn gemma3() {
    model("gemma3", &["query", "document"]);
}

#[test]
fn t5() {
    model("t5", &[]);
}

/// A copy of a folder of the fixtures.
pub fn copied(name: &str) -> tempfile::TempDir {
    fn copy(from: &Path, to: &Path) {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap() {
            let path = entry.unwrap().path();
            let to = to.join(path.file_name().unwrap());
            if path.is_dir() {
                copy(&path, &to);
            } else {
                std::fs::copy(&path, to).unwrap();
            }
        }
    }
    let to = tempfile::tempdir().unwrap();
    copy(&fixture(name), to.path());
    to
}

/// A copy of a model's folder with keys of one of its files replaced.
fn changed(name: &str, file: &str, with: Value) -> tempfile::TempDir {
    let to = copied(&format!("sentence_models/{name}"));
    let path = to.path().join(file);
    let mut keys: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for (key, value) in with.as_object().unwrap() {
        keys[key] = value.clone();
    }
    std::fs::write(path, keys.to_string()).unwrap();
    to
}

/// The tokenizer's side of padding means nothing to texts that are run without padding.
#[test]
fn sides_of_padding_give_equal_vectors() {
    let want = open(&fixture("sentence_models/qwen3"), DType::F32).unwrap();
    let encode = |encoder: &SentenceEncoder| encoder.encode(&["cats", "hello"], &EncodeOptions::default()).unwrap();
    for side in ["left", "right"] {
        let folder = changed("qwen3", "tokenizer_config.json", json!({ "padding_side": side }));
        assert_eq!(max_diff(&encode(&open(folder.path(), DType::F32).unwrap()), &encode(&want)), 0.0);
    }
}

#[test]
fn what_would_change_the_vectors_is_refused() {
    let refused = |name: &str, file: &str, with: Value, parts: &[&str]| {
        says(open(changed(name, file, with).path(), DType::F32), parts);
    };
    let cut = json!({"truncation_side": "left"});
    refused("qwen3", "tokenizer_config.json", cut, &["tokenizer_config.json", "truncation_side is `left`"]);
    let tokens = json!({"module_input_name": "token_embeddings"});
    refused(
        "t5",
        "2_Dense/config.json",
        tokens,
        &["2_Dense", "works on `token_embeddings`, expected `sentence_embedding`"],
    );
    let code = json!({"auto_map": {"AutoModel": "modeling_qwen.Qwen2Model"}});
    refused("llama", "config.json", code, &["auto_map = stated alone", "beside `is_causal`"]);
    refused("gemma3", "config.json", json!({"attn_logit_softcapping": 30.0}), &["attn_logit_softcapping"]);
    refused("t5", "config.json", json!({"feed_forward_proj": "gated-silu"}), &["feed_forward_proj = gated-silu"]);
    refused("t5", "config.json", json!({"dense_act_fn": "relu"}), &["dense_act_fn = \"relu\"", "gelu_new"]);
    refused("t5", "config.json", json!({"pruned_heads": {"0": [1]}}), &["pruned_heads", "columns of a table"]);
    refused("qwen3", "config.json", json!({"pruned_heads": {"0": [1]}}), &["pruned_heads", "share keys and values"]);
    refused("qwen3", "config.json", json!({"num_key_value_heads": 3}), &["num_key_value_heads = 3"]);
}

/// Whoever states how far its tokens see may bring code of his own.
#[test]
fn a_decoder_that_states_its_mask_may_see_both_ways() {
    let with = json!({"auto_map": {"AutoModel": "modeling_qwen.Qwen2Model"}, "is_causal": false});
    let both_ways = open(changed("llama", "config.json", with).path(), DType::F32).unwrap();
    let causal = open(&fixture("sentence_models/llama"), DType::F32).unwrap();
    let encode = |encoder: &SentenceEncoder| encoder.encode(&["hello world"], &EncodeOptions::default()).unwrap();
    let (both_ways, causal): (Tensor, Tensor) = (encode(&both_ways), encode(&causal));
    assert!(max_diff(&both_ways, &causal) > 1e-2);
}

/// As sentence-transformers does: the last token of a causal language model, and the mean of other models.
#[test]
fn without_modules_the_architecture_decides_on_pooling() {
    let encode = |with: Value| {
        let folder = changed("mistral", "config.json", with);
        for file in ["modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"] {
            std::fs::remove_file(folder.path().join(file)).unwrap();
        }
        let encoder = open(folder.path(), DType::F32).unwrap();
        encoder.encode(&["cats", "hello world"], &EncodeOptions::default()).unwrap()
    };
    let encoder = open(&fixture("sentence_models/mistral"), DType::F32).unwrap();
    let want = encoder.encode(&["cats", "hello world"], &EncodeOptions::default()).unwrap();
    let last = encode(json!({"architectures": ["MistralForCausalLM"]}));
    let length = last.sqr().unwrap().sum_keepdim(1).unwrap().sqrt().unwrap();
    assert_close("the last token", &last.broadcast_div(&length).unwrap(), &want, MODEL);
    let mean = encode(json!({"architectures": ["MistralModel"]}));
    assert!(max_diff(&mean, &last) > 1e-2);
    assert!(max_diff(&encode(json!({"architectures": ["MistralForCausalLM"], "is_causal": false})), &last) > 1e-2);
}
