//! Reads the weights of position schemes: bias tables, and embeddings of distances.

use crate::checkpoint::source::{WeightSource, join};
use crate::config::AttentionConfig;
use crate::error::{Error, Result};
use crate::families::layout::{DISTANCE_EMBEDDINGS, PATCH_BIAS};
use crate::families::layout::{Layout, PositionRole};
use crate::position::Presence;
use crate::weights::PositionWeights;

impl Layout {
    /// The name of the table of biases of patches that `source` holds, if it holds one.
    pub(crate) fn patch_table_in(&self, source: &dyn WeightSource) -> Option<&'static str> {
        let tables = self.position.iter().filter(|name| name.scheme == PATCH_BIAS);
        tables.map(|name| name.stored).find(|table| source.contains(table))
    }
}

/// Reads the weights of the layer's position scheme that `source` holds. Weights that several layers share are stored
/// elsewhere, and are read where the prefix of the layer is known.
pub(crate) fn read_position(
    source: &dyn WeightSource,
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
    let used = |role: PositionRole| {
        let mut names = layout.position.iter().filter(|name| name.role == role);
        names.any(|name| parameters.iter().any(|parameter| parameter.name.starts_with(name.scheme)))
    };
    for name in layout.position.iter().filter(|name| name.scheme != DISTANCE_EMBEDDINGS) {
        let (what, tensor) = match name.role {
            PositionRole::BiasTable => ("a table of biases", name.stored.to_string()),
            PositionRole::Disentangled => ("disentangled attention", join(name.stored, "weight")),
        };
        if !used(name.role) && source.contains(&tensor) {
            let allowed = format!("one with {what}, because the checkpoint holds `{}`", source.full_name(&tensor));
            return Err(Error::config("position", &config.position, allowed));
        }
    }
    Ok(weights)
}
