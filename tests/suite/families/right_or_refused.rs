//! A `config.json` gives the layer as its model runs it, or an error that says which family or key is not known.

use std::collections::HashMap;

use candle_attention::checkpoint::{Checkpoint, ModelAttention, ModelConfig};
use candle_attention::{AttentionMask, CallInput, Error};
use candle_core::{DType, Device, Tensor};
use serde_json::{Value, json};

use crate::common::{assert_close, family, says};

const CPU: Device = Device::Cpu;

/// A checkpoint with layers of 2 heads in this crate's own layout under these prefixes, with all biases: every family's
/// layers can be written so.
fn checkpoint(folder: &tempfile::TempDir, prefixes: &[&str]) -> Checkpoint {
    let mut tensors = HashMap::new();
    for prefix in prefixes {
        for name in ["q_proj", "k_proj", "v_proj", "o_proj"] {
            let numbers = (0..64).map(|i| ((i * 7 + name.len()) % 13) as f32 / 13.0 - 0.5).collect::<Vec<_>>();
            tensors.insert(format!("{prefix}.{name}.weight"), Tensor::from_vec(numbers, (8, 8), &CPU).unwrap());
            tensors.insert(format!("{prefix}.{name}.bias"), Tensor::ones(8, DType::F32, &CPU).unwrap());
        }
    }
    let path = folder.path().join("model.safetensors");
    candle_core::safetensors::save(&tensors, &path).unwrap();
    Checkpoint::open(&path).unwrap()
}

/// Layer 0 of 2 heads of 4 numbers, as this configuration has it.
pub(crate) fn load(json: &Value, like: Option<&str>) -> candle_attention::Result<ModelAttention> {
    load_like("model.layers.0.self_attn", json, like)
}

/// The same of the layer at `prefix`.
pub(crate) fn load_at(prefix: &str, json: &Value) -> candle_attention::Result<ModelAttention> {
    load_like(prefix, json, None)
}

fn load_like(prefix: &str, json: &Value, like: Option<&str>) -> candle_attention::Result<ModelAttention> {
    let folder = tempfile::tempdir().unwrap();
    let config = ModelConfig::new(json).with_like(like);
    checkpoint(&folder, &[prefix]).attention_with(prefix, config, DType::F32, &CPU)
}

#[test]
fn unknown_family_is_an_error_that_can_be_matched() {
    let unknown = json!({"model_type": "lamma", "num_attention_heads": 2, "rope_theta": 1e4});
    match load(&unknown, None) {
        Err(Error::UnknownFamily { model_type: Some(name), near }) => {
            assert_eq!(name, "lamma");
            assert!(near.contains("llama"), "{near}");
        }
        other => panic!("{other:?}"),
    }
    says(load(&unknown, None), &["model_type `lamma`", "ModelConfig::with_like", "--like", "llama"]);
    // The same keys under a name that is known are not refused.
    let known = load(&json!({"model_type": "llama", "num_attention_heads": 2, "rope_theta": 1e4}), None).unwrap();
    let like = load(&unknown, Some("llama")).unwrap();
    assert_eq!(like.layer.config(), known.layer.config());
    assert_eq!(like.mask().to_string(), "causal");
    // Without a name there is nothing to go by.
    let nameless = json!({"num_attention_heads": 2});
    assert!(matches!(load(&nameless, None), Err(Error::UnknownFamily { model_type: None, .. })));
    says(load(&nameless, None), &["no `model_type`", "ModelConfig::with_like"]);
    assert_eq!(load(&nameless, Some("opt")).unwrap().mask().to_string(), "causal");
    // A name that is asked for goes before the file's own, and has to be known.
    let opt = json!({"model_type": "opt", "num_attention_heads": 2});
    assert!(load(&opt, Some("llama")).unwrap().layer.config().position.to_string().contains("rotary"));
    says(load(&opt, Some("qwen")), &["model_type `qwen`", "qwen2", "qwen3"]);
}

#[test]
fn family_that_cannot_run_is_an_error_with_its_reason() {
    let jetmoe = load(&json!({"model_type": "jetmoe", "num_attention_heads": 2}), None);
    assert!(matches!(&jetmoe, Err(Error::UnsupportedFamily { model_type, .. }) if model_type == "jetmoe"));
    says(jetmoe, &["`jetmoe`", "a mixture of experts"]);
}

