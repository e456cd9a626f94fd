//! From text to model output: tokenizing, batching, and the models that take text.

#[cfg(feature = "visualize")]
pub(crate) mod attention_maps;
pub(crate) mod batches;
pub(crate) mod chat_template;
pub(crate) mod cross_encoder;
pub(crate) mod entities;
pub(crate) mod fill_mask;
pub(crate) mod in_flight;
pub(crate) mod options;
pub(crate) mod text_classifier;
pub(crate) mod token_classifier;
pub(crate) mod token_scorer;
pub(crate) mod tokenizer;
