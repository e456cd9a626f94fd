//! Training on a few lines: it learns, it resumes to the bit, and what it writes is read like any other model.

use std::path::Path;

use candle_attention::checkpoint::Checkpoint;
use candle_attention::encoder::{BertConfig, BertModel, EncodeOptions, SentenceEncoder};
use candle_attention::train::{Step, StudentKind, Teacher, TrainConfig, Trainer, agreement, read_texts};
use candle_core::{DType, Device, Tensor};

use crate::common::{LAYER, assert_close, fixture, max_diff, says};

/// Texts of three topics with disjoint words.
fn texts() -> Vec<String> {
    let topics = [
        ["cat", "kitten", "sofa", "sleeps", "purrs", "naps"],
        ["stocks", "market", "bank", "fell", "rose", "money"],
        ["compiler", "borrow", "lifetime", "crate", "trait", "builds"],
    ];
    let text = |topic: [&str; 6], i: usize| {
        let word = |by: usize| topic[(i * by + i / 6) % 6];
        format!("the {} {} on a {}", word(1), word(5), word(7))
    };
    topics.into_iter().flat_map(|topic| (0..30).map(move |i| text(topic, i))).collect()
}

fn config() -> TrainConfig {
    let config = TrainConfig::default().with_vocab_size(90).with_hidden_size(8).with_num_attention_heads(2);
    let config = config.with_num_hidden_layers(1).with_intermediate_size(12).with_max_position_embeddings(20);
    config.with_max_length(16).with_batch_size(16).with_steps(20).with_warmup_steps(4).with_learning_rate(1e-2)
}

fn teacher() -> Teacher {
    Teacher::open(fixture("tiny-bert"), DType::F32).unwrap()
}

fn trainer(config: TrainConfig, teacher: Option<&Teacher>, folder: &Path) -> Trainer {
    Trainer::new(config, &texts(), teacher, folder, None).unwrap()
}

fn steps(trainer: &mut Trainer, count: usize) -> Vec<Step> {
    (0..count).map_while(|_| trainer.step().unwrap()).collect()
}

/// With a teacher and without, the loss falls; a resumed run has the same losses and weights as an uninterrupted one.
#[test]
fn loss_falls_and_resumed_runs_are_bitwise_equal() {
    let teacher = teacher();
    let cases = [
        ("teacher", config(), Some(&teacher)),
        ("static", config().with_kind(StudentKind::Static), Some(&teacher)),
        ("masked words", config().with_steps(40), None),
    ];
    for (name, config, teacher) in cases {
        let folder = tempfile::tempdir().unwrap();
        let mut whole = trainer(config.clone(), teacher, folder.path());
        let want = steps(&mut whole, 100);
        assert_eq!(want.len(), config.steps);
        let mean = |steps: &[Step]| steps.iter().map(|step| step.loss).sum::<f32>() / steps.len() as f32;
        let (first, last) = (mean(&want[..4]), mean(&want[want.len() - 4..]));
        println!("{name}: {first} to {last}");
        assert!(last < 0.95 * first, "{name}: the mean loss of four steps went from {first} to {last}");

        let folder = tempfile::tempdir().unwrap();
        let mut killed = trainer(config.clone(), teacher, folder.path());
        steps(&mut killed, 7);
        killed.save().unwrap();
        // What comes after the last save is lost.
        steps(&mut killed, 2);
        drop(killed);
        let mut resumed = trainer(config, teacher, folder.path());
        assert_eq!(resumed.steps_done(), 7);
        assert_eq!(steps(&mut resumed, 100), want[7..], "{name}");
        let difference = max_diff(&resumed.encode(&texts()).unwrap(), &whole.encode(&texts()).unwrap());
        assert_eq!(difference, 0.0, "{name}");
    }
}

