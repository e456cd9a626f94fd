//! Weights on disk: opens a file, a folder or a sharded index, and reads attention layers in any known layout.

mod detect;
mod header;
mod hf_config;
mod inspect;
mod load;
mod norms;
mod open;
mod position_weights;
mod read;
mod shape_only;
mod source;
mod write;

pub use crate::families::layout::{BiasPatterns, Layout, LinearNames, QkvNames, Stored};
pub use crate::families::layouts::LAYOUTS;
pub use detect::detect;
#[cfg(feature = "encoder")]
pub(crate) use hf_config::as_in_model;
pub use hf_config::{HfAttentionConfig, ModelAttention, config_from_json};
pub use inspect::LayerInfo;
#[cfg(feature = "hub")]
pub(crate) use open::read_index;
pub use open::{Checkpoint, CheckpointSource};
pub use read::infer_config;
pub use source::WeightSource;
pub use write::write_layers;
#[cfg(feature = "encoder")]
pub(crate) use write::write_tensors;
