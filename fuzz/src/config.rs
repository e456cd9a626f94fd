//! Configurations with wrong, extreme and missing values.

use arbitrary::{Result, Unstructured};
use serde_json::{Value, json};

use crate::rarely;

/// Keys that the crate reads, at the top or inside a section.
const KEYS: &[&str] = &[
    "class_token",
    "image_size",
    "img_size",
    "max_relative_positions",
    "norm_rel_ebd",
    "num_heads",
    "num_reg_tokens",
    "num_register_tokens",
    "patch_size",
    "pos_att_type",
    "position_buckets",
    "ref_feat_shape",
    "relative_attention",
    "rope_mixed_mode",
    "rope_rotate_half",
    "rope_temperature",
    "share_att_key",
    "use_rot_pos_emb",
    "use_shared_relative_position_bias",
    "alibi",
    "alibi_bias_max",
    "attention_factor",
    "attention_layers",
    "attention_multiplier",
    "attn_config",
    "attn_logit_softcapping",
    "beta_fast",
    "beta_slow",
    "clip_qkv",
    "d_model",
    "decoder_attention_heads",
    "encoder_attention_heads",
    "eos_token_id",
    "factor",
    "full_attention",
    "global_attn_every_n_layers",
    "global_rope_theta",
    "head_dim",
    "hidden_size",
    "high_freq_factor",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "layer_types",
    "local_attention",
    "local_rope_theta",
    "long_factor",
    "low_freq_factor",
    "max_position_embeddings",
    "max_window_layers",
    "model_type",
    "mscale",
    "mscale_all_dim",
    "n_head",
    "norm_eps",
    "num_attention_heads",
    "num_key_value_heads",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "position_embedding_type",
    "query_pre_attn_scalar",
    "relative_attention_max_distance",
    "relative_attention_num_buckets",
    "rms_norm_eps",
    "rope_local_base_freq",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "rope_type",
    "rotary_dim",
    "rotary_emb_base",
    "rotary_emb_fraction",
    "rotary_emb_interleaved",
    "rotary_pct",
    "scale_attn_by_inverse_layer_idx",
    "scale_attn_weights",
    "short_factor",
    "sliding_attention",
    "sliding_window",
    "sliding_window_pattern",
    "softmax_scale",
    "text_config",
    "truncate",
    "type",
    "use_bidirectional_attention",
    "use_qk_norm",
    "use_relative_position_bias",
    "use_sliding_window",
    "vision_config",
    "window_size",
];

const WORDS: &[&str] = &[
    "alibi",
    "beit",
    "bloom",
    "c2p",
    "c2p|p2c",
    "deberta",
    "deberta-v2",
    "dinov3_vit",
    "layer_norm",
    "swin",
    "clip_text_model",
    "codegen",
    "cohere2",
    "default",
    "dynamic",
    "esm",
    "falcon",
    "full_attention",
    "gemma2",
    "gemma3_text",
    "gpt2",
    "gpt_neo",
    "gpt_oss",
    "gptj",
    "linear",
    "llama",
    "llama3",
    "local",
    "longrope",
    "mistral",
    "modernbert",
    "mpnet",
    "mpt",
    "nomic_bert",
    "olmo2",
    "olmo3",
    "phi",
    "phi3",
    "qwen2",
    "qwen3",
    "rotary",
    "sliding_attention",
    "stablelm",
    "su",
    "t5",
    "umt5",
    "vision",
    "yarn",
];

/// Extreme values of the number types, and ordinary ones.
const FLOATS: &[f64] = &[
    0.0,
    -0.0,
    1e-320,
    1e-300,
    1e-40,
    1e-30,
    1e-6,
    0.1,
    0.5,
    1.0,
    1.5,
    2.0,
    8.0,
    32.0,
    1e4,
    5e5,
    1e30,
    3.4e38,
    1e39,
    1e300,
    f64::MAX,
    -1e-300,
    -1e-6,
    -0.5,
    -1.0,
    -8.0,
    -1e4,
    -1e39,
    f64::MIN,
];

fn value(u: &mut Unstructured, depth: usize) -> Result<Value> {
    let deepest = if depth == 0 { 7 } else { 9 };
    Ok(match u.int_in_range(0..=deepest)? {
        0 => Value::Null,
        1 => json!(u.arbitrary::<bool>()?),
        2 => json!(u.int_in_range(0..=16u64)?),
        3 => json!(1u64 << u.int_in_range(0..=63)?),
        4 => json!((1u64 << u.int_in_range(0..=63)?) - 1),
        5 => json!(*u.choose(FLOATS)?),
        6 => json!(*u.choose(WORDS)?),
        7 => json!(*u.choose(&[u64::MAX, u64::MAX - 1, i64::MAX as u64, 1 << 24, (1 << 24) + 1])?),
        8 => {
            let count = u.int_in_range(0..=8)?;
            Value::Array((0..count).map(|_| value(u, depth - 1)).collect::<Result<_>>()?)
        }
        _ => {
            let count = u.int_in_range(0..=6)?;
            let pair = |_| Ok((u.choose(KEYS)?.to_string(), value(u, depth - 1)?));
            Value::Object((0..count).map(pair).collect::<Result<_>>()?)
        }
    })
}

/// `base` with a few keys changed, added or removed, at the top level or in a section.
pub fn config(u: &mut Unstructured, base: &Value) -> Result<Value> {
    let mut config = base.clone();
    for _ in 0..u.int_in_range(0..=6)? {
        let section = *u.choose(&["", "", "", "rope_scaling", "rope_parameters", "attn_config", "text_config"])?;
        let at = if config.get(section).is_some_and(Value::is_object) { &mut config[section] } else { &mut config };
        let Some(at) = at.as_object_mut() else { break };
        // Every second time an existing key, which certainly matters.
        let there = u.arbitrary::<bool>()? && !at.is_empty();
        let key = match there {
            true => at.keys().nth(u.choose_index(at.len())?).cloned().unwrap_or_default(),
            false => u.choose(KEYS)?.to_string(),
        };
        if rarely(u, 8)? {
            at.remove(&key);
        } else {
            at.insert(key, value(u, 2)?);
        }
    }
    if rarely(u, 32)? {
        return value(u, 3);
    }
    Ok(config)
}
