//! What a layer can run, decided when it is made: calls ask this value instead of the configuration.

use crate::attention::steps::Norms;
use crate::config::{AttentionConfig, KeyValueSource};
use crate::error::{Error, Result};
use crate::weights::{GLOBAL_PARTS, LIMITS, Parameters, SINKS};

/// What depends on the configuration and on which tensors there are. Whether weights are packed, or track a gradient,
/// may change, and is asked in each call.
#[derive(Debug, Clone)]
pub(super) struct Capabilities {
    /// Whether the layer runs in the buffers of the CPU kernel: nothing happens between projection and kernel but
    /// [steps](crate::Steps), and after it but a norm and a gate.
    pub rows: bool,
    /// That of the [configuration](AttentionConfig::reshapes).
    pub reshapes: bool,
    /// Whether kernels run ragged batches over tensors, under causal masks and windows.
    pub ragged_tensors: bool,
    /// Whether there are limits on the inputs or outputs of projections.
    pub has_limits: bool,
    /// The most keys of a sequence, and the key of the configuration that limits them.
    most_keys: Option<(&'static str, usize)>,
}

impl Capabilities {
    pub(super) fn new(config: &AttentionConfig, parameters: &Parameters, norms: &Norms) -> Self {
        let ragged = config.position.scheme().traits().ragged;
        // A token without any key, whose context is zeros, has to give the same whatever its input is.
        let is_shifted = norms.context.as_ref().is_some_and(|norm| norm.bias.is_some());
        // What a call without global tokens does not read.
        let is_global = |name: &str| GLOBAL_PARTS.as_flattened().contains(&name);
        let reshapes = config.reshapes();
        let has_limits = LIMITS.as_flattened().iter().any(|limit| parameters.get(limit).is_some());
        let rows = config.requires.is_empty()
            && !has_limits
            && parameters.iter().all(|(name, tensor)| name != SINKS && (tensor.rank() == 1 || is_global(name)))
            && !config.add_zero_attn
            && !reshapes
            && config.output_groups.is_none()
            && config.mask.is_windowed()
            && !matches!(config.key_value_source, KeyValueSource::Shared { .. })
            && !(is_shifted && config.output_gate.is_some())
            && config.clip_qkv.is_none()
            && config.softcap.is_none()
            && ragged.on_cpu_buffers();
        let index_topk = config.latent.as_ref().and_then(|latent| latent.index_topk);
        let limits = [("max_keys", config.max_keys), ("index_topk", index_topk)];
        let most_keys = limits.into_iter().filter_map(|(name, most)| Some((name, most?))).min_by_key(|limit| limit.1);
        let multi_query = config.latent.is_some_and(|latent| latent.multi_query);
        let ragged_tensors = ragged.on_tensors() && config.value_convolution.is_none() && !multi_query;
        Self { rows, reshapes, ragged_tensors, has_limits, most_keys }
    }

    /// Checks that a sequence has no more keys than the layer takes: an indexer chooses among more.
    pub(super) fn check_key_count(&self, keys: usize) -> Result<()> {
        let Some((name, most)) = self.most_keys.filter(|limit| keys > limit.1) else { return Ok(()) };
        let beyond = "beyond it an indexer chooses the keys, which this version does not run";
        Err(Error::value("the number of keys", keys, format!("at most `{name}` = {most}: {beyond}")))
    }
}
