use candle_core::{DType, Device};
use serde_json::Value;

use crate::attention::MultiHeadAttention;
use crate::checkpoint::detect::{NORMS, detect};
use crate::checkpoint::position_weights::{RELATIVE, TABLE_2D, TABLE_BESIDE};
use crate::checkpoint::read::infer_config;
use crate::checkpoint::source::{WeightSource, join};
use crate::checkpoint::{Checkpoint, Layout};
use crate::config::AttentionConfig;
use crate::error::{Error, Result};
use crate::families::layer::{Layer, LayerContents};
use crate::io::number;
use crate::mask::AttentionMask;
use crate::position::{LayerSizes, Presence};
use crate::tensor::select;
use crate::weights::AttentionWeights;

/// An attention configuration taken from a Hugging Face `config.json`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HfAttentionConfig {
    /// The layer's configuration.
    pub config: AttentionConfig,
    /// What the model masks in this layer by itself: later tokens, far ones.
    pub mask: AttentionMask,
    /// Keys of the file that change what its model computes in attention and that the layer alone does not apply, such
    /// as positions: each with what it stands for.
    pub not_applied: Vec<(String, &'static str)>,
    /// Heads that the layer no longer has, by their numbers in the unpruned model.
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

/// Reads the numbers of heads and the scale from a parsed `config.json`, and the sizes from the weights that `source`
/// points at; what the file says about sizes must agree.
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
    // A layer that lacks heads may lack key-value heads too, or all that would tell the size of one.
    let stated = stated.into_iter().take(if pruned == 0 { usize::MAX } else { 4 });
    for (key, found) in stated.filter(|_| !layer.family.stages) {
        if let Some(stated) = number(section, key)?.filter(|stated| *stated != found) {
            return Err(Error::config(key, stated, format!("{found}, as the weights under `{prefix}` have it")));
        }
    }
    let (config, mask) = as_in_model(section, source, config, &pruned_heads)?;
    let mut not_applied = if layer.family.complete { Vec::new() } else { not_applied(section) };
    not_applied.extend(layer.family.unsupported.map(|what| (format!("model_type = {}", layer.model_type), what)));
    let layout = detect(source)?;
    let may_be_eva = ["timm-beit", "timm-eva"].contains(&layout.name) && layout.table_in(source).is_none();
    if may_be_eva && layer.model_type.is_empty() && section.get("use_rot_pos_emb").is_none() {
        not_applied.push(("use_rot_pos_emb".to_string(), "rotary positions in two dimensions, if it is an EVA"));
    }
    Ok(HfAttentionConfig { config, mask, not_applied, pruned_heads })
}

/// What the family of a `config.json` does in the layer that `source` points at, beyond the sizes that are in `config`:
/// positions, norms, scale; and what it masks there.
pub(crate) fn as_in_model<S: WeightSource>(
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
    let contents = LayerContents { norms: NORMS.iter().flatten().any(norm), bias_rows: table, pruned };
    let config = layer.configure(config, &contents)?;
    config.validate()?;
    Ok((config, layer.mask()?))
}

/// An attention layer as its model runs it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ModelAttention {
    /// The layer, with positions, norms and scale.
    pub layer: MultiHeadAttention,
    /// What the model masks in this layer by itself.
    pub mask: AttentionMask,
    /// The layout of its weights.
    pub layout: &'static Layout,
    /// As in [`HfAttentionConfig`].
    pub not_applied: Vec<(String, &'static str)>,
}

impl Checkpoint {
    /// The attention layer at `prefix` as the model of this `config.json` runs it over positions 0, 1, …: its scheme of
    /// positions, local or global by the layer's number, scale, cap, norms, and a table of biases from where the family
    /// keeps it.
    ///
    /// # Errors
    /// Those of [`config_from_json`] and [`MultiHeadAttention::load`].
    pub fn attention(&self, prefix: &str, json: &Value, dtype: DType, device: &Device) -> Result<ModelAttention> {
        let source = self.at(prefix, dtype, device);
        let asked = config_from_json(json, &source)?;
        let (weights, layout) = read(&asked, prefix, &source, &self.at("", dtype, device))?;
        let HfAttentionConfig { config, mask, not_applied, .. } = asked;
        let layer = MultiHeadAttention::from_weights(&config, weights)?;
        Ok(ModelAttention { layer, mask, layout, not_applied })
    }
}

