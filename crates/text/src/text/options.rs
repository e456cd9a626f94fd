//! Options for encoding texts.

use candle_attention::error::cut_to;
use candle_attention::{Error, Result, setters};
use candle_core::DType;

use crate::text::tokenizer::Text;

/// How many texts are tokenized at a time. Their tokens take 8 bytes each, so that a million texts need no more memory
/// than these; sorting fewer by length would leave more padding.
pub(crate) const WINDOW: usize = 8192;

/// The purpose of the texts of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task<'a> {
    /// Search queries.
    Query,
    /// Documents to be searched.
    Document,
    /// Something else that the model has a name for: a route of a `Router`
    /// ([`SentenceEncoder::routes`](crate::SentenceEncoder::routes)); or a task that the checkpoint holds an adapter
    /// for, such as `retrieval.query` of Jina embeddings v3
    /// ([`SentenceEncoder::tasks`](crate::SentenceEncoder::tasks)).
    Named(&'a str),
}

impl<'a> Task<'a> {
    /// The name that prompts and routes of a model have for the task.
    pub fn name(self) -> &'a str {
        match self {
            Self::Query => "query",
            Self::Document => "document",
            Self::Named(name) => name,
        }
    }
}

/// The task of a name: `query` and `document` are [`Task::Query`] and [`Task::Document`].
impl<'a> From<&'a str> for Task<'a> {
    fn from(name: &'a str) -> Self {
        match name {
            "query" => Self::Query,
            "document" => Self::Document,
            name => Self::Named(name),
        }
    }
}

/// How texts are encoded. The default: batches of up to 32 texts and 16,384 tokens, the model's default prompt, no
/// progress. Threads may share them.
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
    /// The name of an adapter of the encoder, which is merged with its weights for this call; `None` runs the base
    /// model. Only sentence encoders have adapters: see [`add_adapter`](crate::SentenceEncoder::add_adapter).
    pub adapter: Option<&'a str>,
    /// The adapter of each text, or none for it. The texts of an adapter run together, and a text's vector is the same,
    /// bit for bit, whatever the others have.
    pub adapters: Option<&'a [Option<&'a str>]>,
    /// A prompt of its own, put before each text in place of the named one. Only sentence encoders have prompts.
    pub prompt: Option<&'a str>,
    /// The purpose of the texts: it selects the route of a model that has several, or the adapter that a checkpoint
    /// holds for the task, whose instruction is put before each text unless a prompt is given. To other models
    /// [`Task::Query`] and [`Task::Document`] make no difference.
    pub task: Option<Task<'a>>,
    /// The number of features of an embedding that are kept, the first ones, before it is normalized (Matryoshka
    /// embeddings); `None` is what the model states, usually all of them. Only embeddings have features to cut.
    pub truncate_dim: Option<usize>,
    /// Whether embeddings are divided by their length after all modules of the model. Only embeddings have a length.
    pub normalize_embeddings: bool,
    /// The number of tokens at which a text is cut, special tokens included; `None` is the model's own maximum. At most
    /// the number of positions of the model, which may be more than its maximum.
    pub max_length: Option<usize>,
    /// The index of the first text, where texts arrive in several calls.
    pub(crate) first_text: usize,
    /// Called with the index of each text that was cut.
    pub on_truncated: Option<&'a (dyn Fn(usize) + Sync)>,
    /// Called after each batch with the number of texts done and of all texts.
    pub on_progress: Option<&'a (dyn Fn(usize, usize) + Sync)>,
    /// Called before texts are tokenized and before each batch; where it is true, the call ends with
    /// [`Error::Cancelled`].
    pub is_cancelled: Option<&'a (dyn Fn() -> bool + Sync)>,
}

impl Default for EncodeOptions<'_> {
    fn default() -> Self {
        Self {
            batch_size: 32,
            max_batch_tokens: 16_384,
            prompt_name: None,
            adapter: None,
            adapters: None,
            prompt: None,
            task: None,
            truncate_dim: None,
            normalize_embeddings: false,
            max_length: None,
            first_text: 0,
            on_truncated: None,
            on_progress: None,
            is_cancelled: None,
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
        /// Sets a prompt of its own.
        with_prompt, prompt: &'a str = Some(prompt);
        /// Sets what the texts are for.
        with_task, task: Task<'a> = Some(task);
        /// Sets the number of features that are kept.
        with_truncate_dim, truncate_dim: usize = Some(truncate_dim);
        /// Sets whether embeddings are divided by their length.
        with_normalize_embeddings, normalize_embeddings: bool = normalize_embeddings;
        /// Sets the number of tokens at which a text is cut.
        with_max_length, max_length: usize = Some(max_length);
        /// Sets what is called for each text that was cut.
        with_on_truncated, on_truncated: &'a (dyn Fn(usize) + Sync) = Some(on_truncated);
        /// Sets what is called after each batch.
        with_on_progress, on_progress: &'a (dyn Fn(usize, usize) + Sync) = Some(on_progress);
        /// Sets what is asked before each batch whether the call shall end.
        with_is_cancelled, is_cancelled: &'a (dyn Fn() -> bool + Sync) = Some(is_cancelled);
    }
}

