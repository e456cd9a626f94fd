//! The mechanisms, one file each, and the list of those that a layer has.

mod block_keys;
mod channels;
mod clipping;
mod context_norm;
mod differential;
mod extra_keys;
mod global_tokens;
mod key_limit;
mod output_gate;
mod output_groups;
mod pooled_queries;
mod projection_limits;
mod rotated_context;
mod span_convolution;
mod value_convolution;

pub use block_keys::KeyCompression;
pub use differential::Differential;
pub use output_gate::{GateActivation, GateOver, OutputGate};
pub use output_groups::OutputGroups;

/// Names for loaders.
#[cfg(feature = "checkpoints")]
pub(crate) use self::{
    block_keys::BLOCKS,
    context_norm::{CONTEXT_NORM, CONTEXT_NORM_PARTS},
    global_tokens::{GLOBAL, GLOBAL_NAMES},
    output_groups::GROUPS,
    projection_limits::PROJECTION_LIMITS,
};
use crate::attention::mechanism::{LayerParts, MechanismRow, Mechanisms};
#[cfg(feature = "checkpoints")]
use crate::attention::mechanism::{Names, ShapeOf};
use crate::config::AttentionConfig;
use crate::error::Result;
use crate::weights::Parameter;
pub(crate) use extra_keys::BIAS_KV;

/// All mechanisms, in the order in which they act.
const ALL: [MechanismRow; 15] = [
    key_limit::ROW,
    global_tokens::ROW,
    projection_limits::ROW,
    clipping::ROW,
    extra_keys::ROW,
    rotated_context::ROW,
    block_keys::ROW,
    channels::ROW,
    pooled_queries::ROW,
    differential::ROW,
    span_convolution::ROW,
    context_norm::ROW,
    output_gate::ROW,
    output_groups::ROW,
    value_convolution::ROW,
];

/// The mechanisms of a layer, in the order in which they act.
pub(super) fn from_layer(layer: LayerParts) -> Result<Mechanisms> {
    ALL.iter().filter_map(|row| (row.from_layer)(layer).transpose()).collect()
}

/// The rows of the tensors of all mechanisms in a layer of this configuration.
pub(super) fn parameters(config: &AttentionConfig) -> impl Iterator<Item = Parameter> {
    ALL.iter().flat_map(|row| (row.parameters)(config))
}

/// The names of the tensors of all mechanisms.
#[cfg(feature = "checkpoints")]
pub(crate) fn names() -> impl Iterator<Item = Names> {
    ALL.iter().flat_map(|row| row.names).copied()
}

/// Adds to a configuration of the sizes of projections what the shapes of the tensors of all mechanisms show.
#[cfg(feature = "checkpoints")]
pub(crate) fn infer(config: AttentionConfig, shape: ShapeOf) -> Result<AttentionConfig> {
    ALL.iter().try_fold(config, |config, row| (row.infer)(config, shape))
}
