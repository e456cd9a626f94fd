//! Every row has a fixture: a checkpoint made by the library that owns the family.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use candle_core::Device;
use serde_json::Value;

use crate::checkpoint::Checkpoint;
use crate::families::config_classes::has_class;
use crate::families::keys::RecordedSection;
use crate::families::layer::Layer;
use crate::families::layouts::LAYOUTS;
use crate::families::table::{families, model_types as listed_types};

/// Rows without a fixture of their own, by their first `model_type`, each with the reason.
const WITHOUT_FIXTURE: &[(&str, &str)] = &[
    ("new", "the attention of `gte`, under the name that GTE's own code uses"),
    ("evolla_protein_encoder", "a section of Evolla that states no family"),
    ("evolla_adapter", "a part of Evolla"),
    ("evolla_resampler", "a part of Evolla"),
    ("bidirectional_pplx_qwen3", "the attention of `qwen3`; `crates/text` tests the whole model"),
    ("lfm2_bidirectional", "the attention of `lfm2`; `crates/text` tests the whole model"),
    ("fastspeech2_conformer_encoder", "a part of `fastspeech2_conformer`"),
    ("fastspeech2_conformer_decoder", "a part of `fastspeech2_conformer`"),
    ("sam2_video_memory", "a part of `sam2_video`"),
    ("videoprism_head", "a part of `videoprism`"),
    ("davit", "the attention of `florence_vision`, under the name that Florence-2's own code uses"),
    ("florence2_language", "the attention of `bart`, under the name that Florence-2's own code uses"),
    ("fun_asr_nano_adaptor", "a part of `fun_asr_nano`"),
    ("kimi_k2", "the attention of `deepseek_v3`, under the name that Kimi K2's own code uses"),
];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// The checkpoints of families and model types: tensors of the bytes of files.
fn checkpoints() -> Vec<Checkpoint> {
    let mut all = Vec::new();
    let model_types = std::fs::read_dir(fixture("model_types")).unwrap().map(|entry| entry.unwrap().path());
    for files in model_types.chain([fixture("families.safetensors")]) {
        let files = Checkpoint::open(files).unwrap();
        all.extend(files.names().map(|name| {
            let file = files.tensor(name, &Device::Cpu).unwrap();
            Checkpoint::from_bytes(file.to_vec1::<u8>().unwrap()).unwrap()
        }));
    }
    all
}

/// The `model_type` of a configuration and of its sections.
fn model_types(config: &Value) -> Vec<String> {
    let sections = config.as_object().into_iter().flat_map(|keys| keys.values()).chain([config]);
    sections.filter_map(|section| section.get("model_type")?.as_str()).map(str::to_string).collect()
}

#[test]
fn every_model_type_of_a_row_has_a_fixture() {
    let mut tested = BTreeSet::new();
    for checkpoint in checkpoints() {
        let metadata = checkpoint.metadata();
        if metadata.contains_key("timm") {
            tested.insert("timm".to_string());
        }
        tested.extend(model_types(&serde_json::from_str(&metadata["config"]).unwrap()));
    }
    for name in families().flat_map(|family| family.model_types) {
        let excepted = WITHOUT_FIXTURE.iter().any(|(excepted, _)| excepted == name);
        assert_ne!(tested.contains(*name), excepted, "`{name}`: no fixture in tests/fixtures, or a needless exception");
    }
}

#[test]
fn every_model_type_of_a_row_is_in_the_table() {
    let table = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/model-types.md")).unwrap();
    for name in listed_types() {
        let listed =
            ["right", "in part", "refused"].iter().any(|verdict| table.contains(&format!("| `{name}` | {verdict} |")));
        assert_eq!(listed, has_class(name), "`{name}`: in no row of docs/model-types.md, or a needless exception");
    }
}

/// Prints which settings each row refuses, for the script that writes the table.
#[test]
#[ignore = "a part of tests/golden/model_types.py"]
fn refused_settings() {
    for family in families() {
        let values: Vec<_> = family.required_values.iter().map(|one| (one.key, one.value, one.below)).collect();
        for model_type in family.model_types {
            let (keys, parts) = (family.forbidden_keys, family.unsupported_parts);
            println!(
                "{}",
                serde_json::json!({"model_type": model_type, "keys": keys, "values": values, "parts": parts})
            );
        }
    }
}

#[test]
fn every_layout_has_a_fixture() {
    let mut tested = BTreeSet::new();
    let singles = ["layouts", "d2l_torch", "d2l_jax", "d2l_mxnet", "d2l_keras", "flax_mha", "keras_mha", "torch_mha"];
    let singles = singles.map(|name| Checkpoint::open(fixture(&format!("{name}.safetensors"))).unwrap());
    for checkpoint in checkpoints().into_iter().chain(singles) {
        tested.extend(checkpoint.attention_layers(None).into_iter().map(|layer| layer.layout));
    }
    for layout in LAYOUTS {
        assert!(tested.contains(layout.name), "layout `{}` has no fixture in tests/fixtures", layout.name);
    }
}

#[test]
fn every_row_names_known_layouts() {
    for family in families() {
        assert!(!family.layouts.is_empty(), "{:?}", family.model_types);
        for name in family.layouts {
            assert!(LAYOUTS.iter().any(|layout| layout.name == *name), "{:?}: {name}", family.model_types);
        }
    }
}

#[test]
fn no_model_type_has_two_rows() {
    let mut seen = BTreeSet::new();
    for name in listed_types() {
        assert!(seen.insert(name), "`{name}` is in two rows");
    }
}

/// A decoder saved alone, or names changed by `rename`: the configuration has heads for each part, and the prefix names
/// none.
#[test]
fn a_prefix_without_its_part_is_said_to_lack_it() {
    let section = serde_json::json!({
        "model_type": "whisper", "d_model": 8, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    });
    let section = RecordedSection::new(&section);
    let heads = |prefix: &str| Layer::new(&section, Some("whisper"), prefix).and_then(|layer| layer.heads());
    assert_eq!(heads("decoder.layers.0.self_attn").unwrap(), 2);
    let error = heads("layers.0.self_attn").unwrap_err().to_string();
    assert!(error.contains("a prefix with `encoder` or `decoder` in it"), "{error}");
    assert!(error.contains("states `decoder_attention_heads`"), "{error}");
}
