//! BERT's config keys for every family: renames keys, resolves gates, fills in defaults, rejects what is not
//! implemented.

use candle_attention::{Error, Result};
use serde_json::{Map, Value};

use candle_attention::checkpoint;

use crate::families;
use crate::families::model::{FeedForwardNames, SegmentTypes};

/// The activation of each kind of gate ([Shazeer 2020](https://arxiv.org/abs/2002.05202)).
const GATES: &[(&str, &str)] = &[("swiglu", "silu"), ("geglu", "gelu"), ("reglu", "relu"), ("glu", "sigmoid")];

const KV_HEADS: &str = "num_key_value_heads";

/// The `model_type` values that are supported, for an error message.
pub(crate) fn supported_models() -> String {
    format!("{}, which this version runs", families::model_types().join(" or "))
}

/// Gives the keys of a `config.json` BERT's names. Keys that are null count as absent.
///
/// # Errors
/// A `model_type` that is not supported; a key that switches on what is not implemented.
pub(crate) fn normalize_config_keys(keys: &mut Map<String, Value>) -> Result<()> {
    // A number of key-value heads that is null is that of the heads; one that is absent is the family's default.
    if let (Some(Value::Null), Some(heads)) = (keys.get(KV_HEADS), keys.get("num_attention_heads").cloned()) {
        keys.insert(KV_HEADS.to_string(), heads);
    }
    keys.retain(|_, value| !value.is_null());
    if let Some(Value::String(stated)) = keys.get("model_type") {
        let positions = keys.get("position_embedding_type").and_then(Value::as_str);
        let model_type = checkpoint::resolved_model_type(stated, positions).to_string();
        keys.insert("model_type".to_string(), model_type.into());
    }
    let text = |key: &str| keys.get(key).and_then(Value::as_str);
    let found = text("model_type").unwrap_or("absent");
    let row = families::model(found, text, |_| false)
        .ok_or_else(|| Error::config("model_type", found, supported_models()))?;
    let is_on = |value: &Value| *value != Value::Bool(false) && value.as_f64() != Some(0.0);
    for key in row.unsupported_keys {
        if let Some(value) = keys.get(*key).filter(|value| is_on(value)) {
            return Err(Error::config(key, value, "false, or absent"));
        }
    }
    if row.mask_must_be_stated && !keys.contains_key("is_causal") && keys.contains_key("auto_map") {
        let allowed = "beside `is_causal`: the model's own code may see both ways, and nothing else tells";
        return Err(Error::config("auto_map", "stated alone", allowed));
    }
    if let Some((key, default)) = row.activation_key {
        let gated = !matches!(row.block.feed_forward, FeedForwardNames::Plain { .. });
        let activation = t5_activation(keys, key, default, gated)?;
        keys.insert("hidden_act".to_string(), activation.into());
    }
    if let Some(gate) = row.gate.filter(|gate| gate.required || keys.contains_key(gate.key)) {
        replace_gate(keys, gate.key, gate.gates)?;
    }
    for (theirs, ours) in row.renamed_keys {
        if let Some(value) = keys.remove(*theirs) {
            keys.insert((*ours).to_string(), value);
        }
    }
    for (key, default) in row.default_keys {
        // Sizes are whole numbers.
        let whole = *default >= 1.0 && default.fract() == 0.0;
        let default = if whole { Value::from(*default as u64) } else { Value::from(*default) };
        keys.entry(*key).or_insert(default);
    }
    // Without an entry it is 0, and heads that look for padding see that none is stated.
    if row.pad_token_id != 0 {
        keys.entry("pad_token_id").or_insert(row.pad_token_id.into());
    }
    if let SegmentTypes::Optional(types) = row.types {
        keys.entry("type_vocab_size").or_insert(types.into());
    }
    Ok(())
}

/// The activation that T5's `key` names, for a feed-forward part that is `gated` or not.
fn t5_activation(keys: &Map<String, Value>, key: &'static str, default: &str, gated: bool) -> Result<String> {
    let found = keys.get(key).map_or(default, |value| value.as_str().unwrap_or_default());
    let activation = match (found, found.strip_prefix("gated-")) {
        // T5's name for the approximation by tanh.
        ("gated-gelu", _) if gated => "gelu_new",
        (name, None) if !gated && !name.is_empty() => name,
        _ => return Err(Error::config(key, found, if gated { "gated-gelu" } else { "gated-gelu or an activation" })),
    };
    // Later files also state what follows from that key.
    for (other, follows) in [("dense_act_fn", Value::from(activation)), ("is_gated_act", Value::from(gated))] {
        if let Some(stated) = keys.get(other).filter(|stated| **stated != follows) {
            return Err(Error::config(other, stated, format!("{follows}, by `{key}`")));
        }
    }
    Ok(activation.to_string())
}

/// Replaces the name of a gate by its activation.
fn replace_gate(keys: &mut Map<String, Value>, key: &'static str, allowed: &[&str]) -> Result<()> {
    let found = keys.get(key).and_then(Value::as_str).unwrap_or("absent").to_string();
    match GATES.iter().find(|(gate, _)| *gate == found && allowed.contains(gate)) {
        Some((_, activation)) => {
            keys.insert(key.to_string(), (*activation).into());
            Ok(())
        }
        None => Err(Error::config(key, found, allowed.join(" or "))),
    }
}
