//! From texts to batches of tokens: tokenizing, chat templates, options.

#[cfg(feature = "visualize")]
pub(crate) mod attention_maps;
pub(crate) mod batches;
pub(crate) mod chat_template;
pub(crate) mod in_flight;
#[cfg(feature = "tasks")]
mod jinja;
pub(crate) mod options;
pub(crate) mod tokenizer;
