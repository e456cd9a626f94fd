//! Classifiers and rerankers in GGUF files against the folders that they were made of, in transformers and
//! sentence-transformers (`tests/golden/gguf_heads.py`).

use std::path::PathBuf;

use candle_attention::ComputeType;
use candle_attention::checkpoint::Checkpoint;
use candle_attention_text::{
    CrossEncoder, EncodeOptions, FillMask, M3Encoder, ModelFiles, MultiVectorEncoder, SentenceEncoder, SparseEncoder,
    TaskHead, TextClassifier, TokenClassifier, gguf_notes,
};
use candle_core::{DType, Device, Tensor};

use crate::common::{Golden, assert_close, fixture, max_diff, says};

const CPU: Device = Device::Cpu;

#[derive(serde::Deserialize)]
struct Inputs {
    pairs: Vec<(String, String)>,
    texts: Vec<String>,
    prompt: String,
}

fn inputs() -> Inputs {
    serde_json::from_slice(&std::fs::read(fixture("gguf_heads/heads.json")).unwrap()).unwrap()
}

fn file(name: &str) -> PathBuf {
    fixture(&format!("gguf_heads/{name}.gguf"))
}

fn golden(name: &str) -> Tensor {
    Golden::open("gguf_heads/heads.safetensors").get(name)
}

fn pairs(inputs: &Inputs) -> Vec<(&str, &str)> {
    inputs.pairs.iter().map(|(query, document)| (query.as_str(), document.as_str())).collect()
}

/// The bytes of a file with some replaced by as many others.
fn changed(path: PathBuf, from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut bytes = std::fs::read(path).unwrap();
    let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
    bytes[at..at + to.len()].copy_from_slice(to);
    bytes
}

/// Logits of texts and of pairs, by all ways to open a file, and the labels.
#[track_caller]
fn classifier(name: &str, labels: &[&str]) {
    let (inputs, options) = (inputs(), EncodeOptions::default());
    let texts: Vec<&str> = inputs.texts.iter().map(String::as_str).collect();
    let files = ModelFiles::new().with("model.gguf", std::fs::read(file(name)).unwrap()).unwrap();
    let from_bytes = TextClassifier::from_files(&files, DType::F32, &CPU).unwrap();
    for dtype in [DType::F32, DType::F64] {
        let classifier = TextClassifier::from_folder(file(name), dtype, &CPU).unwrap();
        assert_eq!(classifier.labels(), labels, "{name}");
        let of_texts = classifier.logits(&texts, &options).unwrap();
        let of_pairs = classifier.logits(&pairs(&inputs), &options).unwrap();
        if dtype == DType::F32 {
            assert_eq!(from_bytes.logits(&texts, &options).unwrap(), of_texts, "{name}");
        }
        assert_close(name, &Tensor::new(of_texts, &CPU).unwrap(), &golden(&format!("{name}.texts")), 1e-5);
        assert_close(name, &Tensor::new(of_pairs, &CPU).unwrap(), &golden(name), 1e-5);
    }
    assert_eq!(TaskHead::from_folder(file(name)).unwrap(), TaskHead::SequenceClassification);
    let encoder = CrossEncoder::from_folder(file(name), DType::F32, &CPU).unwrap();
    assert_eq!(encoder.num_labels(), labels.len());
    if let [_] = labels {
        let scores = encoder.scores(&pairs(&inputs), &options).unwrap();
        let sigmoid = candle_nn::ops::sigmoid(&golden(name).squeeze(1).unwrap()).unwrap();
        assert_close(name, &Tensor::new(scores, &CPU).unwrap(), &sigmoid, 1e-5);
    }
    // Where the file states no pooling, its model embeds texts as that of a folder does.
    assert!(SentenceEncoder::from_folder(file(name), DType::F32, &CPU).is_ok(), "{name}");
    says(TokenClassifier::from_folder(file(name), DType::F32, &CPU).map(drop), &["token classification"]);
    says(FillMask::from_folder(file(name), DType::F32, &CPU).map(drop), &["masked"]);
}

const NAMED: [&str; 3] = ["bad", "so-so", "good"];

#[test]
fn roberta() {
    classifier("roberta", &["LABEL_0"]);
}

#[test]
fn xlm_roberta() {
    classifier("xlm-roberta", &NAMED);
}

#[test]
fn distilbert() {
    classifier("distilbert", &["NEGATIVE", "POSITIVE"]);
}

#[test]
fn bert_with_its_pooler() {
    classifier("bert", &NAMED);
}

#[test]
fn modern_bert() {
    classifier("modern-bert", &["LABEL_0"]);
    classifier("modern-bert-cls", &NAMED);
}

#[test]
fn decoder_with_a_classifier() {
    classifier("score", &NAMED);
}

