//! Adapters of sentence encoders, against sentence-transformers (`tests/golden/lora.py`): the folder `lora/sentences`.

use std::path::Path;
use std::sync::Mutex;

use candle_attention::ComputeType;
use candle_attention::checkpoint::Checkpoint;
use candle_attention::io::write_file;
use candle_attention::lora::LoraAdapter;
use candle_attention_text::{EncodeOptions, SentenceEncoder, TextClassifier, write_int8};
use candle_core::{DType, Device, Tensor};

use crate::common::programs::copy_folder;
use crate::common::{Golden, assert_close, fixture, max_diff, numbers, says};

const CPU: Device = Device::Cpu;
/// Sentence vectors of unit length.
const VECTORS: f64 = 2e-5;

fn texts() -> Vec<String> {
    serde_json::from_slice(&std::fs::read(fixture("tiny_sentences.json")).unwrap()).unwrap()
}

fn encoder() -> SentenceEncoder {
    let mut encoder = SentenceEncoder::from_folder(fixture("tiny-bert"), DType::F32, &CPU).unwrap();
    encoder.add_adapter("a", &LoraAdapter::open(fixture("lora/sentences")).unwrap()).unwrap();
    encoder.add_adapter("b", &LoraAdapter::open(fixture("lora/bert_query_value")).unwrap()).unwrap();
    encoder
}

fn encode(encoder: &SentenceEncoder, texts: &[&str], options: &EncodeOptions) -> Tensor {
    encoder.encode(texts, options).unwrap()
}

#[test]
fn vectors_equal_those_of_sentence_transformers() {
    let (texts, golden) = (texts(), Golden::open("lora/sentences.safetensors"));
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let (encoder, options) = (encoder(), EncodeOptions::default());
    let plain = SentenceEncoder::from_folder(fixture("tiny-bert"), DType::F32, &CPU).unwrap();
    for (key, options) in [("adapted", options.with_adapter("a")), ("base", options)] {
        let got = encode(&encoder, &texts, &options);
        assert_close(key, &got, &golden.get(key), VECTORS);
        eprintln!("sentences, {key}: {:.1e}", max_diff(&got, &golden.get(key)));
    }
    let [base, again] = [&plain, &encoder].map(|encoder| numbers(&encode(encoder, &texts, &options)));
    assert_eq!(base, again, "the base model is as it was, bit for bit");
}

/// Each text has the bits that it has in a call with its adapter alone; indices and counts are those of the call.
#[test]
fn texts_of_one_call_have_their_own_adapters() {
    let texts = texts();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let (encoder, options) = (encoder(), EncodeOptions::default());
    let names = [Some("b"), None, Some("a"), Some("b"), Some("a"), None, Some("b"), None];
    let (cut, progress) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let on_truncated = |i: usize| cut.lock().unwrap().push(i);
    let on_progress = |done: usize, of: usize| progress.lock().unwrap().push((done, of));
    let options_of_all = options.with_adapters(&names).with_on_truncated(&on_truncated).with_on_progress(&on_progress);
    let got = encode(&encoder, &texts, &options_of_all);
    for (i, name) in names.into_iter().enumerate() {
        let mut alone = options;
        alone.adapter = name;
        let want = encode(&encoder, &texts[i..=i], &alone);
        assert_eq!(numbers(&got.narrow(0, i, 1).unwrap()), numbers(&want), "text {i} with {name:?}");
    }
    cut.lock().unwrap().sort();
    assert_eq!(cut.into_inner().unwrap(), [3, 5]);
    let progress = progress.into_inner().unwrap();
    assert!(progress.is_sorted() && progress.last() == Some(&(8, 8)), "{progress:?}");
    assert_eq!(encode(&encoder, &[], &options.with_adapters(&[])).dims(), [0, 24]);
}

