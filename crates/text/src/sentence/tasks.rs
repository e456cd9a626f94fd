//! Tasks of a sentence encoder: each is a model of its own, loaded when it is first asked for.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use candle_attention::Result;
use candle_attention::checkpoint::CheckpointSource;
use candle_attention::lora::LoraTasks;

use crate::model::bert::BertModel;

/// The tasks that a checkpoint holds adapters for, and the models of those that have been asked for. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct TaskModels {
    pub tasks: LoraTasks,
    models: Arc<Mutex<BTreeMap<String, BertModel>>>,
}

impl TaskModels {
    pub fn new(tasks: LoraTasks) -> Self {
        Self { tasks, models: Arc::default() }
    }

    /// The model of a task, which shares what it can with `base`. Calls that ask for the same one at the same time load it
    /// once.
    pub fn model(&self, task: &str, source: &CheckpointSource, base: &BertModel) -> Result<BertModel> {
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(model) = models.get(task) {
            return Ok(model.clone());
        }
        let adapted = self.tasks.apply(source.clone(), Some(task))?;
        let model = BertModel::load(base.config(), adapted)?.with_shared_weights(base)?;
        models.insert(task.to_string(), model.clone());
        Ok(model)
    }
}
