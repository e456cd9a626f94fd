//! Weights of positions: tables of biases, and embeddings of distances.

use candle_core::Tensor;

use crate::checkpoint::source::{WeightSource, join};
use crate::config::AttentionConfig;
use crate::error::{Error, Result};
use crate::families::layout::Layout;
use crate::position::Position;
use crate::weights::NormWeights;
use crate::weights::{DisentangledWeights, LinearWeights};

/// The biases of relative positions in one dimension, where a layer has a table of its own.
pub(crate) const RELATIVE: &str = "relative_attention_bias.weight";
/// The embeddings of distances, where a layer has its own; their norm is below.
pub(crate) const EMBEDDINGS: &str = "rel_embeddings";
const TABLE: &str = "relative_position_bias_table";
/// A table of biases that all layers share, beside them (BEiT).
pub(crate) const TABLE_BESIDE: &str = "relative_position_bias.relative_position_bias_table";

/// What the families of some layouts call a layer's table of biases.
const TABLES: &[(&str, &str)] = &[
    ("vit", "attention.relative_position_bias.relative_position_bias_table"),
    ("timm-beit", TABLE),
    ("timm", TABLE),
    ("bert", "self.relative_position_bias_table"),
    ("candle-attention", RELATIVE),
    ("mpnet-attn", RELATIVE),
];

/// What layouts call the projections of embedded distances to keys and to queries.
const DISENTANGLED: &[(&str, [&str; 2])] = &[
    ("deberta", ["self.pos_proj", "self.pos_q_proj"]),
    ("deberta-v2", ["self.pos_key_proj", "self.pos_query_proj"]),
    ("candle-attention", ["pos_key_proj", "pos_query_proj"]),
];

impl Layout {
    /// What its families call a layer's own table of biases.
    pub(crate) fn table(&self) -> Option<&'static str> {
        TABLES.iter().find(|(layout, _)| *layout == self.name).map(|(_, table)| *table)
    }

    /// Whether its families have tables for such positions.
    pub(crate) fn holds_table(&self, position: &Position) -> bool {
        match (self.table(), position) {
            (Some(RELATIVE), Position::RelativeBuckets(_)) => true,
            (Some(table), Position::RelativeGrid(_)) => table != RELATIVE || self.name == "candle-attention",
            _ => false,
        }
    }

    /// What its families call the projections of embedded distances to keys and to queries.
    pub(crate) fn distance_projections(&self) -> Option<[&'static str; 2]> {
        DISENTANGLED.iter().find(|(layout, _)| *layout == self.name).map(|(_, names)| *names)
    }

    /// The name of the table of biases that `source` holds, if it does.
    pub(crate) fn table_in<S: WeightSource>(&self, source: &S) -> Option<&'static str> {
        self.table().filter(|table| source.contains(table))
    }
}

/// A table of the layer's own; one that several layers share is given by whoever knows where it lies.
pub(crate) fn read_table<S: WeightSource>(
    source: &S,
    config: &AttentionConfig,
    layout: &Layout,
) -> Result<Option<Tensor>> {
    match (config.position.bias_table_rows(), layout.table_in(source)) {
        (Some(rows), Some(table)) => source.get(table, &[rows, config.num_attention_heads]).map(Some),
        (None, Some(table)) => {
            let allowed = format!("one with a table of biases: the checkpoint holds `{}`", source.full_name(table));
            Err(Error::config("position", &config.position, allowed))
        }
        (_, None) => Ok(None),
    }
}

/// The layer's own part of disentangled attention.
pub(crate) fn read_disentangled<S: WeightSource>(
    source: &S,
    config: &AttentionConfig,
    layout: &Layout,
) -> Result<Option<DisentangledWeights>> {
    let names = layout.distance_projections();
    let weight = |name: &str| join(name, "weight");
    let Position::Disentangled(asked) = &config.position else {
        let held = names.into_iter().flatten().map(weight).find(|name| source.contains(name));
        return match held {
            Some(name) => {
                let allowed = format!("disentangled: the checkpoint holds `{}`", source.full_name(&name));
                Err(Error::config("position", &config.position, allowed))
            }
            None => Ok(None),
        };
    };
    let Some([key, query]) = names else {
        let allowed = format!("another: layout `{}` has no disentangled attention", layout.name);
        return Err(Error::config("position", &config.position, allowed));
    };
    let own = |needed: bool, name: &str| -> Result<Option<LinearWeights>> {
        if !needed || asked.share_att_key {
            return Ok(None);
        }
        let rows = config.num_attention_heads * config.head_dim();
        let bias = join(name, "bias");
        let bias = source.contains(&bias).then(|| source.get(&bias, &[rows])).transpose()?;
        Ok(Some(LinearWeights { weight: source.get(&weight(name), &[rows, config.hidden_size])?, bias }))
    };
    let table = source.child(EMBEDDINGS);
    let mut weights =
        DisentangledWeights { embeddings: None, norm: None, key: own(asked.c2p, key)?, query: own(asked.p2c, query)? };
    if table.contains("weight") {
        read_embeddings(&table, &table.child("LayerNorm"), config, &mut weights)?;
    }
    Ok(Some(weights))
}

/// Reads the embeddings of distances at `table`, and their norm at `norm` if the configuration has one.
pub(crate) fn read_embeddings<S: WeightSource>(
    table: &S,
    norm: &S,
    config: &AttentionConfig,
    weights: &mut DisentangledWeights,
) -> Result<()> {
    let Position::Disentangled(asked) = &config.position else { return Ok(()) };
    let width = config.hidden_size;
    weights.embeddings = Some(table.get("weight", &[asked.embeddings(), width])?);
    if asked.norm_eps.is_some() {
        weights.norm =
            Some(NormWeights { weight: norm.get("weight", &[width])?, bias: Some(norm.get("bias", &[width])?) });
    }
    Ok(())
}
