//! Encoder folders as an attacker or an accident leaves them: each is one clear error, at once.

use std::path::Path;

use candle_attention::checkpoint::Checkpoint;
use candle_attention_text::{FillMask, SentenceEncoder, SequenceClassifier, TextClassifier, TextModelConfig};
use candle_core::{DType, Device};
use serde_json::{Value, json};

use crate::common::{fixture, says};
use crate::models::tiny;
use crate::models::{cross, folder};

const CPU: Device = Device::Cpu;

fn load(folder: &Path) -> candle_attention::Result<SentenceEncoder> {
    SentenceEncoder::from_folder(folder, DType::F32, &CPU)
}

/// A file counts as absent only if nothing has its name: a link to nowhere or to itself is an error.
#[cfg(unix)]
#[test]
fn a_link_that_leads_nowhere_is_not_an_absent_file() {
    use std::os::unix::fs::symlink;
    let files = [
        "modules.json",
        "sentence_bert_config.json",
        "tokenizer_config.json",
        "config_sentence_transformers.json",
        "1_Pooling/config.json",
        "config.json",
        "tokenizer.json",
    ];
    for file in files {
        for target in ["nowhere", file.rsplit('/').next().unwrap()] {
            let folder = tiny();
            let path = folder.path().join(file);
            let _ = std::fs::remove_file(&path);
            symlink(target, &path).unwrap();
            says(load(folder.path()), &[file]);
            says(candle_attention_text::fingerprint(folder.path()), &[file]);
        }
    }
}

/// A named pipe would block for ever, and a device never ends.
#[cfg(unix)]
#[test]
fn pipes_and_devices_are_refused() {
    use std::os::unix::fs::symlink;
    for file in ["modules.json", "config.json", "tokenizer.json", "tokenizer_config.json", "1_Pooling/config.json"] {
        for device in [true, false] {
            let folder = tiny();
            let path = folder.path().join(file);
            std::fs::remove_file(&path).unwrap();
            if device {
                symlink("/dev/zero", &path).unwrap()
            } else {
                assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success())
            }
            says(load(folder.path()), &[file, "not a regular file"]);
            says(candle_attention_text::fingerprint(folder.path()), &[file, "not a regular file"]);
        }
    }
}

/// Windows gives holes a place on the disk.
#[cfg(unix)]
#[test]
fn files_of_holes_are_not_read() {
    for file in ["modules.json", "config.json", "tokenizer.json", "tokenizer_config.json", "1_Pooling/config.json"] {
        let folder = tiny();
        std::fs::File::create(folder.path().join(file)).unwrap().set_len(50 << 30).unwrap();
        says(load(folder.path()), &[file, "53687091200 bytes", "expected at most"]);
    }
}

fn write(folder: &Path, file: &str, content: &Value) {
    std::fs::write(folder.join(file), content.to_string()).unwrap();
}

#[test]
fn modules_and_pooling_modes_have_limits() {
    let module = |path: &str, kind: &str| json!({"path": path, "type": format!("sentence_transformers.models.{kind}")});
    let folder = tiny();
    let first = || vec![module("", "Transformer"), module("1_Pooling", "Pooling")];
    let many = (0..20).map(|i| module(&format!("{i}_Normalize"), "Normalize"));
    write(folder.path(), "modules.json", &Value::Array(first().into_iter().chain(many).collect()));
    says(load(folder.path()), &["modules.json", "22 modules, expected at most 16"]);

    let twice = [module("2_Dense", "Dense"), module("2_Dense/", "Dense")];
    write(folder.path(), "modules.json", &Value::Array(first().into_iter().chain(twice).collect()));
    says(load(folder.path()), &["modules.json", "two modules have the path `2_Dense/`"]);

    write(folder.path(), "modules.json", &Value::Array(first()));
    load(folder.path()).unwrap();
    write(folder.path(), "1_Pooling/config.json", &json!({"pooling_mode": vec!["mean"; 200_000]}));
    says(load(folder.path()), &["1_Pooling/config.json", "pooling_mode = 200000 modes", "at most 16"]);
    write(folder.path(), "1_Pooling/config.json", &json!({"pooling_mode_cls_token": "yes"}));
    says(load(folder.path()), &["1_Pooling/config.json", "pooling_mode_cls_token", "true or false"]);

    let dense = [module("2_Dense", "Dense")];
    write(folder.path(), "modules.json", &Value::Array(first().into_iter().chain(dense).collect()));
    write(folder.path(), "1_Pooling/config.json", &json!({}));
    std::fs::create_dir(folder.path().join("2_Dense")).unwrap();
    let config = |out: usize| json!({"in_features": 24, "out_features": out, "bias": false});
    for out in [0, 1 << 60] {
        write(folder.path(), "2_Dense/config.json", &config(out));
        says(load(folder.path()), &["2_Dense/config.json", &format!("out_features is {out}"), "1 to 16777216"]);
    }
}

