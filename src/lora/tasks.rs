//! Adapters for tasks inside a checkpoint, as Jina embeddings v3 has them: their names, factor and instructions.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::checkpoint::WeightSource;
use crate::error::{Error, Result};
use crate::lora::config::MAX_RANK;
use crate::lora::task_source::{Task, TaskSource};

/// The most tasks of a model. The published one has five.
const MAX_TASKS: usize = 256;

/// The longest instruction, in bytes: it is tokenized with each text. Published ones have up to 60.
const MAX_INSTRUCTION_BYTES: usize = 1 << 14;

/// The task adapters that a checkpoint holds, by its `config.json`: `lora_adaptations`, `lora_rank`, `lora_alpha` and
/// `task_instructions`, as in Jina embeddings v3 ([Sturua 2024](https://arxiv.org/abs/2409.10173)).
#[derive(Debug, Clone, PartialEq)]
pub struct LoraTasks {
    names: Vec<String>,
    instructions: BTreeMap<String, String>,
    rank: usize,
    scale: f64,
}

impl LoraTasks {
    /// Reads the keys of a `config.json`; `None` if it has no `lora_adaptations`, or `load_trained_adapters` is false,
    /// which means that the checkpoint holds none yet.
    ///
    /// # Errors
    /// A key of the wrong kind or out of range; instructions for other tasks than the adapters.
    pub fn from_config(config: &Value) -> Result<Option<Self>> {
        let key = |key: &'static str| config.get(key).filter(|value| !value.is_null());
        let Some(adaptations) = key("lora_adaptations") else { return Ok(None) };
        if key("load_trained_adapters") == Some(&Value::Bool(false)) {
            return Ok(None);
        }
        let names = adaptations.as_array().filter(|names| (1..=MAX_TASKS).contains(&names.len()));
        let names = names.and_then(|names| names.iter().map(|name| name.as_str().map(str::to_string)).collect());
        let names: Vec<String> = names.ok_or_else(|| {
            Error::config("lora_adaptations", kind(adaptations), format!("a list of 1 to {MAX_TASKS} names"))
        })?;
        if let Some(twice) = names.iter().enumerate().find(|(i, name)| names[..*i].contains(name)) {
            return Err(Error::config("lora_adaptations", twice.1, "a name once"));
        }
        let wrong = |name: &'static str, expected: String| Error::config(name, &config[name], expected);
        let rank = key("lora_rank").map_or(Some(4), |rank| usize::try_from(rank.as_u64()?).ok());
        let rank = rank.filter(|rank| (1..=MAX_RANK).contains(rank));
        let rank = rank.ok_or_else(|| wrong("lora_rank", format!("1 to {MAX_RANK}")))?;
        let alpha = key("lora_alpha").map_or(Some(1.0), Value::as_f64).filter(|alpha| (*alpha as f32).is_finite());
        let alpha = alpha.ok_or_else(|| wrong("lora_alpha", "a finite number".to_string()))?;
        let mut instructions = BTreeMap::new();
        if let Some(stated) = key("task_instructions") {
            for name in &names {
                let Some(text) = stated.get(name).and_then(Value::as_str) else {
                    let found = format!("no text for `{name}`");
                    return Err(Error::config("task_instructions", found, "one for each task"));
                };
                if text.len() > MAX_INSTRUCTION_BYTES {
                    let found = format!("{} bytes for `{name}`", text.len());
                    return Err(Error::config("task_instructions", found, format!("at most {MAX_INSTRUCTION_BYTES}")));
                }
                instructions.insert(name.clone(), text.to_string());
            }
        }
        Ok(Some(Self { names, instructions, rank, scale: alpha / rank as f64 }))
    }

    /// The names of the tasks, in the order of the checkpoint.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// The text that is put before each text for a task; empty if there is none.
    ///
    /// # Errors
    /// A task that the model does not have.
    pub fn instruction(&self, task: &str) -> Result<&str> {
        self.index(task)?;
        Ok(self.instructions.get(task).map_or("", String::as_str))
    }

    /// The weights of a checkpoint with the adapter of a task merged; those of the base model without one.
    ///
    /// # Errors
    /// A task that the model does not have.
    pub fn apply<S: WeightSource>(&self, base: S, task: Option<&str>) -> Result<TaskSource<S>> {
        let task = task.map(|task| self.index(task)).transpose()?;
        let task = task.map(|index| Task { index, tasks: self.names.len(), rank: self.rank, scale: self.scale });
        Ok(TaskSource::new(base, task))
    }

    fn index(&self, task: &str) -> Result<usize> {
        let index = self.names.iter().position(|name| name == task);
        index.ok_or_else(|| Error::value("task", task, self.names.join(" or ")))
    }
}

/// A value in few words: lists can be long.
fn kind(value: &Value) -> String {
    match value {
        Value::Array(items) if items.len() > 4 => format!("a list of {}", items.len()),
        other => other.to_string(),
    }
}
