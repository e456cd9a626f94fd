//! Text encoders on the attention layer of [`candle_attention`]: sentence, sparse and multi-vector embeddings,
//! classifiers, rerankers, masked language models and semantic search.
//!
//! They read the folders of sentence-transformers, transformers and model2vec, and give the same numbers.
//!
//! ```
//! use candle_attention_text::{EncodeOptions, SentenceEncoder};
//! use candle_core::{DType, Device};
//!
//! let encoder = SentenceEncoder::embedded(DType::F32, &Device::Cpu)?; // 3 MB, in English
//! let texts = ["A cat sleeps on the sofa.", "A kitten naps on the couch.", "Stocks fell sharply today."];
//! let embeddings = encoder.encode(&texts, &EncodeOptions::default())?; // (3, 128)
//! let similarity = encoder.similarity(&embeddings, &embeddings)?.to_vec2::<f32>()?; // (3, 3)
//! assert!(similarity[0][1] > similarity[0][2]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `from_folder` reads a model from a folder, `from_files` from memory, and with the feature `hub` `from_hub` downloads
//! it. [`EncoderKind::from_folder`] finds out which encoder a folder is for.
//!
//! # From texts
//!
//! | Type | Gives |
//! |---|---|
//! | [`SentenceEncoder`] | one vector per text, or one per token |
//! | [`SparseEncoder`] | weights of the tokens of the vocabulary (SPLADE) |
//! | [`MultiVectorEncoder`] | a vector per token for [`max_sim`] (ColBERT) |
//! | [`M3Encoder`] | all three in one pass (BGE-M3) |
//! | [`CrossEncoder`] | scores of pairs of texts, documents ranked for a query |
//! | [`TextClassifier`], [`TokenClassifier`] | labels of texts, entities in texts |
//! | [`FillMask`] | tokens for a mask |
//!
//! # From token ids
//!
//! [`TextModel`] computes hidden states; [`SequenceClassifier`], [`TokenClassificationHead`] and [`MaskedLm`] add a
//! task head. A family of models is data: tensor names, positions, norms and the feed-forward part are a row of a
//! table. One stack of blocks with one forward loop runs them all, and all of them train. [`TextModelConfig`] lists the
//! families.
//!
//! # Modules
//!
//! | Module | Contents |
//! |---|---|
//! | [`search`] | vectors of texts, the nearest of them |
//! | `visualize` | attention maps in the terminal, as SVG and as an HTML page |
//!
//! # Cargo features
//!
//! | Feature | Default | Adds |
//! |---|---|---|
//! | `tasks` | yes | beyond dense sentence embeddings: classifiers, rerankers, masked tokens, sparse and multi-vector models, search, pruning |
//! | `hub` | no | models by their id on the Hugging Face Hub |
//! | `visualize` | no | the module `visualize` |
//! | `x86-v4` | yes | AVX-512 for candle's own matrix products, in the whole program |
//! | `cuda`, `cudnn`, `flash-attn`, `metal`, `accelerate`, `mkl` | no | as in [`candle_attention`] |
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(feature = "tasks"), allow(dead_code, reason = "most of what the models below share"))]

mod constructors;
mod default_dtype;
mod families;
mod folder;
mod gguf;
mod hash;
#[cfg(feature = "tasks")]
mod heads;
mod hub;
mod kind;
#[cfg(feature = "tasks")]
mod m3;
mod model;
mod model_files;
#[cfg(feature = "tasks")]
mod multi_vector;
mod prompts;
#[cfg(feature = "tasks")]
mod pruning;
#[cfg(feature = "tasks")]
mod quantized;
#[cfg(test)]
#[allow(dead_code, reason = "the tests of the layer share it")]
#[path = "../../../src/tensor/random.rs"]
mod random;
mod router;
#[cfg(feature = "tasks")]
pub mod search;
mod sentence;
#[cfg(feature = "tasks")]
mod sparse;
#[cfg(test)]
#[path = "../../kernels/tests/support/mod.rs"]
mod support;
#[cfg(feature = "tasks")]
mod tasks;
mod text;

#[cfg(feature = "visualize")]
pub use candle_attention_visualize as visualize;
pub use default_dtype::default_dtype;
pub use gguf::gguf_notes;
pub use hash::Fingerprint;
pub use hub::locate_model;
#[cfg(feature = "hub")]
pub use hub::{HubOptions, download};
pub use kind::EncoderKind;
pub use model::config::TextModelConfig;
pub use model::options::{ForwardOptions, ForwardOutput};
pub use model::pooling::{Pooling, PoolingMode};
pub use model::text_model::TextModel;
pub use model_files::ModelFiles;
pub use sentence::SentenceEncoder;
pub use sentence::fingerprint::fingerprint;
pub use sentence::quantize::{
    Precision, QuantizationRanges, QuantizedEmbeddings, QuantizedValues, quantize_embeddings,
};
pub use sentence::similarity::SimilarityFunction;
#[cfg(feature = "visualize")]
pub use text::attention_maps::MapOptions;
pub use text::options::{EncodeOptions, Task};
pub use text::tokenizer::Text;
#[cfg(feature = "tasks")]
pub use {
    heads::head_model::HeadModel,
    heads::kinds::{MaskedHead, MaskedLm, SequenceClassifier, SequenceHead, TokenClassificationHead, TokenHead},
    heads::task_head::TaskHead,
    m3::{M3Embedding, M3Encoder},
    multi_vector::MultiVectorEncoder,
    multi_vector::max_sim::max_sim,
    pruning::importance::{HeadImportance, ImportanceMethod, RankedHead},
    pruning::write::{PruneOptions, model_card, write_pruned, write_pruned_with},
    quantized::{int8_groups, int8_weights, load_int8, write_int8},
    sparse::SparseEncoder,
    sparse::vector::SparseVector,
    tasks::cross_encoder::{CrossEncoder, Ranked},
    tasks::entities::{Aggregation, Entity},
    tasks::fill_mask::{FillMask, MaskPrediction},
    tasks::text_classifier::{Label, TextClassifier},
    tasks::token_classifier::{EntityOptions, TokenClassifier},
};

/// Compiles the code blocks of the README and of the guide as doctests.
#[cfg(all(doctest, feature = "tasks"))]
mod documents {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/encoder.md")]
    struct Encoder;
}
