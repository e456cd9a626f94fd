//! Opening checkpoints and detecting layouts: sharded, missing, hostile.

use std::collections::HashMap;
use std::path::Path;

use candle_attention::checkpoint::{Checkpoint, WeightSource, config_from_json, detect, infer_config};
use candle_attention::{AttentionConfig, Error, MultiHeadAttention};
use candle_core::{DType, Device, Module, Tensor};
use candle_nn::VarBuilder;

use crate::common::{Golden, Random, fixture, numbers, says};

const CPU: Device = Device::Cpu;

fn tensors(names: &[(&str, &[usize])]) -> HashMap<String, Tensor> {
    let mut random = Random::new(30);
    names.iter().map(|(name, dims)| (name.to_string(), random.tensor(dims, DType::F32))).collect()
}

/// A BERT attention layer of width 4 under `prefix`.
fn bert(prefix: &str) -> HashMap<String, Tensor> {
    let names = ["self.query", "self.key", "self.value", "output.dense"];
    let mut all = HashMap::new();
    for (name, tensor) in names.iter().flat_map(|name| {
        tensors(&[("weight", &[4, 4]), ("bias", &[4])]).into_iter().map(move |(part, t)| (format!("{name}.{part}"), t))
    }) {
        all.insert(format!("{prefix}.{name}"), tensor);
    }
    all
}

fn save(tensors: &HashMap<String, Tensor>, path: &Path) {
    candle_core::safetensors::save(tensors, path).unwrap();
}

fn open_bytes(bytes: &[u8]) -> Result<Checkpoint, Error> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    std::fs::write(&path, bytes).unwrap();
    Checkpoint::open(&path)
}

#[test]
fn layer_across_two_shards_loads() {
    let folder = tempfile::tempdir().unwrap();
    let all = bert("layer");
    let (mut first, mut second) = (HashMap::new(), HashMap::new());
    let mut map = serde_json::Map::new();
    for (i, (name, tensor)) in all.iter().enumerate() {
        let (shard, file) = if i % 2 == 0 { (&mut first, "a.safetensors") } else { (&mut second, "b.safetensors") };
        shard.insert(name.clone(), tensor.clone());
        map.insert(name.clone(), file.into());
    }
    save(&first, &folder.path().join("a.safetensors"));
    save(&second, &folder.path().join("b.safetensors"));
    let index = serde_json::json!({"metadata": {"total_size": 1}, "weight_map": map});
    std::fs::write(folder.path().join("model.safetensors.index.json"), index.to_string()).unwrap();

    let layer = |source| MultiHeadAttention::load(&AttentionConfig::new(4, 2), source).unwrap();
    let sharded = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(sharded.names().count(), 8);
    let by_index = Checkpoint::open(folder.path().join("model.safetensors.index.json")).unwrap();
    let xs = Random::new(31).tensor(&[1, 3, 4], DType::F32);
    let vb = VarBuilder::from_tensors(all, DType::F32, &CPU).pp("layer");
    let want = numbers(&MultiHeadAttention::load(&AttentionConfig::new(4, 2), vb).unwrap().forward(&xs).unwrap());
    for checkpoint in [sharded, by_index] {
        assert_eq!(numbers(&layer(checkpoint.at("layer.", DType::F32, &CPU)).forward(&xs).unwrap()), want);
    }

    std::fs::remove_file(folder.path().join("b.safetensors")).unwrap();
    says(Checkpoint::open(folder.path()), &["model.safetensors.index.json", "shard `b.safetensors`", "is missing"]);
}

#[test]
fn index_with_paths_outside_its_folder_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    save(&bert("layer"), &folder.path().join("outside.safetensors"));
    let inner = folder.path().join("model");
    std::fs::create_dir(&inner).unwrap();
    let absolute = folder.path().join("outside.safetensors").display().to_string();
    for name in ["../outside.safetensors", "..", ".", "", "a/../../outside.safetensors", "..\\outside", &absolute] {
        let index = serde_json::json!({"weight_map": {"layer.self.query.weight": name}});
        let path = inner.join("model.safetensors.index.json");
        std::fs::write(&path, index.to_string()).unwrap();
        says(Checkpoint::open(&inner), &["shard name", "`layer.self.query.weight`", "is not a plain file name"]);
    }
}

