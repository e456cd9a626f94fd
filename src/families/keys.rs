//! Config keys that change attention. A family reads them, or a configuration that sets them is refused, unless
//! transformers ignores the key ([`known`](crate::families::known)).

use serde_json::Value;

use crate::error::{Error, Result};
use crate::families::family::{
    Causal, Family, HeadSizes, LayerPositions, QueryFactor, RotaryLayers, Scale, WeightlessNorm, WindowLayers,
};

const ROTARY: &str = "rotary positions";
const BIAS: &str = "a relative position bias";
const WINDOW: &str = "a sliding window";
const SCALE: &str = "a factor on the scores";
const QK_NORM: &str = "norms of queries and keys";
const ROTARY_OF_WINDOWS: &str = "rotary positions of layers with a window";
const ROTARY_OF_FAMILY: &str = "rotary positions in the spelling of another family";
const ROTARY_PER_LAYER: &str = "rotary positions of each layer";
const GATE: &str = "a gate of the output";
const HEAD_SIZES: &str = "other sizes of heads in some layers";
const NOPE: &str = "layers without positions";

/// Keys that change attention if they are neither null nor false, each with what it sets.
pub(super) const KEYS: &[(&str, &str)] = &[
    ("rope_theta", ROTARY),
    ("rope_parameters", ROTARY),
    ("rope_scaling", ROTARY),
    ("rotary_dim", ROTARY),
    ("rotary_value", "a rotation of the values"),
    ("partial_rotary_factor", ROTARY),
    ("global_rope_theta", ROTARY_OF_WINDOWS),
    ("local_rope_theta", ROTARY_OF_WINDOWS),
    ("rope_local_base_freq", ROTARY_OF_WINDOWS),
    ("rotary_pct", ROTARY_OF_FAMILY),
    ("rotary_emb_base", ROTARY_OF_FAMILY),
    ("rotary_emb_fraction", ROTARY_OF_FAMILY),
    ("rotary_emb_interleaved", ROTARY_OF_FAMILY),
    ("rotary_scaling_factor", ROTARY_OF_FAMILY),
    ("rotary_emb_scale_base", ROTARY_OF_FAMILY),
    ("use_rot_pos_emb", ROTARY_OF_FAMILY),
    ("rope_interleave", ROTARY_OF_FAMILY),
    ("alibi", "ALiBi positions"),
    ("relative_attention", BIAS),
    ("relative_attention_num_buckets", BIAS),
    ("use_relative_position_bias", BIAS),
    ("use_shared_relative_position_bias", BIAS),
    ("position_embeddings_type", "positions inside attention"),
    ("layer_rope_theta", ROTARY_PER_LAYER),
    ("no_rope_layers", NOPE),
    ("no_rope_layer_interval", NOPE),
    ("sliding_window", WINDOW),
    ("local_attention", WINDOW),
    ("attention_window", WINDOW),
    ("attention_chunk_size", "attention inside chunks"),
    ("index_topk", "keys that an indexer chooses"),
    ("attn_logit_softcapping", "a cap on the scores"),
    ("clip_qkv", "a limit on queries, keys and values"),
    ("query_pre_attn_scalar", SCALE),
    ("attention_multiplier", SCALE),
    ("key_multiplier", SCALE),
    ("scale_attn_by_inverse_layer_idx", SCALE),
    ("attn_temperature_tuning", SCALE),
    ("qk_scale_factor", "a factor on the queries"),
    ("attention_value_scale", "a factor on the values"),
    ("attention_k_eq_v", "keys as values"),
    ("num_kv_shared_layers", "layers with the keys and values of others"),
    ("global_head_dim", HEAD_SIZES),
    ("num_global_key_value_heads", HEAD_SIZES),
    ("per_layer_config", HEAD_SIZES),
    ("logn_attention_scale", SCALE),
    ("use_qk_norm", QK_NORM),
    ("qk_layernorm", QK_NORM),
    ("use_attention_gate", GATE),
    ("gating", GATE),
    ("use_bidirectional_attention", "attention to later tokens"),
    ("is_decoder", "causal self-attention"),
];

