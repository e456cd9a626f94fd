//! Training on a few lines: it learns, it resumes, and what it writes is read like any other model.

#[allow(dead_code, unused_imports, reason = "the suites of all packages share it")]
#[path = "../../../tests/common/mod.rs"]
mod common;
#[allow(dead_code, reason = "several suites share it")]
#[path = "../../../tests/common/models.rs"]
mod models;

use std::collections::BTreeMap;
use std::path::Path;

use candle_attention::checkpoint::Checkpoint;
use candle_attention::io::write_tensors;
use candle_attention_text::{EncodeOptions, SentenceEncoder, TextModel, TextModelConfig};
use candle_attention_train::{Step, Teacher, TrainConfig, Trainer, agreement};
use candle_core::{DType, Device, Tensor};

use crate::common::{assert_close, fixture, says};
use crate::models::damaged_teacher;

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
    TrainConfig {
        vocab_size: 90,
        hidden_size: 8,
        num_attention_heads: 2,
        num_hidden_layers: 1,
        intermediate_size: 12,
        max_position_embeddings: 20,
        max_length: 16,
        batch_size: 16,
        steps: 20,
        learning_rate: 1e-2,
        ..Default::default()
    }
}

fn teacher() -> Teacher {
    Teacher::open(fixture("tiny-bert"), DType::F32).unwrap()
}

fn trainer(config: TrainConfig, folder: &Path) -> Trainer {
    Trainer::new(config, &texts(), &teacher(), folder, None).unwrap()
}

fn steps(trainer: &mut Trainer, count: usize) -> Vec<Step> {
    (0..count).map_while(|_| trainer.step().unwrap()).collect()
}

/// The loss falls; a resumed run goes on like an uninterrupted one.
#[test]
fn loss_falls_and_resumed_runs_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let new = |name: &str| trainer(config(), &folder.path().join(name));
    let mut whole = new("whole");
    let want = steps(&mut whole, 100);
    assert_eq!(want.len(), config().steps);
    let mean = |steps: &[Step]| steps.iter().map(|step| step.loss).sum::<f32>() / steps.len() as f32;
    let (first, last) = (mean(&want[..4]), mean(&want[want.len() - 4..]));
    assert!(last < 0.95 * first, "the mean loss of four steps went from {first} to {last}");

    let mut killed = new("killed");
    steps(&mut killed, 7);
    killed.save().unwrap();
    // Steps after the last save are lost.
    steps(&mut killed, 2);
    drop(killed);
    let mut resumed = new("killed");
    assert_eq!(resumed.steps_done(), 7);
    assert_eq!(steps(&mut resumed, 100), want[7..]);
    let written = |trainer: &Trainer, name: &str| {
        trainer.write(folder.path().join(name), DType::F32).unwrap();
        std::fs::read(folder.path().join(name).join("model.safetensors")).unwrap()
    };
    assert!(written(&resumed, "model of the resumed run") == written(&whole, "model of the whole run"));
}

#[test]
fn written_model_is_read_like_any_other() {
    let run = tempfile::tempdir().unwrap();
    let output = run.path().join("model");
    let mut trainer = trainer(config(), run.path());
    steps(&mut trainer, 5);
    trainer.write(&output, DType::F32).unwrap();
    let texts = texts();
    let lines: Vec<&str> = texts.iter().map(String::as_str).collect();
    let encoder = SentenceEncoder::from_folder(&output, DType::F32, &Device::Cpu).unwrap();
    assert_eq!((encoder.embedding_size(), encoder.max_seq_length()), (8, 20));
    let got = encoder.encode(&lines, &EncodeOptions::default()).unwrap();

    let config = TextModelConfig::from_file(output.join("config.json")).unwrap();
    let checkpoint = Checkpoint::open(&output).unwrap();
    assert_eq!(checkpoint.names().count(), 5 + 16);
    TextModel::load(&config, checkpoint.at("", DType::F32, &Device::Cpu)).unwrap();
    let mut files: Vec<String> =
        std::fs::read_dir(&output).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
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

    says(trainer.write(&output, DType::F16), &["model: exists already"]);
    let output = run.path().join("half");
    trainer.write(&output, DType::F16).unwrap();
    let half = SentenceEncoder::from_folder(&output, DType::F32, &Device::Cpu).unwrap();
    assert_close("f16", &half.encode(&lines, &EncodeOptions::default()).unwrap(), &got, 1e-2);
}