#[test]
fn written_model_equals_the_trained_one() {
    let (run, output) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut trainer = trainer(config(), Some(&teacher()), run.path());
    steps(&mut trainer, 5);
    trainer.write(output.path(), DType::F32).unwrap();
    let mut texts = texts();
    // Longer than it was trained on, longer than it can, and nothing.
    texts.extend(["cat ".repeat(17), "cat ".repeat(50), String::new()]);
    let lines: Vec<&str> = texts.iter().map(String::as_str).collect();
    let encoder = SentenceEncoder::from_folder(output.path(), DType::F32, &Device::Cpu).unwrap();
    assert_eq!((encoder.embedding_size(), encoder.max_seq_length()), (8, 20));
    let got = encoder.encode(&lines, &EncodeOptions::default()).unwrap();
    let want = trainer.encode(&texts).unwrap();
    assert_close("embeddings", &got, &want, LAYER);
    let found = agreement(&got, &want).unwrap();
    assert!(found.spearman > 0.999 && found.top_1_in_10 > 0.999, "{found:?}");

    let config = BertConfig::from_file(output.path().join("config.json")).unwrap();
    let checkpoint = Checkpoint::open(output.path()).unwrap();
    assert_eq!(checkpoint.names().count(), 5 + 16);
    BertModel::load(&config, checkpoint.at("", DType::F32, &Device::Cpu)).unwrap();
    let mut files: Vec<String> = std::fs::read_dir(output.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    let want = [
        "1_Pooling",
        "config.json",
        "config_sentence_transformers.json",
        "model.safetensors",
        "modules.json",
        "sentence_bert_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    assert_eq!(files, want);

    trainer.write(output.path(), DType::F16).unwrap();
    let half = SentenceEncoder::from_folder(output.path(), DType::F32, &Device::Cpu).unwrap();
    assert_close("f16", &half.encode(&lines, &EncodeOptions::default()).unwrap(), &got, 1e-2);
}

/// The teacher encodes each text once, and held-back texts are not trained on.
#[test]
fn held_back_texts_are_skipped_and_the_teacher_is_cached() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text.txt");
    std::fs::write(&path, " one two \n\nthree\none two\nfour\n").unwrap();
    assert_eq!(read_texts(&path, &["four".to_string()]).unwrap(), ["one two", "three"]);

    let teacher = teacher();
    let read = std::cell::Cell::new(0);
    let open = |texts: &[String]| {
        let on_progress = |done: usize, _: usize| read.set(done);
        drop(Trainer::new(config(), texts, Some(&teacher), folder.path(), Some(&on_progress)).unwrap());
        read.replace(0)
    };
    assert_eq!((open(&texts()), open(&texts())), (90, 0));
    assert_eq!(open(&texts()[..80]), 80);
}

#[test]
fn mistakes_are_one_clear_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("empty.txt"), "\n \n").unwrap();
    says(read_texts(path("empty.txt"), &[]), &["empty.txt: no text to train on"]);
    says(read_texts(path("no.txt"), &[]), &["no.txt: No such file"]);
    says(Teacher::open(path("no teacher"), DType::F32), &["no teacher", "No such file"]);

    let teacher = teacher();
    let new = |config: TrainConfig, texts: &[String], teacher: Option<&Teacher>| {
        Trainer::new(config, texts, teacher, path("run"), None).map(|_| ())
    };
    let large = new(config().with_vocab_size(5_000), &texts(), None);
    says(large, &["vocab_size = 5000 is not allowed: expected at most ", "all that the texts give"]);
    says(new(config().with_vocab_size(10), &texts(), None), &["vocab_size = 10", "expected at least"]);
    says(new(config(), &texts()[..1], None), &["the number of texts is 1, expected at least 2"]);
    let wide = new(config().with_hidden_size(32), &texts(), Some(&teacher));
    says(wide, &["hidden_size = 32 is not allowed: expected at most 24, the teacher's embedding size"]);
    says(new(config().with_kind(StudentKind::Static), &texts(), None), &["kind = static"]);
    says(new(config().with_hidden_size(9), &texts(), None), &["num_attention_heads"]);
    says(
        new(config().with_max_length(21), &texts(), None),
        &["max_length = 21", "at most max_position_embeddings = 20"],
    );
    says(new(config().with_learning_rate(0.0), &texts(), None), &["learning_rate = 0"]);
    says(new(config().with_learning_rate(f64::NAN), &texts(), None), &["learning_rate = NaN"]);
    says(new(config().with_steps(0), &texts(), None), &["steps = 0"]);

    let saved = trainer(config(), Some(&teacher), &path("run"));
    saved.save().unwrap();
    let other = "run.safetensors: is of another run: ";
    says(new(config().with_steps(21), &texts(), Some(&teacher)), &[other, "steps was 20, now 21"]);
    says(new(config(), &texts()[1..], Some(&teacher)), &[other, "the texts or the teacher were others"]);
    says(new(config(), &texts(), None), &[other, "the texts or the teacher were others"]);
    let statics = Trainer::new(config().with_kind(StudentKind::Static), &texts(), Some(&teacher), path("s"), None);
    says(statics.unwrap().write(path("out"), DType::F16), &["kind = static"]);
    assert!(!path("out").exists());
    std::fs::write(path("run").join("run.safetensors"), b"not a run").unwrap();
    says(new(config(), &texts(), Some(&teacher)), &["run.safetensors"]);
    let one = Tensor::ones((2, 3), DType::F32, &Device::Cpu).unwrap();
    says(agreement(&one, &one), &["the number of texts is 2, expected at least 3"]);
}
