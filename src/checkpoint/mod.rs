//! Weights on disk: opens a file, a folder or a sharded index, and reads attention layers in any known layout.

mod hf_config;
mod layout;
mod open;
mod read;
mod source;

pub use hf_config::{HfAttentionConfig, config_from_json};
pub use layout::{LAYOUTS, Layout, detect};
pub use open::{Checkpoint, CheckpointSource};
pub use read::{AttentionWeights, DenseWeights, QkvWeights, infer_config};
pub use source::WeightSource;
