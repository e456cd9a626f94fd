//! BERT's config keys for every family: renames keys, resolves gates, fills in defaults, rejects what is not
//! implemented.

use candle_attention::{Error, Result};
use serde_json::{Map, Value};

use candle_attention::checkpoint;

use crate::families;
use crate::families::model::{FeedForwardNames, SegmentTypes};

/// The most layers of a model. Layers that share their weights add nothing to a file, so that its size does not bound
/// their number. The deepest published encoders have 48.
pub(crate) const MAX_LAYERS: usize = 1 << 12;

/// The largest number of rows or features of a table of weights: ids are 32-bit numbers, and twice a size must not
/// overflow. The largest published vocabulary has fewer than 2^20 tokens.
pub(crate) const MAX_MODEL_SIZE: usize = 1 << 30;

/// The activation of each kind of gate ([Shazeer 2020](https://arxiv.org/abs/2002.05202)).
const GATES: &[(&str, &str)] = &[("swiglu", "silu"), ("geglu", "gelu"), ("reglu", "relu"), ("glu", "sigmoid")];

const KV_HEADS: &str = "num_key_value_heads";

/// The entry of `layer_types` of a block that has a short convolution in the place of attention.
pub(crate) const CONVOLUTION: &str = "conv";

/// The `model_type` values that are supported, for an error message.
pub(crate) fn supported_models() -> String {
    format!("{}, which this version runs", families::model_types().join(" or "))
}

/// Keys whose null is not their absence to an attention layer, which reads or refuses it.
const ATTENTION_NULLS: [&str; 9] = [
    "rope_theta",
    "global_rope_theta",
    "local_rope_theta",
    "rope_local_base_freq",
    "original_max_position_embeddings",
    "sliding_window",
    "local_attention",
    "global_attn_every_n_layers",
    "max_window_layers",
];

