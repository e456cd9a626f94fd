//! Makes the `config.json` of a GGUF file's metadata.

use serde_json::{Map, Value, json};

use crate::checkpoint::gguf::names::architecture_of;
use crate::checkpoint::gguf::tables::{ARCHITECTURES, Architecture, Expected, IGNORED, Origin, SIZES};
use crate::checkpoint::gguf::value::{GgufMetadata, GgufValue, absent};
use crate::ensure;
use crate::error::{Error, Result, cut};

/// The keys that describe the scaling of rotary positions, below the name of the architecture.
const SCALING: &str = "rope.scaling.";

/// Those of every scaling. The last one says whether the model was trained with it, which changes nothing.
const SCALING_KEYS: [&str; 4] = ["type", "factor", "original_context_length", "finetuned"];

/// Those of YaRN, with the names of Hugging Face. llama.cpp's converter writes its `attention_factor` to the last one.
const YARN_KEYS: [(&str, &str); 4] = [
    ("yarn_beta_fast", "beta_fast"),
    ("yarn_beta_slow", "beta_slow"),
    ("attn_factor", "attention_factor"),
    ("yarn_attn_factor", "attention_factor"),
];

/// The most layers whose kinds are listed.
const MAX_LAYERS: usize = 1 << 12;

/// The `config.json` of a file: the sizes of its model under the names of Hugging Face. `rows` gives the number of rows
/// of a tensor by llama.cpp's name, `frequencies` the factors of the tensor `rope_freqs.weight`, if there is one.
///
/// # Errors
/// If the architecture is not in the table, a key is missing or has another type, or one says something that is not
/// applied here.
pub(crate) fn config_of(
    metadata: &GgufMetadata,
    rows: &dyn Fn(&str) -> Option<usize>,
    frequencies: Option<Vec<f32>>,
) -> Result<Value> {
    let Some(row) = architecture_of(metadata, |name| rows(name).is_some())? else {
        let mut known: Vec<&str> = ARCHITECTURES.iter().map(|row| row.name).collect();
        known.dedup();
        let found = format!("`{}`", cut(metadata.architecture()?));
        return Err(Error::value("metadata `general.architecture`", found, format!("one of {}", known.join(", "))));
    };
    let full = |key: &str| format!("{}.{key}", row.name);
    check_keys(row, metadata)?;
    let mut config = Map::new();
    for (ours, from) in SIZES.iter().chain(row.config) {
        let value = match from {
            Origin::Key(key) => Some(scalar(metadata, &full(key))?.ok_or_else(|| absent(&full(key)))?),
            Origin::Optional(key) => scalar(metadata, &full(key))?,
            Origin::Rows(tensor) => {
                let missing = || Error::MissingTensor { name: tensor.to_string(), why: "its rows are counted".into() };
                Some(rows(tensor).ok_or_else(missing)?.into())
            }
            Origin::Text(text) => Some((*text).into()),
            Origin::Number(number) if number.fract() == 0.0 => Some((*number as u64).into()),
            Origin::Number(number) => Some((*number).into()),
            Origin::Flag(flag) => Some((*flag).into()),
            Origin::LayerTypes(key, every) => Some(layer_types(metadata, row, &full(key), *every)?),
        };
        config.extend(value.map(|value| (ours.to_string(), value)));
    }
    if let Some(scaling) = rope_scaling(metadata, row, frequencies)? {
        config.insert("rope_scaling".to_string(), scaling);
    }
    Ok(Value::Object(config))
}

/// Refuses keys below the name of the architecture that nothing here reads, and values that are not what this crate
/// computes.
fn check_keys(row: &Architecture, metadata: &GgufMetadata) -> Result<()> {
    let start = format!("{}.", row.name);
    let is_yarn = scaling_kind(metadata, row)? == "yarn";
    let is_read = |key: &str| {
        let is_size = SIZES.iter().chain(row.config).any(|(_, from)| match from {
            Origin::Key(other) | Origin::Optional(other) | Origin::LayerTypes(other, _) => *other == key,
            _ => false,
        });
        let expected = row.expected.iter().any(|(other, _)| *other == key);
        let is_yarn_key = |key: &str| is_yarn && YARN_KEYS.iter().any(|(theirs, _)| *theirs == key);
        let is_scaling = key.strip_prefix(SCALING).is_some_and(|key| SCALING_KEYS.contains(&key) || is_yarn_key(key));
        is_size || expected || IGNORED.contains(&key) || row.ignored.contains(&key) || is_scaling
    };
    for (key, value) in metadata.iter() {
        if let Some(below) = key.strip_prefix(&start).filter(|below| !is_read(below)) {
            let allowed = format!("absent: what `{}` does is not known for this architecture", cut(below));
            return Err(Error::value(format!("metadata `{}`", cut(key)), cut(&value.to_string()), allowed));
        }
    }
    for (key, expected) in row.expected {
        let key = format!("{start}{key}");
        let Some(value) = metadata.get(&key) else { continue };
        let (fits, allowed) = match expected {
            Expected::Flag(flag) => (*value == GgufValue::Bool(*flag), flag.to_string()),
            Expected::Zero => (*value == GgufValue::Integer(0), "0: experts are not supported".to_string()),
            Expected::WidthByHeads | Expected::HeadSize => {
                let count = |key: &str| metadata.count(&format!("{start}{key}"));
                let (width, heads) = (count("embedding_length")?, count("attention.head_count")?);
                let by_width = width.zip(heads).and_then(|(width, heads)| width.checked_div(heads));
                let stated = count("attention.key_length")?.filter(|_| matches!(expected, Expected::HeadSize));
                let size = stated.or(by_width).unwrap_or(0);
                (*value == GgufValue::Integer(size as i64), format!("{size}, the size of a head"))
            }
        };
        ensure!(fits, Error::value(format!("metadata `{key}`"), cut(&value.to_string()), allowed));
    }
    Ok(())
}

