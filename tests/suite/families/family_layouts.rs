//! A family names the layouts of its layers: those load, and the layers of another family do not.

use std::collections::BTreeSet;

use candle_attention::checkpoint::{Checkpoint, ModelConfig, detect, layout_of, layouts, write_layers};
use candle_attention::{Error, MultiHeadAttention};
use candle_core::{DType, Device, Tensor};
use serde_json::{Value, json};

use crate::common::{Files, Random, family, numbers, says};

const CPU: Device = Device::Cpu;

/// Loads the first layer of a fixture by the configuration of another family.
fn load_as(checkpoint: &Checkpoint, like: &str) -> candle_attention::Result<()> {
    let config: Value = serde_json::from_str(&checkpoint.metadata()["config"]).unwrap();
    let cases: Value = serde_json::from_str(&checkpoint.metadata()["cases"]).unwrap();
    let prefix = cases[0]["prefix"].as_str().unwrap();
    let heads = ["num_attention_heads", "n_head", "encoder_attention_heads"].iter().find_map(|key| config.get(key));
    let other = json!({"model_type": like, "num_attention_heads": heads.unwrap()});
    // The name in the file and the name that a caller gives are one.
    let nameless = json!({"num_attention_heads": heads.unwrap()});
    let given = checkpoint.attention_with(prefix, ModelConfig::new(&nameless).with_like(like), DType::F32, &CPU);
    let stated = checkpoint.attention_with(prefix, &other, DType::F32, &CPU);
    assert_eq!(given.is_ok(), stated.is_ok(), "{like}");
    stated.map(|_| ())
}

/// Configurations of a repacked folder, each with weights that its family never has.
#[test]
fn layers_of_another_family_are_refused() {
    for weights in ["arcee", "granitemoe", "qwen3", "gemma2", "starcoder2"] {
        says(load_as(&family(weights), "bert"), &["layer of `bert`", "`candle-attention`", "`bert`, `flax-bert`"]);
    }
    for like in ["opt", "bart", "vit", "gpt2"] {
        says(load_as(&family("llama"), like), &[&format!("layer of `{like}`"), "`candle-attention`"]);
    }
    let model_types = Files::open_all("model_types");
    for like in ["biogpt", "imagegpt", "plbart"] {
        says(load_as(&model_types.checkpoint("roformer"), like), &[&format!("layer of `{like}`"), "is `bert`"]);
        says(load_as(&family("bert"), like), &["is `bert`"]);
    }
    // The names are another's, not the computation.
    load_as(&family("bert"), "megatron-bert").unwrap();
    says(load_as(&family("gpt2"), "bloom"), &["layer of `bloom` is `gpt2`, expected `neox`"]);
    says(load_as(&family("biogpt"), "llama"), &["is `bart`", "expected `candle-attention`"]);
}

