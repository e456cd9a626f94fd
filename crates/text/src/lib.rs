//! Text encoders built on [`MultiHeadAttention`](candle_attention::MultiHeadAttention), loaded from published checkpoints: sentence
//! embeddings ([`SentenceEncoder`]), text classification ([`TextClassifier`]), entities in texts ([`TokenClassifier`]),
//! scores of pairs of texts ([`CrossEncoder`]) and masked-token prediction ([`FillMask`]).
//!
//! These take texts. The models below them take token ids: [`BertModel`] computes hidden states, [`SequenceClassifier`],
//! [`TokenClassificationHead`] and [`MaskedLm`] add a task head. BERT's families differ in tensor names, positions, feed-forward part and norms; all of that
//! is data, a row of the table of families, so that one stack of blocks with one forward loop runs them all. [`BertConfig`]
//! lists the supported families.

mod default_dtype;
mod families;
mod folder;
mod heads;
mod hub;
mod kind;
mod m3;
mod model;
mod model_files;
mod multi_vector;
mod prompts;
mod pruning;
#[cfg(test)]
#[allow(dead_code, reason = "the tests of the layer share it")]
#[path = "../../../src/tensor/random.rs"]
mod random;
mod router;
pub mod search;
mod sentence;
mod sparse;
mod text;
#[cfg(feature = "train")]
pub mod train;
#[cfg(feature = "visualize")]
pub mod visualize;

pub use default_dtype::default_dtype;
pub use heads::classifier::SequenceClassifier;
pub use heads::masked_lm::MaskedLm;
pub use heads::task_head::TaskHead;
pub use heads::token_classifier::TokenClassificationHead;
pub use hub::locate_model;
#[cfg(feature = "hub")]
pub use hub::{HubOptions, download};
pub use kind::EncoderKind;
pub use m3::{M3Embedding, M3Encoder};
pub use model::bert::BertModel;
pub use model::config::BertConfig;
pub use model::options::{ForwardOptions, ForwardOutput};
pub use model::pooling::{Pooling, PoolingMode};
pub use model_files::ModelFiles;
pub use multi_vector::MultiVectorEncoder;
pub use pruning::head_importance::{HeadImportance, ImportanceMethod, RankedHead};
pub use pruning::write::{PruneOptions, write_pruned, write_pruned_with};
pub use sentence::SentenceEncoder;
pub use sentence::encode::EncodeIter;
pub use sentence::fingerprint::fingerprint;
pub use sentence::quantize::{
    Precision, QuantizationRanges, QuantizedEmbeddings, QuantizedValues, quantize_embeddings,
};
pub use sentence::similarity::SimilarityFunction;
pub use sparse::SparseEncoder;
pub use sparse::vector::SparseVector;
#[cfg(feature = "visualize")]
pub use text::attention_maps::MapOptions;
pub use text::cross_encoder::{CrossEncoder, Ranked};
pub use text::entities::{Aggregation, Entity};
pub use text::fill_mask::{FillMask, MaskPrediction};
pub use text::options::{EncodeOptions, Task};
pub use text::text_classifier::{Label, TextClassifier};
pub use text::token_classifier::{EntityOptions, TokenClassifier};
pub use text::tokenizer::Text;

pub use candle_attention::ops::max_sim;