/// A head of this shape, whose data may be absent.
fn head(shape: &[usize], config: &Value) -> candle_attention::Result<SequenceClassifier> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let size: usize = shape.iter().map(|n| *n as u128).product::<u128>() as usize;
    let header = json!({"classifier.weight": {"dtype": "U8", "shape": shape, "data_offsets": [0, size]}}).to_string();
    let file = std::fs::File::create(&path).unwrap();
    std::io::Write::write_all(&mut &file, &[&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat())
        .unwrap();
    file.set_len((8 + header.len() + size) as u64).unwrap();
    let mut keys: Value =
        serde_json::from_str(&std::fs::read_to_string(fixture("tiny-bert/config.json")).unwrap()).unwrap();
    keys.as_object_mut().unwrap().extend(config.as_object().unwrap().clone());
    let config: TextModelConfig = serde_json::from_value(keys).unwrap();
    SequenceClassifier::load(&config, Checkpoint::open(&path)?.at("", DType::F32, &CPU))
}

/// The header of a checkpoint may state any number of labels without holding anything.
#[test]
fn labels_are_counted_before_they_are_made() {
    says(head(&[1 << 55, 0], &json!({})), &["classifier.weight", "has shape [36028797018963968, 0]", "[labels, 24]"]);
    says(head(&[24], &json!({})), &["classifier.weight", "has shape [24]", "[labels, 24]"]);
    says(head(&[0, 24], &json!({})), &["the number of labels of the head is 0", "1 to 1048576"]);
    says(head(&[(1 << 20) + 1, 24], &json!({})), &["the number of labels of the head is 1048577", "1 to 1048576"]);

    let named = |names: Value| head(&[2, 24], &json!({"id2label": names}));
    says(named(json!({"0": "a", "2": "b"})), &["id2label = no label 1", "all of 0 to 1"]);
    says(named(json!({"00": "a", "1": "b"})), &["id2label = no label 0"]);
    says(named(json!({"0": "a", "99999999999999999999": "b"})), &["id2label = no label 1"]);
    says(named(json!({"0": "a", "1": 7})), &["id2label = a number for label 1", "a text"]);
    says(named(json!(["a", "b"])), &["id2label = a list", "an object"]);
    says(named(json!({})), &["id2label = 0 labels", "2 of them"]);
    let many: serde_json::Map<String, Value> = (0..100_000).map(|i| (i.to_string(), json!("x"))).collect();
    says(named(Value::Object(many)), &["id2label = 100000 labels", "2 of them"]);
}

#[test]
fn classifier_without_labels_is_an_error() {
    let folder = folder(1, json!({}));
    let path = folder.path().join("model.safetensors");
    let mut tensors = candle_core::safetensors::load(&path, &CPU).unwrap();
    for name in ["classifier.weight", "classifier.bias"] {
        let none = tensors[name].narrow(0, 0, 0).unwrap();
        tensors.insert(name.to_string(), none);
    }
    candle_core::safetensors::save(&tensors, &path).unwrap();
    let classifier = TextClassifier::from_folder(folder.path(), DType::F32, &CPU);
    says(classifier, &["the number of labels of the head is 0", "1 to 1048576"]);
}

#[test]
fn numbers_of_a_configuration_have_ranges() {
    let text = std::fs::read_to_string(fixture("tiny-bert/config.json")).unwrap();
    let with = |key: &str, value: Value| {
        let mut keys: Value = serde_json::from_str(&text).unwrap();
        keys[key] = value;
        serde_json::from_value::<TextModelConfig>(keys)
            .map_err(|e| e.to_string())?
            .validate()
            .map_err(|e| e.to_string())
    };
    with("layer_norm_eps", json!(0.0)).unwrap();
    for eps in [-1.0, -1e-300, 1e300] {
        says(with("layer_norm_eps", json!(eps)), &["layer_norm_eps", "a finite number from 0"]);
    }
    for dropout in [-0.1, 1.0, 0.999_999_999, 1e300] {
        says(with("hidden_dropout_prob", json!(dropout)), &["hidden_dropout_prob", "[0, 1)"]);
        says(with("attention_probs_dropout_prob", json!(dropout)), &["attention_probs_dropout_prob", "[0, 1)"]);
    }
    for key in ["vocab_size", "intermediate_size", "type_vocab_size", "embedding_size"] {
        says(with(key, json!(0)), &[key, "at least 1"]);
        for size in [1u64 << 40, 1 << 63, u64::MAX] {
            says(with(key, json!(size)), &[&format!("{key} = {size}"), "at most 1073741824"]);
        }
        says(with(key, json!(-1)), &["-1"]);
    }
    says(with("hidden_act", json!({"elu": 1e300})), &["hidden_act", "a finite number"]);
    says(with("hidden_act", json!("swiglu")), &["hidden_act = swiglu", "of single numbers"]);
    says(with("num_hidden_layers", json!(u64::MAX)), &["num_hidden_layers", "at most 4096 layers in all"]);
    says(with("inner_group_num", json!(u64::MAX)), &["num_hidden_layers", "at most 4096 layers in all"]);
    says(with("pad_token_id", json!(1u64 << 40)), &["u32"]);
}

