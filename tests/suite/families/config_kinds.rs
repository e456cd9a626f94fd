//! Keys of `config.json` that are null, absent or of another JSON kind: what transformers makes of them, or an error
//! (`tests/golden/config_kinds.py`).

use std::collections::HashMap;

use candle_attention::AttentionMask;
use candle_attention::checkpoint::{Checkpoint, ModelAttention};
use candle_attention::position::Position;
use candle_core::{DType, Device, Tensor};
use serde_json::{Map, Value, json};

use crate::common::{fixture, says};
use crate::families::right_or_refused::load;

const HEAD: usize = 32;

/// The names and shapes of the weights of layer `index`, and its prefix.
fn weights(model_type: &str, index: usize) -> (String, Vec<(&'static str, Vec<usize>)>) {
    let square = |name| (name, vec![2 * HEAD, 2 * HEAD]);
    let split = ["q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight"].map(square);
    match model_type {
        "modernbert" => {
            let all = vec![("Wqkv.weight", vec![6 * HEAD, 2 * HEAD]), square("Wo.weight")];
            (format!("layers.{index}.attn"), all)
        }
        "phi" => {
            let all = [split[0].clone(), split[1].clone(), split[2].clone(), square("dense.weight")];
            (format!("model.layers.{index}.self_attn"), all.to_vec())
        }
        "deepseek_v3" => {
            let all = vec![
                ("q_a_proj.weight", vec![16, 2 * HEAD]),
                ("q_a_layernorm.weight", vec![16]),
                ("q_b_proj.weight", vec![4 * HEAD, 16]),
                ("kv_a_proj_with_mqa.weight", vec![16 + HEAD, 2 * HEAD]),
                ("kv_a_layernorm.weight", vec![16]),
                ("kv_b_proj.weight", vec![4 * HEAD, 16]),
                square("o_proj.weight"),
            ];
            (format!("model.layers.{index}.self_attn"), all)
        }
        _ => {
            let mut all = split.to_vec();
            match model_type {
                "gpt_oss" => {
                    all.push(("sinks", vec![2]));
                    for bias in ["q_proj.bias", "k_proj.bias", "v_proj.bias", "o_proj.bias"] {
                        all.push((bias, vec![2 * HEAD]));
                    }
                }
                "qwen3" | "gemma3_text" => {
                    all.extend([("q_norm.weight", vec![HEAD]), ("k_norm.weight", vec![HEAD])]);
                }
                _ => {}
            }
            (format!("model.layers.{index}.self_attn"), all)
        }
    }
}

/// Layers 0 and 1 of a model, with weights of zeros.
struct Model {
    _folder: tempfile::TempDir,
    checkpoint: Checkpoint,
    prefixes: [String; 2],
}

impl Model {
    fn new(model_type: &str) -> Self {
        let mut tensors = HashMap::new();
        let prefixes = [0, 1].map(|index| {
            let (prefix, weights) = weights(model_type, index);
            for (name, dims) in weights {
                tensors.insert(format!("{prefix}.{name}"), Tensor::zeros(dims, DType::F32, &Device::Cpu).unwrap());
            }
            prefix
        });
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        candle_core::safetensors::save(&tensors, &path).unwrap();
        Self { checkpoint: Checkpoint::open(&path).unwrap(), prefixes, _folder: folder }
    }

    fn layers(&self, json: &Value) -> candle_attention::Result<Vec<ModelAttention>> {
        let layer = |prefix: &String| self.checkpoint.attention_with(prefix, json, DType::F32, &Device::Cpu);
        self.prefixes.iter().map(layer).collect()
    }
}

/// The tokens before and after itself that the query at place 6 of 12 sees.
fn mask_of([before, after]: [u64; 2]) -> AttentionMask {
    match (before, after) {
        (6, 5) => AttentionMask::full(),
        (6, 0) => AttentionMask::causal(),
        _ => AttentionMask::window(Some(before as usize), Some(after as usize)),
    }
}

/// Whether layers are as transformers has them: frequencies, factor and mask.
fn check(layers: &[ModelAttention], want: &Value, rotations: &Value) -> Result<(), String> {
    let rotation = &rotations[want["rotation"].as_u64().unwrap() as usize];
    for (index, layer) in layers.iter().enumerate() {
        let sees = serde_json::from_value::<[u64; 2]>(want["sees"][index].clone()).unwrap();
        let mask = mask_of(sees);
        if *layer.mask() != mask {
            return Err(format!("layer {index}: {}, expected {mask}", layer.mask()));
        }
        let Position::Rotary(rotary) = &layer.layer.config().position else {
            return Err(format!("layer {index} is not rotated"));
        };
        let kind = if sees[0] < 6 { "sliding_attention" } else { "full_attention" };
        let rotation = rotation.get(kind).or(rotation.get("")).unwrap();
        let (values, factor) = (&rotation[0], &rotation[1]);
        let (got, got_factor) = rotary.frequencies(HEAD, 12).unwrap();
        let values: Vec<f64> = serde_json::from_value(values.clone()).unwrap();
        let close = |got: f64, want: f64| (got - want).abs() <= 1e-5 * want.abs();
        if got.len() != values.len() || !got.iter().zip(&values).all(|(got, want)| close(*got, *want)) {
            return Err(format!("layer {index}: {got:?}, expected {values:?}"));
        }
        if !close(got_factor, factor.as_f64().unwrap()) {
            return Err(format!("layer {index}: factor {got_factor}, expected {factor}"));
        }
    }
    Ok(())
}

/// Where transformers makes a model, the layer is that or refused; where it makes none, the error names the key.
#[test]
fn keys_of_other_kinds_mean_what_they_mean_in_transformers() {
    let golden: Value = serde_json::from_slice(&std::fs::read(fixture("config_kinds.json")).unwrap()).unwrap();
    let mut models: HashMap<&str, Model> = HashMap::new();
    let (mut wrong, mut right, mut refused) = (Vec::new(), 0, Vec::new());
    for case in golden["cases"].as_array().unwrap() {
        for (model_type, want) in case["models"].as_object().unwrap() {
            let mut json: Map<String, Value> = golden["base"][model_type].as_object().unwrap().clone();
            json.extend(case["keys"].as_object().unwrap().clone());
            json.insert("model_type".into(), json!(model_type));
            let model = models.entry(model_type).or_insert_with(|| Model::new(model_type));
            let what = format!("{model_type} {}", case["keys"]);
            match (model.layers(&json.into()), want.is_null()) {
                (Ok(_), true) => wrong.push(format!("{what} is accepted")),
                (Err(_), true) => right += 1,
                (Ok(layers), false) => match check(&layers, want, &golden["rotations"]) {
                    Ok(()) => right += 1,
                    Err(difference) => wrong.push(format!("{what}: {difference}")),
                },
                (Err(error), false) => refused.push(format!("{what}: {error}")),
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{right} right, {} wrong:\n{}\nrefused:\n{}",
        wrong.len(),
        wrong.join("\n"),
        refused.join("\n")
    );
    assert!(refused.len() < 40, "{right} right, refused:\n{}", refused.join("\n"));
}

/// A key of another kind is an error that names it and its value, also keys that no class of the golden values has.
#[test]
fn a_key_of_another_kind_is_named_with_its_value() {
    let refused = |model_type: &str, keys: Value, parts: &[&str]| {
        let mut json = json!({"model_type": model_type, "num_attention_heads": 2});
        json.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        says(load(&json, None), parts);
    };
    let set = |keys: Value| json!({"rope_parameters": keys});
    refused("llama", set(json!({"rope_type": 3})), &["rope_type", "3", "a text"]);
    refused("llama", set(json!({"rope_type": null, "type": "yarn"})), &["rope_type", "null", "a text"]);
    refused("llama", json!({"rope_scaling": {"type": ["yarn"], "factor": 2.0}}), &["type", "yarn", "a text"]);
    refused("llama", set(json!({"rope_type": "yarn"})), &["factor", "absent", "a number"]);
    refused("llama", set(json!({"rope_theta": null})), &["rope_theta", "null", "a number"]);
    refused("llama", set(json!({"rope_theta": "Infinity"})), &["rope_theta", "Infinity", "a number"]);
    refused("llama", json!({"layer_types": "full_attention"}), &["layer_types", "full_attention", "each layer"]);
    refused("llama", json!({"layer_types": [0]}), &["layer_types", "a list with 0", "a text"]);
    refused("qwen3", json!({"use_sliding_window": "true"}), &["use_sliding_window", "true or false"]);
    refused("smollm3", json!({"no_rope_layers": [null]}), &["no_rope_layers", "null", "0 or 1"]);
    refused("smollm3", json!({"no_rope_layers": "1"}), &["no_rope_layers", "each layer"]);
    refused("smollm3", json!({"no_rope_layer_interval": 0}), &["no_rope_layer_interval", "from 1"]);
    refused("gpt2", json!({"scale_attn_weights": "false"}), &["scale_attn_weights", "false", "true or false"]);
    refused("gpt2", json!({"scale_attn_by_inverse_layer_idx": 1}), &["scale_attn_by_inverse_layer_idx", "1"]);
    refused("gemma2", json!({"attn_logit_softcapping": false}), &["attn_logit_softcapping", "false", "a number"]);
    refused("gemma2", json!({"query_pre_attn_scalar": null}), &["query_pre_attn_scalar", "a number"]);
    refused("cohere2", json!({"sliding_window_pattern": null}), &["sliding_window_pattern", "null", "from 1"]);
    refused("gpt_neo", json!({"attention_layers": [1]}), &["attention_layers", "a list with 1"]);
    refused("gpt_neo", json!({}), &["attention_layers", "absent"]);
}
