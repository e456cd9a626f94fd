//! A small encoder around [`MultiHeadAttention`](crate::MultiHeadAttention): text to sentence embeddings, from a
//! published checkpoint.

mod bert;
mod config;
mod family;
mod feed_forward;
mod files;
#[cfg(feature = "hub")]
mod hub;
mod keys;
mod layer;
mod norm;
mod pipeline;
mod pooling;
mod rows;
mod sentence;
mod tokenizer;

pub use bert::BertModel;
pub use config::BertConfig;
#[cfg(feature = "hub")]
pub use hub::{HubOptions, download};
pub use norm::LayerNorm;
pub use pooling::{Pooling, PoolingMode};
pub use sentence::{EncodeOptions, SentenceEncoder};