#[test]
fn the_teacher_encodes_each_text_once() {
    let folder = tempfile::tempdir().unwrap();
    let teacher = teacher();
    let read = std::cell::Cell::new(0);
    let open = |texts: &[String]| {
        let on_progress = |done: usize, _: usize| read.set(done);
        drop(Trainer::new(config(), texts, &teacher, folder.path(), Some(&on_progress)).unwrap());
        read.replace(0)
    };
    assert_eq!((open(&texts()), open(&texts())), (90, 0));
    assert_eq!(open(&texts()[..80]), 80);
}

#[test]
fn mistakes_are_one_clear_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    says(Teacher::open(path("no teacher"), DType::F32), &["no teacher", "No such file"]);

    let teacher = teacher();
    let new =
        |config: TrainConfig, texts: &[String]| Trainer::new(config, texts, &teacher, path("run"), None).map(|_| ());
    let with = |change: &dyn Fn(&mut TrainConfig)| {
        let mut config = config();
        change(&mut config);
        new(config, &texts())
    };
    says(with(&|c| c.vocab_size = 99_999_999_999), &["vocab_size", "99999999999"]);
    says(with(&|c| c.vocab_size = 10), &["vocab_size = 10", "expected at least"]);
    says(with(&|c| c.hidden_size = 9), &["num_attention_heads"]);
    says(with(&|c| c.max_length = 21), &["max_length = 21", "3 to 20"]);
    says(with(&|c| c.learning_rate = 0.0), &["learning_rate = 0"]);
    says(with(&|c| c.learning_rate = f64::NAN), &["learning_rate = NaN"]);
    says(with(&|c| c.steps = 0), &["steps = 0"]);
    says(new(config(), &texts()[..1]), &["the number of texts is 1, expected at least 2"]);
    let wide = new(TrainConfig { hidden_size: 32, ..config() }, &texts());
    says(wide, &["hidden_size = 32 is not allowed: expected at most 24, the teacher's embedding size"]);
    assert!(!path("run").exists(), "the teacher has encoded nothing");

    trainer(config(), &path("run")).save().unwrap();
    let other = "run.safetensors: is of a run that had other";
    says(new(TrainConfig { seed: 1, ..config() }, &texts()), &[other, "settings"]);
    says(new(config(), &texts()[1..]), &[other, "texts or another teacher"]);
    let another = Teacher::open(fixture("tiny-bert"), DType::F16).unwrap();
    let found = Trainer::new(config(), &texts(), &another, path("run"), None).map(|_| ());
    says(found, &[other, "texts or another teacher"]);
    std::fs::write(path("run").join("run.safetensors"), b"not a run").unwrap();
    says(new(config(), &texts()), &["run.safetensors"]);
    let one = Tensor::ones((2, 3), DType::F32, &Device::Cpu).unwrap();
    says(agreement(&one, &one), &["the number of texts is 2, expected at least 3"]);
}

