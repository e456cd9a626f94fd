//! Sparse encoders against sentence-transformers (`tests/golden/sparse.py`).

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use candle_attention::Error;
use candle_attention_text::{EncodeOptions, SparseEncoder, SparseVector, Task};
use candle_core::{DType, Device};
use serde_json::{Value, json};

use crate::common::programs::copy_folder;
use crate::common::{fixture, says};

fn open(folder: &Path) -> Result<SparseEncoder, Error> {
    SparseEncoder::from_folder(folder, DType::F32, &Device::Cpu)
}

fn golden(name: &str) -> (SparseEncoder, Value) {
    let folder = fixture("sparse");
    let said = std::fs::read_to_string(folder.join(format!("{name}.json"))).unwrap();
    (open(&folder.join(name)).unwrap(), serde_json::from_str(&said).unwrap())
}

/// The largest difference of the values; the indices are equal.
fn difference(got: &[SparseVector], want: &Value) -> f64 {
    let want = want.as_array().unwrap();
    assert_eq!(got.len(), want.len());
    let of_text = |(got, want): (&SparseVector, &Value)| {
        assert_eq!(json!(got.indices), want["indices"]);
        let values = got.values.iter().zip(want["values"].as_array().unwrap());
        values.map(|(got, want)| (f64::from(*got) - want.as_f64().unwrap()).abs()).fold(0.0, f64::max)
    };
    got.iter().zip(want).map(of_text).fold(0.0, f64::max)
}

