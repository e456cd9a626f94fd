//! Model folders that tests make from the tiny model.

use std::collections::HashMap;
use std::path::Path;

use candle_attention::Error;
use candle_attention_text::CrossEncoder;
use candle_core::{DType, Device, Tensor};
use serde_json::Value;

use crate::common::fixture;
use crate::common::programs::copy_folder;

const CPU: Device = Device::Cpu;

/// A copy of the tiny model to change things in.
pub fn tiny() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&fixture("tiny-bert"), folder.path());
    folder
}

/// The tiny BERT with a head of some of its own tensors, and the keys of `with` in its configuration.
pub fn folder(labels: usize, with: Value) -> tempfile::TempDir {
    let (from, to) = (fixture("tiny-bert"), tempfile::tempdir().unwrap());
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(from.join(file), to.path().join(file)).unwrap();
    }
    let tensors = candle_core::safetensors::load(from.join("model.safetensors"), &CPU).unwrap();
    let mut all: HashMap<String, Tensor> =
        tensors.iter().map(|(name, tensor)| (format!("bert.{name}"), tensor.clone())).collect();
    let pooler = |name: &str| tensors[&format!("pooler.dense.{name}")].clone();
    if labels > 0 {
        let rows = |name: &str| pooler(name).narrow(0, 0, labels).unwrap().contiguous().unwrap();
        all.insert("classifier.weight".into(), (rows("weight") * 3.0).unwrap());
        all.insert("classifier.bias".into(), rows("bias"));
    } else {
        for name in ["weight", "bias"] {
            all.insert(format!("cls.predictions.transform.dense.{name}"), pooler(name));
            let norm = tensors[&format!("embeddings.LayerNorm.{name}")].clone();
            all.insert(format!("cls.predictions.transform.LayerNorm.{name}"), norm);
        }
        let bias = tensors["embeddings.word_embeddings.weight"].narrow(1, 0, 1).unwrap().squeeze(1).unwrap();
        all.insert("cls.predictions.bias".into(), bias.contiguous().unwrap());
    }
    candle_core::safetensors::save(&all, to.path().join("model.safetensors")).unwrap();
    let mut config: Value = serde_json::from_str(&std::fs::read_to_string(from.join("config.json")).unwrap()).unwrap();
    config.as_object_mut().unwrap().extend(with.as_object().unwrap().clone());
    std::fs::write(to.path().join("config.json"), config.to_string()).unwrap();
    to
}

pub fn cross(folder: &Path) -> Result<CrossEncoder, Error> {
    CrossEncoder::from_folder(folder, DType::F32, &CPU)
}

pub const FOX: &str = "the quick brown fox jumps over the lazy dog and runs far away from the big house";

/// A copy of the teacher with a weight that is NaN.
pub fn damaged_teacher(folder: &Path) {
    for name in ["1_Pooling", "2_Normalize"] {
        std::fs::create_dir_all(folder.join(name)).unwrap();
    }
    for name in ["config.json", "modules.json", "tokenizer.json", "1_Pooling/config.json", "sentence_bert_config.json"]
    {
        std::fs::copy(fixture("tiny-bert").join(name), folder.join(name)).unwrap();
    }
    let weights = fixture("tiny-bert").join("model.safetensors");
    let mut tensors = candle_core::safetensors::load(weights, &Device::Cpu).unwrap();
    let name = "embeddings.LayerNorm.bias".to_string();
    let damaged = (&tensors[&name] * f64::NAN).unwrap();
    tensors.insert(name, damaged);
    candle_core::safetensors::save(&tensors, folder.join("model.safetensors")).unwrap();
}

/// Distinct lines, of letters and of words in the vocabulary of the tiny model.
pub fn lines(count: usize) -> Vec<String> {
    let words = ["cat", "hello", "world", "dog", "the", "a", "sat", "mat", "on", "is"];
    let word = |n: usize| words[n % words.len()];
    (0..count).map(|i| format!("{} {} {} {i:x} {}", word(i), word(i / 7), word(i / 31), word(i * i / 3))).collect()
}

/// A folder of `sentence-modules`, with what tiny-bert has in the folder of its transformer, and its tokenizer.
pub fn modules_folder(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (transformer, tokenizer) = match name {
        "chain" | "router_late" => (Some(""), None),
        "router" => (Some("document_0_Transformer"), Some("query_0_StaticEmbedding")),
        _ => (None, None),
    };
    if let Some(inside) = transformer {
        copy_folder(&fixture("tiny-bert"), &folder.path().join(inside));
        for name in ["modules.json", "config_sentence_transformers.json"] {
            std::fs::remove_file(folder.path().join(inside).join(name)).unwrap();
        }
    }
    copy_folder(&fixture("sentence-modules").join(name), folder.path());
    if let Some(inside) = tokenizer {
        std::fs::copy(fixture("tiny-bert/tokenizer.json"), folder.path().join(inside).join("tokenizer.json")).unwrap();
    }
    folder
}