/// A run that lacks a weight would go on with a random one.
#[test]
fn a_saved_run_is_whole_or_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let teacher = teacher();
    let new = || Trainer::new(config(), &texts(), &teacher, folder.path(), None).map(|trainer| trainer.steps_done());
    let mut saved = trainer(config(), folder.path());
    saved.step().unwrap();
    saved.save().unwrap();
    let file = Checkpoint::open(&path).unwrap();
    let good: BTreeMap<String, Tensor> =
        file.names().map(|name| (name.to_string(), file.tensor(name, &Device::Cpu).unwrap())).collect();
    let metadata = file.metadata().clone();
    let write = |tensors: &BTreeMap<String, Tensor>| write_tensors(&path, tensors.clone(), metadata.clone()).unwrap();

    let weight = "parameters.embeddings.LayerNorm.weight";
    let mut wrong = good.clone();
    wrong.remove(weight).unwrap();
    write(&wrong);
    says(new(), &[weight]);
    for other in [Tensor::ones(9, DType::F32, &Device::Cpu), Tensor::ones(8, DType::F64, &Device::Cpu)] {
        wrong.insert(weight.to_string(), other.unwrap());
        write(&wrong);
        says(new(), &[weight, "has dtype F", "expected F32 [8]"]);
    }
    write(&good);
    assert_eq!(new().unwrap(), 1);

    // A run on a disk that is not there now is not started anew.
    #[cfg(unix)]
    {
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("not mounted/run.safetensors", &path).unwrap();
        says(new(), &["run.safetensors: No such file"]);
    }
}

#[test]
fn rotated_and_scaled_embeddings_agree_fully() {
    let xs = Tensor::new(&[[1f32, 0.0], [0.9, 0.1], [0.2, 1.0], [-1.0, 0.3]], &Device::Cpu).unwrap();
    let rotated = xs.matmul(&Tensor::new(&[[0f32, 2.0], [-2.0, 0.0]], &Device::Cpu).unwrap()).unwrap();
    let found = agreement(&rotated, &xs).unwrap();
    assert!(found.spearman > 1.0 - 1e-9 && found.top_1_in_10 == 1.0, "{found:?}");
    assert!(agreement(&xs.narrow(0, 0, 2).unwrap(), &xs).is_err());
}

#[test]
fn sizes_beyond_memory_are_an_error() {
    let validate = |change: &dyn Fn(&mut TrainConfig)| {
        let mut config = TrainConfig::default();
        change(&mut config);
        config.validate()
    };
    validate(&|c| (c.vocab_size, c.batch_size) = (1_000_000, 1024)).unwrap();
    let parameters: [&dyn Fn(&mut TrainConfig); 4] =
        [&|c| c.vocab_size = 9_999_999, &|c| c.hidden_size = 1_000_000, &|c| c.intermediate_size = 1_000_000, &|c| {
            c.max_position_embeddings = 9_999_999
        }];
    for change in parameters {
        says(validate(change), &["the number of parameters of a model of these sizes", "at most 268435456"]);
    }
    let numbers: [&dyn Fn(&mut TrainConfig); 2] =
        [&|c| c.batch_size = 1_000_000, &|c| (c.max_length, c.max_position_embeddings) = (100_000, 100_000)];
    for change in numbers {
        says(validate(change), &["the largest tensor of a step of these sizes", "at most 268435456"]);
    }
    says(validate(&|c| c.batch_size = usize::MAX), &["batch_size", "2 to 268435456"]);
}

/// Short texts give fewer tokens than were asked for.
#[test]
fn the_vocabulary_is_what_the_texts_give() {
    let folder = tempfile::tempdir().unwrap();
    let found = trainer(TrainConfig { vocab_size: 5_000, ..config() }, folder.path()).config().vocab_size;
    assert!((50..500).contains(&found), "{found}");
}

/// Nothing of a teacher that gives NaN is kept.
#[test]
fn a_teacher_that_is_not_finite_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    damaged_teacher(&path("teacher"));
    let damaged = Teacher::open(path("teacher"), DType::F32).unwrap();
    let error = Trainer::new(config(), &texts(), &damaged, path("run"), None).map(|_| ()).unwrap_err();
    assert!(matches!(error, candle_attention::Error::NotFinite { .. }), "{error}");
    assert!(!path("run").exists());
}