impl EncodeOptions<'_> {
    /// Checks what does not depend on the model.
    pub(crate) fn check(&self) -> Result<()> {
        match (self.batch_size, self.truncate_dim) {
            (0, _) => Err(Error::config("batch_size", 0, "at least 1")),
            (_, Some(0)) => Err(Error::config("truncate_dim", 0, "at least 1")),
            _ => Ok(()),
        }
    }

    /// Ends a call that is cancelled.
    pub(crate) fn check_cancelled(&self) -> Result<()> {
        if self.is_cancelled.is_some_and(|is_cancelled| is_cancelled()) { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// The results of texts, which `encode` makes of a window of them, each with whether the text was cut. Reports cut
    /// texts and progress.
    pub(crate) fn in_windows<R>(
        &self,
        texts: &[&str],
        encode: impl Fn(&[&str]) -> Result<Vec<(R, bool)>>,
    ) -> Result<Vec<R>> {
        let mut all = Vec::with_capacity(texts.len());
        for window in texts.chunks(WINDOW) {
            self.check_cancelled()?;
            for (result, truncated) in encode(window)? {
                if let Some(on_truncated) = self.on_truncated.filter(|_| truncated) {
                    on_truncated(self.first_text + all.len());
                }
                all.push(result);
            }
            if let Some(on_progress) = self.on_progress {
                on_progress(self.first_text + all.len(), self.first_text + texts.len());
            }
        }
        Ok(all)
    }

    /// The options of a model that has no other tasks than [`Task::Query`] and [`Task::Document`], without the task;
    /// and the task.
    pub(crate) fn split_task(&self) -> Result<(Self, Option<Task<'static>>)> {
        let options = Self { task: None, ..*self };
        without_dimensions(&options)?;
        let task = match self.task.map(|task| Task::from(task.name())) {
            None => None,
            Some(Task::Query) => Some(Task::Query),
            Some(Task::Document) => Some(Task::Document),
            Some(Task::Named(other)) => return Err(Error::value("task", other, "query or document")),
        };
        Ok((options, task))
    }

    /// The name of an adapter of the call, if any text has one.
    pub(crate) fn any_adapter(&self) -> Option<&str> {
        self.adapter.or_else(|| self.adapters?.iter().find_map(|adapter| *adapter))
    }
}

/// Checks that `what` a model in `dtype` computed for each text is finite; `is_finite` says whether that of a text is.
pub(crate) fn check_finite<'a, T: Into<Text<'a>> + Copy>(
    what: &str,
    texts: &[T],
    dtype: DType,
    is_finite: impl Fn(usize) -> Result<bool>,
) -> Result<()> {
    for (i, text) in texts.iter().enumerate() {
        if !is_finite(i)? {
            let (text, _) = (*text).into().parts();
            return Err(Error::not_finite(format_args!("{what} of text {i}, `{}`", cut_to(text, 80)), dtype));
        }
    }
    Ok(())
}

/// Rejects what only sentence encoders have: prompts, adapters, tasks, and embeddings to cut or to normalize.
pub(crate) fn without_embeddings(options: &EncodeOptions) -> Result<()> {
    without_prompt(options.prompt_name, options.prompt)?;
    without_dimensions(options)
}

/// Rejects what only sentence encoders have, except prompts, which rerankers have too.
pub(crate) fn without_dimensions(options: &EncodeOptions) -> Result<()> {
    if let Some(name) = options.any_adapter().or(options.task.map(Task::name)) {
        let expected =
            "none: only sentence encoders have them; other models are loaded with theirs, from an `AdaptedSource`";
        return Err(Error::value("adapter or task", name, expected));
    }
    let (what, found) = match options {
        EncodeOptions { truncate_dim: Some(size), .. } => ("truncate_dim", size.to_string()),
        EncodeOptions { normalize_embeddings: true, .. } => ("normalize_embeddings", true.to_string()),
        _ => return Ok(()),
    };
    Err(Error::value(what, found, "none: only sentence encoders have it"))
}

/// Rejects a prompt: models with a task head have none.
pub(crate) fn without_prompt(prompt_name: Option<&str>, prompt: Option<&str>) -> Result<()> {
    match (prompt_name, prompt) {
        (Some(name), _) => Err(Error::value("prompt_name", name, "none: only sentence encoders have prompts")),
        (_, Some(prompt)) => Err(Error::value("prompt", cut_to(prompt, 80), "none: only sentence encoders have it")),
        (None, None) => Ok(()),
    }
}
