//! Every row has a fixture: a model folder made by the library that owns the family.

use std::collections::BTreeSet;
use std::path::Path;

use super::FAMILIES;

/// Whole models without a folder in `tests/fixtures/encoders`, each with the test that builds one.
const WITHOUT_MODEL: &[(&str, &str)] = &[
    ("bert", "`tests/fixtures/tiny-bert` and the embedded model"),
    ("t5, gated-gelu", "`tests/fixtures/encoders/t5_gated`"),
    ("nomic_bert, gelu", "`tests/fixtures/encoders/nomic_moe`"),
    ("qwen3, Qwen3BidirectionalModel", "`tests/fixtures/encoders/voyage`"),
    ("lfm2_bidirectional", "`tests/fixtures/encoders/lfm2_bidirectional`, which states `lfm2` as published files do"),
    ("bert, alibi", "`jina.rs` of the suite builds Jina-BERT and Jina's model for code from seeds"),
];

#[test]
fn every_row_has_a_fixture() {
    let folders = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/encoders");
    let mut tested = BTreeSet::new();
    for entry in std::fs::read_dir(folders).unwrap() {
        let folder = entry.unwrap().path();
        let config: serde_json::Value =
            serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
        if !["_classifier", "_mlm", "_cross_encoder"].iter().any(|task| folder.to_string_lossy().ends_with(task)) {
            tested.insert(config["model_type"].as_str().unwrap().to_string());
        }
    }
    for family in FAMILIES {
        let name = match family.required_config_key {
            Some((_, value)) => format!("{}, {value}", family.model_types[0]),
            None => family.model_types[0].to_string(),
        };
        let has_fixture =
            family.model_types.iter().any(|name| tested.contains(*name)) && family.required_config_key.is_none();
        let excepted = WITHOUT_MODEL.iter().any(|(excepted, _)| *excepted == name);
        assert_ne!(
            has_fixture, excepted,
            "model `{name}`: no fixture in tests/fixtures/encoders, or a needless exception"
        );
    }
}
