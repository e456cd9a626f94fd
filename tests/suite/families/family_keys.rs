//! Keys of `config.json` that decide which tokens a layer sees and how it is rotated: read as the family's model reads
//! them, or refused.

use candle_attention::AttentionMask;
use candle_attention::checkpoint::ModelConfig;
use candle_core::{DType, Device};
use serde_json::{Value, json};

use crate::common::{family, says};
use crate::families::right_or_refused::{LATER, load};

/// A configuration of 2 heads with these keys.
fn config(model_type: &str, keys: Value) -> Value {
    let mut json = json!({"model_type": model_type, "num_attention_heads": 2});
    json.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    json
}

/// The mask of layer 0.
fn mask(model_type: &str, keys: Value) -> candle_attention::Result<String> {
    load(&config(model_type, keys), None).map(|model| model.mask().to_string())
}

fn window(left: usize, right: usize) -> String {
    AttentionMask::window(Some(left), Some(right)).to_string()
}

#[test]
fn layer_types_are_read_by_families_that_have_them() {
    let kinds = |kind: &str| json!({"layer_types": [kind], "sliding_window": 4, "use_sliding_window": true});
    assert_eq!(mask("qwen3", kinds("sliding_attention")).unwrap(), window(3, 0));
    assert_eq!(mask("qwen3", kinds("full_attention")).unwrap(), "causal");
    for kind in ["chunked_attention", "linear_attention", "conv", "compressed_sparse_attention"] {
        says(mask("qwen3", kinds(kind)), &["`layer_types` of layer 0", kind, "full_attention"]);
    }
    // Whatever the family, a convolution is no attention.
    says(mask("lfm2", json!({"layer_types": ["conv"]})), &["`layer_types` of layer 0", "conv"]);
    // Mistral's model has a window in every layer, whatever the key lists.
    let listed = json!({"layer_types": ["full_attention"], "sliding_window": 4});
    assert_eq!(mask("mistral", listed).unwrap(), window(3, 0));
}

#[test]
fn window_has_the_width_that_the_model_has() {
    assert_eq!(mask("gemma2", json!({})).unwrap(), window(4095, 0));
    assert_eq!(mask("gemma2", json!({"sliding_window": 5})).unwrap(), window(4, 0));
    says(mask("gemma2", json!({"sliding_window": null})), &["sliding_window", "a width", "layer 0"]);
    says(mask("gemma2", json!({"sliding_window": 0})), &["sliding_window = 0"]);
    assert_eq!(mask("mistral", json!({"sliding_window": null})).unwrap(), "causal");
    assert_eq!(mask("mistral", json!({})).unwrap(), window(4095, 0));
    // Half of the key, which states both sides together.
    let local = json!({"local_attention": 8, "layer_types": ["sliding_attention"], "transformers_version": LATER});
    assert_eq!(mask("modernbert-decoder", local).unwrap(), window(3, 0));
    let upper = |index: usize| json!({"use_sliding_window": true, "sliding_window": 4, "max_window_layers": index});
    assert_eq!(mask("qwen2", upper(0)).unwrap(), window(3, 0));
    assert_eq!(mask("qwen2", upper(1)).unwrap(), "causal");
    assert_eq!(mask("qwen2", json!({"sliding_window": 4})).unwrap(), "causal");
    // No window is guessed from a key that the family's model does not read: transformers ignores it.
    assert_eq!(mask("llama", json!({"sliding_window": 4})).unwrap(), "causal");
    says(mask("olmoe", json!({"sliding_window": 4})), &["sliding_window", "`olmoe`"]);
}

#[test]
fn both_ways_as_the_configuration_states() {
    assert_eq!(mask("llama", json!({"is_causal": false})).unwrap(), "none");
    assert_eq!(mask("mistral", json!({"is_causal": false, "sliding_window": 4})).unwrap(), window(4, 4));
    let own = json!({"is_causal": false, "attention_layers": ["global"], "transformers_version": LATER});
    assert_eq!(mask("gpt_neo", own).unwrap(), "causal");
    let both = |value: Value| json!({"use_bidirectional_attention": value, "sliding_window": 4});
    assert_eq!(mask("gemma3_text", both(json!(true))).unwrap(), window(2, 2));
    assert_eq!(mask("gemma3_text", both(json!(false))).unwrap(), window(3, 0));
    says(mask("gemma3_text", both(json!("vision"))), &["use_bidirectional_attention", "vision", "true or false"]);
    let mut twice = both(json!(true));
    twice["is_causal"] = json!(false);
    says(mask("gemma3_text", twice), &["is_causal", "use_bidirectional_attention"]);
    says(mask("gemma", json!({"use_bidirectional_attention": true})), &["use_bidirectional_attention", "`gemma`"]);
}

