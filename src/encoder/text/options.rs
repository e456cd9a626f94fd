//! Options for encoding texts.

use crate::error::{Error, Result};
use crate::macros::setters;

/// How texts are encoded. The default: batches of up to 32 texts and 16,384 tokens, the model's default prompt, no
/// progress.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct EncodeOptions<'a> {
    /// The largest number of texts in a batch. Texts are sorted by length first.
    pub batch_size: usize,
    /// The largest number of tokens in a batch, padding included; a longer text runs alone. Bounds the memory that long
    /// texts need.
    pub max_batch_tokens: usize,
    /// The name of one of the model's prompts, put before each text; `None` is the model's default, if it has one. Only
    /// sentence encoders have prompts.
    pub prompt_name: Option<&'a str>,
    /// Called after each batch with the number of texts done and of all texts.
    pub on_progress: Option<&'a dyn Fn(usize, usize)>,
}

impl Default for EncodeOptions<'_> {
    fn default() -> Self {
        Self { batch_size: 32, max_batch_tokens: 16_384, prompt_name: None, on_progress: None }
    }
}

impl<'a> EncodeOptions<'a> {
    setters! {
        /// Sets the number of texts that run together.
        with_batch_size, batch_size: usize = batch_size;
        /// Sets the number of tokens that run together at most.
        with_max_batch_tokens, max_batch_tokens: usize = max_batch_tokens;
        /// Sets the prompt.
        with_prompt_name, prompt_name: &'a str = Some(prompt_name);
        /// Sets what is called after each batch.
        with_on_progress, on_progress: &'a dyn Fn(usize, usize) = Some(on_progress);
    }
}

/// Rejects a prompt: models with a task head have none.
pub(crate) fn without_prompt(prompt_name: Option<&str>) -> Result<()> {
    match prompt_name {
        Some(name) => Err(Error::value("prompt_name", name, "none: only sentence encoders have prompts")),
        None => Ok(()),
    }
}