/// Gives the keys of a `config.json` BERT's names. Keys that are null count as absent.
///
/// # Errors
/// A `model_type` that is not supported; a key that switches on what is not implemented; a null in the place of a
/// number that has a default.
pub(crate) fn normalize_config_keys(keys: &mut Map<String, Value>) -> Result<()> {
    enter_section(keys)?;
    // A number of key-value heads that is null is that of the heads; one that is absent is the family's default.
    if let (Some(Value::Null), Some(heads)) = (keys.get(KV_HEADS), keys.get("num_attention_heads").cloned()) {
        keys.insert(KV_HEADS.to_string(), heads);
    }
    // transformers takes it as false.
    if keys.get("is_causal").is_some_and(Value::is_null) {
        keys.insert("is_causal".to_string(), false.into());
    }
    let nulls: Vec<String> = keys.iter().filter(|(_, value)| value.is_null()).map(|(key, _)| key.clone()).collect();
    keys.retain(|key, value| !value.is_null() || ATTENTION_NULLS.contains(&key.as_str()));
    if let Some(model_type) = checkpoint::resolved_model_type(keys).map(str::to_string) {
        keys.insert("model_type".to_string(), model_type.into());
    }
    let text = |key: &str| stated_text(keys, key);
    let found = text("model_type").unwrap_or("absent");
    let row = families::model(found, text, |_| false)
        .ok_or_else(|| Error::config("model_type", found, supported_models()))?;
    for (ours, _) in row.default_keys {
        let names = row.renamed_keys.iter().filter(|(_, own)| own == ours).map(|(theirs, _)| *theirs).chain([*ours]);
        if let Some(null) = names.clone().find(|name| nulls.iter().any(|null| null == name))
            && !names.into_iter().any(|name| keys.contains_key(name))
        {
            return Err(Error::config(null, "null", "a number, or absent"));
        }
    }
    let is_on = |value: &Value| !matches!(value, Value::Null | Value::Bool(false)) && value.as_f64() != Some(0.0);
    for key in row.unsupported_keys {
        if let Some(value) = keys.get(*key).filter(|value| is_on(value)) {
            return Err(Error::config(key, value, "false, or absent"));
        }
    }
    if row.sees_both_ways {
        let key = "use_bidirectional_attention";
        match keys.remove(key) {
            None | Some(Value::Bool(true)) => keys.insert("is_causal".to_string(), false.into()),
            Some(other) => return Err(Error::config(key, other, "true, or absent: the model sees both ways")),
        };
    }
    if row.block.has_convolutions {
        list_layer_types(keys)?;
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
    for (key, needed) in row.needed_numbers {
        if let Some(value) = keys.get(*key).filter(|value| value.as_u64() != Some(*needed)) {
            return Err(Error::config(key, value, format!("{needed}, or absent")));
        }
    }
    for (theirs, ours) in row.renamed_keys {
        if let Some(value) = keys.get(*theirs).cloned() {
            keys.insert((*ours).to_string(), value);
        }
    }
    checkpoint::remove_ignored_keys(keys);
    if let Some(gate) = row.gate.filter(|gate| gate.required || keys.contains_key(gate.key)) {
        let activation = activation_of_gate(keys, gate.key, gate.gates)?;
        keys.insert("hidden_act".to_string(), activation.into());
    }
    if let Some(activation) = row.activation {
        keys.entry("hidden_act").or_insert(activation.into());
    }
    if row.adjusts_inner_size {
        adjust_inner_size(keys)?;
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

/// Models of text and more whose text model runs alone, by `model_type`, and where the configuration describes it.
const SECTIONS: &[(&str, &str)] = &[("embedding_gemma2", "text_config")];

/// Puts the section of a text model in the place of the whole configuration.
fn enter_section(keys: &mut Map<String, Value>) -> Result<()> {
    let whole = keys.get("model_type").and_then(Value::as_str);
    let Some((_, section)) = SECTIONS.iter().find(|(model_type, _)| Some(*model_type) == whole) else { return Ok(()) };
    match keys.remove(*section) {
        Some(Value::Object(section)) => {
            *keys = section;
            Ok(())
        }
        _ => Err(Error::config(section, "absent", "the configuration of the text model")),
    }
}

/// The text at a key, or the class of the model for [`families::CLASS`].
pub(crate) fn stated_text<'a>(keys: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    match key {
        families::CLASS => checkpoint::model_class(keys),
        key => keys.get(key).and_then(Value::as_str),
    }
}

/// Writes the list of `layer_types` that follows from the blocks with attention, if there is none.
fn list_layer_types(keys: &mut Map<String, Value>) -> Result<()> {
    const KEY: &str = "layer_types";
    // Without it, all blocks have attention.
    const ATTENTION_LAYERS: &str = "full_attn_idxs";
    let layers = keys.get("num_hidden_layers").and_then(Value::as_u64).unwrap_or(0);
    if let Some(stated) = keys.get(KEY) {
        let kinds = stated.as_array().into_iter().flatten();
        let known = |kind: &&Value| [Some(CONVOLUTION), Some("full_attention")].contains(&kind.as_str());
        return match kinds.clone().find(|kind| !known(kind)) {
            Some(other) => Err(Error::config(KEY, other, format!("{CONVOLUTION} or full_attention"))),
            None if stated.is_array() => Ok(()),
            None => Err(Error::config(KEY, stated, "a list")),
        };
    }
    let listed = match keys.get(ATTENTION_LAYERS) {
        None => None,
        Some(Value::Array(listed)) => Some(listed.clone()),
        Some(other) => return Err(Error::config(ATTENTION_LAYERS, other, "a list of layers")),
    };
    // More layers are refused when the sizes are checked.
    let kind = |layer: u64| match &listed {
        Some(listed) if !listed.contains(&layer.into()) => CONVOLUTION,
        _ => "full_attention",
    };
    let kinds: Vec<Value> = (0..layers.min(MAX_LAYERS as u64)).map(|layer| kind(layer).into()).collect();
    keys.insert(KEY.to_string(), kinds.into());
    Ok(())
}

/// Puts the size of the feed-forward part in the place of `intermediate_size`, which states another one.
fn adjust_inner_size(keys: &mut Map<String, Value>) -> Result<()> {
    const KEY: &str = "intermediate_size";
    const ADJUSTS: &str = "block_auto_adjust_ff_dim";
    const FACTOR: &str = "block_ffn_dim_multiplier";
    const MULTIPLE: &str = "block_multiple_of";
    match keys.get(ADJUSTS) {
        None | Some(Value::Bool(true)) => {}
        Some(Value::Bool(false)) => return Ok(()),
        Some(other) => return Err(Error::config(ADJUSTS, other, "true or false")),
    }
    // One that is absent or no size gets its error where all are read.
    let Some(stated) = keys.get(KEY).and_then(Value::as_u64).filter(|size| *size <= MAX_MODEL_SIZE as u64) else {
        return Ok(());
    };
    let factor = keys.get(FACTOR).map_or(Some(1.0), Value::as_f64).filter(|factor| (0.0..=1e6).contains(factor));
    let factor = factor.ok_or_else(|| Error::config(FACTOR, &keys[FACTOR], "a number from 0"))?;
    let multiple = keys.get(MULTIPLE).map_or(Some(256), Value::as_u64);
    let multiple = multiple.filter(|multiple| (1..=MAX_MODEL_SIZE as u64).contains(multiple));
    let multiple = multiple.ok_or_else(|| Error::config(MULTIPLE, &keys[MULTIPLE], "at least 1"))?;
    // Casts of floats to integers round towards zero, as those of Python do.
    let size = (factor * (2 * stated / 3) as f64) as u64;
    keys.insert(KEY.to_string(), size.next_multiple_of(multiple).into());
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

/// The activation of the gate that `key` names.
fn activation_of_gate(keys: &Map<String, Value>, key: &'static str, allowed: &[&str]) -> Result<&'static str> {
    let found = keys.get(key).and_then(Value::as_str).unwrap_or("absent");
    let known = GATES.iter().find(|(gate, _)| *gate == found && allowed.contains(gate));
    known.map(|(_, activation)| *activation).ok_or_else(|| Error::config(key, found, allowed.join(" or ")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::config::TextModelConfig;

    /// Null as transformers 5.23 reads it: absent in `head_dim` of Llama, false in `is_causal`, an error elsewhere.
    #[test]
    fn null_is_absent_only_where_it_is_so_in_transformers() {
        let read = |model_type: &str, key: &str| {
            let mut json = json!({
                "model_type": model_type, "vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1,
                "num_attention_heads": 2, "intermediate_size": 8, "hidden_act": "silu", "max_position_embeddings": 9,
                "head_dim": 4,
            });
            json[key] = Value::Null;
            serde_json::from_value::<TextModelConfig>(json).map_err(|error| error.to_string())
        };
        for key in ["head_dim", "rope_scaling", "rope_parameters", "layer_types", "sliding_window"] {
            assert!(read("llama", key).is_ok(), "{key}");
        }
        assert_eq!(read("llama", "is_causal").unwrap().key("is_causal"), Some(&json!(false)));
        // An attention layer reads these, as an error or not.
        for key in ["rope_theta", "sliding_window"] {
            assert_eq!(read("gemma3_text", key).unwrap().key(key), Some(&Value::Null));
        }
        for (model_type, key) in [("qwen3", "head_dim"), ("llama", "rms_norm_eps"), ("bert", "layer_norm_eps")] {
            let error = read(model_type, key).unwrap_err();
            let names = [key, "null", "a number, or absent"];
            assert!(names.iter().all(|part| error.contains(part)), "{error}");
        }
    }
}
