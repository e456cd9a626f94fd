//! Weights on disk: opens a file, a folder or a sharded index, and reads attention layers in any known layout.

mod dry;
mod family;
mod header;
mod hf_config;
mod inspect;
mod layout;
mod names;
mod norms;
mod open;
mod read;
mod source;
mod table;
mod tables;
mod write;

#[cfg(feature = "encoder")]
pub(crate) use hf_config::as_in_model;
pub use hf_config::{HfAttentionConfig, ModelAttention, config_from_json};
pub use inspect::LayerInfo;
pub use layout::detect;
pub use names::{BiasPatterns, DenseNames, FusedOrder, Layout, QkvNames, Stored};
pub use norms::NormWeights;
#[cfg(feature = "hub")]
pub(crate) use open::read_index;
pub use open::{Checkpoint, CheckpointSource};
pub use read::{AttentionWeights, DenseWeights, DisentangledWeights, QkvWeights, infer_config};
pub use source::WeightSource;
pub use table::LAYOUTS;
pub use write::write_layers;
#[cfg(feature = "encoder")]
pub(crate) use write::write_tensors;
