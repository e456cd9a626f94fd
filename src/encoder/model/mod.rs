//! The transformer itself: token ids to hidden states.

pub(crate) mod bert;
pub(crate) mod config;
mod config_keys;
pub(crate) mod feed_forward;
pub(crate) mod hidden;
pub(crate) mod layer;
pub(crate) mod norm;
pub(crate) mod options;
mod ragged_cpu;
mod ragged_tensor;