/// Without names of labels these are transformers' own; without what ModernBERT's head reads, it is the mean, and that
/// is noted.
#[test]
fn what_the_metadata_does_not_say() {
    let from = |bytes: Vec<u8>| ModelFiles::new().with("model.gguf", bytes).unwrap();
    let unnamed = changed(file("bert"), b"classifier.output_labels", b"classifier.output_lables");
    says(ModelFiles::new().with("model.gguf", unnamed), &["output_lables"]);
    let bytes = changed(file("modern-bert"), b"bert.classifier.pooling_type", b"bird.classifier.pooling_type");
    let notes = gguf_notes(&Checkpoint::from_bytes(bytes.clone()).unwrap()).unwrap();
    assert!(notes.len() == 1 && notes[0].contains("classifier.pooling_type"), "{notes:?}");
    let inputs = inputs();
    let classifier = TextClassifier::from_files(&from(bytes), DType::F32, &CPU).unwrap();
    let logits = classifier.logits(&pairs(&inputs), &EncodeOptions::default()).unwrap();
    assert_close("mean", &Tensor::new(logits, &CPU).unwrap(), &golden("modern-bert"), 1e-5);
    let pooling = b"classifier.pooling_type\x04\0\0\0";
    let bytes = changed(file("modern-bert"), &[&pooling[..], b"\x01"].concat(), &[&pooling[..], b"\x03"].concat());
    says(ModelFiles::new().with("model.gguf", bytes), &["classifier.pooling_type", "3", "mean"]);
}

/// Qwen3-Reranker, whose answers `yes` and `no` are two rows of the language head.
#[test]
fn decoder_that_answers() {
    let (inputs, mut options) = (inputs(), EncodeOptions::default());
    let encoder = CrossEncoder::from_folder(file("reranker"), DType::F32, &CPU).unwrap();
    let scores = |options: &EncodeOptions| encoder.scores(&pairs(&inputs), options).unwrap();
    assert_close("scores", &Tensor::new(scores(&options), &CPU).unwrap(), &golden("reranker"), 1e-5);
    options.prompt = Some(&inputs.prompt);
    assert_close("prompt", &Tensor::new(scores(&options), &CPU).unwrap(), &golden("reranker.prompt"), 1e-5);
    assert!(max_diff(&golden("reranker"), &golden("reranker.prompt")) > 1e-4);

    says(SentenceEncoder::from_folder(file("reranker"), DType::F32, &CPU), &["reranker.gguf", "rank", "no embeddings"]);
    assert!(MultiVectorEncoder::from_folder(file("reranker"), DType::F32, &CPU).is_err());
    assert!(SparseEncoder::from_folder(file("reranker"), DType::F32, &CPU).is_err());
    assert!(M3Encoder::from_folder(file("reranker"), DType::F32, &CPU).is_err());
    let answers = ["reranker.gguf", "answers `yes` and `no`"];
    says(TaskHead::from_folder(file("reranker")), &answers);
    says(TextClassifier::from_folder(file("reranker"), DType::F32, &CPU).map(drop), &answers);
    let bytes = changed(file("reranker"), b"chat_template.rerank", b"chat_template.renark");
    says(ModelFiles::new().with("model.gguf", bytes), &["tokenizer.chat_template.rerank", "absent"]);
    let bytes = changed(file("reranker"), b"yes\x02\0\0\0\0\0\0\0no", b"yes\x02\0\0\0\0\0\0\0so");
    says(ModelFiles::new().with("model.gguf", bytes), &["classifier.output_labels", "yes and no"]);
    let bytes = changed(file("reranker"), b"{document}", b"{ducoment}");
    let files = ModelFiles::new().with("model.gguf", bytes).unwrap();
    says(CrossEncoder::from_files(&files, DType::F32, &CPU).map(drop), &["chat template", "document"]);
}

/// llama.cpp's converter leaves out the pooler of BERT, and llama.cpp scores without it.
#[test]
fn head_without_its_first_layer() {
    let parts = ["no-pooler.gguf", "pooler", "not those of the model"];
    says(TaskHead::from_folder(file("no-pooler")), &parts);
    says(TextClassifier::from_folder(file("no-pooler"), ComputeType::default(), &CPU).map(drop), &parts);
    says(CrossEncoder::from_folder(file("no-pooler"), DType::F32, &CPU).map(drop), &parts);
    assert!(SentenceEncoder::from_folder(file("no-pooler"), DType::F32, &CPU).is_ok());
}

/// A file without a head, and one with a tensor that is not one of its architecture.
#[test]
fn files_that_are_no_classifiers() {
    let path = fixture("gguf/bert.gguf");
    says(TaskHead::from_folder(&path), &["bert.gguf", "has no head", "cls.output"]);
    let bytes = changed(file("bert"), b"cls.weight", b"cls.wolght");
    says(ModelFiles::new().with("model.gguf", bytes), &["model.gguf", "cls.wolght", "nothing here reads"]);
    let bytes = changed(path, b"blk.1.attn_q.bias", b"blk.1.attn_g.bias");
    says(ModelFiles::new().with("model.gguf", bytes), &["model.gguf", "blk.1.attn_g.bias"]);
}