#[test]
fn encoder_as_a_decoder_is_causal_or_refused() {
    assert_eq!(mask("bert", json!({"is_decoder": true})).unwrap(), "causal");
    assert_eq!(mask("bert", json!({"is_decoder": true, "is_causal": false})).unwrap(), "none");
    assert_eq!(mask("bert", json!({"is_decoder": false})).unwrap(), "none");
    says(mask("albert", json!({"is_decoder": true})), &["is_decoder", "`albert`", "causal self-attention"]);
}

/// transformers refuses a list of another length, whatever the family does with it.
#[test]
fn layer_types_has_an_entry_for_each_layer() {
    let kinds = |count: usize| vec!["full_attention"; count];
    let two = |count: usize| json!({"num_hidden_layers": 2, "layer_types": kinds(count)});
    for family in ["qwen3", "llama", "mistral"] {
        assert!(mask(family, two(2)).is_ok());
        for count in [1, 3] {
            let found = format!("a list of {count}");
            says(mask(family, two(count)), &["`layer_types`", &found, "2 entries", "`num_hidden_layers`"]);
        }
    }
    assert_eq!(mask("qwen3", json!({"layer_types": kinds(1)})).unwrap(), "causal");
    says(mask("qwen3", json!({"layer_types": []})), &["`layer_types`", "a list of 0", "1 entries"]);
}

