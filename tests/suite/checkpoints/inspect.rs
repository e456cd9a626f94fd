//! What a checkpoint holds, told from its headers.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use candle_attention::checkpoint::{Checkpoint, ModelConfig};
use candle_core::{Device, Tensor};
use serde_json::{Value, json};

use crate::common::{Files, family_config};

/// Every attention layer of every family's fixture is found under its prefix, with the heads of its configuration.
#[test]
fn every_attention_layer_of_every_family_is_listed() {
    let mut families = 0;
    for (name, checkpoint) in Files::open("families.safetensors").all() {
        let metadata = checkpoint.metadata();
        let config = family_config(&checkpoint);
        let cases: Vec<Value> = serde_json::from_str(&metadata["cases"]).unwrap();
        let config = ModelConfig::new(&config).with_like(metadata.contains_key("timm").then_some("timm"));
        let layers = checkpoint.attention_layers(Some(config));
        for case in &cases {
            let layer = layers.iter().find(|layer| layer.prefix == case["prefix"].as_str().unwrap());
            let layer = layer.unwrap_or_else(|| panic!("{name} {case}"));
            assert_eq!(layer.problem, None, "{name}");
            assert!(layer.num_attention_heads.unwrap() > 1 && layer.parameters > 100, "{layer:?}");
            assert!(layer.position.is_some() && layer.mask.is_some());
        }
        let mut prefixes: Vec<&String> = layers.iter().map(|layer| &layer.prefix).collect();
        prefixes.dedup();
        assert_eq!(prefixes.len(), layers.len(), "{name}");
        families += 1;
    }
    assert!(families >= 70);
}

/// A header of `tensors` (name, shape) in bf16 and, behind it, a hole in the place of the data.
pub fn sparse(path: &Path, tensors: &[(String, Vec<usize>)]) {
    let mut header = serde_json::Map::new();
    let mut offset = 0;
    for (name, shape) in tensors {
        let end = offset + 2 * shape.iter().product::<usize>();
        header.insert(name.clone(), json!({"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}));
        offset = end;
    }
    let header = Value::Object(header).to_string();
    let mut file = File::create(path).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len((8 + header.len() + offset) as u64).unwrap();
}

/// The shapes of a 70B Llama in 15 shards: 140 GB that are not there.
#[test]
fn model_larger_than_memory_is_inspected() {
    let folder = tempfile::tempdir().unwrap();
    let mut weight_map = serde_json::Map::new();
    let mut shards: Vec<Vec<(String, Vec<usize>)>> = vec![Vec::new(); 15];
    for layer in 0..80 {
        let prefix = format!("model.layers.{layer}");
        let attention =
            [("q_proj", 8192, 8192), ("k_proj", 1024, 8192), ("v_proj", 1024, 8192), ("o_proj", 8192, 8192)];
        let mlp = [("gate_proj", 28672, 8192), ("up_proj", 28672, 8192), ("down_proj", 8192, 28672)];
        let names = attention.map(|(name, out, input)| (format!("{prefix}.self_attn.{name}.weight"), vec![out, input]));
        let names =
            names.into_iter().chain(mlp.map(|(name, o, i)| (format!("{prefix}.mlp.{name}.weight"), vec![o, i])));
        for (name, shape) in names {
            let shard = layer * 15 / 80;
            weight_map.insert(name.clone(), json!(format!("model-{shard:05}-of-00015.safetensors")));
            shards[shard].push((name, shape));
        }
    }
    for (shard, tensors) in shards.iter().enumerate() {
        sparse(&folder.path().join(format!("model-{shard:05}-of-00015.safetensors")), tensors);
    }
    let index = json!({"metadata": {"total_size": 0}, "weight_map": weight_map}).to_string();
    std::fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
    let config = json!({"model_type": "llama", "num_attention_heads": 64, "num_key_value_heads": 8, "hidden_size": 8192,
        "rope_theta": 500_000.0, "max_position_embeddings": 131_072,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192,
            "low_freq_factor": 1.0, "high_freq_factor": 4.0}});
    let layers = Checkpoint::open(folder.path()).unwrap().attention_layers(Some(ModelConfig::new(&config)));
    assert_eq!(layers.len(), 80);
    for (i, layer) in layers.iter().enumerate() {
        assert_eq!(layer.prefix, format!("model.layers.{i}.self_attn"));
        let heads = (layer.num_attention_heads, layer.num_key_value_heads, layer.head_dim);
        assert_eq!(heads, (Some(64), Some(8), Some(128)));
        assert_eq!((layer.dtype.as_str(), layer.parameters), ("BF16", 2 * 8192 * 8192 + 2 * 1024 * 8192));
        assert_eq!(layer.position.as_deref(), Some("rotary(theta 500000, 128 numbers, llama3 8)"));
        assert_eq!((layer.mask.as_deref(), &layer.problem), (Some("causal"), &None));
    }
}

#[test]
fn hundred_thousand_tensors_are_inspected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("many.safetensors");
    let of_layer = |layer: usize| {
        let names = ["query", "key", "value"].map(|name| format!("encoder.layer.{layer}.attention.self.{name}.weight"));
        names.into_iter().chain([format!("encoder.layer.{layer}.attention.output.dense.weight")])
    };
    let mut tensors: Vec<(String, Vec<usize>)> =
        (0..25_000).flat_map(of_layer).map(|name| (name, vec![2, 2])).collect();
    tensors.push(("other".to_string(), vec![1]));
    sparse(&path, &tensors);
    let layers = Checkpoint::open(&path).unwrap().attention_layers(None);
    assert_eq!(layers.len(), 25_000);
    // BERT's layers have biases; that these lack them is said.
    assert!(
        layers.iter().all(|layer| layer.layout == "bert" && layer.problem.as_ref().unwrap().contains("is missing"))
    );
}

#[test]
fn check_names_the_tensor_with_nan() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let names = ["q_proj", "k_proj", "v_proj", "o_proj"];
    let mut tensors: HashMap<String, Tensor> = HashMap::new();
    for (layer, name) in (0..2).flat_map(|layer| names.map(|name| (layer, name))) {
        let damaged = layer == 1 && name == "v_proj";
        let number = if damaged { f32::NAN } else { 1e38 };
        let weight = Tensor::full(number, (2, 2), &Device::Cpu).unwrap();
        tensors.insert(format!("layers.{layer}.self_attn.{name}.weight"), weight);
    }
    candle_core::safetensors::save(&tensors, &path).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert!(checkpoint.non_finite("layers.0.self_attn").unwrap().is_empty());
    assert_eq!(checkpoint.non_finite("layers.1.self_attn").unwrap(), ["layers.1.self_attn.v_proj.weight"]);
    assert_eq!(checkpoint.attention_layers(None).len(), 2);
}
