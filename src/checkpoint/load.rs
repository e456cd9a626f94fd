//! Loads attention layers: alone, or as the model of a `config.json` runs them.

use candle_core::{DType, Device};

use crate::attention::MultiHeadAttention;
use crate::checkpoint::config_json::{HfAttentionConfig, config_from_json};
use crate::checkpoint::detect::detect;
use crate::checkpoint::model_config::ModelConfig;
use crate::checkpoint::open::Checkpoint;
use crate::checkpoint::source::{WeightSource, join};
use crate::config::AttentionConfig;
use crate::error::{Error, Result};
use crate::families::layout::Layout;
use crate::families::names::{DISTANCE_EMBEDDINGS, PATCH_BIAS, RELATIVE_BIAS, SHARED_PATCH_BIAS};
use crate::mask::AttentionMask;
use crate::position::{LayerSizes, Presence};
use crate::tensor::select;
use crate::weights::AttentionWeights;

impl MultiHeadAttention {
    /// Loads a layer in any known layout ([`layouts`](crate::checkpoint::layouts)). `source` is a `VarBuilder`, or a
    /// [`Checkpoint::at`] with the prefix of the layer.
    ///
    /// # Errors
    /// Those of [`AttentionWeights::read`].
    pub fn load<S: WeightSource>(config: &AttentionConfig, source: S) -> Result<Self> {
        let (weights, _) = AttentionWeights::read(config, &source)?;
        Self::from_weights(config, weights)
    }
}

/// An attention layer as its model runs it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ModelAttention {
    /// The layer, with positions, norms and scale.
    pub layer: MultiHeadAttention,
    /// The layer's built-in mask: causal, sliding window.
    pub mask: AttentionMask,
    /// The layout of its weights.
    pub layout: &'static Layout,
}

impl Checkpoint {
    /// The attention layer at `prefix` as the model of this `config.json` runs it over positions 0, 1, …, with positions,
    /// window, scale, softcap and norms, and with the table of biases that it shares with other layers.
    ///
    /// `config` is the parsed `config.json`, or a [`ModelConfig`] that says which family to read it as.
    ///
    /// # Errors
    /// Those of [`config_from_json`] and [`MultiHeadAttention::load`].
    pub fn attention<'a>(
        &self,
        prefix: &str,
        config: impl Into<ModelConfig<'a>>,
        dtype: DType,
        device: &Device,
    ) -> Result<ModelAttention> {
        let source = self.at(prefix, dtype, device);
        let asked = config_from_json(config, &source)?;
        let (weights, layout) = read_with_shared_tables(&asked, prefix, &source, &self.at("", dtype, device))?;
        let HfAttentionConfig { config, mask, .. } = asked;
        let layer = MultiHeadAttention::from_weights(&config, weights)?;
        Ok(ModelAttention { layer, mask, layout })
    }

    /// Reads a layer's weights in the dtype of its stored output projection, to write them elsewhere.
    ///
    /// # Errors
    /// Those of [`AttentionWeights::read`].
    pub fn layer_weights(&self, prefix: &str, config: &AttentionConfig) -> Result<AttentionWeights> {
        let layout = detect(&self.at(prefix, DType::F32, &Device::Cpu))?;
        let dtype = self.tensor(&join(prefix.trim_end_matches('.'), layout.o.weight), &Device::Cpu)?.dtype();
        Ok(AttentionWeights::read(config, &self.at(prefix, dtype, &Device::Cpu))?.0)
    }
}

/// Upper bound of the elements of a table that is copied.
const MAX_BIASES: usize = 1 << 24;

/// Reads the weights of the layer at `prefix`, to which `source` points. Tables that layers share are read from below
/// `root`.
pub(crate) fn read_with_shared_tables<S: WeightSource>(
    HfAttentionConfig { config, pruned_heads: pruned, .. }: &HfAttentionConfig,
    prefix: &str,
    source: &S,
    root: &S,
) -> Result<(AttentionWeights, &'static Layout)> {
    let (mut weights, layout) = AttentionWeights::read(config, source)?;
    // A tensor that layers share keeps all heads when one of the layers loses some.
    let sizes = config.sizes();
    let whole = LayerSizes { num_attention_heads: sizes.num_attention_heads + pruned.len(), ..sizes };
    let kept: Vec<usize> = (0..whole.num_attention_heads).filter(|head| !pruned.contains(head)).collect();
    for parameter in config.position.scheme().parameters(&whole) {
        if parameter.presence != Presence::Shared || weights.position.get(parameter.name).is_some() {
            continue;
        }
        let name = shared_name(prefix, parameter.name);
        let tensor = root.get(&name, &parameter.shape)?;
        let tensor = match parameter.head_axis.filter(|_| !pruned.is_empty()) {
            // If only headers are read, it is a view without elements, as large as the header claims.
            Some(_) if tensor.elem_count() > MAX_BIASES => {
                let allowed = format!("at most {MAX_BIASES} elements if heads are pruned");
                return Err(Error::shape(name, tensor.dims(), allowed));
            }
            Some(axis) => select(&tensor, &kept, axis)?,
            None => tensor,
        };
        weights.position.insert(parameter.name, tensor);
    }
    Ok((weights, layout))
}

/// The name of a weight of a position scheme that the layers of a stack share: in the first layer (T5), or next to the
/// layers.
fn shared_name(prefix: &str, weight: &str) -> String {
    let stack = stack_prefix(prefix);
    match weight {
        RELATIVE_BIAS => shared_table(prefix),
        PATCH_BIAS => join(&stack, SHARED_PATCH_BIAS),
        _ => {
            // DeBERTa's norm is next to the embeddings, not below them.
            let below = weight.strip_prefix(DISTANCE_EMBEDDINGS).and_then(|rest| rest.strip_prefix('.'));
            join(&stack, below.filter(|name| name.starts_with("LayerNorm")).unwrap_or(weight))
        }
    }
}

/// The name of the table that the layers of a stack share: in the first layer (T5), or next to the layers (MPNet).
fn shared_table(prefix: &str) -> String {
    let parts: Vec<&str> = prefix.split('.').collect();
    match index_of_number(&parts) {
        Some(number) if parts.contains(&"SelfAttention") => {
            let rest = parts[number + 1..].join(".");
            join(&format!("{}.0.{rest}", parts[..number].join(".")), RELATIVE_BIAS)
        }
        _ => join(&stack_prefix(prefix), RELATIVE_BIAS),
    }
}

/// The prefix of tensors next to a stack of layers: `encoder` for `encoder.layer.3.attention`.
fn stack_prefix(prefix: &str) -> String {
    let parts: Vec<&str> = prefix.split('.').collect();
    index_of_number(&parts).map_or(prefix.to_string(), |number| parts[..number.saturating_sub(1)].join("."))
}

fn index_of_number(parts: &[&str]) -> Option<usize> {
    parts.iter().position(|part| part.parse::<usize>().is_ok())
}