#[test]
fn rotation_is_that_of_the_layer_or_refused() {
    let position = |model_type: &str, keys: Value| {
        load(&config(model_type, keys), None).map(|model| model.layer.config().position.to_string())
    };
    let [local, far] = [json!({"rope_theta": 10.0}), json!({"rope_theta": 100.0})];
    let per_kind = json!({"rope_parameters": {"sliding_attention": local, "full_attention": far}});
    assert!(position("gemma3_text", per_kind.clone()).unwrap().contains("10"), "layer 0 slides");
    // Each kind of layer has a base of its own.
    let silent = json!({"rope_parameters": {"sliding_attention": {"rope_type": "default"}, "full_attention": far}});
    says(position("gemma3_text", silent), &["rope_parameters", "`sliding_attention`, with its `rope_theta`"]);
    let mut beside = per_kind;
    beside["partial_rotary_factor"] = json!(0.5);
    says(position("gemma3_text", beside), &["partial_rotary_factor = 0.5", "each set of `rope_parameters`"]);
    says(position("gemma3_text", json!({"rope_parameters": far})), &["rope_parameters", "sliding_attention"]);
    let other_kind = json!({"rope_parameters": {"full_attention": far}});
    says(position("gemma3_text", other_kind), &["rope_parameters", "a set for `sliding_attention`"]);
    // The base inside the set counts, as in transformers.
    let beside = position("llama", json!({"rope_theta": 777.0, "rope_parameters": far})).unwrap();
    assert_eq!(beside, position("llama", json!({"rope_parameters": far})).unwrap());
    let twice = |old: &Value| json!({"rope_parameters": far, "rope_scaling": old});
    assert!(position("llama", twice(&far)).is_ok());
    says(position("llama", twice(&local)), &["rope_scaling", "rope_parameters"]);
    // Granite's hybrids without positions, and the keys of published Cohere 2 and Qwen2-VL.
    assert_eq!(position("granitemoehybrid", json!({"position_embedding_type": "nope"})).unwrap(), "none");
    assert!(position("granitemoehybrid", json!({"position_embedding_type": "rope"})).unwrap().contains("rotary"));
    assert!(position("cohere2", json!({"position_embedding_type": "rope_gptj"})).unwrap().contains("interleaved"));
    let flat =
        json!({"rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 0]}, "vision_config": {"num_heads": 2}});
    assert!(position("qwen2_vl", flat).unwrap().contains("1 + 1 + 0 pairs"));
    // A share of the head that the model does not leave out.
    says(position("llama", json!({"partial_rotary_factor": 0.5})), &["partial_rotary_factor = 0.5", "whole heads"]);
    let own_code = json!({"rotary_dim": 2, "auto_map": {"AutoModel": "modeling_minimax.MiniMaxModel"}});
    says(position("minimax", own_code), &["rotary_dim", "`minimax`"]);
    // Keys that the class in transformers ignores.
    for ignored in [json!({"rotary_dim": 2}), json!({"no_rope_layers": [0]})] {
        assert_eq!(position("minimax", ignored).unwrap(), position("minimax", json!({})).unwrap());
    }
    let beside = json!({"rotary_pct": 0.25, "partial_rotary_factor": 0.5, "rope_parameters": far});
    says(position("gpt_neox", beside), &["partial_rotary_factor = 0.5", "each set of `rope_parameters`"]);
    says(position("gpt_neox", json!({"rope_theta": 50.0})), &["rope_theta = 50", "`rotary_emb_base`"]);
    assert!(position("gpt_neox", json!({"rope_theta": 50.0, "rotary_emb_base": 50.0, "rotary_pct": 1.0})).is_ok());
    // A length or a factor that is not stated is not guessed.
    let scaled = |kind: &str| json!({"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0}});
    for kind in ["dynamic", "yarn", "llama3"] {
        says(position("llama", scaled(kind)), &["max_position_embeddings"]);
    }
    says(position("llama", json!({"rope_scaling": {"rope_type": "linear"}})), &["factor"]);
    // Its config class scales the rotation of a file that is silent.
    says(position("cwm", json!({})), &["rope_parameters", "absent"]);
    assert!(position("cwm", json!({"rope_parameters": far})).is_ok());
    let factors = |short: f64, long: f64| {
        let sizes = json!([1.0, 1.0]);
        json!({"rope_parameters": {"rope_type": "longrope", "short_factor": sizes, "long_factor": sizes,
            "original_max_position_embeddings": 6, "short_mscale": short, "long_mscale": long}})
    };
    assert!(position("phimoe", factors(1.2, 1.2)).is_ok());
    says(position("phimoe", factors(1.2, 1.3)), &["long_mscale", "1.3", "short_mscale"]);
    // Layers without rotation.
    assert_eq!(position("smollm3", json!({"no_rope_layers": [0]})).unwrap(), "none");
    assert!(position("smollm3", json!({"no_rope_layers": [1]})).unwrap().contains("rotary"));
    assert_eq!(position("smollm3", json!({"no_rope_layer_interval": 1})).unwrap(), "none");
    assert_eq!(position("cohere2", json!({"layer_types": ["full_attention"]})).unwrap(), "none");
}

#[test]
fn yarn_has_the_bounds_and_the_length_that_count() {
    let position =
        |model_type: &str, keys: Value| load(&config(model_type, keys), None).unwrap().layer.config().position.clone();
    let yarn = |more: Value| {
        let mut set = json!({"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0});
        set.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        set
    };
    let of = |model_type: &str, set: &Value| position(model_type, json!({"rope_parameters": set}));
    let usual = of("llama", &yarn(json!({"original_max_position_embeddings": 16})));
    // transformers takes 0 for absent.
    let zeros = yarn(json!({"original_max_position_embeddings": 16, "beta_fast": 0, "beta_slow": 0}));
    assert_eq!(of("llama", &zeros), usual);
    assert_ne!(of("llama", &yarn(json!({"original_max_position_embeddings": 16, "beta_fast": 8}))), usual);
    // The length of the model counts, unless there is a set for each kind of layer.
    let set = yarn(json!({"original_max_position_embeddings": 16}));
    let both = |sets: &Value| json!({"rope_parameters": sets, "original_max_position_embeddings": 8});
    assert_eq!(position("llama", both(&set)), of("llama", &yarn(json!({"original_max_position_embeddings": 8}))));
    let sets = json!({"sliding_attention": set, "full_attention": set});
    assert_eq!(position("gemma3_text", both(&sets)), of("gemma3_text", &sets));
}

/// The text model of LLaVA and Gemma 3 states few keys: the others are those of its config class.
#[test]
fn number_of_heads_that_the_file_leaves_out_is_that_of_the_config_class() {
    says(load(&json!({"model_type": "llama"}), None), &["num_attention_heads = 32", "a divisor of 8"]);
    says(load(&json!({"model_type": "mpt"}), None), &["num_attention_heads = 16"]);
    says(load(&json!({"model_type": "t5"}), None), &["num_attention_heads = absent"]);
}

/// The formula of norms comes from the family: one that has none is not given LayerNorm.
#[test]
fn norms_that_the_family_does_not_have_are_refused() {
    let checkpoint = family("qwen3");
    let json: Value = serde_json::from_str(&checkpoint.metadata()["config"]).unwrap();
    let config = ModelConfig::new(&json).with_like("llama");
    let model = checkpoint.attention_with("model.layers.0.self_attn", config, DType::F32, &Device::Cpu);
    says(model, &["norms of queries and keys", "`llama` has none"]);
}
