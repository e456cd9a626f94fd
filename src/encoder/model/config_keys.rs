//! BERT's config keys for every family: renames keys, resolves gates, fills in defaults, rejects what is not implemented.

use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::families::table;

/// The activation of each kind of gate ([Shazeer 2020](https://arxiv.org/abs/2002.05202)).
const GATES: &[(&str, &str)] = &[("swiglu", "silu"), ("geglu", "gelu"), ("reglu", "relu"), ("glu", "sigmoid")];

/// The `model_type` values that are supported, for an error message.
pub(crate) fn supported_models() -> String {
    format!("{}, which this version runs", table::model_names().join(" or "))
}

/// Gives the keys of a `config.json` BERT's names. Keys that are null count as absent.
///
/// # Errors
/// A `model_type` that is not supported; a key that switches on what is not implemented.
pub(crate) fn normalize_config_keys(keys: &mut Map<String, Value>) -> Result<()> {
    keys.retain(|_, value| !value.is_null());
    let text = |key: &str| keys.get(key).and_then(Value::as_str);
    let found = text("model_type").unwrap_or("absent");
    let row =
        table::model(found, text, |_| false).ok_or_else(|| Error::config("model_type", found, supported_models()))?;
    let is_on = |value: &Value| *value != Value::Bool(false) && value.as_f64() != Some(0.0);
    for key in row.unsupported_keys {
        if let Some(value) = keys.get(*key).filter(|value| is_on(value)) {
            return Err(Error::config(key, value, "false, or absent"));
        }
    }
    if let Some(gate) = row.gate.filter(|gate| gate.required || keys.contains_key(gate.key)) {
        replace_gate(keys, gate.key, gate.gates)?;
    }
    for (theirs, ours) in row.renamed_keys {
        if let Some(value) = keys.remove(*theirs) {
            keys.insert((*ours).to_string(), value);
        }
    }
    keys.entry("layer_norm_eps").or_insert(row.layer_norm_eps.into());
    keys.entry("pad_token_id").or_insert(row.pad_token_id.into());
    if let Some(types) = row.default_type_vocab_size() {
        keys.entry("type_vocab_size").or_insert(types.into());
    }
    Ok(())
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
