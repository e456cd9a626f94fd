//! Training on a few lines: it learns, it resumes to the bit, and what it writes is read like any other model.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use candle_attention::checkpoint::Checkpoint;
use candle_attention::io::write_tensors;
use candle_attention_text::train::{Step, StudentKind, Teacher, TrainConfig, Trainer, agreement, read_texts};
use candle_attention_text::{EncodeOptions, SentenceEncoder, TextModel, TextModelConfig};
use candle_core::{DType, Device, Tensor};

use crate::common::{LAYER, assert_close, fixture, max_diff, says};

/// Texts of three topics with disjoint words.
pub fn texts() -> Vec<String> {
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

pub fn config() -> TrainConfig {
    let config = TrainConfig::default().with_vocab_size(90).with_hidden_size(8).with_num_attention_heads(2);
    let config = config.with_num_hidden_layers(1).with_intermediate_size(12).with_max_position_embeddings(20);
    config.with_max_length(16).with_batch_size(16).with_steps(20).with_warmup_steps(2).with_learning_rate(1e-2)
}

pub fn teacher() -> Teacher {
    Teacher::open(fixture("tiny-bert"), DType::F32).unwrap()
}

pub fn trainer(config: TrainConfig, teacher: Option<&Teacher>, folder: &Path) -> Trainer {
    Trainer::new(config, &texts(), teacher, folder, None).unwrap()
}

pub fn steps(trainer: &mut Trainer, count: usize) -> Vec<Step> {
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

    let config = TextModelConfig::from_file(output.path().join("config.json")).unwrap();
    let checkpoint = Checkpoint::open(output.path()).unwrap();
    assert_eq!(checkpoint.names().count(), 5 + 16);
    TextModel::load(&config, checkpoint.at("", DType::F32, &Device::Cpu)).unwrap();
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
    assert_eq!(read_texts(&path, &["four".to_string()]).unwrap(), [" one two ", "three"]);

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
    says(read_texts(path("empty.txt"), &[]), &["empty.txt: holds no text, expected one text per line"]);
    std::fs::write(path("all.txt"), "one\n\ntwo\n").unwrap();
    let held_back = ["one", "two"].map(str::to_string);
    says(read_texts(path("all.txt"), &held_back), &["all.txt: all of its texts are held back"]);
    says(read_texts(path("no.txt"), &[]), &["no.txt: No such file"]);
    says(Teacher::open(path("no teacher"), DType::F32), &["no teacher", "No such file"]);

    let teacher = teacher();
    let new = |config: TrainConfig, texts: &[String], teacher: Option<&Teacher>| {
        Trainer::new(config, texts, teacher, path("run"), None).map(|_| ())
    };
    let large = new(config().with_vocab_size(99_999_999_999), &texts(), None);
    says(large, &["vocab_size = 99999999999 is not allowed: expected at most 268435456"]);
    says(
        new(config().with_warmup_steps(3), &texts(), None),
        &["warmup_steps = 3", "at most 2, a tenth of the 20 steps"],
    );
    says(new(config().with_vocab_size(10), &texts(), None), &["vocab_size = 10", "expected at least"]);
    says(new(config(), &texts()[..1], None), &["the number of texts is 1, expected at least 2"]);
    let wide = new(config().with_hidden_size(32), &texts(), Some(&teacher));
    says(wide, &["hidden_size = 32 is not allowed: expected at most 24, the teacher's embedding size"]);
    assert_eq!(std::fs::read_dir(path("run")).unwrap().count(), 0, "the teacher has encoded nothing");
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
    let shorter = new(config().with_steps(19).with_warmup_steps(1), &texts(), Some(&teacher));
    says(shorter, &[other, "steps was 20, now 19, and a run cannot be shortened"]);
    says(new(config().with_warmup_steps(1), &texts(), Some(&teacher)), &[other, "warmup_steps was 2, now 1"]);
    says(new(config().with_steps(30).with_seed(1), &texts(), Some(&teacher)), &[other, "seed was 0, now 1"]);
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

/// A run that lacks a weight would go on with a random one.
#[test]
fn a_saved_run_is_whole_or_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let new = || Trainer::new(config(), &texts(), None, folder.path(), None).map(|trainer| trainer.steps_done());
    let mut saved = trainer(config(), None, folder.path());
    saved.step().unwrap();
    saved.save().unwrap();
    let file = Checkpoint::open(&path).unwrap();
    let good: BTreeMap<String, Tensor> =
        file.names().map(|name| (name.to_string(), file.tensor(name, &Device::Cpu).unwrap())).collect();
    let metadata = file.metadata().clone();
    assert!(metadata["instructions"].starts_with(std::env::consts::ARCH), "{}", metadata["instructions"]);
    let write = |tensors: &BTreeMap<String, Tensor>, metadata: &HashMap<String, String>| {
        write_tensors(&path, tensors.clone(), metadata.clone()).unwrap();
    };

    let weight = "parameters.embeddings.LayerNorm.weight";
    let mut less = good.clone();
    less.remove(weight).unwrap();
    write(&less, &metadata);
    says(new(), &["run.safetensors: not a run: it has ", "tensors, expected "]);
    less.insert("parameters.other".to_string(), good[weight].clone());
    write(&less, &metadata);
    says(new(), &[weight]);
    for other in [Tensor::ones(9, DType::F32, &Device::Cpu), Tensor::ones(8, DType::F64, &Device::Cpu)] {
        let mut wrong = good.clone();
        wrong.insert(weight.to_string(), other.unwrap());
        write(&wrong, &metadata);
        says(new(), &[weight, "has dtype F", "expected F32 [8]"]);
    }
    // A tokenizer that the tokenizers crate panics on; one with another vocabulary.
    let tokenizer = &metadata["tokenizer"];
    let normalizer = r#""normalizer":{"type":"Precompiled","precompiled_charsmap":"AAAAAA=="}"#;
    let start = tokenizer.find(r#""normalizer":{"#).unwrap();
    let end = start + tokenizer[start..].find('}').unwrap() + 1;
    let crafted = format!("{}{normalizer}{}", &tokenizer[..start], &tokenizer[end..]);
    // A word limit without end, another prefix, an id twice as far.
    let settings = [
        tokenizer.replace("\"max_input_chars_per_word\":100", "\"max_input_chars_per_word\":1000000000000"),
        tokenizer.replace("\"continuing_subword_prefix\":\"##\"", "\"continuing_subword_prefix\":\"#\""),
        tokenizer.replacen(":5,", ":4000000000,", 1),
    ];
    assert!(settings.iter().all(|changed| changed != tokenizer));
    let others = [crafted, tokenizer.replace("\"[MASK]\":4", "\"[MASQ]\":4"), "{}".to_string()];
    for wrong in others.into_iter().chain(settings) {
        let mut metadata = metadata.clone();
        metadata.insert("tokenizer".to_string(), wrong);
        write(&good, &metadata);
        says(new(), &["run.safetensors: its tokenizer is none that this version of the crate trains"]);
    }
    write(&good, &metadata);
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
fn only_lines_of_text_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text.txt");
    let reads = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        read_texts(&path, &[])
    };
    says(reads(b"one\ntwo\xff\n"), &["text.txt: line 2 is not UTF-8"]);
    assert_eq!(reads("\u{feff}one\r\n\ntwo".as_bytes()).unwrap(), ["one", "two"]);
    says(reads(b"\0o\0n\0e\0\n"), &["text.txt: the text is in UTF-16, expected UTF-8"]);
    says(reads(b"one\nt\0wo\n"), &["text.txt: line 2 holds a NUL byte, expected text in UTF-8"]);
    assert_eq!(reads(b"\tone \n two\r\n").unwrap(), ["\tone ", " two"]);
    // Holes: one line.
    std::fs::File::create(&path).unwrap().set_len(1 << 25).unwrap();
    says(read_texts(&path, &[]), &["text.txt: line 1 has more than 16777216 bytes, expected one text per line"]);
    says(read_texts(folder.path(), &[]), &["not a regular file"]);
    #[cfg(unix)]
    says(read_texts("/dev/zero", &[]), &["/dev/zero: not a regular file"]);
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
fn the_warm_up_is_at_most_a_tenth_of_the_steps() {
    for (steps, want) in [(1, 0), (19, 1), (100, 10), (2_500, 250), (9_000, 250)] {
        let config = TrainConfig::default().with_steps(steps);
        config.validate().unwrap();
        assert_eq!(config.resolved_warmup_steps(), want, "{steps}");
        let error = config.with_warmup_steps(steps / 10 + 1).validate().unwrap_err().to_string();
        assert!(error.contains(&format!("at most {}, a tenth of the {steps} steps", steps / 10)), "{error}");
    }
}

#[test]
fn sizes_beyond_memory_are_an_error() {
    let default = TrainConfig::default;
    default().with_vocab_size(1_000_000).with_batch_size(1024).validate().unwrap();
    for config in [
        default().with_vocab_size(9_999_999),
        default().with_vocab_size(9_999_999).with_kind(StudentKind::Static),
        default().with_hidden_size(1_000_000),
        default().with_num_hidden_layers(9_999_999),
        default().with_intermediate_size(1_000_000),
        default().with_max_position_embeddings(9_999_999),
    ] {
        says(config.validate(), &["the number of parameters of a model of these sizes", "at most 268435456"]);
    }
    for config in [
        default().with_num_attention_heads(9_999_999),
        default().with_batch_size(1_000_000),
        default().with_max_length(100_000).with_max_position_embeddings(100_000),
    ] {
        says(config.validate(), &["the largest tensor of a step of these sizes", "at most 268435456"]);
    }
    says(default().with_batch_size(usize::MAX).validate(), &["batch_size", "at most 268435456"]);
}