#[test]
fn index_that_contradicts_its_shards_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    save(&bert("layer"), &folder.path().join("a.safetensors"));
    let index = folder.path().join("model.safetensors.index.json");
    std::fs::write(&index, r#"{"weight_map": {"layer.other": "a.safetensors"}}"#).unwrap();
    says(Checkpoint::open(folder.path()), &["tensor `layer.other`", "`a.safetensors`", "does not hold it"]);
    std::fs::write(&index, r#"{"weight_map": 3}"#).unwrap();
    says(Checkpoint::open(folder.path()), &["model.safetensors.index.json", "not an index"]);
    std::fs::write(&index, "{").unwrap();
    says(Checkpoint::open(folder.path()), &["model.safetensors.index.json", "not an index"]);
}

#[test]
fn hostile_files_are_errors() {
    says(Checkpoint::open("no/such/folder"), &["no/such/folder", "No such file"]);
    let folder = tempfile::tempdir().unwrap();
    says(Checkpoint::open(folder.path()), &["holds neither `model.safetensors` nor"]);
    std::fs::write(folder.path().join("pytorch_model.bin"), "x").unwrap();
    says(Checkpoint::open(folder.path()), &["`pytorch_model.bin`", "converted to safetensors"]);

    let file = |header: &str, data: usize| {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.extend(vec![0; data]);
        bytes
    };
    let tensor = |from: usize, to: usize, shape: &str| {
        format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":[{from},{to}]}}}}"#)
    };
    assert!(open_bytes(&file(&tensor(0, 16, "[2,2]"), 16)).is_ok());
    let bad: [(&str, Vec<u8>); 12] = [
        ("empty", vec![]),
        ("too short", vec![1, 2, 3]),
        ("header length beyond the file", u64::MAX.to_le_bytes().to_vec()),
        ("header of 1 GB", (1u64 << 30).to_le_bytes().to_vec()),
        ("not JSON", file("{", 0)),
        ("not UTF-8", [&2u64.to_le_bytes()[..], &[0xff, 0xfe]].concat()),
        ("truncated data", file(&tensor(0, 16, "[2,2]"), 15)),
        ("data too long", file(&tensor(0, 16, "[2,2]"), 17)),
        ("shape and offsets disagree", file(&tensor(0, 12, "[2,2]"), 12)),
        ("offsets backwards", file(&tensor(16, 0, "[2,2]"), 16)),
        ("a shape that overflows", file(&tensor(0, 16, "[18446744073709551615,2]"), 16)),
        ("an unknown dtype", file(&tensor(0, 16, "[2,2]").replace("F32", "Q7"), 16)),
    ];
    for (what, bytes) in bad {
        let error = open_bytes(&bytes).err().unwrap_or_else(|| panic!("{what} was opened")).to_string();
        let reason = if what == "empty" { "the file is empty" } else { "not a valid safetensors file" };
        assert!(error.contains(&format!("model.safetensors: {reason}")), "{what}: {error}");
        assert_eq!(error.lines().count(), 1, "{what}: {error}");
    }
}

#[test]
fn integer_weights_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let mut all = bert("layer");
    let quantized = all["layer.self.key.weight"].to_dtype(DType::U8).unwrap();
    all.insert("layer.self.key.weight".to_string(), quantized);
    let path = folder.path().join("model.safetensors");
    save(&all, &path);
    let source = Checkpoint::open(&path).unwrap().at("layer", DType::F32, &CPU);
    let loaded = MultiHeadAttention::load(&AttentionConfig::new(4, 2), source);
    says(loaded, &["tensor `layer.self.key.weight` has dtype U8", "f16, bf16, f32 or f64"]);
}

#[test]
fn to_varmap_takes_float_tensors_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let mut all = tensors(&[("layer.weight", &[2, 3]), ("other.weight", &[2])]);
    all.insert("layer.position_ids".to_string(), Tensor::arange(0i64, 4, &CPU).unwrap());
    save(&all, &path);
    let map = Checkpoint::open(&path).unwrap().to_varmap("layer", DType::F64, &CPU).unwrap();
    let map = map.data().lock().unwrap();
    assert_eq!(map.keys().collect::<Vec<_>>(), ["layer.weight"]);
    assert_eq!(map["layer.weight"].dtype(), DType::F64);

    let header = r#"{"q":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}}"#;
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 4]].concat();
    std::fs::write(&path, bytes).unwrap();
    let quantized = Checkpoint::open(&path).unwrap().to_varmap("", DType::F32, &CPU);
    says(quantized, &["tensor `q` has dtype F8_E4M3", "f16, bf16, f32 or f64"]);
}

