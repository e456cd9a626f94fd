//! Rows assume where a `config.json` is silent the values that the config classes of transformers hold
//! (`tests/golden/family_defaults.py`).

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::config::{AttentionConfig, KeyValueSource, LatentAttention};
use crate::families::config_classes::{ROPE_KEYS, default_heads, has_class, ignored_sizes, is_ignored};
use crate::families::decoders::DECODERS;
use crate::families::family::{Family, LayerPositions, Mechanism, Scale, WindowLayers};
use crate::families::gated::GATED;
use crate::families::keys::{RecordedSection, keys_that_change};
use crate::families::layer::{Layer, LayerContents};
use crate::families::speech::SPEECH;
use crate::families::table::families;
use crate::position::{Position, Rotary};

const PREFIXES: [&str; 8] = ["h.0", "h.1", "h.2", "h.3", "h.4", "h.5", "h.6", "h.7"];

/// The values that transformers holds for each model type.
fn held() -> BTreeMap<String, Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/family_defaults.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

const HEADS: &str = "num_attention_heads";

/// Weights of a layer in the usual layout of a family.
pub(super) fn contents(family: &Family) -> LayerContents<'_> {
    let has = |is_it: fn(&Mechanism) -> bool| family.mechanisms.iter().any(is_it);
    LayerContents {
        norms: family.qk_norm.is_some(),
        gate: has(|mechanism| matches!(mechanism, Mechanism::Gate { .. })).then_some(512),
        indexer: false,
        blocks: false,
        context_norm: has(|mechanism| matches!(mechanism, Mechanism::ContextNorm { weighted: true, .. })),
        bias_rows: None,
        patch_keys: None,
        layout: family.layouts[0],
        pruned: &[],
    }
}

