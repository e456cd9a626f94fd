//! `config_sentence_transformers.json`: prompts, the similarity of a model's embeddings, how many features are kept.

use candle_attention::{Error, Result};

use crate::folder::ModelFolder;
use crate::prompts::Prompts;
use crate::sentence::similarity::SimilarityFunction;

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct File {
    similarity_fn_name: Option<String>,
    truncate_dim: Option<usize>,
}

/// What the file states.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings {
    pub prompts: Prompts,
    /// Cosine where the file states none, or one of multi-vector models.
    pub similarity: SimilarityFunction,
    pub truncate_dim: Option<usize>,
}

impl Settings {
    /// Reads the file of a model's folder, which may be absent.
    pub(crate) fn load(folder: ModelFolder) -> Result<Self> {
        let path = folder.path.join("config_sentence_transformers.json");
        let File { similarity_fn_name, truncate_dim } = folder.json_or_default(&path)?;
        if truncate_dim == Some(0) {
            return Err(Error::file(path, "truncate_dim is 0, expected at least 1"));
        }
        let similarity = similarity_fn_name.and_then(|name| name.parse().ok()).unwrap_or_default();
        Ok(Self { prompts: Prompts::load(folder)?, similarity, truncate_dim })
    }
}
