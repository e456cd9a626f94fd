//! What a text is for in a search, and the prompt for it.

use crate::encoder::sentence::pipeline::Prompts;
use crate::encoder::text::options::EncodeOptions;
use crate::error::{Error, Result};

/// What a text is for in a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    /// It searches.
    Query,
    /// It is searched.
    Document,
}

impl Task {
    /// The name that prompts and routes of a model have.
    pub fn name(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Document => "document",
        }
    }
}

/// The prompt that the options name, or else that of the task, or, without a task, the model's default. Every model has
/// prompts for both tasks, empty where its folder states none, as in sentence-transformers.
pub(crate) fn prompt_for<'a>(prompts: &'a Prompts, options: &EncodeOptions, task: Option<Task>) -> Result<&'a str> {
    let of_task = task.filter(|_| options.prompt_name.is_none()).map(Task::name);
    let Some(name) = options.prompt_name.or(of_task).or(prompts.default_prompt_name.as_deref()) else {
        return Ok("");
    };
    match prompts.prompts.get(name) {
        Some(prompt) => Ok(prompt),
        None if [Task::Query.name(), Task::Document.name()].contains(&name) => Ok(""),
        None => {
            let known = prompts.prompts.keys().map(String::as_str).chain(["document", "query"]).collect::<Vec<_>>();
            Err(Error::value("prompt_name", name, known.join(" or ")))
        }
    }
}
