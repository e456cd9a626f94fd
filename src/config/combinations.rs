//! The settings that a layer with keys and values from elsewhere cannot have.

use crate::config::{AttentionConfig, KeyValueSource};
use crate::ensure;
use crate::error::{Error, Result};

impl KeyValueSource {
    /// The kind of layer, for error messages.
    pub(crate) fn kind_of_layer(self) -> &'static str {
        match self {
            Self::Projections => "a layer with projections of its own",
            Self::KeysAsValues => "a layer whose values are its keys",
            Self::Shared { .. } => "a layer with the keys and values of another one",
        }
    }

    /// The error for something that needs projections that such a layer does not have.
    pub(crate) fn has_no_projections_for(self, found: String) -> Error {
        Error::value(self.kind_of_layer(), found, "none of it: it has no projections for that")
    }
}

impl AttentionConfig {
    /// Checks that the rest of the configuration leaves keys and values to their source.
    pub(super) fn check_key_value_source(&self) -> Result<()> {
        match self.key_value_source {
            KeyValueSource::Projections => return Ok(()),
            KeyValueSource::KeysAsValues => {
                let [d, d_v] = [self.resolved_head_dim(), self.resolved_value_head_dim()];
                ensure!(d == d_v, Error::config("value_head_dim", d_v, format!("{d}: values are the keys")));
            }
            KeyValueSource::Shared { .. } => {
                if (1..3).any(|side| self.steps.weighted_norm(side).is_some() || self.steps.has_learned_factor(side)) {
                    let expected = "without weights: another layer makes the keys and values";
                    return Err(Error::value("the steps of keys and values", "with learned weights", expected));
                }
            }
        }
        let embeds_distances = self.position.scheme().distance_embedding_count(1) != [0; 2];
        ensure!(!embeds_distances, self.key_value_source.has_no_projections_for(self.position.to_string()));
        Ok(())
    }
}