/// Keys of numbers, at the top or in a set of rotary parameters. One of another kind would pass for absent.
const NUMBERS: &[&str] = &[
    "rope_theta",
    "partial_rotary_factor",
    "rotary_pct",
    "rotary_emb_base",
    "rotary_emb_fraction",
    "global_rope_theta",
    "local_rope_theta",
    "rope_local_base_freq",
    "factor",
    "attention_factor",
    "llama_4_scaling_beta",
    "alpha",
    "attn_scale",
    "floor_scale",
    "qk_scale_factor",
    "attention_value_scale",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "low_freq_factor",
    "high_freq_factor",
    "rms_norm_eps",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "norm_eps",
    "query_pre_attn_scalar",
    "attention_multiplier",
    "key_multiplier",
    "attn_logit_softcapping",
    "clip_qkv",
];
/// Keys that are true or false.
const FLAGS: &[&str] = &[
    "rope_interleave",
    "is_causal",
    "is_decoder",
    "use_sliding_window",
    "alibi",
    "relative_attention",
    "attention_k_eq_v",
];
/// Keys of sets of rotary parameters, which may be one per kind of layer.
const SETS: &[&str] = &["rope_parameters", "rope_scaling"];

/// Checks that keys of numbers, flags and sets hold them, unless they are null or false: at the top, in sets, and in
/// the sets of each kind of layer inside these.
fn check_kinds(section: &Value) -> Result<()> {
    fn keys(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
        value.as_object().into_iter().flatten()
    }
    for (key, value) in keys(section) {
        check_kind(key, value)?;
        for (key, value) in keys(value).filter(|_| SETS.contains(&key.as_str())) {
            check_kind(key, value)?;
            keys(value).try_for_each(|(key, value)| check_kind(key, value))?;
        }
    }
    Ok(())
}

fn check_kind(key: &str, value: &Value) -> Result<()> {
    let (fits, kind) = match key {
        _ if matches!(value, Value::Null | Value::Bool(false)) => return Ok(()),
        key if NUMBERS.contains(&key) => (value.is_number(), "a number"),
        key if FLAGS.contains(&key) => (value.is_boolean(), "true or false"),
        key if SETS.contains(&key) => (value.is_object(), "a set of parameters"),
        _ => return Ok(()),
    };
    if fits { Ok(()) } else { Err(Error::value(format!("config key `{key}`"), value, kind)) }
}

/// Checks that the family reads every key of `section` that changes attention.
pub(super) fn check_keys(section: &Value, model_type: &str, family: &Family) -> Result<()> {
    check_kinds(section)?;
    let refused = |key: &str, value: &Value, what: &str| {
        let (key, value, model_type) = (key.to_string(), value.to_string(), model_type.to_string());
        Err(Error::UnsupportedKey { key, value, model_type, what: what.to_string() })
    };
    for (key, what) in KEYS {
        match section.get(key) {
            None | Some(Value::Null | Value::Bool(false)) => {}
            // All of a head is rotated, as if nothing were stated.
            Some(value) if ["rotary_pct", "rotary_emb_fraction"].contains(key) && value.as_f64() == Some(1.0) => {}
            Some(value) if !family.reads_key(key) => return refused(key, value, what),
            Some(_) => {}
        }
    }
    for key in family.states {
        if section.get(key).is_none_or(Value::is_null) {
            return Err(Error::config(
                key,
                "absent",
                format!("stated: `{model_type}` has no default that is a number"),
            ));
        }
    }
    for (key, what) in family.refuses {
        if let Some(value) = section.get(key).filter(|value| !value.is_null()) {
            return refused(key, value, what);
        }
    }
    for (key, needed, what) in family.needs {
        let value = section.get(key).unwrap_or(&Value::Null);
        if value.as_str() != Some(needed) {
            return refused(key, value, what);
        }
    }
    let key = "position_embedding_type";
    match section.get(key) {
        Some(value) if !family.reads_positions(value.as_str().unwrap_or_default()) => {
            refused(key, value, "positions inside attention")
        }
        _ => Ok(()),
    }
}

