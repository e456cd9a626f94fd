//! Reads the attention configuration of a layer from the `config.json` of its model.

use serde_json::Value;

use crate::checkpoint::detect::detect;
use crate::checkpoint::infer::infer_config;
use crate::checkpoint::source::WeightSource;
use crate::config::AttentionConfig;
use crate::error::{Error, Result};
use crate::families::layer::{Layer, LayerContents};
use crate::families::names::QK_NORMS;
use crate::io::number;
use crate::mask::AttentionMask;

/// An attention configuration taken from a Hugging Face `config.json`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HfAttentionConfig {
    /// The layer's configuration.
    pub config: AttentionConfig,
    /// The layer's built-in mask: causal, sliding window.
    pub mask: AttentionMask,
    /// Keys of the file that change attention and that the layer does not apply, each with its meaning. Empty for
    /// families that this version knows completely.
    pub not_applied: Vec<(String, &'static str)>,
    /// Heads that the layer no longer has, by their indices in the unpruned model.
    pub pruned_heads: Vec<usize>,
}

const NOT_APPLIED: [(&str, &str); 14] = [
    ("rope_theta", "rotary positions"),
    ("rope_parameters", "rotary positions"),
    ("rope_scaling", "rotary positions"),
    ("global_rope_theta", "rotary positions"),
    ("rotary_dim", "rotary positions"),
    ("rotary_pct", "rotary positions"),
    ("rotary_emb_base", "rotary positions"),
    ("alibi", "ALiBi positions"),
    ("relative_attention_num_buckets", "a relative position bias"),
    ("use_relative_position_bias", "a relative position bias"),
    ("sliding_window", "a sliding window"),
    ("attn_logit_softcapping", "a cap on the scores"),
    ("clip_qkv", "a limit on queries, keys and values"),
    ("use_qk_norm", "norms of queries and keys"),
];

/// Reads numbers of heads, positions, scale and mask of a layer from a parsed `config.json`, and its sizes from the
/// weights that `source` points at. Sizes that the file states must agree with them.
///
/// # Errors
/// A key missing or of the wrong kind; those of [`infer_config`]; a size that the weights contradict.
pub fn config_from_json<S: WeightSource>(json: &Value, source: &S) -> Result<HfAttentionConfig> {
    let prefix = source.full_name("");
    let section = section(json, &prefix);
    let layer = Layer::new(section, &prefix);
    let heads = layer.heads()?;
    let pruned_heads = layer.pruned_heads()?;
    let pruned = pruned_heads.len();
    let left = heads.checked_sub(pruned);
    let left = left.ok_or_else(|| Error::value("the number of pruned heads", pruned, format!("at most {heads}")))?;
    let config = infer_config(source, left)?;
    let stated = [
        ("hidden_size", config.hidden_size),
        ("d_model", config.hidden_size),
        ("dim", config.hidden_size),
        ("n_embd", config.hidden_size),
        ("head_dim", config.resolved_head_dim()),
        ("num_key_value_heads", config.resolved_num_key_value_heads()),
    ];
    // A layer that lacks heads may lack key-value heads too, or every head that would show `head_dim`.
    let stated = &stated[..if pruned == 0 { stated.len() } else { 4 }];
    for &(key, found) in stated.iter().filter(|_| !layer.family.stages) {
        if let Some(stated) = number(section, key)?.filter(|stated| *stated != found) {
            return Err(Error::config(key, stated, format!("{found}, as the weights under `{prefix}` have it")));
        }
    }
    let (config, mask) = apply_family(section, source, config, &pruned_heads)?;
    let mut not_applied = if layer.family.complete { Vec::new() } else { not_applied(section) };
    not_applied.extend(layer.family.unsupported.map(|what| (format!("model_type = {}", layer.model_type), what)));
    let layout = detect(source)?;
    let may_be_eva = layout.may_be_eva && layout.table_in(source).is_none();
    if may_be_eva && layer.model_type.is_empty() && section.get("use_rot_pos_emb").is_none() {
        not_applied.push(("use_rot_pos_emb".to_string(), "rotary positions in two dimensions, if it is an EVA"));
    }
    Ok(HfAttentionConfig { config, mask, not_applied, pruned_heads })
}

/// Adds to `config`, which has the sizes, what the model of this section of a `config.json` does in the layer that
/// `source` points at: positions, norms, scale. Also returns the layer's built-in mask.
pub(crate) fn apply_family<S: WeightSource>(
    section: &Value,
    source: &S,
    config: AttentionConfig,
    pruned: &[usize],
) -> Result<(AttentionConfig, AttentionMask)> {
    let prefix = source.full_name("");
    let layer = Layer::new(section, &prefix);
    let norm =
        |name: &&str| source.contains(&format!("{name}.weight")) || source.contains(&format!("{name}.norms.0.weight"));
    let table = match detect(source)?.table_in(source) {
        Some(table) => source.shape(table)?.and_then(|shape| shape.first().copied()),
        None => None,
    };
    let contents = LayerContents { norms: QK_NORMS.iter().flatten().any(norm), bias_rows: table, pruned };
    let config = layer.configure(config, &contents)?;
    config.validate()?;
    Ok((config, layer.mask()?))
}

/// The section of the file that describes the model of the layer at `prefix`: a nested one in CLIP and the like.
fn section<'a>(json: &'a Value, prefix: &str) -> &'a Value {
    let nested = [("vision", "vision_config"), ("text", "text_config"), ("language", "text_config")];
    let named = nested.iter().filter(|(part, _)| prefix.contains(part)).find_map(|(_, key)| json.get(key));
    named.unwrap_or(json)
}

fn not_applied(section: &Value) -> Vec<(String, &'static str)> {
    let on = |key: &str| !matches!(section.get(key), None | Some(Value::Null | Value::Bool(false)));
    let mut keys: Vec<(String, &'static str)> =
        NOT_APPLIED.iter().filter(|(key, _)| on(key)).map(|(key, what)| ((*key).to_string(), *what)).collect();
    let positions = section.get("position_embedding_type").and_then(Value::as_str);
    if let Some(positions) = positions.filter(|positions| *positions != "absolute") {
        keys.push((format!("position_embedding_type = {positions}"), "positions inside attention"));
    }
    keys
}
