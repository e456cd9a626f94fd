//! Every fixture is named by the test that runs it: a fixture that no list names would never be checked.

use std::collections::BTreeSet;

use crate::common::{Files, fixture, repository};

/// Folders of fixtures, each with the tests that name its entries, by their paths below `tests/suite` of any package.
/// The empty path is `tests/fixtures` itself.
const USED_BY: &[(&str, &[&str])] = &[
    ("encoders", &["encoders", "own_encoders", "task_heads"]),
    ("own_sentences", &["own_encoders"]),
    ("compose", &["api/composed_models"]),
    ("sentence_models", &["sentence_models"]),
    ("lora", &["adapters", "with_models/lora", "with_models/lora_tasks", "with_models/lora_training"]),
    ("rerankers", &["rerankers"]),
    ("tiny-bert-variants", &["encoder"]),
    ("multi_vector", &["multi_vector"]),
    ("sparse", &["bge_m3", "sparse"]),
    ("token_classifier", &["token_classifier"]),
    ("sentence-modules", &["sentence_modules"]),
    ("gguf", &["checkpoints/gguf", "gguf_models"]),
    ("gguf_heads", &["gguf_heads"]),
    (
        "",
        &[
            "api/composed_models",
            "families/config_kinds",
            "embedded",
            "encoder",
            "encoders",
            "numerics/explicit_positions",
            "numerics/global_tokens",
            "families/published_layers",
            "checkpoints/gguf",
            "gguf_heads",
            "jina",
            "checkpoints/layouts",
            "with_models/lora",
            "masks/dtypes",
            "masks/functions",
            "masks/or_masks",
            "masks/score_functions",
            "minilm",
            "families/model_types",
            "multi_vector",
            "ordinary_files",
            "own_encoders",
            "numerics/positions",
            "rerankers",
            "families/seed_systems",
            "families/silent_configs",
            "sentence_models",
            "sparse",
            "token_classifier",
            "sentence_modules",
            "sentence_outputs",
            "../../src/families/config_keys_tests",
            "../../src/families/defaults_tests",
            "../../crates/text/src/gguf/tokenizer",
            "../common/models",
        ],
    ),
];

/// The words in the sources of tests.
fn words(tests: &[&str]) -> BTreeSet<String> {
    let source = |test: &&str| {
        let suites = ["", "crates/text", "crates/cli"].map(|package| repository().join(package).join("tests/suite"));
        let path = suites.map(|suite| suite.join(format!("{test}.rs"))).into_iter().find(|path| path.exists());
        std::fs::read_to_string(path.unwrap()).unwrap()
    };
    let source: String = tests.iter().map(source).collect();
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    source.split(|c| !is_word(c)).map(str::to_string).collect()
}

#[test]
fn every_fixture_is_named_by_the_test_that_runs_it() {
    for (folder, tests) in USED_BY {
        let words = words(tests);
        for entry in std::fs::read_dir(fixture(folder)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap();
            assert!(words.contains(name), "{}: named in none of {tests:?}", path.display());
        }
    }
    let words = words(&["families/published_layers"]);
    for (name, _) in Files::open("families.safetensors").all() {
        assert!(words.contains(name), "{name}: not named by the test of families");
    }
}
