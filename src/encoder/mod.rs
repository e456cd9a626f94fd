//! Encoders around [`MultiHeadAttention`](crate::MultiHeadAttention), from published checkpoints: text to sentence
//! embeddings ([`SentenceEncoder`]), and the heads that go with them: labels ([`TextClassifier`]), scores of pairs
//! ([`CrossEncoder`]), tokens for holes ([`FillMask`]).
//!
//! Below the texts stand [`BertModel`], token ids to hidden states, and on it [`SequenceClassifier`] and [`MaskedLm`].
//! BERT's families differ in names, in how tokens know their place, in their feed-forward part and in where they
//! normalise; see [`BertConfig`] for those that are known.

#[cfg(feature = "visualize")]
mod attention_maps;
mod bert;
mod classifier;
mod config;
mod cross_encoder;
mod family;
mod feed_forward;
mod files;
mod fill_mask;
mod fingerprint;
mod forward;
mod gate;
mod hidden;
#[cfg(feature = "hub")]
mod hub;
mod importance;
mod keys;
mod layer;
mod masked_lm;
mod norm;
mod options;
mod pipeline;
mod pooling;
mod prune;
mod rows;
mod rows_tensors;
mod sentence;
mod text_classifier;
mod texts;
mod tokenizer;

#[cfg(feature = "visualize")]
pub use attention_maps::MapOptions;
pub use bert::BertModel;
pub use classifier::SequenceClassifier;
pub use config::BertConfig;
pub use cross_encoder::{CrossEncoder, Ranked};
pub use fill_mask::{Fill, FillMask};
pub use fingerprint::fingerprint;
#[cfg(feature = "train")]
pub(crate) use fingerprint::hex;
pub use forward::{ForwardOptions, Forwarded};
#[cfg(feature = "hub")]
pub use hub::{HubOptions, download};
pub use importance::ImportanceBy;
pub use masked_lm::MaskedLm;
pub use norm::LayerNorm;
pub use options::EncodeOptions;
pub use pooling::{Pooling, PoolingMode};
pub use prune::write_pruned;
pub use sentence::SentenceEncoder;
pub use text_classifier::{Label, TextClassifier};
pub use tokenizer::Text;