fn equals_sentence_transformers(name: &str) {
    let (encoder, said) = golden(name);
    let texts: Vec<&str> = said["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    let options = EncodeOptions::default();
    let query = encoder.encode_query(&texts, &options).unwrap();
    let document = encoder.encode_document(&texts, &options).unwrap();
    let plain = encoder.encode(&texts, &options).unwrap();
    let worst = difference(&query, &said["query"])
        .max(difference(&document, &said["document"]))
        .max(difference(&plain, &said["plain"]));
    assert!(worst < 2e-5, "{name}: largest difference {worst:e}");

    let similarity = encoder.similarity(&query, &document).unwrap();
    for (got, want) in similarity.iter().zip(said["similarity"].as_array().unwrap()) {
        for (got, want) in got.iter().zip(want.as_array().unwrap()) {
            let (got, want) = (f64::from(*got), want.as_f64().unwrap());
            assert!((got - want).abs() < 2e-5 * (1.0 + want.abs()), "{name}: {got}, want {want}");
        }
    }
    let decoded = |vector| encoder.decode(vector, 5).into_iter().map(|(token, _)| token).collect::<Vec<_>>();
    assert_eq!(json!(document.iter().map(decoded).collect::<Vec<_>>()), said["decoded"]);
    // A text has the same bits alone as in a batch, and in batches of any size.
    for (i, text) in texts.iter().enumerate() {
        assert_eq!(encoder.encode_document(&[text], &options).unwrap()[0], document[i]);
        assert_eq!(encoder.encode_query(&[text], &options).unwrap()[0], query[i]);
    }
    assert_eq!(encoder.encode_document(&texts, &options.with_batch_size(2)).unwrap(), document);
    assert!(document.iter().all(|vector| vector.indices.is_sorted()));
    assert_eq!(encoder.embedding_size(), 218);
    assert!(encoder.encode(&[], &options).unwrap().is_empty());
}

#[test]
fn splade() {
    equals_sentence_transformers("splade");
}

#[test]
fn splade_sum() {
    equals_sentence_transformers("splade_sum");
}

#[test]
fn inference_free() {
    equals_sentence_transformers("inference_free");
}

#[test]
fn gte() {
    equals_sentence_transformers("gte");
}

#[test]
fn plain() {
    equals_sentence_transformers("plain");
}

/// The weights of tokens as a JSON file instead of a tensor, and a text that is cut.
#[test]
fn weights_of_tokens_may_be_json() {
    let (encoder, said) = golden("inference_free");
    let copy = tempfile::tempdir().unwrap();
    copy_folder(&fixture("sparse/inference_free"), copy.path());
    let module = copy.path().join("query_0_SparseStaticEmbedding");
    let text = said["texts"][0].as_str().unwrap();
    let vector = encoder.encode_query(&[text], &EncodeOptions::default()).unwrap().remove(0);
    let weights: serde_json::Map<String, Value> =
        encoder.decode(&vector, 100).into_iter().map(|(token, weight)| (token, weight.into())).collect();
    std::fs::remove_file(module.join("model.safetensors")).unwrap();
    std::fs::write(module.join("idf.json"), Value::Object(weights).to_string()).unwrap();
    let other = open(copy.path()).unwrap();
    assert_eq!(other.encode_query(&[text], &EncodeOptions::default()).unwrap()[0], vector);

    let cut = AtomicUsize::new(0);
    let on_truncated = |i: usize| cut.store(i, Relaxed);
    let options = EncodeOptions::default().with_max_length(3).with_on_truncated(&on_truncated);
    let short = other.encode_query(&["a", text], &options).unwrap().remove(1);
    assert_eq!((cut.load(Relaxed), short), (1, other.encode_query(&["the cat sat"], &options).unwrap().remove(0)));

    std::fs::write(module.join("idf.json"), r#"{"nowhere": 1.0}"#).unwrap();
    says(open(copy.path()), &["idf.json", "no token `nowhere`"]);
    std::fs::write(module.join("idf.json"), r#"{"cat": "much"}"#).unwrap();
    says(open(copy.path()), &["idf.json", "the weight of `cat` is \"much\", expected a number"]);
}

#[test]
fn a_folder_shows_what_it_makes_of_texts() {
    use candle_attention_text::EncoderKind::{self, MultiVector, Sentence, Sparse};
    let kinds = [
        ("tiny-bert", Sentence),
        ("sparse/splade", Sparse),
        ("sparse/inference_free", Sparse),
        ("sparse/plain", Sentence),
        ("sparse/bge_m3", Sentence),
        ("multi_vector/modern", MultiVector),
        ("multi_vector/pylate", MultiVector),
        ("multi_vector/stanford", MultiVector),
    ];
    for (folder, kind) in kinds {
        assert_eq!(EncoderKind::from_folder(fixture(folder)).unwrap(), kind, "{folder}");
    }
    // By the modules alone.
    for (from, kind) in [("sparse/splade", Sparse), ("multi_vector/modern", MultiVector)] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(fixture(from).join("modules.json"), folder.path().join("modules.json")).unwrap();
        assert_eq!(EncoderKind::from_folder(folder.path()).unwrap(), kind, "{from}");
    }
}

#[test]
fn what_is_not_run_is_refused() {
    let (encoder, _) = golden("splade");
    let options = EncodeOptions::default();
    says(encoder.encode(&["a"], &options.with_prompt_name("passage")), &["prompt_name is passage", "query"]);
    says(
        encoder.encode(&["a"], &options.with_task(Task::Named("clustering"))),
        &["task is clustering", "query or document"],
    );
    says(encoder.encode(&["a"], &options.with_truncate_dim(3)), &["truncate_dim is 3"]);
    says(encoder.clone().with_max_active_dims(Some(0)), &["max_active_dims = 0", "at least 1"]);
    let few = encoder.with_max_active_dims(Some(3)).unwrap();
    assert_eq!(few.encode(&["the cat"], &options).unwrap()[0].indices.len(), 3);

    let copy = |name: &str, file: &str, from: &str, to: &str| {
        let folder = tempfile::tempdir().unwrap();
        copy_folder(&fixture(&format!("sparse/{name}")), folder.path());
        let path = folder.path().join(file);
        let content = std::fs::read_to_string(&path).unwrap();
        assert!(content.contains(from), "{content}");
        std::fs::write(path, content.replace(from, to)).unwrap();
        let opened = open(folder.path());
        drop(folder);
        opened
    };
    let modules = copy("splade", "modules.json", "SpladePooling\"", "SparseAutoEncoder\"");
    says(modules, &["modules.json", "Transformer, SparseAutoEncoder", "expected a transformer and `SpladePooling`"]);
    says(copy("splade", "1_SpladePooling/config.json", "max", "mean"), &["config.json", "unknown variant `mean`"]);
    let task = copy("splade", "sentence_bert_config.json", "fill-mask", "feature-extraction");
    says(task, &["sentence_bert_config.json", "modality_config.text", "logits"]);
    let outside = copy("inference_free", "router_config.json", "query_0", "../query_0");
    says(outside, &["router_config.json", "module path `../query_0_SparseStaticEmbedding` leads out of the folder"]);
    let mapped = copy(
        "inference_free",
        "router_config.json",
        "\"route_mappings\": {}",
        "\"route_mappings\": {\"a\": \"query\"}",
    );
    says(mapped, &["route_mappings is not empty"]);
    let stated = "\"default_route\": \"document\",\n        \"allow_empty_key\": true";
    let silent = copy("inference_free", "router_config.json", stated, "\"allow_empty_key\": false").unwrap();
    says(silent.encode(&["a"], &options), &["the route of the texts is default"]);
    let odd = copy(
        "splade",
        "config_sentence_transformers.json",
        "\"similarity_fn_name\": null",
        "\"similarity_fn_name\": \"manhattan\"",
    );
    says(odd.unwrap().similarity(&[], &[]), &["similarity_fn_name = manhattan", "dot or cosine"]);
    says(open(&fixture("encoders/bert_cross_encoder")), &["no head for masked"]);
}

#[test]
fn the_largest_entries_are_kept_in_order() {
    let dense = [0.0, -3.0, 1.0, 0.0, 2.0, 1.0, 0.5];
    let all = SparseVector::from_dense(&dense, None);
    assert_eq!((all.indices, all.values), (vec![1, 2, 4, 5, 6], vec![-3.0, 1.0, 2.0, 1.0, 0.5]));
    let most = SparseVector::from_dense(&dense, Some(3));
    assert_eq!((most.indices, most.values), (vec![1, 2, 4], vec![-3.0, 1.0, 2.0]));
}

#[test]
fn products_are_of_the_shared_indices() {
    let a = SparseVector::from_dense(&[1.0, 0.0, 2.0, 0.0, 3.0], None);
    let b = SparseVector::from_dense(&[0.0, 5.0, 7.0, 0.0, 11.0, 13.0], None);
    assert_eq!((a.dot(&b), b.dot(&a), a.norm()), (47.0, 47.0, 14f32.sqrt()));
    assert_eq!(a.dot(&SparseVector::default()), 0.0);
}
