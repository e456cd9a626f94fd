//! Options for encoding texts.

use crate::encoder::text::tokenizer::Text;
use crate::error::{Error, Result, cut_to};
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
    /// The name of an adapter of the encoder, which is merged with its weights for this call; `None` runs the base model.
    /// Only sentence encoders have adapters: see [`add_adapter`](crate::encoder::SentenceEncoder::add_adapter).
    pub adapter: Option<&'a str>,
    /// The adapter of each text, or none for it. The texts of an adapter run together, and a text's vector is the same,
    /// bit for bit, whatever the others have.
    pub adapters: Option<&'a [Option<&'a str>]>,
    /// A task that the checkpoint holds an adapter for, such as `retrieval.query` of Jina embeddings v3: its adapter is used,
    /// and its instruction is put before each text unless a prompt is named. See
    /// [`tasks`](crate::encoder::SentenceEncoder::tasks).
    pub task: Option<&'a str>,
    /// The number of tokens at which a text is cut, special tokens included; `None` is the model's own maximum. At most
    /// the number of positions of the model, which may be more than its maximum.
    pub max_length: Option<usize>,
    /// Called with the index of each text that was cut.
    pub on_truncated: Option<&'a dyn Fn(usize)>,
    /// Called after each batch with the number of texts done and of all texts.
    pub on_progress: Option<&'a dyn Fn(usize, usize)>,
}

impl Default for EncodeOptions<'_> {
    fn default() -> Self {
        Self {
            batch_size: 32,
            max_batch_tokens: 16_384,
            prompt_name: None,
            adapter: None,
            adapters: None,
            task: None,
            max_length: None,
            on_truncated: None,
            on_progress: None,
        }
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
        /// Sets the adapter of all texts.
        with_adapter, adapter: &'a str = Some(adapter);
        /// Sets the adapter of each text.
        with_adapters, adapters: &'a [Option<&'a str>] = Some(adapters);
        /// Sets the task.
        with_task, task: &'a str = Some(task);
        /// Sets the number of tokens at which a text is cut.
        with_max_length, max_length: usize = Some(max_length);
        /// Sets what is called for each text that was cut.
        with_on_truncated, on_truncated: &'a dyn Fn(usize) = Some(on_truncated);
        /// Sets what is called after each batch.
        with_on_progress, on_progress: &'a dyn Fn(usize, usize) = Some(on_progress);
    }
}

/// Checks that what was computed for each text is finite.
pub(crate) fn check_finite(what: &str, texts: &[Text], numbers: &[Vec<f32>]) -> Result<()> {
    let Some(i) = numbers.iter().position(|row| row.iter().any(|number| !number.is_finite())) else { return Ok(()) };
    let (Text::One(text) | Text::Pair(text, _)) = texts[i];
    Err(Error::NotFinite { what: format!("{what} of text {i}, `{}`", cut_to(text, 80)) })
}

/// Rejects a prompt: models with a task head have none.
pub(crate) fn without_prompt(prompt_name: Option<&str>) -> Result<()> {
    match prompt_name {
        Some(name) => Err(Error::value("prompt_name", name, "none: only sentence encoders have prompts")),
        None => Ok(()),
    }
}

/// Rejects adapters and tasks, which only sentence encoders have: these choose their model before.
pub(crate) fn without_adapter(options: &EncodeOptions) -> Result<()> {
    let of_texts = || options.adapters?.iter().find_map(|adapter| *adapter);
    match options.adapter.or_else(of_texts).or(options.task) {
        Some(name) => {
            let expected =
                "none: only sentence encoders have them; other models are loaded with theirs, from an `AdaptedSource`";
            Err(Error::value("adapter or task", name, expected))
        }
        None => Ok(()),
    }
}
