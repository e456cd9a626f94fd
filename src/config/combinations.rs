//! What a layer cannot have beside what else it has.

use crate::config::{AttentionConfig, Differential, KeyValueSource, MAX_SIZE, OutputGroups, Scoring};
use crate::ensure;
use crate::error::{Error, Result};
use crate::position::Position;

impl AttentionConfig {
    /// Whether attention runs on other queries, keys and values than are projected: between channels, of pooled
    /// queries, or of pairs of heads.
    pub(crate) fn reshapes(&self) -> bool {
        self.between_channels || self.query_pool.is_some() || self.differential.is_some()
    }

    /// Checks that a layer with attention between channels or of pooled queries has nothing that belongs to its tokens.
    pub(super) fn check_reshaped(&self) -> Result<()> {
        if let Some(side) = self.query_pool.filter(|side| *side < 2) {
            return Err(Error::config("query_pool", side, "at least 2"));
        }
        let [d, d_v] = [self.resolved_head_dim(), self.resolved_value_head_dim()];
        let found = match self {
            Self { between_channels: false, query_pool: None, .. } => return Ok(()),
            Self { between_channels: true, query_pool: Some(_), .. } => "both".to_string(),
            _ if !self.position.is_none() => format!("{} positions", self.position),
            _ if !self.mask.is_full() => format!("the mask {}", self.mask),
            _ if self.latent.is_some() || d != d_v => "values of another size than keys".to_string(),
            _ if self.add_bias_kv || self.add_zero_attn => "extra keys".to_string(),
            _ if self.scoring != Scoring::ScaledDotProduct => "additive scoring".to_string(),
            _ if self.key_value_source != KeyValueSource::Projections => "keys and values of another kind".to_string(),
            _ => return Ok(()),
        };
        let what = "a layer with attention between channels or of pooled queries";
        Err(Error::value(what, found, "none of what belongs to tokens"))
    }

    /// Checks that the heads of a layer with differential attention are pairs, and have nothing that pairs do not.
    pub(super) fn check_differential(&self) -> Result<()> {
        let Some(Differential { lambda_init, eps }) = self.differential else { return Ok(()) };
        let by_distance = matches!(self.position, Position::RelativeKeyValue(_));
        let of_others = self.latent.is_some() || self.key_value_source != KeyValueSource::Projections;
        let allowed = if !self.resolved_num_key_value_heads().is_multiple_of(2) {
            "none with an odd number of key-value heads: heads are pairs"
        } else if self.between_channels || self.query_pool.is_some() || by_distance || of_others {
            "none beside latents, values by distance, pooled queries or keys of another kind"
        } else if !(lambda_init as f32).is_finite() || !(eps as f32).is_finite() || eps <= 0.0 {
            "finite numbers, eps above 0"
        } else {
            return Ok(());
        };
        Err(Error::config("differential", format!("({lambda_init}, {eps})"), allowed))
    }

    /// Checks that heads can be divided into the groups of the output.
    pub(super) fn check_output_groups(&self) -> Result<()> {
        let Some(OutputGroups { count, rank }) = self.output_groups else { return Ok(()) };
        let h = self.num_attention_heads;
        let allowed = if count == 0 || h == 0 || !h.is_multiple_of(count) {
            format!("a divisor of num_attention_heads = {h} as their count")
        } else if rank == 0 || rank.saturating_mul(count) > MAX_SIZE {
            format!("a rank from 1, and at most {MAX_SIZE} elements in all groups")
        } else {
            return Ok(());
        };
        Err(Error::config("output_groups", format!("{count} of {rank}"), allowed))
    }

    /// Checks that a layer with global tokens has nothing that is made of its projections alone.
    pub(super) fn check_global_tokens(&self) -> Result<()> {
        let has_more =
            self.latent.is_some() || self.output_gate.is_some() || self.reshapes() || !self.position.is_none();
        if self.global_tokens && (has_more || self.key_value_source != KeyValueSource::Projections) {
            let allowed = "false beside latents, a gate, positions, pooled queries or keys of another kind";
            return Err(Error::config("global_tokens", true, allowed));
        }
        Ok(())
    }

    /// Checks that the rest of the configuration leaves keys and values to their source.
    pub(super) fn check_key_value_source(&self) -> Result<()> {
        let what = match self.key_value_source {
            KeyValueSource::Projections => return Ok(()),
            KeyValueSource::KeysAsValues => {
                let [d, d_v] = [self.resolved_head_dim(), self.resolved_value_head_dim()];
                ensure!(d == d_v, Error::config("value_head_dim", d_v, format!("{d}: values are the keys")));
                "a layer whose values are its keys"
            }
            KeyValueSource::Shared { .. } => {
                if (1..3).any(|side| self.steps.weighted_norm(side).is_some() || self.steps.has_learned_factor(side)) {
                    let expected = "without weights: another layer makes the keys and values";
                    return Err(Error::value("the steps of keys and values", "with learned weights", expected));
                }
                "a layer with the keys and values of another one"
            }
        };
        if self.add_bias_kv || self.position.scheme().distance_embedding_count(1) != [0; 2] {
            let found = if self.add_bias_kv { "add_bias_kv".to_string() } else { self.position.to_string() };
            return Err(Error::value(what, found, "none of it: it has no projections for that"));
        }
        Ok(())
    }
}
