//! Every key of `config.json` that transformers reads for attention (`tests/golden/config_keys.py`) has an answer: the
//! row of its family reads it, a configuration that states it is refused, or it is listed as harmless with the reason.
//!
//! A key that a new version of transformers reads has none, and fails here.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::config::{AttentionConfig, LatentAttention};
use crate::families::config_classes::is_ignored;
use crate::families::defaults_tests::contents;
use crate::families::family::{Causal, Family, LayerPositions, Mechanism, WindowLayers};
use crate::families::keys::{RecordedSection, keys_that_change};
use crate::families::layer::{CROSS, Layer, LayerContents};
use crate::families::table::families;

fn fixture(name: &str) -> String {
    std::fs::read_to_string(format!("{}/tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// The keys that transformers reads, each with the kind of code that does: those of each model type.
fn keys_of_transformers() -> BTreeMap<String, BTreeMap<String, String>> {
    let text = fixture("config_keys.txt");
    let mut shared: Vec<&str> = Vec::new();
    let mut all = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let mut parts = line.split(" | ");
        let model_type = parts.next().unwrap().trim_end_matches(" |");
        let mut keys = BTreeMap::new();
        for (kind, words) in parts.filter_map(|part| part.split_once(": ")) {
            for word in words.split(' ') {
                let words = if word == "%rope" { shared.clone() } else { vec![word] };
                keys.extend(words.into_iter().map(|word| (word.to_string(), kind.to_string())));
            }
            if model_type == "%rope" {
                shared = words.split(' ').collect();
            }
        }
        all.insert(model_type.to_string(), keys);
    }
    all.remove("%rope");
    all
}

/// The keys that change nothing in a layer, or nothing that a layer could show otherwise: `key`, or `model_type:key`
/// for one model type alone, each with the reason.
fn harmless() -> BTreeMap<String, String> {
    let text = fixture("config_keys_harmless.txt");
    let mut all = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let (reason, keys) = line.split_once(": ").unwrap();
        for key in keys.split(' ') {
            assert!(all.insert(key.to_string(), reason.to_string()).is_none(), "`{key}` is listed twice");
        }
    }
    all
}

/// Prefixes of layers in all parts that the columns of a row name.
fn prefixes(family: &Family) -> Vec<String> {
    let mut parts: Vec<String> = ["", "encoder", "decoder"].map(str::to_string).to_vec();
    parts.extend(CROSS.map(|part| format!("decoder.{part}")));
    parts.extend(family.heads.iter().map(|part| part.below.join(".")));
    parts.extend(family.requires.iter().filter_map(|required| required.below).map(str::to_string));
    if let WindowLayers::Below(part) = family.window.layers {
        parts.push(part.to_string());
    }
    if let Causal::Below(part) = family.causal {
        parts.push(part.to_string());
    }
    if let LayerPositions::SharedRelativeKeys(part, _) = family.positions {
        parts.push(part.to_string());
    }
    parts.iter().map(|part| format!("{part}.layers.1.self_attn")).collect()
}

/// Sections of configurations that make layers take branches that need other keys.
fn sections() -> Vec<Value> {
    let set = json!({"rope_type": "default", "rope_theta": 1e4});
    let kinds = json!(["full_attention", "sliding_attention", "full_attention", "sliding_attention"]);
    let sizes = json!({
        "num_attention_heads": 4, "num_hidden_layers": 4, "hidden_size": 512, "max_position_embeddings": 64,
        "image_size": 8, "patch_size": 2, "window_size": 2, "rms_norm_eps": 1e-6, "layer_norm_eps": 1e-6,
        "blocks_per_stage": [2, 2], "position_embedding_type": "rotary", "relative_attention": true,
        "use_rot_pos_emb": true, "use_sliding_window": true, "sliding_window": 4, "no_rope_layers": [0, 0, 0, 0],
    });
    let per_kind = json!({"rope_parameters": {"full_attention": set, "sliding_attention": set}});
    let with = |more: Value| {
        let mut section = sizes.clone();
        section.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        section
    };
    vec![
        json!({}),
        per_kind.clone(),
        sizes.clone(),
        with(per_kind),
        with(json!({"layer_types": kinds, "rope_parameters": set})),
        with(json!({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}})),
    ]
}

/// Whether layers of a family read a key, and whether a configuration that states it is refused.
struct Answers {
    layers: Vec<(RecordedSection<'static>, &'static str, &'static Family)>,
}

impl Answers {
    fn new(family: &'static Family, model_type: &'static str) -> Self {
        let has = |is_it: fn(&Mechanism) -> bool| family.mechanisms.iter().any(is_it);
        let mut layers = Vec::new();
        for json in sections() {
            let section = RecordedSection::new(Box::leak(Box::new(json)));
            let places = prefixes(family).into_iter().flat_map(|prefix| [0, 1].map(|index| (prefix.clone(), index)));
            for (prefix, index) in places {
                let cross = CROSS.iter().any(|part| prefix.contains(part));
                let layer = Layer { section: &section, model_type, family, prefix: &prefix, index, cross };
                let _ = (layer.check_keys(), layer.check_lists(), layer.heads(), layer.mask());
                let _ = ["head_dim", "num_key_value_heads"].map(|key| layer.head_size(key));
                for (layout, blocks) in family.layouts.iter().flat_map(|layout| [(layout, false), (layout, true)]) {
                    let mut config = AttentionConfig::new(512, 4);
                    config.latent = family.latent().map(|_| LatentAttention::new(16, 16, 16, 128));
                    let indexer = has(|mechanism| matches!(mechanism, Mechanism::Indexer(_)));
                    let contents = LayerContents { blocks, indexer, layout, ..contents(family) };
                    // A layer that fails for want of a key has read those before it.
                    let _ = layer.configure(config, &contents);
                    let _ = (layer.position(128, &contents), layer.qk_norm());
                }
            }
            layers.push((section, model_type, family));
        }
        Self { layers }
    }