impl Family {
    /// Whether the family reads a key of [`KEYS`].
    pub(super) fn reads_key(&self, key: &str) -> bool {
        let what = KEYS.iter().find(|(known, _)| *known == key).map(|(_, what)| *what);
        let by_positions = match self.positions {
            LayerPositions::Rotary(row) => match what {
                Some(ROTARY) if key == "rotary_dim" => row.rotary_dim,
                Some(ROTARY) => true,
                Some(ROTARY_OF_WINDOWS) => row.window_theta.is_some(),
                Some(ROTARY_PER_LAYER) => {
                    matches!(row.layers, RotaryLayers::OwnTheta | RotaryLayers::NonZeroTheta)
                }
                Some(NOPE) => row.layers == RotaryLayers::NoRopeLayers,
                _ => key == "alibi" && row.layers == RotaryLayers::UnlessAlibi,
            },
            LayerPositions::DinoRotary | LayerPositions::PatchRotary(_) | LayerPositions::Given => {
                ["rope_theta", "rope_parameters"].contains(&key)
            }
            LayerPositions::T5Bias | LayerPositions::MpnetBias => key == "relative_attention_num_buckets",
            LayerPositions::Disentangled { .. } => key == "relative_attention",
            LayerPositions::FromWeights => {
                ["use_relative_position_bias", "use_shared_relative_position_bias"].contains(&key)
            }
            LayerPositions::Conformer(_) => key == "position_embeddings_type",
            LayerPositions::Alibi
            | LayerPositions::MptAlibi
            | LayerPositions::RelativeSinusoids
            | LayerPositions::RelativeKeyBlocks(_)
            | LayerPositions::RelativeKey2d
            | LayerPositions::RelativeKeyValue
            | LayerPositions::Video
            | LayerPositions::GatedBias => false,
        };
        let by_scale = match self.scale {
            Scale::QueryPreAttnScalar => key == "query_pre_attn_scalar",
            Scale::AttentionMultiplier => key == "attention_multiplier",
            Scale::KeyMultiplier => key == "key_multiplier",
            Scale::Gpt2 => key == "scale_attn_by_inverse_layer_idx",
            Scale::HeadDim | Scale::One | Scale::Mpt | Scale::Disentangled | Scale::Mscale => false,
        };
        by_positions
            || by_scale
            || self.reads.contains(&key)
            || self.keys_as_values == Some(key)
            || self.chunks == Some(key)
            || self.steps.value_factor == Some(key)
            || matches!(self.steps.query_factor, QueryFactor::Key(of) if of == key)
            || (self.shares_keys && key == "num_kv_shared_layers")
            || (self.head_sizes != HeadSizes::Same && what == Some(HEAD_SIZES))
            || (self.steps.query_factor == QueryFactor::Llama4 && key == "attn_temperature_tuning")
            || (self.steps.weightless_norm == WeightlessNorm::IfRotated && key == "use_qk_norm")
            || (self.window.layers != WindowLayers::None && key == self.window.key)
            || (self.softcap && key == "attn_logit_softcapping")
            || (self.clip_qkv && key == "clip_qkv")
            || (key == "index_topk" && self.latent.is_some_and(|row| row.indexed))
            || (self.qk_norm.is_some() && what == Some(QK_NORM))
            || (self.gate.is_some_and(|gate| gate.switch.is_some_and(|(switch, _)| switch == key)))
            || (self.causal != Causal::Never && key == "is_decoder")
            || (matches!(self.causal, Causal::UnlessBidirectional | Causal::UnlessAllBidirectional)
                && key == "use_bidirectional_attention")
    }

    /// Whether `position_embedding_type` decides on rotation.
    fn rotates_if_stated(&self) -> bool {
        let LayerPositions::Rotary(row) = self.positions else { return false };
        matches!(row.layers, RotaryLayers::IfStated(_))
    }

    /// Whether the family has a value of `position_embedding_type`.
    fn reads_positions(&self, value: &str) -> bool {
        match value {
            "" | "absolute" => true,
            "rotary" | "rope" => matches!(self.positions, LayerPositions::Rotary(_)),
            "rope_gptj" => matches!(self.positions, LayerPositions::Rotary(row) if row.interleaved),
            // The row decides what the value means, as `nope` in Granite's hybrids.
            _ if self.rotates_if_stated() => true,
            other => self.position_values.contains(&other),
        }
    }
}
