//! Published model families as data: one row per family, for a single attention layer.
//!
//! A family is data, not code: its row states what distinguishes it (masks, positions, scale, norms, names), and
//! [`layer`] is the only code that reads rows. The alternative, a type or a function per family as in transformers,
//! repeats the attention layer a hundred times, and the copies drift apart. A row is keyed by `model_type`. How a
//! checkpoint names and stores the weights is a table of its own, [`layouts`]: many families share a layout, and
//! checkpoints without any `config.json` can still be read.

pub(crate) mod config_classes;
#[cfg(test)]
mod config_keys_tests;
mod decoders;
#[cfg(test)]
mod defaults_tests;
mod detectors;
mod encoder_decoders;
mod encoders;
mod family;
mod gated;
pub(crate) mod heads;
pub(crate) mod keys;
mod latent;
pub(crate) mod layer;
mod layer_tensors;
pub(crate) mod layout;
pub(crate) mod layouts;
mod mechanisms;
mod patches;
mod positions;
mod relative;
mod rotary;
mod rotary_scaling;
mod speech;
mod stepped;
mod steps;
pub(crate) mod table;
#[cfg(test)]
mod tests;
mod unsupported;
mod visibility;
mod vision;
