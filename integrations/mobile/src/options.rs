//! How texts are encoded.

use candle_attention_text as encoder;

/// How texts are encoded; the names are those of sentence-transformers.
#[derive(Debug, Clone, uniffi::Record)]
pub struct EncodeOptions {
    /// The largest number of texts in a batch. Results do not depend on it.
    #[uniffi(default = 32)]
    pub batch_size: u32,
    /// The name of one of the model's prompts, put before each text.
    #[uniffi(default = None)]
    pub prompt_name: Option<String>,
    /// A prompt of its own, put before each text in place of the named one.
    #[uniffi(default = None)]
    pub prompt: Option<String>,
    /// What the texts are for, where a model has several routes or tasks.
    #[uniffi(default = None)]
    pub task: Option<String>,
    /// The number of features of an embedding that are kept, the first ones.
    #[uniffi(default = None)]
    pub truncate_dim: Option<u32>,
    /// Whether embeddings are divided by their length, after the modules of the model.
    #[uniffi(default = false)]
    pub normalize_embeddings: bool,
    /// The number of tokens at which a text is cut; without it, the model's own maximum.
    #[uniffi(default = None)]
    pub max_length: Option<u32>,
}

impl Default for EncodeOptions {
    fn default() -> Self {
        Self {
            batch_size: 32,
            prompt_name: None,
            prompt: None,
            task: None,
            truncate_dim: None,
            normalize_embeddings: false,
            max_length: None,
        }
    }
}

impl EncodeOptions {
    /// The same for the crate.
    pub(crate) fn borrowed(&self) -> encoder::EncodeOptions<'_> {
        let mut options = encoder::EncodeOptions::default()
            .with_batch_size(self.batch_size as usize)
            .with_normalize_embeddings(self.normalize_embeddings);
        options.prompt_name = self.prompt_name.as_deref();
        options.prompt = self.prompt.as_deref();
        options.task = self.task.as_deref().map(encoder::Task::from);
        options.truncate_dim = self.truncate_dim.map(|size| size as usize);
        options.max_length = self.max_length.map(|length| length as usize);
        options
    }
}