/// A number, a text or a truth value as JSON.
fn scalar(metadata: &GgufMetadata, key: &str) -> Result<Option<Value>> {
    Ok(match metadata.get(key) {
        None => None,
        Some(GgufValue::Bool(flag)) => Some((*flag).into()),
        Some(GgufValue::Integer(number)) => Some((*number).into()),
        Some(GgufValue::Text(text)) => Some(text.as_str().into()),
        Some(_) => metadata.number(key)?.map(Value::from),
    })
}

/// `layer_types`, by a pattern of layers with a window.
fn layer_types(metadata: &GgufMetadata, row: &Architecture, key: &str, every: usize) -> Result<Value> {
    let count = format!("{}.block_count", row.name);
    let layers = metadata.count(&count)?.ok_or_else(|| absent(&count))?;
    ensure!(layers <= MAX_LAYERS, Error::value(format!("metadata `{count}`"), layers, format!("at most {MAX_LAYERS}")));
    let windows: Vec<bool> = match metadata.get(key) {
        Some(GgufValue::Bytes(windows)) if windows.len() == layers => {
            windows.iter().map(|window| *window != 0).collect()
        }
        Some(GgufValue::Bytes(windows)) => {
            let found = format!("{} values", windows.len());
            return Err(Error::value(format!("metadata `{key}`"), found, layers.to_string()));
        }
        _ => {
            let every = metadata.count(key)?.unwrap_or(every);
            (1..=layers).map(|layer| every == 0 || !layer.is_multiple_of(every)).collect()
        }
    };
    Ok(windows.into_iter().map(|window| if window { "sliding_attention" } else { "full_attention" }).collect())
}

/// The kind of the scaling of rotary positions: of a factor alone, linear, as llama.cpp has it.
fn scaling_kind<'a>(metadata: &'a GgufMetadata, row: &Architecture) -> Result<&'a str> {
    let key = |key: &str| format!("{}.{SCALING}{key}", row.name);
    let default = if metadata.get(&key("factor")).is_some() { "linear" } else { "none" };
    Ok(metadata.text(&key("type"))?.unwrap_or(default))
}

/// `rope_scaling`: what the metadata states, or the factors of each frequency, which llama.cpp has for Llama 3.
fn rope_scaling(metadata: &GgufMetadata, row: &Architecture, frequencies: Option<Vec<f32>>) -> Result<Option<Value>> {
    let full = |key: &str| format!("{}.{SCALING}{key}", row.name);
    let kind = scaling_kind(metadata, row)?;
    let factor = || metadata.number(&full("factor"))?.ok_or_else(|| absent(&full("factor")));
    let scaling = match (kind, frequencies) {
        ("none", None) => return Ok(None),
        // Without a limit of its own, and with the scale of scores as it is.
        ("none", Some(factors)) => json!({
            "rope_type": "longrope",
            "factor": 1.0,
            "attention_factor": 1.0,
            "short_factor": factors,
            "long_factor": factors,
            "original_max_position_embeddings": metadata.count(&format!("{}.context_length", row.name))?,
        }),
        ("linear", None) => json!({"rope_type": "linear", "factor": factor()?}),
        ("yarn", None) => {
            let length = full("original_context_length");
            let length = metadata.count(&length)?.ok_or_else(|| absent(&length))?;
            let mut yarn =
                json!({"rope_type": "yarn", "factor": factor()?, "original_max_position_embeddings": length});
            for (theirs, ours) in YARN_KEYS {
                if let Some(number) = metadata.number(&full(theirs))? {
                    yarn[ours] = number.into();
                }
            }
            yarn
        }
        (other, _) => {
            let allowed = "none, linear or yarn, without a table of frequencies beside";
            return Err(Error::value(format!("metadata `{}`", full("type")), cut(other), allowed));
        }
    };
    Ok(Some(scaling))
}