#[test]
fn unknown_layout_error_names_the_nearest_layout() {
    let golden = Golden::open("layouts.safetensors").0;
    let at = |prefix: &str| detect(&golden.at(prefix, DType::F32, &CPU)).map(|layout| layout.name());
    says(at("bert.encoder.layer.0"), &["did you mean prefix `bert.encoder.layer.0.attention`?"]);
    says(
        at("bert.encoder.layer.0.attention.self"),
        &[
            "no known attention layout under prefix `bert.encoder.layer.0.attention.self`",
            "it holds `key.bias`, `key.weight`",
            "nearest is layout `albert`, which lacks `dense.weight`",
        ],
    );
    says(at("nowhere"), &["prefix `nowhere`", "it holds no tensor"]);
    // Whoever loads a layer learns where the layers are.
    let load = |prefix: &str| {
        MultiHeadAttention::load(&AttentionConfig::new(24, 3), golden.at(prefix, DType::F32, &CPU)).map(|_| ())
    };
    says(load("nowhere"), &["tensor `nowhere` is missing", "the attention layers are `albert.encoder", "more"]);
    let json = serde_json::json!({"model_type": "bert", "num_attention_heads": 3});
    let asked = config_from_json(&json, &golden.at("nowhere", DType::F32, &CPU));
    says(asked, &["no tensor is below this prefix", "the attention layers are `albert.encoder"]);

    let vb = VarBuilder::from_tensors(tensors(&[("q_lin.weight", &[4, 4])]), DType::F32, &CPU);
    says(
        detect(&vb),
        &["of the known keys it holds `q_lin.weight`", "layout `distilbert`, which lacks `k_lin.weight`"],
    );
    let vb = VarBuilder::from_tensors(HashMap::new(), DType::F32, &CPU);
    says(detect(&vb), &["it holds no known key"]);
}

#[test]
fn unknown_tensors_that_change_the_result_are_an_error() {
    let load = |all: HashMap<String, Tensor>| {
        let vb = VarBuilder::from_tensors(all.clone(), DType::F32, &CPU).pp("layer");
        let by_vb = MultiHeadAttention::load(&AttentionConfig::new(4, 2), vb);
        let folder = tempfile::tempdir().unwrap();
        save(&all, &folder.path().join("model.safetensors"));
        let source = Checkpoint::open(folder.path()).unwrap().at("layer", DType::F32, &CPU);
        (by_vb, MultiHeadAttention::load(&AttentionConfig::new(4, 2), source))
    };
    let with = |name: &str, dims: &[usize]| {
        let mut all = bert("layer");
        all.extend(tensors(&[(name, dims)]));
        load(all)
    };
    let (by_vb, by_file) = with("layer.output.LayerNorm.weight", &[4]);
    assert!(by_vb.is_ok() && by_file.is_ok());
    for (name, why) in
        [("self.distance_embedding.weight", "relative position"), ("q_layer_norm.weight", "normalizes queries")]
    {
        let (by_vb, by_file) = with(&format!("layer.{name}"), &[4]);
        says(by_vb, &[&format!("tensor `layer.{name}` is not supported in layout `bert`"), why]);
        says(by_file, &[&format!("tensor `layer.{name}` is not supported in layout `bert`"), why]);
    }
    // What a configuration has to say is asked for.
    for (name, field) in [
        ("q_norm.weight", "qk_norm = none"),
        ("q_layernorm.norms.0.weight", "qk_norm = none"),
        ("query_layernorm.weight", "qk_norm = none"),
        ("self.relative_position_bias_table", "position = none"),
        ("self.rotary_embeddings.inv_freq", "position = None"),
    ] {
        let (by_vb, by_file) = with(&format!("layer.{name}"), &[4]);
        says(by_vb, &[field, name.split('.').next().unwrap()]);
        says(by_file, &[field]);
    }
    // A file can be searched for names that nobody thought of.
    says(with("layer.self.mystery", &[4]).1, &["tensor `layer.self.mystery`", "not part of the layout"]);

    let mut without = bert("layer");
    without.remove("layer.self.key.bias");
    let (by_vb, by_file) = load(without);
    says(by_vb, &["tensor `layer.self.key.bias` is missing", "layout `bert` has it beside `self.query.bias`"]);
    says(by_file, &["tensor `layer.self.key.bias` is missing"]);
}

