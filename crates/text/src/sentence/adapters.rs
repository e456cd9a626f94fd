//! The adapted models of a sentence encoder: those of adapters that a user adds, those of tasks that the checkpoint has
//! adapters for, and folders that hold an adapter.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use candle_attention::checkpoint::{Checkpoint, CheckpointSource};
use candle_attention::lora::{AdaptedSource, LoraAdapter, LoraConfig, LoraTasks};
use candle_attention::{Error, Result};

use crate::folder::{ModelFolder, ModelSource};
use crate::model::config::TextModelConfig;
use crate::model::text_model::TextModel;

/// The weights that adapters are merged with, and the adapted models.
#[derive(Clone, Default)]
pub(crate) struct Adapters {
    pub base: Option<CheckpointSource>,
    pub models: BTreeMap<String, TextModel>,
    /// The adapters in the checkpoint itself.
    pub tasks: Option<TaskModels>,
}

/// Shows the names of the adapters.
impl fmt::Debug for Adapters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tasks = self.tasks.iter().flat_map(|models| models.tasks.names());
        f.debug_list().entries(self.models.keys().map(String::as_str).chain(tasks)).finish()
    }
}

impl Adapters {
    /// The adapters of a model with these weights: its tasks, and no others yet.
    pub fn new(base: &CheckpointSource, config: &TextModelConfig) -> Result<Self> {
        let tasks = config.tasks()?.map(|tasks| TaskModels { tasks, models: Arc::default() });
        Ok(Self { base: Some(base.clone()), models: BTreeMap::new(), tasks })
    }
}

/// The tasks that a checkpoint holds adapters for, and the models of those that have been asked for. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct TaskModels {
    pub tasks: LoraTasks,
    models: Arc<Mutex<BTreeMap<String, TextModel>>>,
}

impl TaskModels {
    /// The model of a task, which shares what it can with `base`. Calls that ask for the same one at the same time load
    /// it once.
    pub fn model(&self, task: &str, source: &CheckpointSource, base: &TextModel) -> Result<TextModel> {
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(model) = models.get(task) {
            return Ok(model.clone());
        }
        let adapted = self.tasks.apply(source.clone(), Some(task))?;
        let model = TextModel::load(base.config(), adapted)?.with_shared_weights(base)?;
        models.insert(task.to_string(), model.clone());
        Ok(model)
    }
}

/// The folder of the base model that the adapter in `transformer` names; `None` without an adapter.
pub(super) fn base_folder(folder: ModelFolder, transformer: &Path) -> Result<Option<PathBuf>> {
    let path = transformer.join("adapter_config.json");
    if !folder.holds(&path)? {
        return Ok(None);
    }
    if folder.is_in_memory() {
        return Err(Error::file(path, "an adapter in memory: load its base model, and add the adapter to it"));
    }
    let Some(name) = LoraConfig::from_file(&path)?.base_model_name_or_path else {
        return Err(Error::file(path, "it names no base model (base_model_name_or_path)"));
    };
    let base = PathBuf::from(&name);
    if !base.join("config.json").is_file() {
        let reason = format!(
            "its base model, `{name}`, is not a local folder with a model: load that one, and add this adapter to it"
        );
        return Err(Error::file(path, reason));
    }
    Ok(Some(base))
}

/// The configuration of a base model, and its weights with an adapter.
type AdaptedWeights = (TextModelConfig, AdaptedSource<CheckpointSource>);

/// The configuration of the base model of a folder that holds an adapter, as sentence-transformers saves a model with
/// one, and the weights of both. `None` for a folder without an adapter.
pub(super) fn adapted_folder(source: ModelSource, transformer: &Path) -> Result<Option<AdaptedWeights>> {
    let ModelSource { folder, compute_type, device } = source;
    let Some(base) = base_folder(folder, transformer)? else { return Ok(None) };
    let adapter = LoraAdapter::open(transformer)?;
    let checkpoint = Checkpoint::open(&base)?;
    let source = checkpoint.at("", compute_type, device);
    // Merged weights would be rounded to the stored bits again; those that are rounded here first have the change.
    let source = if checkpoint.is_quantized() || checkpoint.gguf().is_some() {
        adapter.beside_few_bits(source)?
    } else {
        adapter.apply(source)?
    };
    Ok(Some((TextModelConfig::from_file(base.join("config.json"))?, source)))
}
