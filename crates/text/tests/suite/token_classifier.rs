//! Token classification against the pipeline of transformers (`tests/golden/token_classifier.py`).

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use candle_attention::Error;
use candle_attention::checkpoint::Checkpoint;
use candle_attention_text::TextModelConfig;
use candle_attention_text::{
    Aggregation, EncodeOptions, Entity, EntityOptions, SequenceClassifier, TaskHead, TokenClassifier,
};
use candle_core::{DType, Device};
use serde_json::{Value, json};

use crate::common::{fixture, says};

const CPU: Device = Device::Cpu;

fn open(folder: &Path) -> Result<TokenClassifier, Error> {
    TokenClassifier::from_folder(folder, DType::F32, &CPU)
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

const STRATEGIES: [(&str, Aggregation); 5] = [
    ("none", Aggregation::None),
    ("simple", Aggregation::Simple),
    ("first", Aggregation::First),
    ("average", Aggregation::Average),
    ("max", Aggregation::Max),
];

/// The largest difference of the scores; everything else is equal.
fn difference(got: &Entity, want: &Value) -> f64 {
    let name = want.get("entity_group").unwrap_or(&want["entity"]);
    assert_eq!(
        json!([got.entity, got.word, got.start, got.end]),
        json!([name, want["word"], want["start"], want["end"]])
    );
    assert_eq!(json!(got.index), want.get("index").cloned().unwrap_or_default());
    (f64::from(got.score) - want["score"].as_f64().unwrap()).abs()
}

fn equals_the_pipeline(name: &str) {
    let folder = fixture("token_classifier");
    let classifier = open(&folder.join(name)).unwrap();
    let said = json(&folder.join(format!("{name}.json")));
    let texts: Vec<&str> = said["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    let ignoring = EntityOptions::default().with_ignore_labels(vec!["LOC".to_string()]);
    let cases = STRATEGIES.map(|(name, aggregation)| (name, EntityOptions::default().with_aggregation(aggregation)));
    let (mut worst, mut count) = (0f64, 0);
    for (strategy, how) in cases.into_iter().chain([("simple, all but LOC", ignoring)]) {
        let found = classifier.entities(&texts, &how, &EncodeOptions::default()).unwrap();
        let wanted = said[strategy].as_array().unwrap();
        assert_eq!(found.len(), wanted.len());
        for ((text, found), wanted) in texts.iter().zip(&found).zip(wanted) {
            let wanted = wanted.as_array().unwrap();
            assert_eq!(found.len(), wanted.len(), "{strategy}: {text}: {found:?}");
            worst = found.iter().zip(wanted).map(|(got, want)| difference(got, want)).fold(worst, f64::max);
            count += found.len();
            // A text has the same bits alone as in a batch.
            assert_eq!(&classifier.entities(&[text], &how, &EncodeOptions::default()).unwrap()[0], found);
        }
    }
    assert!(count > 100 && worst < 2e-5, "{name}: {count} entities, largest difference {worst:e}");
}

#[test]
fn bert() {
    equals_the_pipeline("bert");
    long_texts_are_read_in_windows("bert");
}

#[test]
fn roberta() {
    equals_the_pipeline("roberta");
    long_texts_are_read_in_windows("roberta");
}

fn long_texts_are_read_in_windows(name: &str) {
    let folder = fixture("token_classifier");
    let classifier = open(&folder.join(name)).unwrap();
    let said = json(&folder.join(format!("{name}.json")));
    let texts: Vec<&str> = said["long"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    let (mut worst, mut count) = (0f64, 0);
    for (length, stride) in [(12, 0), (12, 4), (20, 17)] {
        for (strategy, aggregation) in &STRATEGIES[1..] {
            let how = EntityOptions::default().with_aggregation(*aggregation).with_stride(stride);
            let done = std::sync::Mutex::new(Vec::new());
            let on_progress = |texts: usize, _: usize| done.lock().unwrap().push(texts);
            let on_truncated = |text: usize| panic!("text {text} was cut");
            let options = EncodeOptions::default().with_max_length(length).with_batch_size(3);
            let options = options.with_on_progress(&on_progress).with_on_truncated(&on_truncated);
            let found = classifier.entities(&texts, &how, &options).unwrap();
            let wanted = said[format!("{strategy}, {length}, {stride}")].as_array().unwrap();
            for (found, wanted) in found.iter().zip(wanted) {
                let wanted = wanted.as_array().unwrap();
                assert_eq!(found.len(), wanted.len(), "{strategy}, {length}, {stride}: {found:?}");
                worst = found.iter().zip(wanted).map(|(got, want)| difference(got, want)).fold(worst, f64::max);
                count += found.len();
            }
            // What fits is one window, as without a stride.
            let done = std::mem::take(&mut *done.lock().unwrap());
            assert!(done.is_sorted() && done.last() == Some(&texts.len()), "{done:?}");
            let alone = EntityOptions::default().with_aggregation(*aggregation);
            assert_eq!(classifier.entities(&texts[2..3], &alone, &options).unwrap(), found[2..3]);
        }
    }
    assert!(count > 100 && worst < 2e-5, "{name}: {count} entities, largest difference {worst:e}");
}

#[test]
fn a_stride_leaves_a_window_tokens_of_its_own() {
    let classifier = open(&fixture("token_classifier/bert")).unwrap();
    let refused = |stride: usize, aggregation: Aggregation, expected: &str| {
        let how = EntityOptions::default().with_stride(stride).with_aggregation(aggregation);
        let options = EncodeOptions::default().with_max_length(12);
        says(classifier.entities(&["a"], &how, &options), &[&format!("stride = {stride} is not allowed"), expected]);
    };
    refused(10, Aggregation::Simple, "less than 10");
    refused(usize::MAX, Aggregation::Max, "less than 10");
    refused(4, Aggregation::None, "none without aggregation");
}

/// A copy of the folder with other values in its configuration.
fn changed(with: Value) -> tempfile::TempDir {
    let (from, to) = (fixture("token_classifier/bert"), tempfile::tempdir().unwrap());
    for file in ["tokenizer.json", "tokenizer_config.json", "model.safetensors"] {
        std::fs::copy(from.join(file), to.path().join(file)).unwrap();
    }
    let mut config = json(&from.join("config.json"));
    config.as_object_mut().unwrap().extend(with.as_object().unwrap().clone());
    std::fs::write(to.path().join("config.json"), config.to_string()).unwrap();
    to
}

#[test]
fn long_texts_are_cut_and_labels_named() {
    let classifier = open(&fixture("token_classifier/bert")).unwrap();
    let text = "the cat sat on the mat";
    let all = EntityOptions::default().with_aggregation(Aggregation::None).with_ignore_labels(Vec::new());
    let cut = AtomicUsize::new(0);
    let on_truncated = |_: usize| {
        cut.fetch_add(1, Relaxed);
    };
    let options = EncodeOptions::default().with_max_length(5).with_on_truncated(&on_truncated);
    let words: HashMap<usize, usize> = classifier.entities(&[text], &all, &options).unwrap()[0]
        .iter()
        .map(|entity| (entity.start, entity.end))
        .collect();
    assert_eq!((words, cut.load(Relaxed)), (HashMap::from([(0, 3), (4, 7), (8, 11)]), 1));
    assert_eq!(classifier.labels(), ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC"]);
    says(classifier.entities(&[text], &all, &options.with_prompt_name("query")), &["prompt_name is query"]);
    says(classifier.entities(&[text], &all, &options.with_batch_size(0)), &["batch_size = 0"]);
}

#[test]
fn heads_are_told_apart() {
    let folder = fixture("token_classifier/bert");
    assert_eq!(TaskHead::from_folder(&folder).unwrap(), TaskHead::TokenClassification);
    // Without a pooler before it, `classifier` is of tokens.
    let silent = changed(json!({"architectures": null}));
    assert_eq!(TaskHead::from_folder(silent.path()).unwrap(), TaskHead::TokenClassification);
    assert!(open(silent.path()).is_ok());

    let stated = changed(json!({"architectures": ["BertForSequenceClassification"]}));
    says(open(stated.path()), &["architectures = a head for sequence classification", "token classification"]);
    let config = TextModelConfig::from_file(folder.join("config.json")).unwrap();
    let source = Checkpoint::open(&folder).unwrap().at("", DType::F32, &CPU);
    says(SequenceClassifier::load(&config, source), &["architectures = a head for token classification"]);
    says(open(&fixture("tiny-bert")), &["module `Pooling` after the transformer: this is not a token classifier"]);
    says(open(changed(json!({"id2label": {"0": "O"}})).path()), &["id2label = 1 labels", "6 of them"]);
}