/// The causal mask that GPT-2's files keep beside the weights is no part of the layer; a bias of that name would be.
#[test]
fn mask_buffers_of_gpt2_are_ignored() {
    let names: &[(&str, &[usize])] =
        &[("c_attn.weight", &[4, 12]), ("c_attn.bias", &[12]), ("c_proj.weight", &[4, 4]), ("c_proj.bias", &[4])];
    let load = |more: (&str, &[usize])| {
        let mut all = tensors(names);
        all.extend(tensors(&[more]));
        let folder = tempfile::tempdir().unwrap();
        save(&all, &folder.path().join("model.safetensors"));
        let source = Checkpoint::open(folder.path()).unwrap().at("", DType::F32, &CPU);
        MultiHeadAttention::load(&AttentionConfig::new(4, 2), source)
    };
    assert!(load(("bias", &[1, 1, 8, 8])).is_ok());
    says(load(("bias", &[4])), &["tensor `bias`", "not part of the layout"]);
}

#[test]
fn wrong_shapes_are_errors_that_name_the_tensor() {
    let load = |config: AttentionConfig, all: HashMap<String, Tensor>| {
        MultiHeadAttention::load(&config, VarBuilder::from_tensors(all, DType::F32, &CPU))
    };
    let split: &[(&str, &[usize])] = &[
        ("q_proj.weight", &[4, 4]),
        ("k_proj.weight", &[2, 4]),
        ("v_proj.weight", &[2, 4]),
        ("o_proj.weight", &[4, 4]),
    ];
    let grouped = AttentionConfig::new(4, 2).with_num_key_value_heads(1);
    assert!(load(grouped.clone(), tensors(split)).is_ok());
    let wrong = load(AttentionConfig::new(4, 2), tensors(split));
    says(wrong, &["tensor `k_proj.weight` has shape [2, 4], expected [4, 4]"]);
    let mut half = tensors(split);
    half.extend(tensors(&[("bias_k", &[1, 1, 2])]));
    says(load(grouped.clone(), half), &["tensor `bias_v` is missing"]);
    let mut scored = tensors(split);
    scored.extend(tensors(&[("score.weight", &[2, 2])]));
    says(load(grouped, scored), &["scoring", "set", "`score.weight`"]);

    let fused: &[(&str, &[usize])] = &[("in_proj_weight", &[12, 4]), ("out_proj.weight", &[4, 4])];
    assert!(load(AttentionConfig::new(4, 2), tensors(fused)).is_ok());
    says(load(AttentionConfig::new(4, 2).with_key_size(3), tensors(fused)), &["key_size = 3", "query_size = 4"]);

    let source = VarBuilder::from_tensors(tensors(split), DType::F32, &CPU);
    let config = infer_config(&source, 2).unwrap();
    assert_eq!(
        (config.resolved_num_key_value_heads(), config.resolved_head_dim(), config.resolved_value_head_dim()),
        (1, 2, 2)
    );
    says(infer_config(&source, 3), &["num_attention_heads = 3", "a divisor of 4"]);
    says(infer_config(&source, 0), &["num_attention_heads = 0"]);
    says(infer_config(&source, 1), &["num_attention_heads = 1", "a divisor of 2, the rows of the key projection"]);
}

