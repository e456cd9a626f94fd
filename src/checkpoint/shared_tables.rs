//! Tables that the layers of a stack share: stored in the first layer (T5), or next to the layers (MPNet, BEiT,
//! DeBERTa).

use candle_core::Tensor;

use crate::checkpoint::detect::check_prefix;
use crate::checkpoint::source::{AnySource, WeightSource, join};
use crate::config::AttentionConfig;
use crate::error::{Error, Result};
use crate::families::layer::numbered_component;
use crate::families::layout::{
    DISTANCE_EMBEDDINGS, GATED_BIAS, Layout, PATCH_BIAS, RELATIVE_BIAS, REVERSED_KEYS, SHARED_PATCH_BIAS,
};
use crate::position::LayerSizes;
use crate::tensor::select;
use crate::weights::{AttentionWeights, Parameter, Parameters, Presence};

/// Upper bound of the elements of a table that is copied.
const MAX_BIASES: usize = 1 << 24;

/// Reads the weights of the layer that `source` points at, as [`AttentionWeights::read_base`], with the tables that it
/// shares with other layers. `pruned` are the heads that it no longer has, by their indices in the unpruned model.
pub(crate) fn read_with_shared_tables(
    config: &AttentionConfig,
    pruned: &[usize],
    source: &AnySource,
) -> Result<(AttentionWeights, &'static Layout)> {
    check_prefix(source)?;
    let (mut weights, layout) = AttentionWeights::read_base(config, source)?;
    let tables = SharedTables::read_missing(config, pruned.len(), &weights.position, source)?;
    tables.insert_into(&mut weights.position, pruned)?;
    Ok((weights, layout))
}

/// The weights of a position scheme that the layers of a stack share: biases of distances (T5, MPNet), biases between
/// patches (BEiT), embeddings of distances (DeBERTa). None for the other schemes.
/// [`MultiHeadAttention::load_with_tables`](crate::MultiHeadAttention::load_with_tables) takes them.
#[derive(Debug, Default)]
pub struct SharedTables {
    /// Each with the name of its tensor.
    tables: Vec<(Parameter, String, Tensor)>,
    /// The number of heads of a layer that has all of them.
    heads: usize,
}

impl SharedTables {
    /// Reads the tables of the stack of the layer that `source` points at, in the source's dtype and on its device.
    /// `config` is that of the layer, which no longer has `pruned` of its heads.
    ///
    /// # Errors
    /// A table that the source does not hold, or that has another shape than `config` says; a table of biases between
    /// patches that the positions of `config` do not read.
    pub fn read(config: &AttentionConfig, pruned: usize, source: &impl WeightSource) -> Result<Self> {
        Self::read_missing(config, pruned, &Parameters::default(), &AnySource::new(source))
    }

    /// [`read`](Self::read) of the tables that are not in `own`.
    fn read_missing(config: &AttentionConfig, pruned: usize, own: &Parameters, source: &AnySource) -> Result<Self> {
        // A tensor that layers share keeps all heads when one of the layers loses some.
        let sizes = config.sizes();
        let heads = sizes.num_attention_heads + pruned;
        let whole = LayerSizes { num_attention_heads: heads, ..sizes };
        let mut tables = Vec::new();
        for parameter in config.position.scheme().parameters(&whole) {
            if parameter.presence == Presence::Shared && own.get(parameter.name).is_none() {
                let name = shared_name(source, parameter.name);
                let tensor = source.root().get(&name, &parameter.shape)?;
                tables.push((parameter, name, tensor));
            }
        }
        let is_read = |table: &String| tables.iter().any(|(_, name, _)| name == table);
        if let Some(table) = shared_patch_table(source).filter(|table| !is_read(table)) {
            let allowed = format!("one with `{table}` alone, which the checkpoint holds for all layers");
            return Err(Error::config("position", &config.position, allowed));
        }
        Ok(Self { tables, heads })
    }

    /// Adds what `weights` does not have to them, without the `pruned` heads.
    pub(crate) fn insert_into(&self, weights: &mut Parameters, pruned: &[usize]) -> Result<()> {
        let kept = || (0..self.heads).filter(|head| !pruned.contains(head)).collect::<Vec<usize>>();
        for (parameter, name, tensor) in &self.tables {
            if weights.get(parameter.name).is_some() {
                continue;
            }
            let tensor = match parameter.head_axis.filter(|_| !pruned.is_empty()) {
                // If only headers are read, it is a view without elements, as large as the header claims.
                Some(_) if tensor.elem_count() > MAX_BIASES => {
                    let allowed = format!("at most {MAX_BIASES} elements if heads are pruned");
                    return Err(Error::shape(name.clone(), tensor.dims(), allowed));
                }
                Some(axis) => select(tensor, &kept(), axis)?,
                None => tensor.clone(),
            };
            weights.insert(parameter.name, tensor);
        }
        Ok(())
    }
}

/// The name of the table of biases of patches that `source`'s layer shares with others, if the checkpoint holds one.
pub(crate) fn shared_patch_table(source: &AnySource) -> Option<String> {
    let stack = stack_prefix(&source.full_name(""));
    SHARED_PATCH_BIAS.into_iter().map(|name| join(&stack, name)).find(|name| source.root().contains(name))
}

/// The name of a weight of a position scheme that the layers of a stack share: in the first layer (T5), or next to the
/// layers.
fn shared_name(source: &AnySource, weight: &str) -> String {
    const T5: [&str; 3] = ["SelfAttention", "LocalSelfAttention", "self_attention"];
    let prefix = source.full_name("");
    let stack = stack_prefix(&prefix);
    match weight {
        RELATIVE_BIAS if numbered_component(&prefix).is_some() && prefix.split('.').any(|part| T5.contains(&part)) => {
            in_first_layer(&prefix, weight)
        }
        GATED_BIAS => in_first_layer(&prefix, weight),
        REVERSED_KEYS => join(&stack, "embed_positions.pe_k.weight"),
        PATCH_BIAS => shared_patch_table(source).unwrap_or_else(|| join(&stack, SHARED_PATCH_BIAS[0])),
        _ => {
            // DeBERTa's norm is next to the embeddings, not below them.
            let below = weight.strip_prefix(DISTANCE_EMBEDDINGS).and_then(|rest| rest.strip_prefix('.'));
            join(&stack, below.filter(|name| name.starts_with("LayerNorm")).unwrap_or(weight))
        }
    }
}

/// The name of a tensor of the attention of the first layer, from the prefix of that of any.
fn in_first_layer(prefix: &str, name: &str) -> String {
    let mut parts: Vec<&str> = prefix.split('.').collect();
    if let Some((place, _)) = numbered_component(prefix) {
        parts[place] = "0";
    }
    join(&parts.join("."), name)
}

/// The prefix of tensors next to a stack of layers: `encoder` for `encoder.layer.3.attention`.
fn stack_prefix(prefix: &str) -> String {
    let parts: Vec<&str> = prefix.split('.').collect();
    numbered_component(prefix).map_or(prefix.to_string(), |(place, _)| parts[..place.saturating_sub(1)].join("."))
}
