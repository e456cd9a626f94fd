//! The `config.json` of each family in the words of BERT's.

use serde_json::{Map, Value};

use crate::encoder::model::family::Family;
use crate::error::{Error, Result};

/// What DistilBERT calls BERT's keys.
const DISTILBERT: &[(&str, &str)] = &[
    ("dim", "hidden_size"),
    ("n_layers", "num_hidden_layers"),
    ("n_heads", "num_attention_heads"),
    ("hidden_dim", "intermediate_size"),
    ("activation", "hidden_act"),
    ("dropout", "hidden_dropout_prob"),
    ("attention_dropout", "attention_probs_dropout_prob"),
];
const MODERNBERT: &[(&str, &str)] = &[
    ("hidden_activation", "hidden_act"),
    ("norm_eps", "layer_norm_eps"),
    ("mlp_dropout", "hidden_dropout_prob"),
    ("attention_dropout", "attention_probs_dropout_prob"),
];
/// As Nomic's own code writes them; transformers writes BERT's.
const NOMIC: &[(&str, &str)] = &[
    ("n_embd", "hidden_size"),
    ("n_layer", "num_hidden_layers"),
    ("n_head", "num_attention_heads"),
    ("n_inner", "intermediate_size"),
    ("activation_function", "hidden_act"),
    // Without a table of positions, the shorter length that may stand beside it is no limit.
    ("n_positions", "max_position_embeddings"),
    ("layer_norm_epsilon", "layer_norm_eps"),
    ("resid_pdrop", "hidden_dropout_prob"),
    ("attn_pdrop", "attention_probs_dropout_prob"),
];

/// What a gate's name says of its activation.
const GATES: &[(&str, &str)] = &[("swiglu", "silu"), ("geglu", "gelu"), ("reglu", "relu"), ("glu", "sigmoid")];

/// The family of a configuration, whose keys become BERT's; what is null is taken for absent.
pub(crate) fn translate(keys: &mut Map<String, Value>) -> Result<&'static Family> {
    keys.retain(|_, value| !value.is_null());
    let text = |key: &str| keys.get(key).and_then(Value::as_str);
    let found = text("model_type").unwrap_or("absent");
    let family = Family::of(found, text("position_embedding_type").unwrap_or("absolute"))
        .ok_or_else(|| Error::config("model_type", found, Family::names()))?;
    let is_on = |value: &Value| *value != Value::Bool(false) && value.as_f64() != Some(0.0);
    for key in family.off {
        if let Some(value) = keys.get(*key).filter(|value| is_on(value)) {
            return Err(Error::config(key, value, "false, or absent"));
        }
    }
    if family.name == "nomic_bert" && keys.contains_key("activation_function") {
        replace_gate(keys, "activation_function", &["swiglu", "geglu", "glu"])?;
    }
    if family.is_jina() {
        // It decides, whatever `hidden_act` says.
        replace_gate(keys, "feed_forward_type", &["geglu", "reglu"])?;
        keys.extend(keys.get("feed_forward_type").cloned().map(|gate| ("hidden_act".to_string(), gate)));
    }
    let renamed = match family.name {
        "distilbert" => DISTILBERT,
        "modernbert" => MODERNBERT,
        "nomic_bert" => NOMIC,
        _ => &[],
    };
    for (theirs, ours) in renamed {
        if let Some(value) = keys.remove(*theirs) {
            keys.insert((*ours).to_string(), value);
        }
    }
    // Theirs where nothing is said.
    keys.entry("pad_token_id").or_insert(family.pad.into());
    if let Some(types) = family.usual_types() {
        keys.entry("type_vocab_size").or_insert(types.into());
    }
    Ok(family)
}

/// Puts the activation in the place of a gate's name.
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