/// PaliGemma runs a Gemma as no Gemma runs: its prompt sees both ways, whatever the section of the text states.
#[test]
fn part_that_its_model_masks_otherwise_is_refused() {
    let text = json!({"model_type": "gemma", "num_attention_heads": 2});
    let vision = json!({"model_type": "siglip_vision_model", "num_attention_heads": 2});
    let json = json!({"model_type": "paligemma", "text_config": text, "vision_config": vision});
    let folder = tempfile::tempdir().unwrap();
    let load = |prefix: &str, like: Option<&str>| {
        let config = ModelConfig::new(&json).with_like(like);
        checkpoint(&folder, &[prefix]).attention_with(prefix, config, DType::F32, &CPU)
    };
    let layer = "language_model.model.layers.0.self_attn";
    let model = load(layer, None).unwrap();
    assert_eq!((model.mask().to_string().as_str(), model.requires()), ("none", &[CallInput::Mask][..]));
    let xs = Tensor::zeros((1, 3, model.layer.config().hidden_size), DType::F32, &CPU).unwrap();
    says(model.layer.forward_t(&xs, false), &["a mask", "`paligemma`"]);
    let prefix = AttentionMask::prefix_lm(&[2]);
    assert_eq!(model.layer.attend(&xs, &xs, &xs, &prefix).unwrap().dims(), xs.dims());
    assert_eq!(load(layer, Some("gemma")).unwrap().mask().to_string(), "causal");
    assert_eq!(load("vision_tower.encoder.layers.0.attn", None).unwrap().mask().to_string(), "none");
}

/// The model of Gemma 3 with images has a causal mask, whatever the section of its text states.
#[test]
fn gemma3_with_images_does_not_see_both_ways() {
    let text = |both: bool| {
        json!({"model_type": "gemma3_text", "num_attention_heads": 2, "use_bidirectional_attention": both,
            "layer_types": ["full_attention"]})
    };
    let folder = tempfile::tempdir().unwrap();
    let layer = "language_model.model.layers.0.self_attn";
    let load = |both: bool, like: Option<&str>| {
        let vision = json!({"model_type": "siglip_vision_model", "num_attention_heads": 2});
        let json = json!({"model_type": "gemma3", "text_config": text(both), "vision_config": vision});
        let config = ModelConfig::new(&json).with_like(like);
        checkpoint(&folder, &[layer]).attention_with(layer, config, DType::F32, &CPU)
    };
    let model = load(false, None).unwrap();
    assert_eq!(model.mask().to_string(), "causal");
    // What the layer cannot know is said.
    let note = model.note.unwrap();
    assert!(note.contains("tokens of an image also see one another") && format!("{model:?}").contains(note));
    says(load(true, None), &["use_bidirectional_attention", "`gemma3`", "later tokens"]);
    let alone = load(true, Some("gemma3_text")).unwrap();
    assert_eq!((alone.mask().to_string().as_str(), alone.note), ("none", None));
}

/// Qwen2-VL's vision tower states the width of the text model as `hidden_size`.
#[test]
fn width_is_that_of_the_embeddings() {
    let tower = |width: usize| {
        load(&json!({"model_type": "qwen2_vl_vision", "num_heads": 2, "embed_dim": width, "hidden_size": 99}), None)
    };
    assert!(tower(8).is_ok());
    says(tower(12), &["embed_dim = 12", "expected 8"]);
}

