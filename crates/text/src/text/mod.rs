//! From text to model output: tokenizing, batching, and the models that take text.

#[cfg(feature = "visualize")]
pub(crate) mod attention_maps;
pub(crate) mod batches;
pub(crate) mod chat_template;
#[cfg(feature = "tasks")]
pub(crate) mod cross_encoder;
#[cfg(feature = "tasks")]
pub(crate) mod entities;
#[cfg(feature = "tasks")]
pub(crate) mod fill_mask;
pub(crate) mod in_flight;
#[cfg(feature = "tasks")]
mod jinja;
pub(crate) mod options;
#[cfg(feature = "tasks")]
pub(crate) mod text_classifier;
#[cfg(feature = "tasks")]
pub(crate) mod token_classifier;
#[cfg(feature = "tasks")]
pub(crate) mod token_scorer;
pub(crate) mod tokenizer;
