//! Multi-vector encoders against sentence-transformers (`tests/golden/multi_vector.py`).

use std::path::Path;

use candle_attention::Error;
use candle_attention_text::{EncodeOptions, MultiVectorEncoder, Task, max_sim};
use candle_core::{DType, Device, Tensor};

use crate::common::programs::copy_folder;
use crate::common::{Golden, assert_close, fixture, max_diff, says};

const CPU: Device = Device::Cpu;
const MODEL: f64 = 2e-5;

fn open(folder: &Path) -> Result<MultiVectorEncoder, Error> {
    MultiVectorEncoder::from_folder(folder, DType::F32, &CPU)
}

const TEXTS: [&str; 6] = [
    "the cat sat on the mat",
    "Zoë Müller lives in Zürich.",
    "who is the cat?",
    "a",
    "東京 and 京都 for the office, the office, the office and the mat of the cat: it is a long text that is cut",
    "the cat's mat (in München) is a mat-like cat!",
];

fn matrix(rows: Vec<Vec<f32>>) -> Tensor {
    Tensor::new(rows, &CPU).unwrap()
}

fn equals_sentence_transformers(name: &str) {
    let encoder = open(&fixture(&format!("multi_vector/{name}"))).unwrap();
    let golden = Golden::open(&format!("multi_vector/{name}.safetensors"));
    let options = EncodeOptions::default();
    let queries = encoder.encode_query(&TEXTS, &options).unwrap();
    let documents = encoder.encode_document(&TEXTS, &options).unwrap();
    for (i, text) in TEXTS.iter().enumerate() {
        assert_close(&format!("{name}, query {i}"), &queries[i], &golden.get(&format!("query.{i}")), MODEL);
        assert_close(&format!("{name}, document {i}"), &documents[i], &golden.get(&format!("document.{i}")), MODEL);
        // A text has the same bits alone as in a batch.
        assert_eq!(max_diff(&encoder.encode_query(&[text], &options).unwrap()[0], &queries[i]), 0.0);
        assert_eq!(max_diff(&encoder.encode_document(&[text], &options).unwrap()[0], &documents[i]), 0.0);
        assert_eq!(queries[i].dim(1).unwrap(), encoder.embedding_size());
    }
    let got = matrix(encoder.similarity(&queries, &documents).unwrap());
    assert_close(&format!("{name}, similarity"), &got, &golden.get("maxsim"), MODEL);
    assert!(encoder.encode(&[], &options).unwrap().is_empty());
}

#[test]
fn modern() {
    equals_sentence_transformers("modern");
}

/// A folder that says it is a `MultiVectorEncoder` and has no `MultiVectorMask`.
#[test]
fn unmasked() {
    equals_sentence_transformers("unmasked");
}

#[test]
fn roberta() {
    equals_sentence_transformers("roberta");
}

#[test]
fn pylate() {
    equals_sentence_transformers("pylate");
}

/// LFM2.5-ColBERT: convolutions read the tokens that expand a query.
#[test]
fn lfm2() {
    equals_sentence_transformers("lfm2");
}

#[test]
fn stanford() {
    equals_sentence_transformers("stanford");
}

#[test]
fn what_is_not_run_is_refused() {
    let encoder = open(&fixture("multi_vector/modern")).unwrap();
    let options = EncodeOptions::default();
    let longer = encoder.encode_query(&["a"], &options.with_max_length(12));
    says(longer, &["max_length = 12", "9: this model expands or cuts each query"]);
    assert_eq!(encoder.encode_document(&["the cat sat"], &options.with_max_length(4)).unwrap()[0].dims(), [4, 7]);
    says(encoder.encode(&["a"], &options.with_prompt_name("passage")), &["prompt_name is passage"]);
    says(encoder.encode(&["a"], &options.with_normalize_embeddings(true)), &["normalize_embeddings is true"]);
    // The task alone expands a query, and puts no prompt before it.
    let task = options.with_task(Task::Query);
    assert_eq!(encoder.encode(&["a"], &task).unwrap()[0].dims(), [9, 7]);
    assert!(
        max_diff(&encoder.encode(&["a"], &task).unwrap()[0], &encoder.encode_query(&["a"], &options).unwrap()[0])
            > 1e-3
    );
    let query = encoder.encode_query(&["a"], &options).unwrap().remove(0);
    says(max_sim(&query, &[query.narrow(1, 0, 3).unwrap()]), &["document 0", "(tokens, 7)"]);

    let copy = |name: &str, file: &str, from: &str, to: &str| {
        let folder = tempfile::tempdir().unwrap();
        copy_folder(&fixture(&format!("multi_vector/{name}")), folder.path());
        let path = folder.path().join(file);
        let content = std::fs::read_to_string(&path).unwrap();
        assert!(content.contains(from), "{content}");
        std::fs::write(path, content.replace(from, to)).unwrap();
        let opened = open(folder.path());
        drop(folder);
        opened
    };
    // Only these tokens of documents count: [CLS] and [SEP].
    let mask = "2_MultiVectorMask/config.json";
    let few = copy("modern", mask, "\"keep_only_token_ids\": null", "\"keep_only_token_ids\": [3, 2]").unwrap();
    assert_eq!(few.encode_document(&["the cat sat"], &options).unwrap()[0].dims(), [2, 7]);
    assert_eq!(few.encode_query(&["the cat sat"], &options).unwrap()[0].dims(), [9, 7]);
    let pooled = copy("modern", "modules.json", "normalize.Normalize", "token_pooling.HierarchicalTokenPooling");
    says(pooled, &["modules.json", "module `HierarchicalTokenPooling` of a multi-vector model"]);
    let single = copy("modern", "3_Normalize/config.json", "token_embeddings", "sentence_embedding");
    says(single, &["3_Normalize", "works on `sentence_embedding`, expected `token_embeddings`"]);
    let strategy = copy("modern", "sentence_bert_config.json", "\"fixed\"", "\"double\"");
    says(strategy, &["sentence_bert_config.json", "unknown variant `double`"]);
    let long = copy("modern", "sentence_bert_config.json", "\"length\": 9", "\"length\": 99");
    says(long, &["query_expansion length = 99", "3 to 48"]);
    let token = copy("roberta", "sentence_bert_config.json", "<unk>", "<nothing>");
    says(token, &["the token that expands queries is <nothing>"]);
    let stanford = copy("stanford", "config.json", "HF_ColBERT", "BertModel");
    says(stanford, &["config.json", "no multi-vector model"]);
    says(open(&fixture("tiny-bert")), &["no MultiVectorMask: the model gives one vector per text"]);
}