    fn layers(&self) -> impl Iterator<Item = Layer<'_>> {
        self.layers.iter().map(|(section, model_type, family)| Layer {
            section,
            model_type,
            family,
            prefix: "",
            index: 0,
            cross: false,
        })
    }

    /// Whether a layer reads the key: one of a set of rotary parameters where it reads the set.
    fn reads(&self, key: &str) -> bool {
        const SET: [&str; 21] = [
            "rope_theta",
            "rope_type",
            "type",
            "factor",
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "high_freq_factor",
            "low_freq_factor",
            "long_factor",
            "short_factor",
            "long_mscale",
            "short_mscale",
            "mscale",
            "mscale_all_dim",
            "original_max_position_embeddings",
            "partial_rotary_factor",
            "truncate",
            "llama_4_scaling_beta",
            "mrope_section",
            "full_attention",
        ];
        let is_read = |key: &str| self.layers().any(|layer| layer.has_read(key));
        match key.split_once('.') {
            Some(("rope_parameters", inner)) => {
                let inner = inner.rsplit('.').next().unwrap();
                is_read("rope_parameters") && (SET.contains(&inner) || inner == "sliding_attention" || is_read(inner))
            }
            Some(_) => false,
            // The file's key is an alias of another one.
            None => is_read(key.split_once("->").map_or(key, |(alias, _)| alias)),
        }
    }

    /// Whether a configuration that states the key is refused, unless it states what the row computes.
    fn refuses(&self, key: &str) -> bool {
        let key = key.split_once("->").map_or(key, |(alias, _)| alias);
        let mut layers = self.layers();
        let layer = layers.next().unwrap();
        let Family { forbidden_keys, required_values, .. } = layer.family;
        forbidden_keys.iter().any(|(forbidden, _)| forbidden.trim_end_matches("=false") == key)
            || required_values.iter().any(|required| required.key == key)
            || keys_that_change().any(|(known, ..)| known == key) && !is_ignored(key, &layer)
    }
}

#[test]
fn every_key_that_transformers_reads_is_read_refused_or_harmless() {
    let harmless = harmless();
    let changing: BTreeSet<&str> = keys_that_change().map(|(key, ..)| key).collect();
    for key in harmless.keys() {
        assert!(!changing.contains(key.as_str()), "`{key}` changes attention: harmless for one model type alone");
    }
    let rows: BTreeMap<&str, &Family> =
        families().flat_map(|family| family.model_types.iter().map(move |name| (*name, family))).collect();
    let (mut read, mut refused, mut used, mut open) = (0, 0, BTreeMap::new(), Vec::new());
    let docs = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/model-types.md")).unwrap();
    let runs = |name: &str| {
        ["right", "in part", "composite"].iter().any(|verdict| docs.contains(&format!("| `{name}` | {verdict} |")))
    };
    for (model_type, keys) in keys_of_transformers().into_iter().filter(|(name, _)| runs(name)) {
        let answers = rows.get_key_value(model_type.as_str()).map(|(name, family)| Answers::new(family, name));
        for (key, kind) in keys {
            let is_written = key.ends_with('=');
            // Sections have the layers of a model type without a row: it may mask them, or write into them.
            if answers.is_none() && !is_written && !["mask", "config"].contains(&kind.as_str()) {
                continue;
            }
            let last = key.trim_end_matches('=').rsplit('.').next().unwrap();
            let listed = [format!("{model_type}:{key}"), key.clone(), last.to_string()];
            match &answers {
                Some(answers) if !is_written && answers.reads(&key) => read += 1,
                Some(answers) if !is_written && answers.refuses(&key) => refused += 1,
                // Beside a section it must be what the section states.
                None if key == "is_causal" => refused += 1,
                _ => match listed.into_iter().find(|name| harmless.contains_key(name)) {
                    Some(name) => *used.entry(name).or_insert(0) += 1,
                    None => open.push(format!("{model_type} | {kind} | {key}")),
                },
            }
        }
    }
    let harmless_keys: usize = used.values().sum();
    println!("{read} keys are read, {refused} refused, {harmless_keys} harmless");
    let needless: Vec<_> = harmless.keys().filter(|key| !used.contains_key(*key)).collect();
    let answered = open.is_empty() && needless.is_empty();
    assert!(answered, "without an answer:\n{}\nneedlessly listed as harmless: {needless:?}", open.join("\n"));
    assert!(read > 3000 && refused > 10 && harmless_keys > 3000, "{read}, {refused}, {harmless_keys}");
}