/// Upper bound of a table that is copied.
const MOST_BIASES: usize = 1 << 24;

/// The weights of the layer at `prefix`, to which `source` points, with the tables that layers share from where the
/// family keeps them below `root`.
pub(crate) fn read<S: WeightSource>(
    HfAttentionConfig { config, pruned_heads: pruned, .. }: &HfAttentionConfig,
    prefix: &str,
    source: &S,
    root: &S,
) -> Result<(AttentionWeights, &'static Layout)> {
    let (mut weights, layout) = AttentionWeights::read(config, source)?;
    // A tensor that layers share keeps all heads when one of the layers loses some.
    let sizes = config.sizes();
    let whole = LayerSizes { num_attention_heads: sizes.num_attention_heads + pruned.len(), ..sizes };
    let shared = config.position.scheme().parameters(&whole);
    let shared = shared.into_iter().filter(|parameter| parameter.presence == Presence::Shared);
    for parameter in shared.filter(|parameter| weights.position.get(parameter.name).is_none()).collect::<Vec<_>>() {
        let name = shared_name(prefix, parameter.name);
        let tensor = root.get(&name, &parameter.shape)?;
        let tensor = match parameter.head_axis.filter(|_| !pruned.is_empty()) {
            // If only headers are read, it is a view without elements, as large as the header claims.
            Some(_) if tensor.elem_count() > MOST_BIASES => {
                let allowed = format!("at most {MOST_BIASES} elements if heads are pruned");
                return Err(Error::shape(name, tensor.dims(), allowed));
            }
            Some(axis) => {
                let kept: Vec<usize> = (0..whole.num_attention_heads).filter(|head| !pruned.contains(head)).collect();
                select(&tensor, &kept, axis)?
            }
            None => tensor,
        };
        weights.position.insert(parameter.name, tensor);
    }
    Ok((weights, layout))
}

/// Where the layers of a stack keep a weight of their position scheme that they share: in the first of them (T5), or
/// beside them.
fn shared_name(prefix: &str, weight: &str) -> String {
    let beside = beside_layers(prefix);
    match weight {
        RELATIVE => shared_table(prefix),
        TABLE_2D => join(&beside, TABLE_BESIDE),
        // DeBERTa's norm stands beside the embeddings, not below them.
        _ => join(
            &beside,
            weight.strip_prefix("rel_embeddings.").filter(|name| name.starts_with("LayerNorm")).unwrap_or(weight),
        ),
    }
}

/// Where the layers of a stack keep the table that they share: in the first of them (T5), or beside them (MPNet).
fn shared_table(prefix: &str) -> String {
    let parts: Vec<&str> = prefix.split('.').collect();
    match number_in(&parts) {
        Some(number) if parts.contains(&"SelfAttention") => {
            let rest = parts[number + 1..].join(".");
            join(&format!("{}.0.{rest}", parts[..number].join(".")), RELATIVE)
        }
        _ => join(&beside_layers(prefix), RELATIVE),
    }
}

/// The prefix of what lies beside a stack of layers: `encoder` for `encoder.layer.3.attention`.
fn beside_layers(prefix: &str) -> String {
    let parts: Vec<&str> = prefix.split('.').collect();
    number_in(&parts).map_or(prefix.to_string(), |number| parts[..number.saturating_sub(1)].join("."))
}

fn number_in(parts: &[&str]) -> Option<usize> {
    parts.iter().position(|part| part.parse::<usize>().is_ok())
}

/// The part of the file that describes the model in which `prefix` lies: a nested one for CLIP and the like.
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