/// A key that changes attention and that the family does not read is left out only where transformers leaves it out:
/// its config class, which does not know the key, runs the file.
#[test]
fn key_that_the_family_does_not_read_is_an_error() {
    for (family, key, value, what) in [
        ("opt", "rope_theta", json!(1e4), "rotary positions"),
        ("opt", "alibi", json!(true), "ALiBi"),
        ("llama", "attn_logit_softcapping", json!(50.0), "a cap on the scores"),
        ("llama", "clip_qkv", json!(8.0), "a limit on queries"),
        ("llama", "sliding_window", json!(7), "a sliding window"),
        ("bert", "sliding_window", json!(7), "a sliding window"),
        ("bert", "position_embedding_type", json!("relative_key"), "positions inside attention"),
        ("roberta", "position_embedding_type", json!("alibi"), "positions inside attention"),
        ("bert", "rope_parameters", json!({"rope_type": "default"}), "rotary positions"),
        ("llama", "rotary_emb_base", json!(5e5), "the spelling of another family"),
        ("llama", "rotary_pct", json!(0.5), "the spelling of another family"),
        ("llama", "rope_local_base_freq", json!(1e4), "layers with a window"),
        ("llama", "global_rope_theta", json!(1e4), "layers with a window"),
        ("mistral", "attention_chunk_size", json!(4), "chunks"),
    ] {
        let stated = json!({"model_type": family, "num_attention_heads": 2, key: value});
        let with = |key: &str, value: Value| {
            let mut stated = stated.clone();
            stated[key] = value;
            load(&stated, None)
        };
        if key != "position_embedding_type" {
            let plain = load(&json!({"model_type": family, "num_attention_heads": 2}), None).unwrap();
            for version in ["4.57.6", "5.24.0"] {
                let ignored = with("transformers_version", json!(version)).unwrap();
                assert_eq!(ignored.layer.config(), plain.layer.config(), "{key}");
            }
            assert!(with("transformers_version", json!("5.25.0.dev0")).is_err());
            let like = json!({"model_type": "own", "num_attention_heads": 2, key: value});
            assert!(load(&like, Some(family)).is_err());
        }
        let refused = with("auto_map", json!({"AutoModel": "modeling_own.OwnModel"}));
        assert!(matches!(&refused, Err(Error::UnsupportedKey { key: found, .. }) if found == key), "{refused:?}");
        says(refused, &[key, family, what]);
        // Switched off, it changes nothing.
        for off in [json!(null), json!(false)] {
            if key != "position_embedding_type" {
                load(&json!({"model_type": family, "num_attention_heads": 2, key: off}), None).unwrap();
            }
        }
    }
}

/// transformers' MPT applies ALiBi of slopes up to 2^-8 whatever these keys state, and its author's code does not:
/// neither is guessed.
#[test]
fn keys_that_the_owner_does_not_read_are_errors() {
    let mpt = |key: &str, value: Value| json!({"model_type": "mpt", "n_heads": 2, "attn_config": {key: value}});
    assert!(load(&mpt("alibi", json!(true)), None).is_ok());
    assert!(load(&mpt("alibi_bias_max", json!(8)), None).is_ok());
    says(load(&mpt("alibi", json!(false)), None), &["`attn_config.alibi` is false", "true"]);
    says(load(&mpt("alibi_bias_max", json!(16)), None), &["`attn_config.alibi_bias_max` is 16", "8"]);
}

/// The mask of FSMT's decoder is its own: no key switches it off.
#[test]
fn own_mask_of_a_decoder_is_not_switched_off() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = "model.decoder.layers.0.self_attn";
    let mask = |family: &str| {
        let json = json!({"model_type": family, "decoder_attention_heads": 2, "is_causal": false});
        checkpoint(&folder, &[prefix]).attention_with(prefix, &json, DType::F32, &CPU).unwrap().mask().to_string()
    };
    assert_eq!((mask("fsmt").as_str(), mask("bart").as_str()), ("causal", "none"));
}

/// Keys of published files that state what the family does anyway.
#[test]
fn keys_that_state_the_usual_are_read() {
    let command_r = json!({"model_type": "cohere2", "num_attention_heads": 2, "position_embedding_type": "rope_gptj",
        "rotary_pct": 1.0, "rope_theta": 5e4, "sliding_window": 4096, "use_qk_norm": false, "layer_switch": 4});
    assert!(load(&command_r, None).unwrap().layer.config().position.to_string().starts_with("rotary"));
    let half = json!({"model_type": "llama", "num_attention_heads": 2, "position_embedding_type": "rope_gptj"});
    says(load(&half, None), &["position_embedding_type", "rope_gptj"]);
}

