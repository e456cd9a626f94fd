//! Weights on disk: opens a file, a folder or a sharded index, and reads attention layers in any known layout.

mod hf_config;
mod layout;
mod open;
mod read;
mod source;

pub use hf_config::{HfAttentionConfig, config_from_json};
pub use layout::{BiasPatterns, DenseNames, LAYOUTS, Layout, QkvNames, detect};
#[cfg(feature = "hub")]
pub(crate) use open::read_index;
pub use open::{Checkpoint, CheckpointSource};
pub use read::{AttentionWeights, DenseWeights, QkvWeights, infer_config};
pub use source::WeightSource;