/// Layers of any family can be written in the crate's own layout, and are that family's there; not in those of others.
#[test]
fn rewritten_layer_is_of_its_family() {
    let checkpoint = family("bert");
    let json: Value = serde_json::from_str(&checkpoint.metadata()["config"]).unwrap();
    let prefix = "encoder.layer.0.attention";
    let model = checkpoint.attention_with(prefix, &json, DType::F32, &CPU).unwrap();
    let (config, weights) = (model.layer.config(), model.layer.weights().unwrap());
    let xs = Random::new(32).tensor(&[1, 5, config.hidden_size], DType::F32);
    let output = |layer: &MultiHeadAttention| numbers(&layer.attend(&xs, &xs, &xs, &config.mask).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let mut loaded = Vec::new();
    for layout in layouts() {
        let file = folder.path().join("layer.safetensors");
        if write_layers(&file, &[(prefix, &weights, config)], layout, Default::default()).is_err() {
            continue;
        }
        let again = Checkpoint::open(&file).unwrap();
        match again.attention_with(prefix, &json, DType::F32, &CPU) {
            Ok(again) => {
                assert_eq!(output(&again.layer), output(&model.layer), "{}", layout.name());
                loaded.push(layout.name());
            }
            Err(error) => assert!(error.to_string().contains("the layout of a layer of `bert`"), "{error}"),
        }
        // Whatever the family, by the layer's own configuration.
        let source = again.at(prefix, DType::F32, &CPU);
        assert_eq!(output(&MultiHeadAttention::load(config, source).unwrap()), output(&model.layer));
    }
    assert_eq!(loaded, ["candle-attention", "bert", "flax-bert"]);
}

/// The usual layout of a family is the one that its fixture has.
#[test]
fn layout_of_a_family_is_that_of_its_files() {
    let (mut checked, mut wrong) = (0, Vec::new());
    for files in [Files::open("families.safetensors"), Files::open_all("model_types")] {
        for (name, checkpoint) in files.all() {
            let config: Value = serde_json::from_str(&checkpoint.metadata()["config"]).unwrap();
            let parts = config.as_object().unwrap().values().any(|part| part.get("model_type").is_some());
            let Some(model_type) = config.get("model_type").and_then(Value::as_str).filter(|_| !parts) else {
                continue;
            };
            let Ok(layout) = layout_of(model_type) else { continue };
            let layers = checkpoint.attention_layers(None);
            let found: BTreeSet<&str> = layers
                .iter()
                .filter_map(|layer| Some(detect(&checkpoint.at(&layer.prefix, DType::F32, &CPU)).ok()?.name()))
                .collect();
            // Layers of cross-attention; the Lite version of DeepSeek V2; DeepSeek V4 as transformers and this crate
            // write it; a part that is saved without its model's renames; layers with a setting that is refused.
            let others = ["gpt2_cross", "deepseek_v2", "deepseek_v4", "deepseek_v4+own"];
            let is_refused = name.contains('+') && checkpoint.metadata().contains_key("refused");
            let other = is_refused || others.contains(&name) || found == BTreeSet::from(["candle-attention"]);
            if !other && !found.contains(layout.name()) {
                wrong.push(format!("{name}: {model_type} is {found:?}, not {}", layout.name()));
            }
            checked += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 200, "{checked}");
    assert_eq!(layout_of("gpt2").unwrap().name(), "gpt2");
    assert!(matches!(layout_of("lamma"), Err(Error::UnknownFamily { .. })));
    assert!(matches!(layout_of("prophetnet"), Err(Error::UnsupportedFamily { .. })));
}

/// The table of timm's BEiT that all layers share is the only one, and is found whatever the grid is called.
#[test]
fn shared_table_beside_one_of_the_layer_is_refused() {
    let checkpoint = family("timm_beit_shared");
    let mut tensors = std::collections::HashMap::new();
    for name in checkpoint.names() {
        tensors.insert(name.to_string(), checkpoint.tensor(name, &CPU).unwrap());
    }
    let table = tensors["rel_pos_bias.relative_position_bias_table"].clone();
    let load = |tensors: &std::collections::HashMap<String, Tensor>| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        candle_core::safetensors::save(tensors, &path).unwrap();
        let json = json!({"num_heads": 4, "img_size": [12, 8], "patch_size": 4});
        let config = ModelConfig::new(&json).with_like("timm");
        Checkpoint::open(&path).unwrap().attention_with("blocks.0.attn", config, DType::F32, &CPU)
    };
    assert_eq!(load(&tensors).unwrap().layer.config().position.to_string().split('(').next(), Some("relative grid"));
    tensors.insert("blocks.0.attn.relative_position_bias_table".to_string(), table);
    says(load(&tensors), &["relative grid", "one with `rel_pos_bias.relative_position_bias_table` alone"]);
}

/// Conditional DETR: one block has the projections of both of its layers, and the prefix says which are meant.
#[test]
fn projections_beside_the_prefix_are_those_of_its_layer() {
    let (folder, mut random) = (tempfile::tempdir().unwrap(), Random::new(4));
    let path = folder.path().join("model.safetensors");
    let mut tensors = std::collections::HashMap::new();
    for (layer, module, inputs) in [
        ("sa", "self_attn", &["qcontent", "qpos", "kcontent", "kpos", "v"][..]),
        ("ca", "encoder_attn", &["qcontent", "qpos", "qpos_sine", "kcontent", "kpos", "v"]),
    ] {
        let inputs = inputs.iter().map(|input| format!("decoder.layers.0.{layer}_{input}_proj"));
        for name in inputs.chain([format!("decoder.layers.0.{module}.out_proj")]) {
            tensors.insert(format!("{name}.weight"), random.tensor(&[8, 8], DType::F32));
            tensors.insert(format!("{name}.bias"), random.tensor(&[8], DType::F32));
        }
    }
    candle_core::safetensors::save(&tensors, &path).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let json = json!({"model_type": "conditional_detr", "d_model": 8, "decoder_attention_heads": 2});
    let load = |prefix: &str| checkpoint.attention_with(prefix, &json, DType::F32, &CPU);

    let layers = checkpoint.attention_layers(Some(ModelConfig::new(&json)));
    let found: Vec<_> = layers.iter().map(|layer| (&*layer.prefix, layer.layout, layer.parameters)).collect();
    let [cross, own] = ["decoder.layers.0.encoder_attn", "decoder.layers.0.self_attn"];
    assert_eq!(found, [(cross, "conditional-detr-cross", 7 * 72), (own, "conditional-detr", 6 * 72)]);
    assert!(layers.iter().all(|layer| layer.problem.is_none()), "{layers:?}");

    let sizes = |prefix: &str| {
        let model = load(prefix).unwrap();
        assert!(model.note.unwrap().contains("side by side"));
        (model.layer.config().resolved_query_size(), model.layer.config().resolved_head_dim())
    };
    assert_eq!((sizes(own), sizes(cross)), ((16, 4), (24, 8)));
    // The values of each layer are its own.
    let weights = load(own).unwrap().layer.weights().unwrap().qkv.split([8, 8, 8], 2).unwrap();
    assert_eq!(numbers(&weights[2].weight), numbers(&tensors["decoder.layers.0.sa_v_proj.weight"]));
    says(
        load("decoder.layers.0"),
        &["no known attention layout", "did you mean prefix `decoder.layers.0.encoder_attn`"],
    );
    says(load("decoder.layers.1.self_attn"), &["`decoder.layers.1.self_attn` is missing"]);
    tensors.remove("decoder.layers.0.sa_kpos_proj.bias");
    candle_core::safetensors::save(&tensors, &path).unwrap();
    let lacking = Checkpoint::open(&path).unwrap();
    says(lacking.attention_with(own, &json, DType::F32, &CPU), &["no known attention layout", "../sa_kpos_proj.bias"]);
}

/// XLNet: projections and biases without modules, and keys of what a layer does not compute.
#[test]
fn layer_of_xlnet_states_what_a_call_may_give() {
    let (folder, mut random) = (tempfile::tempdir().unwrap(), Random::new(6));
    let path = folder.path().join("model.safetensors");
    let prefix = "transformer.layer.0.rel_attn";
    let mut tensors = std::collections::HashMap::new();
    for (name, dims) in [
        ("q", &[6, 2, 3][..]),
        ("k", &[6, 2, 3]),
        ("v", &[6, 2, 3]),
        ("o", &[6, 2, 3]),
        ("r", &[6, 2, 3]),
        ("r_w_bias", &[2, 3]),
        ("r_r_bias", &[2, 3]),
        ("r_s_bias", &[2, 3]),
        ("seg_embed", &[2, 2, 3]),
        ("layer_norm.weight", &[6]),
        ("layer_norm.bias", &[6]),
    ] {
        tensors.insert(format!("{prefix}.{name}"), random.tensor(dims, DType::F32));
    }
    let load = |tensors: &std::collections::HashMap<String, Tensor>, keys: Value| {
        candle_core::safetensors::save(tensors, &path).unwrap();
        let mut json = json!({"model_type": "xlnet", "d_model": 6, "n_head": 2});
        json.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        Checkpoint::open(&path).unwrap().attention_with(prefix, &json, DType::F32, &CPU)
    };
    // As the first published file has them.
    let published = json!({"attn_type": "bi", "bi_data": false, "clamp_len": -1, "mem_len": null, "reuse_len": null,
        "same_length": false, "untie_r": true});
    for keys in [json!({}), published] {
        let model = load(&tensors, keys).unwrap();
        assert_eq!((model.layout.name(), model.mask().to_string()), ("xlnet", "none".to_string()));
        assert!(model.requires().is_empty() && model.note.unwrap().contains("token types"));
        assert_eq!(model.layer.config().position.to_string(), "relative sinusoids and segments");
        let written = model.layer.weights().unwrap().to_layout(model.layer.config(), model.layout).unwrap();
        assert_eq!(written.len(), 9);
        for (name, tensor) in written {
            assert_eq!(numbers(&tensor), numbers(&tensors[&format!("{prefix}.{name}")]), "{name}");
        }
        // The projections are sums over the model's width of one token.
        let value = &model.layer.weights().unwrap().qkv.split([6, 6, 6], 2).unwrap()[2];
        let stored = tensors[&format!("{prefix}.v")].reshape((6, 6)).unwrap();
        assert_eq!(numbers(&value.weight), numbers(&stored.t().unwrap()));
    }
    for (keys, said) in [
        (json!({"attn_type": "uni"}), ["attn_type", "causal attention"]),
        (json!({"bi_data": true}), ["bi_data", "the other direction"]),
        (json!({"clamp_len": 4}), ["clamp_len", "a largest distance"]),
    ] {
        says(load(&tensors, keys), &said);
    }
    for (lacking, said) in [("r", "lacks `r`"), ("seg_embed", "seg_embed"), ("r_w_bias", "r_w_bias")] {
        let mut fewer = tensors.clone();
        fewer.remove(&format!("{prefix}.{lacking}"));
        says(load(&fewer, json!({})), &[said]);
    }
    tensors.insert(format!("{prefix}.q_bias"), random.tensor(&[6], DType::F32));
    says(load(&tensors, json!({})), &["q_bias", "a separate query bias"]);
}

/// BLT: `q_norm` and `k_norm` in its cross-attention are norms of inputs, and in all other places those of queries and
/// keys.
#[test]
fn norms_of_inputs_are_told_by_the_prefix() {
    let (folder, mut random) = (tempfile::tempdir().unwrap(), Random::new(5));
    let path = folder.path().join("model.safetensors");
    let mut tensors = std::collections::HashMap::new();
    for layer in ["local_encoder.cross_attn_layers.0", "local_encoder.layers.0.self_attn"] {
        for name in ["q_proj", "k_proj", "v_proj", "o_proj"] {
            tensors.insert(format!("{layer}.{name}.weight"), random.tensor(&[8, 8], DType::F32));
        }
        for name in ["q_norm", "k_norm"] {
            tensors.insert(format!("{layer}.{name}.weight"), random.tensor(&[8], DType::F32));
        }
    }
    candle_core::safetensors::save(&tensors, &path).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let encoder = json!({
        "model_type": "blt_local_encoder", "hidden_size": 8, "num_attention_heads": 2, "sliding_window": null,
    });
    // The whole states the window of its encoder.
    let json = json!({"model_type": "blt", "encoder_config": encoder, "local_attention_window_len": null});
    let load = |prefix: &str| checkpoint.attention_with(prefix, &json, DType::F32, &CPU);
    let model = load("local_encoder.cross_attn_layers.0").unwrap();
    assert_eq!(model.layout.name(), "blt-cross");
    assert!(model.layer.weights().unwrap().parameters.is_empty());
    assert!(model.note.unwrap().contains("norms of the inputs"));
    let (xs, full) = (random.tensor(&[1, 3, 8], DType::F32), candle_attention::AttentionMask::full());
    says(model.attend(&xs, &xs, &xs, full), &["mask"]);
    says(load("local_encoder.layers.0.self_attn"), &["norms of queries and keys is in the checkpoint"]);
    says(model.layer.weights().unwrap().to_layout(model.layer.config(), model.layout), &["without `q_norm.weight`"]);
}