/// The section of a layer is that which its prefix names.
#[test]
fn prefix_leads_to_its_section() {
    let heads = |model_type: &str, heads: usize| json!({"model_type": model_type, "num_attention_heads": heads});
    let folder = tempfile::tempdir().unwrap();
    let load = |json: &Value, prefix: &str| {
        checkpoint(&folder, &[prefix]).attention_with(prefix, json, DType::F32, &CPU).map(|model| {
            let config = model.layer.config();
            format!("{} heads, {}, {}", config.num_attention_heads, config.position, model.mask())
        })
    };
    let both = json!({"model_type": "some_vlm", "text_config": heads("llama", 2), "vision_config": heads("vit", 4)});
    let rotary = "2 heads, rotary(theta 10000, 4 numbers), causal";
    let vision = "4 heads, none, none";
    for prefix in
        ["language_model.model.layers.0.self_attn", "model.text_model.layers.0.attn", "model.layers.0.self_attn"]
    {
        assert_eq!(load(&both, prefix).unwrap(), rotary, "{prefix}");
    }
    for prefix in ["vision_tower.encoder.layers.0.attn", "model.visual.blocks.0.attn", "image_encoder.layers.0.attn"] {
        assert_eq!(load(&both, prefix).unwrap(), vision, "{prefix}");
    }
    // A name that no section has tells nothing: not the text model.
    says(
        load(&both, "qformer.encoder.layer.0.attn"),
        &["`qformer.encoder.layer.0.attn`", "text_config", "vision_config"],
    );
    // A word inside a name is no name: `context` holds `text`.
    says(load(&both, "context.layers.0.attn"), &["`context.layers.0.attn`"]);
    assert_eq!(load(&both["text_config"], "context.layers.0.attn").unwrap(), rotary);

    let nested = json!({"model_type": "omni", "thinker_config": both, "talker_config": heads("opt", 2)});
    assert_eq!(load(&nested, "thinker.visual.blocks.0.attn").unwrap(), vision);
    assert_eq!(load(&nested, "thinker.model.layers.0.attn").unwrap(), rotary);
    assert_eq!(load(&nested, "talker.model.layers.0.attn").unwrap(), "2 heads, none, causal");

    let pair = json!({"model_type": "pair", "encoder": heads("bert", 4), "decoder": heads("opt", 2)});
    assert_eq!(load(&pair, "encoder.layers.0.attn").unwrap(), vision);
    assert_eq!(load(&pair, "decoder.model.decoder.layers.0.attn").unwrap(), "2 heads, none, causal");

    // The longer name of two, and neither of two that are as long.
    let parts =
        json!({"model_type": "flava", "image_codebook_config": heads("opt", 2), "image_config": heads("vit", 4)});
    assert_eq!(load(&parts, "image_model.layers.0.attn").unwrap(), vision);
    assert_eq!(load(&parts, "image_codebook.layers.0.attn").unwrap(), "2 heads, none, causal");
    let clvp =
        json!({"model_type": "some_clvp", "speech_config": heads("opt", 2), "decoder_config": heads("llama", 2)});
    says(load(&clvp, "speech_decoder_model.layers.0.attn"), &["speech_config", "decoder_config"]);
    assert_eq!(load(&clvp, "speech_encoder_model.layers.0.attn").unwrap(), "2 heads, none, causal");

    // A section whose name says that it is a model's (Depth Pro).
    let patches = json!({
        "model_type": "depth_pro", "patch_model_config": heads("vit", 4), "image_model_config": heads("opt", 2),
    });
    assert_eq!(load(&patches, "encoder.patch_encoder.layers.0.attn").unwrap(), vision);
    assert_eq!(load(&patches, "encoder.image_encoder.layers.0.attn").unwrap(), "2 heads, none, causal");

    // The text model's own keys at the top, beside a section of another part.
    let mut flat = heads("llama", 2);
    flat["vision_config"] = heads("vit", 4);
    assert_eq!(load(&flat, "model.layers.0.self_attn").unwrap(), rotary);
    assert_eq!(load(&flat, "visual.layers.0.self_attn").unwrap(), vision);
    // A vision section under the name of the whole model is not that of its text model.
    flat["vision_config"]["model_type"] = json!("llama");
    says(load(&flat, "visual.layers.0.self_attn"), &["model_type `llama_vision`"]);
    // Nor is the text model at the top that of the whole.
    let mut flat = heads("qwen2_vl", 2);
    flat["vision_config"] = heads("qwen2_vl", 4);
    flat["rope_scaling"] = json!({"type": "mrope", "mrope_section": [1, 1, 0]});
    assert!(load(&flat, "model.layers.0.self_attn").unwrap().starts_with("2 heads, rotary"));
    // Twice in early files of CLIP.
    let mut twice = both.clone();
    twice["text_config_dict"] = heads("opt", 2);
    assert_eq!(load(&twice, "model.layers.0.self_attn").unwrap(), rotary);
    // A text section without a name is that of the whole model.
    let unnamed = json!({"model_type": "llama", "text_config": {"num_attention_heads": 2}});
    assert_eq!(load(&unnamed, "model.layers.0.self_attn").unwrap(), rotary);
}

