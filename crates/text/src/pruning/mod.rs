//! Head importance and pruning of whole encoders.

pub(crate) mod importance;
pub(crate) mod prune;
pub(crate) mod write;
