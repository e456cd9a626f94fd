//! Weights from files, from memory, from a `VarBuilder` or from variables: reads and writes attention layers in any
//! known layout.
//!
//! [`ModelAttention::load`] gives a layer as the model of a `config.json` runs it, from any [`WeightSource`];
//! [`Checkpoint::attention`] is the shorthand for files. [`MultiHeadAttention::load`](crate::MultiHeadAttention::load)
//! gives one for a configuration of the caller's.
//!
//! Quantized checkpoints in published formats are read as plain tensors, which are dequantized as they are asked for.
//!
//! A loader of a whole model passes [`AnySource`] on, which erases the type of a source. `load` of
//! [`Linear`](crate::ops::Linear::load) and [`Norm`](crate::norm::Norm::load) reads the rest of the model,
//! [`SharedTables`] what layers share, and [`AnySource::watched`] finds tensors that nothing reads.
//!
//! A layer is read in two steps. [`detect`] finds its [`Layout`] from tensor names and shapes; then its weights become
//! one type, [`AttentionWeights`](crate::weights::AttentionWeights), whatever the layout. Files are untrusted: headers,
//! indexes and configurations are checked and limited, and an error names the tensor or key. Files are read, not
//! memory-mapped: a map cannot be safe while another process may write to the file. A layer is as its model runs it, or
//! an error says why not: a family that is not known, and a tensor or a config key that would change the result and is
//! not applied, are errors.

mod changes;
mod checkpoint_source;
mod config_json;
mod detect;
mod forms;
mod gguf;
mod header;
mod infer;
mod inspect;
mod linear;
mod load;
mod open;
mod projection;
mod quantized;
mod read;
mod section;
mod shard;
mod shared_tables;
mod source;
mod trainer_names;
mod write;

pub use crate::families::layout::Layout;
pub use crate::families::layouts::layouts;
pub use crate::families::table::layout_of;
pub use crate::families::table::{model_class, resolved_model_type};
pub use checkpoint_source::CheckpointSource;
pub use config_json::{HfAttentionConfig, ModelConfig, config_from_json, remove_ignored_keys};
pub use detect::detect;
pub use gguf::{GgufMetadata, GgufValue};
pub use infer::infer_config;
pub use inspect::LayerInfo;
pub use load::ModelAttention;
pub use open::{Checkpoint, read_index};
pub use quantized::remove_quantization_config;
pub use shared_tables::SharedTables;
pub use source::{AnySource, VarMapSource, WeightSource};
pub(crate) use source::{below, wrong_shape};
pub use write::write_layers;
