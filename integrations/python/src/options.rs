//! The options of a call, as a dictionary from Python.

use candle_attention::Result;
use candle_attention_text::{EncodeOptions, Task};
use pyo3::FromPyObject;

use crate::threads::Watch;

/// The options of a call. Every key is there; the Python files have the defaults.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Options {
    prompt: Option<String>,
    task: Option<String>,
    batch_size: usize,
    max_length: Option<usize>,
    truncate_dim: Option<usize>,
    normalize_embeddings: bool,
}

impl Options {
    /// Calls `work` with the options of the crate, which report to `watch`.
    pub fn with<T>(&self, watch: &Watch, work: impl FnOnce(&EncodeOptions) -> Result<T>) -> Result<T> {
        let (is_cancelled, on_progress) = (|| watch.is_cancelled(), |done, _| watch.set_done(done));
        let mut options = EncodeOptions::default()
            .with_batch_size(self.batch_size)
            .with_normalize_embeddings(self.normalize_embeddings)
            .with_is_cancelled(&is_cancelled)
            .with_on_progress(&on_progress);
        (options.prompt, options.task) = (self.prompt.as_deref(), self.task.as_deref().map(Task::from));
        (options.max_length, options.truncate_dim) = (self.max_length, self.truncate_dim);
        work(&options)
    }
}
