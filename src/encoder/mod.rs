//! A small encoder around [`MultiHeadAttention`](crate::MultiHeadAttention): text to sentence embeddings, from a
//! published checkpoint.

mod bert;
mod config;
mod family;
mod feed_forward;
mod files;
mod forward;
#[cfg(feature = "hub")]
mod hub;
mod keys;
mod layer;
mod norm;
mod pipeline;
mod pooling;
mod prune;
mod rows;
mod sentence;
mod tokenizer;

pub use bert::BertModel;
pub use config::BertConfig;
pub use forward::{ForwardOptions, Forwarded};
#[cfg(feature = "hub")]
pub use hub::{HubOptions, download};
pub use norm::LayerNorm;
pub use pooling::{Pooling, PoolingMode};
pub use prune::write_pruned;
pub use sentence::{EncodeOptions, SentenceEncoder};