/// The keys that a layer of a family reads, of a section that states little or a rotation for each kind of layer.
fn keys_read(family: &'static Family, model_type: &str) -> Vec<&'static str> {
    let set = json!({"rope_type": "default", "rope_theta": 1e4});
    let sections = [json!({}), json!({"rope_parameters": {"full_attention": set, "sliding_attention": set}})];
    let mut read = Vec::new();
    for section in &sections {
        let section = RecordedSection::new(section);
        let layer = Layer { section: &section, model_type, family, prefix: "layers.0", index: 0, cross: false };
        let mut config = AttentionConfig::new(512, 4);
        config.latent = family.latent().map(|_| LatentAttention::new(16, 16, 16, 128));
        // A layer that fails for want of other keys has read its own.
        let _ = layer.configure(config, &contents(family));
        let _ = (layer.mask(), layer.head_size("head_dim"));
        read.extend(keys_that_change().map(|(key, ..)| key).filter(|key| layer.has_read(key)));
    }
    read
}

/// A key that changes attention is read, or ignored where the config class does not know it and runs the file, or an
/// error.
#[test]
fn keys_that_no_config_class_knows_are_ignored() {
    let held = held();
    for (family, model_type) in families().flat_map(|family| family.model_types.iter().map(move |name| (family, *name)))
    {
        let class = held.get(model_type).map(|values| &values["knows"]);
        assert_eq!(class.is_some(), has_class(model_type), "{model_type}");
        let knows = |key: &str| {
            let is_common = ["per_layer_config", "is_decoder"].contains(&key);
            is_common || class.is_none_or(|keys| keys.as_array().unwrap().iter().any(|known| known == key))
        };
        let section = json!({"model_type": model_type, "head_dim": 1, "num_key_value_heads": 1, "d_model": 1});
        let sizes = ignored_sizes(section.as_object().unwrap(), model_type);
        for size in section.as_object().unwrap().keys().filter(|key| *key != "model_type") {
            assert_ne!(sizes.contains(&size.as_str()), knows(size), "{model_type}: {size}");
        }
        let read = keys_read(family, model_type);
        let section = RecordedSection::new(&section);
        section.note(&read);
        let layer = Layer { section: &section, model_type, family, prefix: "", index: 0, cross: false };
        for (key, ..) in keys_that_change().filter(|(key, ..)| !read.contains(key)) {
            // The scaling of a rotation that is read is never left out, whatever the class has.
            let is_taken = ROPE_KEYS.contains(&key) && read.contains(&"rope_parameters");
            assert_ne!(is_ignored(key, &layer), knows(key) || is_taken, "{model_type}: {key}");
        }
        assert!(ignored_sizes(json!({"model_type": "timm", "dim": 1}).as_object().unwrap(), model_type).is_empty());
    }
}

#[test]
fn defaults_are_those_of_the_config_classes() {
    let held = held();
    let mut checked = 0;
    for family in DECODERS.iter().chain(GATED).chain(SPEECH) {
        for model_type in family.model_types {
            if let Some(values) =
                held.get(*model_type).filter(|held| family.required_keys.is_empty() && !held[HEADS].is_null())
            {
                check(family, model_type, values);
                checked += 1;
            }
        }
    }
    assert!(checked > 80, "{checked}");
    // The others hold parts, and are silent about heads of their own.
    for (model_type, values) in held.iter().filter(|(_, values)| !values[HEADS].is_null()) {
        if let Some(heads) = default_heads(model_type) {
            assert_eq!(values[HEADS], json!(heads), "{model_type}");
        }
    }
}

fn check(family: &'static Family, model_type: &str, values: &Value) {
    let number = |key: &str| values.get(key).and_then(Value::as_f64);
    // A rotation that must be stated is stated as the class has it, which says nothing about defaults.
    let stated = match family.positions {
        LayerPositions::Rotary(row) if row.required_in_config => json!({"rope_parameters": values["rope_parameters"]}),
        _ => json!({}),
    };
    for (index, prefix) in PREFIXES.into_iter().enumerate() {
        let what = format!("{model_type}, layer {index}");
        let section = RecordedSection::new(&stated);
        let layer = Layer::new(&section, Some(model_type), prefix).unwrap();
        let kind = values.pointer(&format!("/layer_types/{index}")).and_then(Value::as_str);
        let width = number(family.window.key);
        let windowed = match family.window.layers {
            WindowLayers::None | WindowLayers::ListedLocal => false,
            WindowLayers::All { .. } => width.is_some(),
            _ => kind == Some("sliding_attention"),
        };
        assert_eq!(layer.has_window().unwrap(), windowed, "{what}");
        if windowed {
            assert_eq!(layer.number(family.window.key).unwrap().map(|width| width as f64), width, "{what}");
        }
        // Whose values are keys whatever the configuration states.
        let source = match family.mechanisms.contains(&Mechanism::KeysAsValues(None)) && !windowed {
            true => KeyValueSource::KeysAsValues,
            false => KeyValueSource::Projections,
        };
        let sizes = AttentionConfig::new(512, 4).with_key_value_source(source);
        let config = layer.configure(sizes, &contents(family)).unwrap();
        // A class without such a key has no norms of queries and keys, or one whose number is fixed.
        let eps = ["rms_norm_eps", "layer_norm_eps", "norm_eps"].into_iter().find_map(number);
        if let Some((norm, eps)) = config.steps.norms(0).next().zip(eps) {
            assert_eq!(norm.eps, eps, "{what}");
        }
        let scale = match family.scale {
            // Step 3.5 has the usual factor, whatever the size of its heads.
            Scale::QueryPreAttnScalar if config.scale.is_some() => {
                number("query_pre_attn_scalar").map(|scalar| scalar.powf(-0.5))
            }
            // HyperCLOVA's class has the usual factor.
            Scale::AttentionMultiplier if model_type != "hyperclovax" => number("attention_multiplier"),
            Scale::KeyMultiplier => number("key_multiplier").map(|factor| factor * 128f64.powf(-0.5)),
            _ => config.scale,
        };
        assert_eq!(config.scale, scale, "{what}");
        assert!(
            config.scale.is_some() || number("query_pre_attn_scalar").is_none_or(|scalar| scalar == 128.0),
            "{what}"
        );
        let softcap = |mechanism: &Mechanism| if let Mechanism::Softcap(key) = mechanism { Some(*key) } else { None };
        let softcap = family.mechanisms.iter().find_map(softcap).unwrap_or("attn_logit_softcapping");
        assert_eq!(config.softcap, number(softcap), "{what}");
        if let Position::Rotary(rotary) = &config.position {
            check_rotary(&what, rotary, values, if windowed { "sliding_attention" } else { "full_attention" });
        }
    }
}

fn check_rotary(what: &str, rotary: &Rotary, values: &Value, kind: &str) {
    let Some(all) = values.get("rope_parameters") else {
        // GPT-J and CodeGen.
        assert_eq!(rotary.dim, values["rotary_dim"].as_u64().map(|dim| dim as usize), "{what}");
        return;
    };
    let set = all.get(kind).unwrap_or(all);
    assert_eq!(Some(rotary.theta), set["rope_theta"].as_f64(), "{what}");
    let share = set.get("partial_rotary_factor").and_then(Value::as_f64).unwrap_or(1.0);
    // There it is a share of the pairs of the whole head.
    let share = if set["rope_type"] == "proportional" { 1.0 } else { share };
    assert_eq!(rotary.dim, Some((128.0 * share) as usize), "{what}");
}