/// The name that a file lacks can be given, and gives what the name in the file gives.
#[test]
fn like_gives_the_numbers_of_the_family() {
    let checkpoint = family("qwen3");
    let mut json: Value = serde_json::from_str(&checkpoint.metadata()["config"]).unwrap();
    let prefix = "model.layers.0.self_attn";
    let run = |config: ModelConfig| {
        let model = checkpoint.attention_with(prefix, config, DType::F32, &CPU).unwrap();
        let xs = Tensor::arange(0f32, 5.0 * model.layer.config().hidden_size as f32, &CPU).unwrap();
        let xs = xs.sin().unwrap().reshape((1, 5, model.layer.config().hidden_size)).unwrap();
        model.layer.attend(&xs, &xs, &xs, model.mask()).unwrap()
    };
    let want = run(ModelConfig::new(&json));
    json["model_type"] = json!("house_model");
    says(checkpoint.attention_with(prefix, &json, DType::F32, &CPU), &["`house_model`"]);
    assert_close("like", &run(ModelConfig::new(&json).with_like("qwen3")), &want, 0.0);
    let layers = checkpoint.attention_layers(Some(ModelConfig::new(&json)));
    assert!(layers[0].problem.as_ref().unwrap().contains("house_model"), "{:?}", layers[0]);
}

/// A value of another kind is not taken for an absent one.
#[test]
fn values_of_another_kind_are_errors() {
    let checkpoint = family("mistral");
    let config: Value = serde_json::from_str(&checkpoint.metadata()["config"]).unwrap();
    for (key, value, kind) in [
        ("is_causal", json!("no"), "true or false"),
        ("rms_norm_eps", json!("1e-6"), "a number"),
        ("rope_parameters", json!([1]), "a set of parameters"),
        ("rope_theta", json!(["1"]), "a number"),
    ] {
        let mut config = config.clone();
        config[key] = value;
        let failed = checkpoint.attention_with("model.layers.0.self_attn", &config, DType::F32, &CPU);
        says(failed, &[&format!("config key `{key}`"), kind]);
    }
    let mut config = config;
    config["rope_parameters"] = json!({"full_attention": {"rope_theta": "1e4"}});
    let failed = checkpoint.attention_with("model.layers.0.self_attn", &config, DType::F32, &CPU);
    says(failed, &["config key `rope_theta`", "a number"]);
}

/// Of a file that is silent, every fourth layer of SmolLM3 is not rotated: the default of its config class.
#[test]
fn an_interval_of_layers_has_its_default() {
    let folder = tempfile::tempdir().unwrap();
    let prefixes = [2, 3, 7].map(|layer| format!("model.layers.{layer}.self_attn"));
    let checkpoint = checkpoint(&folder, &prefixes.each_ref().map(String::as_str));
    let json = json!({"model_type": "smollm3", "num_attention_heads": 2, "num_key_value_heads": 2, "rope_theta": 1e4});
    let positions = prefixes.map(|prefix| {
        let model = checkpoint.attention_with(&prefix, &json, DType::F32, &CPU).unwrap();
        model.config().position.to_string()
    });
    assert!(positions[0].contains("rotary"), "{positions:?}");
    assert_eq!(positions[1..], ["none", "none"]);
}
