//! Encoders around [`MultiHeadAttention`](crate::MultiHeadAttention), from published checkpoints: text to sentence
//! embeddings ([`SentenceEncoder`]), and the heads that go with them: labels ([`TextClassifier`]), scores of pairs
//! ([`CrossEncoder`]), tokens for masks ([`FillMask`]).
//!
//! Below the texts stand [`BertModel`], token ids to hidden states, and on it [`SequenceClassifier`] and [`MaskedLm`].
//! BERT's families differ in names, in how tokens know their place, in their feed-forward part and in where they
//! normalise; see [`BertConfig`] for those that are known.

mod folder;
mod heads;
mod hub;
mod model;
mod pruning;
mod sentence;
mod text;

pub use heads::classifier::SequenceClassifier;
pub use heads::masked_lm::MaskedLm;
pub use heads::pooling::{Pooling, PoolingMode};
pub use hub::locate_model;
#[cfg(feature = "hub")]
pub use hub::{HubOptions, download};
pub use model::bert::BertModel;
pub use model::config::BertConfig;
pub use model::norm::LayerNorm;
pub use model::options::{ForwardOptions, ForwardOutput};
pub use pruning::prune::write_pruned;
pub use sentence::SentenceEncoder;
pub use sentence::fingerprint::fingerprint;
#[cfg(feature = "visualize")]
pub use text::attention_maps::MapOptions;
pub use text::cross_encoder::{CrossEncoder, Ranked};
pub use text::fill_mask::{FillMask, MaskPrediction};
pub use text::options::EncodeOptions;
pub use text::text_classifier::{Label, TextClassifier};
pub use text::tokenizer::Text;
