//! Weights of position schemes in checkpoints: bias tables, and embeddings of distances.

use crate::checkpoint::source::{WeightSource, join};
use crate::config::AttentionConfig;
use crate::error::{Error, Result};
use crate::families::layout::Layout;
use crate::position::Presence;
use crate::weights::PositionWeights;

/// A bias table of distances, T5's name.
pub(crate) const RELATIVE: &str = "relative_attention_bias.weight";
/// A bias table of offsets between patches, BEiT's name.
pub(crate) const TABLE_2D: &str = "relative_position_bias_table";
/// Embeddings of distances; their norm is stored below them.
pub(crate) const EMBEDDINGS: &str = "rel_embeddings";
/// A bias table that all layers share, stored beside them (BEiT).
pub(crate) const TABLE_BESIDE: &str = "relative_position_bias.relative_position_bias_table";

/// What a name belongs to, for error messages.
const BIAS_TABLE: &str = "a table of biases";
const DISENTANGLED: &str = "disentangled attention";

/// `(what it belongs to, the name or its beginning in a position scheme, the same in the layout)`.
type PositionNames = &'static [(&'static str, &'static str, &'static str)];

/// What layouts call the weights of position schemes.
const NAMES: &[(&str, PositionNames)] = &[
    ("vit", &[(BIAS_TABLE, TABLE_2D, "attention.relative_position_bias.relative_position_bias_table")]),
    ("timm-beit", &[(BIAS_TABLE, TABLE_2D, TABLE_2D)]),
    ("timm", &[(BIAS_TABLE, TABLE_2D, TABLE_2D)]),
    ("bert", &[(BIAS_TABLE, TABLE_2D, "self.relative_position_bias_table")]),
    ("mpnet-attn", &[(BIAS_TABLE, RELATIVE, RELATIVE)]),
    (
        "deberta",
        &[
            (DISENTANGLED, "pos_key_proj", "self.pos_proj"),
            (DISENTANGLED, "pos_query_proj", "self.pos_q_proj"),
            (DISENTANGLED, EMBEDDINGS, EMBEDDINGS),
        ],
    ),
    (
        "deberta-v2",
        &[
            (DISENTANGLED, "pos_key_proj", "self.pos_key_proj"),
            (DISENTANGLED, "pos_query_proj", "self.pos_query_proj"),
            (DISENTANGLED, EMBEDDINGS, EMBEDDINGS),
        ],
    ),
    (
        "candle-attention",
        &[
            (BIAS_TABLE, RELATIVE, RELATIVE),
            (BIAS_TABLE, TABLE_2D, TABLE_2D),
            (DISENTANGLED, "pos_key_proj", "pos_key_proj"),
            (DISENTANGLED, "pos_query_proj", "pos_query_proj"),
            (DISENTANGLED, EMBEDDINGS, EMBEDDINGS),
        ],
    ),
];

impl Layout {
    fn position_names(&self) -> PositionNames {
        NAMES.iter().find(|(layout, _)| *layout == self.name).map_or(&[], |(_, names)| *names)
    }

    /// The layout's names of the weights of position schemes, or their beginnings.
    pub(crate) fn stored_position_names(&self) -> impl Iterator<Item = &'static str> {
        self.position_names().iter().map(|(_, _, stored)| *stored)
    }

    /// The layout's name of a weight of a position scheme, if its families have such weights.
    pub(crate) fn position_name(&self, weight: &str) -> Option<String> {
        self.position_names().iter().find_map(|(_, own, stored)| {
            let rest = weight.strip_prefix(own)?;
            (rest.is_empty() || rest.starts_with('.')).then(|| format!("{stored}{rest}"))
        })
    }

    /// The name of the bias table that `source` holds, if it does.
    pub(crate) fn table_in<S: WeightSource>(&self, source: &S) -> Option<&'static str> {
        let tables = self.position_names().iter().filter(|(what, ..)| *what == BIAS_TABLE);
        tables.map(|(_, _, stored)| *stored).find(|table| source.contains(table))
    }
}

/// The weights of the layer's position scheme that `source` holds. Those that layers share are stored elsewhere
/// ([`shared_name`]).
pub(crate) fn read_position<S: WeightSource>(
    source: &S,
    config: &AttentionConfig,
    layout: &Layout,
) -> Result<PositionWeights> {
    let mut weights = PositionWeights::default();
    let parameters = config.position.scheme().parameters(&config.sizes());
    for parameter in &parameters {
        let name = layout.position_name(parameter.name);
        let held = name.filter(|name| parameter.presence == Presence::Required || source.contains(name));
        match held {
            Some(name) => weights.insert(parameter.name, source.get(&name, &parameter.shape)?),
            None if parameter.presence == Presence::Required => {
                let allowed = format!("another: layout `{}` has no `{}`", layout.name, parameter.name);
                return Err(Error::config("position", &config.position, allowed));
            }
            None => {}
        }
    }
    // A weight that the configured scheme has no use for means that the configuration is wrong.
    for (what, _, stored) in layout.position_names().iter().filter(|(_, own, _)| *own != EMBEDDINGS) {
        let expected = layout
            .position_names()
            .iter()
            .any(|(other, own, _)| other == what && parameters.iter().any(|parameter| parameter.name.starts_with(own)));
        let name = if *what == BIAS_TABLE { (*stored).to_string() } else { join(stored, "weight") };
        if !expected && source.contains(&name) {
            let allowed = format!("one with {what}, because the checkpoint holds `{}`", source.full_name(&name));
            return Err(Error::config("position", &config.position, allowed));
        }
    }
    Ok(weights)
}