#[test]
fn adapters_are_added_and_removed_by_name() {
    let (mut encoder, options) = (encoder(), EncodeOptions::default());
    assert_eq!(encoder.adapters().collect::<Vec<_>>(), ["a", "b"]);
    says(encoder.encode(&["x"], &options.with_adapter("c")), &["adapter is c", "a or b"]);
    says(encoder.encode(&["x"], &options.with_adapters(&[Some("c")])), &["adapter is c", "a or b"]);
    says(encoder.encode(&["x"], &options.with_adapters(&[])), &["the number of adapters is 0", "1, that of texts"]);
    says(
        encoder.encode(&["x"], &options.with_adapter("a").with_adapters(&[None])),
        &["the adapter or task of all texts is a", "its own"],
    );
    assert!(encoder.remove_adapter("a") && !encoder.remove_adapter("a"));
    says(encoder.encode(&["x"], &options.with_adapter("a")), &["adapter is a", "expected b"]);
    let source = Checkpoint::open(fixture("tiny-bert")).unwrap().at("", DType::F32, &CPU);
    let mut given = SentenceEncoder::load(fixture("tiny-bert"), source).unwrap();
    let adapter = LoraAdapter::open(fixture("lora/sentences")).unwrap();
    says(given.add_adapter("a", &adapter), &["one that was loaded from its own folder"]);
    says(given.encode(&["x"], &options.with_adapter("a")), &["none: the encoder has no adapters"]);
    let other = LoraAdapter::open(fixture("lora/distilbert_query_value")).unwrap();
    says(encoder.add_adapter("d", &other), &["tensor `transformer.layer.0.attention.q_lin.weight` is missing"]);

    let folder = crate::models::folder(2, serde_json::json!({}));
    let classifier = TextClassifier::from_folder(folder.path(), DType::F32, &CPU).unwrap();
    says(classifier.classify(&["x"], &options.with_adapter("a")), &["adapter or task is a", "`AdaptedSource`"]);
}

/// The folder of sentence-transformers has the adapter and the path of its base model.
#[test]
fn a_folder_with_an_adapter_is_loaded_with_its_base() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("adapted");
    copy_folder(&fixture("lora/sentences"), &folder);
    let load = || SentenceEncoder::from_folder(&folder, DType::F32, &CPU);
    let with_base = |base: serde_json::Value| {
        let path = fixture("lora/sentences/adapter_config.json");
        let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        json["base_model_name_or_path"] = base;
        write_file(&folder.join("adapter_config.json"), json.to_string()).unwrap();
    };
    with_base("some-user/some-model".into());
    says(load(), &["adapter_config.json", "`some-user/some-model`, is not a local folder"]);
    with_base(serde_json::Value::Null);
    says(load(), &["adapter_config.json", "names no base model"]);
    with_base(fixture("tiny-bert").to_str().unwrap().into());
    let texts = texts();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let got = encode(&load().unwrap(), &texts, &EncodeOptions::default());
    assert_close("folder", &got, &Golden::open("lora/sentences.safetensors").get("adapted"), VECTORS);
}

/// A base in few bits keeps them: the adapter of the folder is beside them, as one that is added.
#[test]
fn a_folder_with_an_adapter_keeps_the_bits_of_its_base() {
    let parent = tempfile::tempdir().unwrap();
    let (base, folder) = (parent.path().join("int8"), parent.path().join("adapted"));
    copy_folder(&fixture("lora/sentences"), &folder);
    let path = folder.join("adapter_config.json");
    let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    json["base_model_name_or_path"] = base.to_str().unwrap().into();
    write_file(&path, json.to_string()).unwrap();
    let texts = texts();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let load = |folder: &Path| SentenceEncoder::from_folder(folder, ComputeType::default(), &CPU).unwrap();
    let adapter = LoraAdapter::open(&folder).unwrap();
    // All weights, and those of feed-forward parts alone, which the adapter does not change.
    let choices: [fn(&str) -> bool; 2] = [|_| true, |name| name.contains("intermediate")];
    for (is_int8, is_beside) in choices.into_iter().zip([true, false]) {
        _ = std::fs::remove_dir_all(&base);
        write_int8(fixture("tiny-bert"), &base, is_int8).unwrap();
        let adapted = load(&folder);
        assert!(format!("{adapted:?}").contains("int8"), "{adapted:?}");
        let mut encoder = load(&base);
        encoder.add_adapter("a", &adapter).unwrap();
        let got = encode(&adapted, &texts, &EncodeOptions::default());
        let want = encode(&encoder, &texts, &EncodeOptions::default().with_adapter("a"));
        assert_eq!(max_diff(&got, &want), 0.0);
        // Merged, what is int8 is rounded again.
        let source = Checkpoint::open(&base).unwrap().at("", ComputeType::default(), &CPU);
        let merged = SentenceEncoder::load(&base, adapter.apply(source).unwrap()).unwrap();
        assert_eq!(max_diff(&encode(&merged, &texts, &EncodeOptions::default()), &got) > 0.0, is_beside);
    }
}
