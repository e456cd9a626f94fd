//! The adapted models of a sentence encoder, and folders that hold an adapter.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use candle_attention::checkpoint::{Checkpoint, CheckpointSource};
use candle_attention::lora::{AdaptedSource, LoraAdapter};
use candle_attention::{Error, Result};
use candle_core::{DType, Device};

use crate::folder::ModelFolder;
use crate::model::bert::BertModel;
use crate::model::config::BertConfig;
use crate::sentence::tasks::TaskModels;

/// The weights that adapters are merged with, and the adapted models.
#[derive(Clone, Default)]
pub(crate) struct Adapters {
    pub base: Option<CheckpointSource>,
    pub models: BTreeMap<String, BertModel>,
    /// Those in the checkpoint itself.
    pub tasks: Option<TaskModels>,
}

/// The names of the adapters.
impl fmt::Debug for Adapters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tasks = self.tasks.iter().flat_map(|models| models.tasks.names());
        f.debug_list().entries(self.models.keys().map(String::as_str).chain(tasks)).finish()
    }
}

impl Adapters {
    /// Those of a model with these weights: its tasks, and no others yet.
    pub fn of(base: &CheckpointSource, config: &BertConfig) -> Result<Self> {
        let tasks = config.tasks()?.map(TaskModels::new);
        Ok(Self { base: Some(base.clone()), models: BTreeMap::new(), tasks })
    }
}

/// The configuration of the base model of a folder that holds an adapter, as sentence-transformers saves a model with
/// one, and the weights of both. `None` for a folder without an adapter.
pub(super) fn adapted_folder(
    folder: ModelFolder,
    transformer: &Path,
    dtype: DType,
    device: &Device,
) -> Result<Option<(BertConfig, AdaptedSource<CheckpointSource>)>> {
    let path = transformer.join("adapter_config.json");
    if !folder.holds(&path)? {
        return Ok(None);
    }
    if folder.is_in_memory() {
        return Err(Error::file(path, "an adapter in memory: load its base model, and add the adapter to it"));
    }
    let adapter = LoraAdapter::open(transformer)?;
    let Some(name) = &adapter.config().base_model_name_or_path else {
        return Err(Error::file(path, "it names no base model (base_model_name_or_path)"));
    };
    let base = PathBuf::from(name);
    if !base.join("config.json").is_file() {
        let reason = format!(
            "its base model, `{name}`, is not a local folder with a model: load that one, and add this adapter to it"
        );
        return Err(Error::file(path, reason));
    }
    let source = adapter.apply(Checkpoint::open(&base)?.at("", dtype, device))?;
    Ok(Some((BertConfig::from_file(base.join("config.json"))?, source)))
}
