//! Configurations that are silent, or state keys that few files have: what the classes of transformers make of them
//! (`tests/golden/silent_configs.py`), or an error that names the key.

use candle_attention::CallInput;
use serde_json::{Value, json};

use crate::common::{Files, says};
use crate::families::model_types::Walked;
use crate::families::right_or_refused::{load, load_at};

#[test]
fn what_a_configuration_leaves_out_is_what_its_class_computes() {
    let (mut wrong, mut layers) = (Vec::new(), 0);
    for (name, checkpoint) in Files::open("silent_configs.safetensors").all() {
        let walked = Walked::new(checkpoint);
        for (prefix, verdict) in walked.verdicts() {
            layers += 1;
            if verdict.get("right").is_none() {
                wrong.push(format!("{name} {prefix}: {verdict}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(layers > 40, "{layers}");
}

/// Keys that transformers reads and no row computes are errors that name them.
#[test]
fn key_that_no_row_computes_is_refused() {
    let yarn = json!({"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8});
    let linear = json!({"rope_type": "linear", "factor": 2.0});
    for (model_type, key, value) in [
        ("cohere2_moe", "rope_scaling", linear.clone()),
        ("embedding_gemma2_text", "rope_scaling", linear),
        ("mvp", "use_prompt", json!(true)),
        ("gpt_bigcode", "scale_attn_by_inverse_layer_idx", json!(true)),
        ("esm", "position_embedding_type", json!("alibi")),
        ("muse_spark_text", "rope_theta", json!(10_000.0)),
        ("muse_spark_text", "rope_scaling", yarn.clone()),
        ("qwen3_omni_moe_talker_code_predictor", "sliding_window", json!(3)),
        ("gptj", "rope_scaling", json!({"rope_type": "linear", "factor": 2.0})),
        ("roformer", "rope_theta", json!(500.0)),
        ("ministral", "max_window_layers", json!(1)),
        ("nomic_bert", "partial_rotary_factor", json!(0.5)),
        ("evolla_protein_encoder", "is_decoder", json!(true)),
        ("pix2struct_text_model", "is_decoder", json!(false)),
        ("unlimited_ocr_text", "is_causal", json!(false)),
        ("blt_local_decoder", "is_causal", json!(false)),
    ] {
        let with = |value: Value| {
            let mut json = json!({"model_type": model_type, "num_attention_heads": 2});
            match model_type {
                "evolla_protein_encoder" => json["position_embedding_type"] = json!("absolute"),
                "muse_spark_text" => {
                    json["layer_types"] = json!(["full_attention"]);
                    json["layer_rope_theta"] = json!([10_000.0]);
                }
                _ => {}
            }
            json[key] = value;
            load(&json, None)
        };
        says(with(value), &[key, model_type]);
        // Null states nothing.
        if let Err(error) = with(Value::Null) {
            assert!(!error.to_string().contains(&format!("`{key}`")), "{error}");
        }
    }
}

/// A value that the class of the whole model or of its text fills in must be stated, where files differ.
#[test]
fn key_that_has_several_defaults_must_be_stated() {
    let heads = |model_type: &str| json!({"model_type": model_type, "num_attention_heads": 2});
    says(load(&heads("evolla_protein_encoder"), None), &["position_embedding_type", "absent"]);
    let prefix = "language_model.model.layers.0.self_attn";
    let text = |whole: &str, family: &str| json!({"model_type": whole, "text_config": heads(family)});
    says(load_at(prefix, &text("glmasr", "llama")), &["rope_parameters", "absent", "`glmasr`"]);
    says(load_at(prefix, &text("voxtral", "llama")), &["rope_theta", "absent", "`voxtral`"]);
    let realtime = text("voxtral_realtime", "voxtral_realtime_text");
    says(load_at(prefix, &realtime), &["rope_theta", "absent", "`voxtral_realtime`"]);
    let mut voxtral = text("voxtral", "llama");
    voxtral["text_config"]["rope_parameters"] = json!({"rope_type": "default", "rope_theta": 1e8});
    load_at(prefix, &voxtral).unwrap();
    says(load(&heads("cohere_compass_text"), None), &["layer_types", "absent"]);
    let mut higgs = heads("higgs_audio_v2");
    higgs["rope_scaling"] = json!({"rope_type": "linear", "factor": 2.0});
    says(load(&higgs, None), &["rope_theta", "absent"]);
    higgs["rope_theta"] = json!(10_000.0);
    load(&higgs, None).unwrap();
    let mut vision = heads("pixtral");
    vision["rope_parameters"] = json!({"rope_type": "default"});
    says(load(&vision, None), &["rope_theta", "absent"]);
    says(load(&heads("moonshine_streaming"), None), &["rope_parameters", "absent"]);
    // One angle for all places changes no score; the factor of YaRN does.
    let mut codec = heads("xcodec2");
    codec["rope_parameters"] = json!({"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0});
    codec["max_position_embeddings"] = json!(16);
    says(load(&codec, None), &["rope_type", "default"]);
    // Layers between the towers have the sizes of the text.
    let towers = json!({"model_type": "bridgetower", "num_attention_heads": 8,
        "text_config": {"model_type": "bridgetower_text_model", "num_attention_heads": 2}});
    let between = load_at("cross_modal_image_layers.0.attention", &towers).unwrap();
    assert_eq!(between.layer.config().num_attention_heads, 2);
    // A section for images may state a vocabulary, as LLaVA's files do.
    let images = json!({"model_type": "video_llava", "text_config": heads("llama"),
        "vision_config": {"model_type": "clip_vision_model", "num_attention_heads": 2, "vocab_size": 32_000}});
    let tower = load_at("image_tower.encoder.layers.0.self_attn", &images).unwrap();
    assert_eq!(tower.mask().to_string(), "none");
    // One of two is an alias of the other.
    let lone = json!({"model_type": "audioflamingo3_encoder", "encoder_attention_heads": 2, "num_attention_heads": 4});
    says(load_at("layers.0.self_attn", &lone), &["encoder_attention_heads = 2", "`num_attention_heads`"]);
    let lone = json!({"model_type": "trocr", "decoder_attention_heads": 2, "num_attention_heads": 4});
    says(load_at("model.decoder.layers.0.self_attn", &lone), &["num_attention_heads = 4", "`decoder_attention_heads`"]);
    let mut bart = json!({"model_type": "bart", "encoder_attention_heads": 2, "num_attention_heads": 4});
    let encoder = "model.encoder.layers.0.self_attn";
    says(load_at(encoder, &bart), &["num_attention_heads = 4", "`encoder_attention_heads`"]);
    bart["num_attention_heads"] = json!(2);
    load_at(encoder, &bart).unwrap();
}

/// Some models hand `is_causal` on to the section of their text, others do not.
#[test]
fn is_causal_beside_a_section_is_that_of_the_section_or_refused() {
    let mut json = json!({"model_type": "mistral3", "is_causal": false,
        "text_config": {"model_type": "mistral", "num_attention_heads": 2, "sliding_window": null}});
    let prefix = "model.language_model.layers.0.self_attn";
    says(load_at(prefix, &json), &["is_causal = false", "`text_config`"]);
    json["text_config"]["is_causal"] = json!(false);
    assert_eq!(load_at(prefix, &json).unwrap().mask().to_string(), "none");
    json["is_causal"] = json!(true);
    says(load_at(prefix, &json), &["is_causal = true", "false as in `text_config`"]);
}

/// Masks of chunks and blocks are those of a call.
#[test]
fn layers_with_chunks_require_a_mask() {
    let requires = |prefix: &str, json: Value| load_at(prefix, &json).unwrap().requires().contains(&CallInput::Mask);
    let canine = || json!({"model_type": "canine", "num_attention_heads": 2});
    assert!(requires("initial_char_encoder.layer.0.attention", canine()));
    assert!(requires("final_char_encoder.layer.0.attention", canine()));
    assert!(!requires("encoder.layer.0.attention", canine()));
    for model_type in ["qwen2_5_omni_audio_encoder", "qwen3_omni_moe_audio_encoder", "qwen3_asr_encoder"] {
        let json = json!({"model_type": model_type, "encoder_attention_heads": 2});
        assert!(requires("layers.0.self_attn", json), "{model_type}");
    }
}