#[test]
fn prompts_have_a_limit() {
    let folder = tiny();
    let prompts = |length: usize| json!({"prompts": {"query": "a".repeat(length)}, "default_prompt_name": "query"});
    write(folder.path(), "config_sentence_transformers.json", &prompts(1 << 14));
    load(folder.path()).unwrap();
    write(folder.path(), "config_sentence_transformers.json", &prompts((1 << 14) + 1));
    says(
        load(folder.path()),
        &["config_sentence_transformers.json", "`query` has 16385 bytes, expected at most 16384"],
    );
}

/// A value of another kind is not taken for absent: the default would be another model.
#[test]
fn keys_of_another_kind_are_errors() {
    let masked =
        |key: &str, value: Value| FillMask::from_folder(folder(0, json!({key: value})).path(), DType::F32, &CPU);
    says(masked("tie_word_embeddings", json!("no")), &["tie_word_embeddings", "true or false"]);
    says(masked("norm_bias", json!(1)), &["norm_bias", "true or false"]);
    let one = |key: &str, value: Value| cross(folder(1, json!({key: value})).path());
    says(one("problem_type", json!(3)), &["problem_type", "a text"]);
    says(one("sbert_ce_default_activation_function", json!(5)), &["config.json", "the activation function is 5"]);
    one("sbert_ce_default_activation_function", json!(null)).unwrap();
    says(one("id2label", json!("a")), &["id2label = a text"]);
}

/// A folder that links to itself is copied once, and a pipe among its files does not block.
#[cfg(unix)]
#[test]
fn pruning_copies_a_folder_that_links_to_itself() {
    use candle_attention_text::write_pruned;
    let (folder, target) = (tiny(), tempfile::tempdir().unwrap());
    for name in ["a", "b"] {
        std::os::unix::fs::symlink(".", folder.path().join(name)).unwrap();
    }
    let heads = [(0, 0)].into_iter().collect();
    write_pruned(folder.path(), target.path().join("pruned"), &heads).unwrap();
    assert!(!target.path().join("pruned/a").exists() && target.path().join("pruned/1_Pooling/config.json").exists());
    load(&target.path().join("pruned")).unwrap();

    let pipe = folder.path().join("vocab.txt");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    says(write_pruned(folder.path(), target.path().join("other"), &heads), &["vocab.txt", "not a regular file"]);
    std::fs::remove_file(&pipe).unwrap();
    std::os::unix::fs::symlink("nowhere", folder.path().join("merges.txt")).unwrap();
    says(write_pruned(folder.path(), target.path().join("other"), &heads), &["merges.txt"]);
}

/// What somebody publishes has nothing of the rest of the disk, and no more than a model has.
#[cfg(unix)]
#[test]
fn pruning_copies_only_files_of_the_model() {
    use std::os::unix::fs::symlink;

    use candle_attention_text::{model_card, write_pruned};
    let heads = [(0, 0)].into_iter().collect();
    let scratch = tempfile::tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name);
    std::fs::write(path("secret"), "a private key").unwrap();
    for file in ["README.md", "vocab.txt", "1_Pooling/vocab.json"] {
        let folder = tiny();
        symlink(path("secret"), folder.path().join(file)).unwrap();
        says(write_pruned(folder.path(), path("new"), &heads), &[file, "outside of the model's folder"]);
        assert!(!path("new").exists());
    }
    // What is no file of a model stays where it is.
    let folder = tiny();
    symlink(path("secret"), folder.path().join("notes.txt")).unwrap();
    write_pruned(folder.path(), path("pruned"), &heads).unwrap();
    assert!(path("pruned/tokenizer.json").exists() && !path("pruned/notes.txt").exists());

    let folder = tiny();
    symlink(path("secret"), folder.path().join("README.md")).unwrap();
    says(model_card(folder.path()), &["README.md", "outside of the model's folder"]);
    std::fs::remove_file(folder.path().join("README.md")).unwrap();
    std::fs::File::create(folder.path().join("vocab.txt")).unwrap().set_len(3 << 30).unwrap();
    says(write_pruned(folder.path(), path("new"), &heads), &["vocab.txt", "3221225472 bytes", "expected at most"]);

    // In the hub's cache, the files of a snapshot are links to `blobs`.
    let snapshot = path("models--a--b/snapshots/0123");
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::create_dir(path("models--a--b/blobs")).unwrap();
    std::fs::write(path("models--a--b/blobs/5678"), "A card.").unwrap();
    symlink("../../blobs/5678", snapshot.join("README.md")).unwrap();
    assert_eq!(model_card(&snapshot).unwrap(), "A card.");
}
