//! `config_sentence_transformers.json`: prompts, the similarity of a model's embeddings, how many features are kept.

use std::collections::BTreeMap;
use std::fmt;

use crate::encoder::folder::ModelFolder;
use crate::encoder::sentence::similarity::SimilarityFunction;
use crate::error::{Error, Result};

/// The longest prompt, in bytes: it is tokenized with each text. Published ones have up to 500.
const MAX_PROMPT_BYTES: usize = 1 << 14;

/// The names of the prompts that every model has, empty where its folder states none.
const ALWAYS: [&str; 2] = ["document", "query"];

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct File {
    prompts: BTreeMap<String, Option<String>>,
    default_prompt_name: Option<String>,
    similarity_fn_name: Option<String>,
    truncate_dim: Option<usize>,
}

/// What the file states.
#[derive(Clone)]
pub(crate) struct Settings {
    prompts: BTreeMap<String, String>,
    default_prompt_name: Option<String>,
    /// Cosine where the file states none, or one of multi-vector models.
    pub similarity: SimilarityFunction,
    pub truncate_dim: Option<usize>,
}

impl Settings {
    /// Reads the file of a model's folder; without it there are no prompts.
    pub(crate) fn load(folder: ModelFolder) -> Result<Self> {
        let path = folder.path.join("config_sentence_transformers.json");
        let File { prompts, default_prompt_name, similarity_fn_name, truncate_dim } = folder.json_or_default(&path)?;
        let stated = prompts.into_iter().map(|(name, prompt)| (name, prompt.unwrap_or_default()));
        let prompts: BTreeMap<String, String> =
            ALWAYS.map(|name| (name.to_string(), String::new())).into_iter().chain(stated).collect();
        if let Some((name, prompt)) = prompts.iter().find(|(_, prompt)| prompt.len() > MAX_PROMPT_BYTES) {
            let found = format!("the prompt `{name}` has {} bytes", prompt.len());
            return Err(Error::file(path, format!("{found}, expected at most {MAX_PROMPT_BYTES}")));
        }
        if truncate_dim == Some(0) {
            return Err(Error::file(path, "truncate_dim is 0, expected at least 1"));
        }
        let similarity = similarity_fn_name.and_then(|name| name.parse().ok()).unwrap_or_default();
        Ok(Self { prompts, default_prompt_name, similarity, truncate_dim })
    }

    /// The prompt of a name, or the default one.
    ///
    /// # Errors
    /// If no prompt has the name.
    pub(crate) fn prompt(&self, name: Option<&str>) -> Result<&str> {
        let Some(name) = name.or(self.default_prompt_name.as_deref()) else {
            return Ok("");
        };
        self.prompts.get(name).map(String::as_str).ok_or_else(|| {
            let known = self.prompts.keys().map(String::as_str).collect::<Vec<_>>();
            Error::value("prompt_name", name, known.join(" or "))
        })
    }
}

/// Without prompts of its own, as in a folder without the file.
impl Default for Settings {
    fn default() -> Self {
        let prompts = ALWAYS.map(|name| (name.to_string(), String::new())).into();
        let similarity = SimilarityFunction::default();
        Self { prompts, default_prompt_name: None, similarity, truncate_dim: None }
    }
}

/// The names: prompts can be long.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("prompts", &self.prompts.keys()).finish_non_exhaustive()
    }
}
