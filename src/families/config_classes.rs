//! The config classes of transformers: numbers of heads where a file states none, and keys beyond
//! those that layers read.
//!
//! transformers ignores a key that neither a config class nor the code of its models has, and so does this crate where
//! it is that class which runs the file. Everywhere else the key was written for code that is not known here, and a key
//! that changes attention is an error.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde_json::{Map, Value};

use crate::families::layer::Layer;
use crate::families::table::layer_family;

/// The version of transformers whose classes are listed.
const VERSION: (u32, u32) = (5, 24);

/// A config class.
#[derive(Default)]
struct ConfigClass {
    /// The number of heads of a configuration that leaves it out, as `text_config` of LLaVA and Gemma 3 does.
    heads: Option<usize>,
    /// Keys of sizes, and keys that change attention and that layers do not read.
    keys: Vec<&'static str>,
}

/// The config classes by their `model_type`: a line of `config_classes.txt` each.
static CLASSES: LazyLock<HashMap<&str, ConfigClass>> = LazyLock::new(|| {
    let lines = include_str!("config_classes.txt").lines().filter(|line| !line.starts_with('#'));
    let class = |line: &'static str| {
        let mut words = line.split_ascii_whitespace();
        let model_type = words.next()?;
        let heads = words.next().and_then(|heads| heads.parse().ok());
        Some((model_type, ConfigClass { heads, keys: words.collect() }))
    };
    lines.filter_map(class).collect()
});

/// The `model_type`s of rows that are no model of transformers: names in GTE's, pplx-embed's, Kimi's and Florence-2's
/// own code, of timm's files, of sections of Evolla and Bark, and of a version after 5.24.
#[rustfmt::skip]
const NOT_IN_TRANSFORMERS: [&str; 11] = [
    "new", "bidirectional_pplx_qwen3", "kimi_k2", "davit", "florence2_language", "timm", "evolla_protein_encoder",
    "semantic", "coarse_acoustics", "fine_acoustics", "lfm2_bidirectional",
];

/// The `model_type`s of rows that are parts of a model of transformers.
#[rustfmt::skip]
const PARTS: [&str; 7] = [
    "evolla_adapter", "evolla_resampler", "sam2_video_memory", "videoprism_head", "fun_asr_nano_adaptor",
    "fastspeech2_conformer_encoder", "fastspeech2_conformer_decoder",
];

/// Keys that all config classes have, or had before transformers 5.
const COMMON_KEYS: [&str; 2] = ["per_layer_config", "is_decoder"];

/// Keys that a class with `rope_parameters` takes into them.
pub(super) const ROPE_KEYS: [&str; 2] = ["rope_scaling", "partial_rotary_factor"];

/// Keys of sizes that weights show.
const SIZE_KEYS: [&str; 5] = ["num_key_value_heads", "head_dim", "d_model", "n_embd", "dim"];

/// Whether a `model_type` has a config class in transformers.
pub(super) fn has_class(model_type: &str) -> bool {
    !NOT_IN_TRANSFORMERS.contains(&model_type) && !PARTS.contains(&model_type)
}

/// The number of heads of this `model_type` if its configuration states none.
pub(super) fn default_heads(model_type: &str) -> Option<usize> {
    CLASSES.get(model_type)?.heads
}

/// The number of heads of the decoder of this `model_type` if its configuration states none: a word of its line.
pub(super) fn default_decoder_heads(model_type: &str) -> Option<usize> {
    CLASSES.get(model_type)?.keys.iter().find_map(|word| word.strip_prefix("decoder=")?.parse().ok())
}

/// Whether transformers' own class runs a file: it names no code (`auto_map`), and is not of a later version.
pub(crate) fn is_of_class(json: &Map<String, Value>) -> bool {
    let version = json.get("transformers_version").and_then(Value::as_str).unwrap_or_default();
    let mut numbers = version.split('.').map_while(|number| number.parse().ok());
    let is_later = (numbers.next(), numbers.next()) > (Some(VERSION.0), Some(VERSION.1));
    !is_later && !json.contains_key("auto_map")
}

/// The keys of sizes in this section of a file that its class ignores.
pub(crate) fn ignored_sizes(section: &Map<String, Value>, model_type: &str) -> Vec<&'static str> {
    let keys = SIZE_KEYS.into_iter().filter(|key| section.contains_key(*key));
    keys.filter(|key| is_unknown(key, section.get("model_type"), model_type)).collect()
}

/// Whether the class of a layer's section ignores a key that changes attention and that the layer has not read.
pub(super) fn is_ignored(key: &str, layer: &Layer) -> bool {
    let is_taken = ROPE_KEYS.contains(&key) && layer.has_read("rope_parameters");
    let stated = layer.section.json.get("model_type");
    !COMMON_KEYS.contains(&key) && !is_taken && is_unknown(key, stated, layer.model_type)
}

/// Whether no class of a section knows a key: `model_type` is that of its row, and where the section states another
/// one, both have to ignore a key, or the model that it is a part of.
fn is_unknown(key: &str, stated: Option<&Value>, model_type: &str) -> bool {
    let stated = stated.and_then(Value::as_str).unwrap_or(model_type);
    let model_type = if PARTS.contains(&model_type) { stated } else { model_type };
    let knows = |name: &str| CLASSES.get(name).is_some_and(|class| class.keys.contains(&key));
    let ignores = |name: &str| has_class(name) && !knows(name);
    layer_family(Some(stated)).is_ok() && ignores(model_type) && ignores(stated)
}