#[test]
fn config_json_gives_heads_and_scale() {
    let golden = Golden::open("layouts.safetensors").0;
    let read = |prefix: &str, json: serde_json::Value| config_from_json(&json, &golden.at(prefix, DType::F32, &CPU));
    let bert = "bert.encoder.layer.0.attention";
    let heads = 4;
    for key in ["num_attention_heads", "n_heads", "n_head", "num_heads", "encoder_attention_heads"] {
        let read = read(bert, serde_json::json!({"model_type": "bert", key: heads})).unwrap();
        assert_eq!(read.config.num_attention_heads, heads);
    }
    let llama = "llama.model.layers.0.self_attn";
    let of = |model_type: &str, key: &str, value: serde_json::Value| serde_json::json!({"model_type": model_type, "num_attention_heads": 4, key: value});
    let config = read(llama, of("llama", "num_key_value_heads", 2.into())).unwrap();
    assert_eq!(config.config.resolved_num_key_value_heads(), 2);
    let gemma = read(llama, of("gemma2", "query_pre_attn_scalar", 16.0.into())).unwrap();
    assert_eq!(gemma.config.resolved_scale(), 0.25);
    let granite = read(llama, of("granite", "attention_multiplier", 0.5.into())).unwrap();
    assert_eq!(granite.config.resolved_scale(), 0.5);
    // The configuration of another, larger model.
    let other = read(bert, of("bert", "hidden_size", 1024.into()));
    says(other, &["hidden_size = 1024", "as the weights under `bert.encoder.layer.0.attention` have it"]);
    let clip = serde_json::json!({"model_type": "clip", "text_config": {"num_attention_heads": 4},
            "vision_config": {"num_attention_heads": 5}});
    let shape =
        golden.tensor("clip_text.text_model.encoder.layers.0.self_attn.q_proj.weight", &CPU).unwrap().dim(0).unwrap();
    let text = read("clip_text.text_model.encoder.layers.0.self_attn", clip);
    assert_eq!(text.is_ok(), shape.is_multiple_of(4));

    let new =
        serde_json::json!({"model_type": "new", "position_embedding_type": "rope", "layer_norm_type": "layer_norm"});
    says(read(bert, new), &["num_attention_heads = absent"]);
    says(read(bert, of("bert", "num_attention_heads", "4".into())), &["config key `num_attention_heads` is \"4\""]);
    says(read(bert, of("bert", "num_attention_heads", (-4).into())), &["config key `num_attention_heads` is -4"]);
    says(
        read(llama, of("llama", "num_key_value_heads", 4.into())),
        &["num_key_value_heads = 4", "2, as the weights under `llama.model.layers.0.self_attn` have it"],
    );
}

/// A layer under names that no layout has, by the names that one has.
#[test]
fn renamed_tensors_are_found_by_their_new_names() {
    let golden = Golden::open("layouts.safetensors").0;
    let theirs = golden.rename(|name| name.replace("self.query", "self.q_linear")).unwrap();
    let prefix = "bert.encoder.layer.0.attention";
    let load = |checkpoint: &Checkpoint| {
        MultiHeadAttention::load(&AttentionConfig::new(24, 3), checkpoint.at(prefix, DType::F32, &CPU))
    };
    says(load(&theirs), &["`self.q_linear.weight`"]);
    let again = theirs.rename(|name| name.replace("self.q_linear", "self.query")).unwrap();
    let xs = Random::new(31).tensor(&[1, 4, 24], DType::F32);
    let output = |checkpoint: &Checkpoint| numbers(&load(checkpoint).unwrap().forward(&xs).unwrap());
    assert_eq!(output(&again), output(&golden));
    assert!(again.names().eq(golden.names()) && again.path() == golden.path());
    assert!(again.attention_layers(None).iter().any(|layer| layer.prefix == prefix));
    says(golden.rename(|_| "one".to_string()), &["the new name of `albert.", "is `one`", "no other tensor"]);
}

/// A prefix with the wrappers of a trainer, as it is in the file, is that of the layer without them.
#[test]
fn prefix_of_a_compiled_model_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    save(&bert("_orig_mod.encoder.layer.0.attention"), &path);
    let checkpoint = Checkpoint::open(&path).unwrap();
    for prefix in
        ["_orig_mod.encoder.layer.0.attention", "encoder.layer.0.attention", "module.encoder.layer.0.attention"]
    {
        checkpoint.check_prefix(prefix).unwrap();
        assert_eq!(detect(&checkpoint.at(prefix, DType::F32, &Device::Cpu)).unwrap().name(), "bert", "{prefix}");
    }
    says(checkpoint.check_prefix("_orig_mod.encoder.layer.1.attention"), &["encoder.layer.0.attention"]);
}

#[test]
fn prefix_matches_whole_name_parts_only() {
    let golden = Golden::open("layouts.safetensors").0;
    // `bart` must not take in `bart_cross`.
    let names = golden.at("bart", DType::F32, &CPU).names().unwrap();
    assert!(!names.is_empty() && names.iter().all(|name| !name.starts_with("_cross")));
    assert!(golden.path().unwrap().ends_with(fixture("layouts.safetensors").file_name().unwrap()));
}
