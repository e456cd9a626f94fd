//! Prompts: the texts that a model puts before its input, such as one before queries and another before documents.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use candle_attention::{Error, Result};

use crate::folder::ModelFolder;
use crate::text::options::{EncodeOptions, Task};

/// The longest prompt, in bytes: it is tokenized with each text. Published ones have up to 500.
const MAX_PROMPT_BYTES: usize = 1 << 14;

/// The prompts that `config_sentence_transformers.json` states; null is an empty one.
#[derive(Clone, Default, serde::Deserialize)]
#[serde(default)]
pub(crate) struct Prompts {
    prompts: BTreeMap<String, Option<String>>,
    default_prompt_name: Option<String>,
}

impl Prompts {
    /// Reads the file of a model's folder; without it there are no prompts.
    pub fn load(folder: ModelFolder) -> Result<Self> {
        let path = folder.path.join("config_sentence_transformers.json");
        let stated: Self = folder.json_or_default(&path)?;
        if let Some((name, prompt)) = stated.all().find(|(_, prompt)| prompt.len() > MAX_PROMPT_BYTES) {
            let found = format!("the prompt `{name}` has {} bytes", prompt.len());
            return Err(Error::file(path, format!("{found}, expected at most {MAX_PROMPT_BYTES}")));
        }
        Ok(stated)
    }

    /// The names and prompts that are stated, sorted by name.
    pub fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        self.prompts.iter().map(|(name, prompt)| (name.as_str(), prompt.as_deref().unwrap_or_default()))
    }

    /// The name of the prompt of a call that names none.
    pub fn default_name(&self) -> Option<&str> {
        self.default_prompt_name.as_deref()
    }

    /// The prompt of this name, if one is stated.
    pub fn stated(&self, name: &str) -> Option<&str> {
        self.prompts.get(name).map(|prompt| prompt.as_deref().unwrap_or_default())
    }

    /// Adds a prompt, or replaces it.
    pub fn insert(&mut self, name: &str, prompt: String) {
        self.prompts.insert(name.to_string(), Some(prompt));
    }

    /// The prompt of a name, or the default one. Every model has prompts for both tasks, empty where its folder states
    /// none, as in sentence-transformers.
    ///
    /// # Errors
    /// If no prompt has the name.
    pub fn named(&self, name: Option<&str>) -> Result<&str> {
        self.look_up(name, &["document", "query"])
    }

    /// The prompt of a name, or the default one. The names in `empty` have an empty prompt unless another is stated.
    fn look_up(&self, name: Option<&str>, empty: &[&str]) -> Result<&str> {
        let Some(name) = name.or(self.default_prompt_name.as_deref()) else { return Ok("") };
        match self.stated(name) {
            Some(prompt) => Ok(prompt),
            None if empty.contains(&name) => Ok(""),
            None => {
                let known: BTreeSet<&str> =
                    self.prompts.keys().map(String::as_str).chain(empty.iter().copied()).collect();
                let known = Vec::from_iter(known).join(" or ");
                let known = if known.is_empty() { "none: the model has no prompts".to_string() } else { known };
                Err(Error::value("prompt_name", name, known))
            }
        }
    }

    /// The text before each text of a call: the prompt of the options, or the one that they name, or else that of the
    /// task, or, without a task, the default one.
    ///
    /// # Errors
    /// If no prompt has the name.
    pub fn choose<'a>(&'a self, options: &EncodeOptions<'a>, task: Option<Task<'a>>) -> Result<&'a str> {
        match options.prompt {
            Some(prompt) => Ok(prompt),
            None => self.named(options.prompt_name.or(task.map(Task::name))),
        }
    }

    /// The text that a reranker puts before its queries: the prompt of the options, or the one that they name, or the
    /// default one.
    ///
    /// # Errors
    /// If no prompt is stated under the name.
    pub fn reranker_prompt<'a>(&'a self, options: &EncodeOptions<'a>) -> Result<&'a str> {
        options.prompt.map_or_else(|| self.look_up(options.prompt_name, &[]), Ok)
    }
}

/// The names: prompts can be long.
impl fmt::Debug for Prompts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.prompts.keys()).finish()
    }
}
