//! The small files of a model folder, as transformers and sentence-transformers save it: which modules run, and the
//! settings of the tokenizer. Everything that reads a folder, downloads one or copies one starts from these.

mod tokenizer_config;
pub(crate) mod transformer_settings;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use candle_attention::checkpoint::{Checkpoint, CheckpointSource};
use candle_attention::ensure;
use candle_attention::io::{is_present, parse_json, read_limited};
use candle_attention::{ComputeType, Error, Result};
use candle_core::Device;
use serde::de::DeserializeOwned;

use crate::gguf;
use crate::model::config::TextModelConfig;
use crate::model_files::{ModelFiles, WEIGHTS, inside};

pub(crate) use self::tokenizer_config::TokenizerConfig;
pub(crate) use self::transformer_settings::{FEATURES, TransformerSettings};

/// The default of a key of a JSON file that is true unless it says otherwise.
pub(crate) fn yes() -> bool {
    true
}

/// The longest JSON file of a model, in bytes: 16 MiB. Parsed, it takes up to 16 times as much memory.
const MAX_CONFIG_BYTES: u64 = 1 << 24;

/// The most modules that a model may have. Each one reads files, or downloads them. Published models have at most 6: a
/// transformer, pooling, up to three dense layers, normalization.
pub(crate) const MAX_MODULES: usize = 16;

/// The folder of a model, on disk or in memory, and what is known of it beforehand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ModelFolder<'a> {
    pub path: &'a Path,
    /// Files that the folder holds. Other programs that use the hub's cache remove a link and make it again, so one of
    /// these files that is not found is an error, and not an absence that changes the model in silence.
    known: Option<&'a BTreeSet<PathBuf>>,
    /// The files of a folder in memory, which has the empty path.
    memory: Option<&'a ModelFiles>,
}

impl<'a> ModelFolder<'a> {
    /// A folder of which nothing is known.
    pub fn new(path: &'a (impl AsRef<Path> + ?Sized)) -> Self {
        Self { path: path.as_ref(), known: None, memory: None }
    }

    /// A folder that holds these files, named by their full paths.
    #[cfg(feature = "hub")]
    pub fn with_files(path: &'a Path, files: &'a BTreeSet<PathBuf>) -> Self {
        Self { path, known: Some(files), memory: None }
    }

    /// A folder in memory.
    pub fn in_memory(files: &'a ModelFiles) -> Self {
        Self { path: Path::new(""), known: None, memory: Some(files) }
    }

    /// Whether it is a folder in memory.
    pub fn is_in_memory(self) -> bool {
        self.memory.is_some()
    }

    /// The GGUF file that a folder in memory stands for; `None` for another folder.
    pub fn gguf(self) -> Option<Checkpoint> {
        let weights = self.memory.and_then(|files| files.tensors(Path::new(WEIGHTS)).ok());
        weights.filter(|file| file.gguf().is_some())
    }

    /// Whether a file of the folder is there: something has its name, or it is known to be there.
    pub fn holds(self, path: &Path) -> Result<bool> {
        match self.memory {
            Some(files) => Ok(files.contains(path)),
            None => Ok(is_present(path)? || self.known.is_some_and(|known| known.contains(path))),
        }
    }

    /// Reads a file of the folder of at most `limit` bytes.
    pub fn read(self, path: &Path, limit: u64) -> Result<Cow<'a, [u8]>> {
        match self.memory {
            Some(files) => files.read(path, limit).map(Cow::Borrowed),
            None => read_limited(path, limit).map(Cow::Owned),
        }
    }

    /// Reads a JSON file of the folder.
    pub fn json<T: DeserializeOwned>(self, path: &Path) -> Result<T> {
        parse_json(path, &self.read(path, MAX_CONFIG_BYTES)?)
    }

    /// Where the transformer itself is.
    pub fn transformer(self) -> Result<PathBuf> {
        Ok(transformer_of(self.path, modules(self)?.as_deref()))
    }

    /// Opens the weights in a folder inside of this one.
    pub fn checkpoint(self, inside: &Path) -> Result<Checkpoint> {
        if self.is_in_memory() { self.tensors(&inside.join(WEIGHTS)) } else { Checkpoint::open(inside) }
    }

    /// Opens a safetensors file of the folder.
    pub fn tensors(self, path: &Path) -> Result<Checkpoint> {
        let Some(files) = self.memory else { return Checkpoint::open(path) };
        let weights = files.tensors(path)?;
        if !weights.is_quantized() {
            return Ok(weights);
        }
        // Quantized modules are as their `config.json` describes them. Files on disk read it themselves.
        let config: Option<serde_json::Value> = self.optional(&path.with_file_name("config.json"))?;
        Ok(config.map_or(weights.clone(), |config| weights.with_quantization_config(&config)))
    }

    /// Reads the `config.json` of a transformer, with the keys that its [`TransformerSettings`] put in the place of
    /// others.
    pub fn transformer_config(self, transformer: &Path) -> Result<TextModelConfig> {
        let path = transformer.join("config.json");
        let mut keys: serde_json::Map<String, serde_json::Value> = self.json(&path)?;
        keys.extend(TransformerSettings::load(self, transformer)?.config);
        let config: TextModelConfig = serde_json::from_value(keys.into()).map_err(|e| Error::file(&path, e))?;
        config.validate().map_err(|e| Error::file(path, e))?;
        Ok(config)
    }

    /// Reads an optional JSON file of the folder, `None` if it is absent.
    pub fn optional<T: DeserializeOwned>(self, path: &Path) -> Result<Option<T>> {
        if self.holds(path)? { self.json(path).map(Some) } else { Ok(None) }
    }

    /// Reads an optional JSON file of the folder, or returns the default if it is absent.
    pub fn json_or_default<T: DeserializeOwned + Default>(self, path: &Path) -> Result<T> {
        Ok(self.optional(path)?.unwrap_or_default())
    }
}

/// The folder of a model, and what its weights are loaded for.
#[derive(Clone, Copy)]
pub(crate) struct ModelSource<'a> {
    pub folder: ModelFolder<'a>,
    pub compute_type: ComputeType,
    pub device: &'a Device,
}

impl ModelSource<'_> {
    /// The weights in a folder inside of that of the model.
    pub fn weights(self, inside: &Path) -> Result<CheckpointSource> {
        Ok(self.folder.checkpoint(inside)?.at("", self.compute_type, self.device))
    }
}

/// Calls `run` with the folder of a model, or with the one in memory that stands for a GGUF file.
pub(crate) fn with_folder<T>(path: &Path, run: impl FnOnce(ModelFolder) -> Result<T>) -> Result<T> {
    if gguf::is_alone(path)? {
        run(ModelFolder::in_memory(&ModelFiles::from_gguf(path)?))
    } else {
        run(ModelFolder::new(path))
    }
}

/// One entry of `modules.json`.
#[derive(Debug, Clone)]
pub(crate) struct Module {
    pub path: String,
    kind: String,
}

/// pplx-embed's own module for numbers of int8.
const QUANTIZER: &str = "st_quantize.FlexibleQuantizer";

/// The module of Jina embeddings v3, a transformer with adapters for tasks.
const JINA_TRANSFORMER: &str = "custom_st.Transformer";

impl Module {
    /// The module of a class, with its files in `path` of the folder.
    pub fn new(folder: ModelFolder, path: String, class: &str) -> Result<Self> {
        let is_published = ["sentence_transformers.", "pylate.models."].iter().any(|own| class.starts_with(own));
        let is_known = is_published
            || class == QUANTIZER
            || class == JINA_TRANSFORMER && Self::is_jina(folder, &folder.path.join(&path))?;
        let kind = match class.rsplit_once('.') {
            Some((_, kind)) if is_known => kind.to_string(),
            Some(_) => class.to_string(),
            None => format!("{class} (of no Python module)"),
        };
        Ok(Self { path, kind })
    }

    /// Whether the transformer in `path` is one of Jina embeddings v3, or not there yet, as during a download.
    fn is_jina(folder: ModelFolder, path: &Path) -> Result<bool> {
        let config: Option<serde_json::Value> = folder.optional(&path.join("config.json"))?;
        // The `model_type` of the published file is that of its code, or none that others have.
        Ok(config.is_none_or(|config| config.get("lora_adaptations").is_some()))
    }

    /// The class without its Python module, which differs between versions of the library; of a class that is none of a
    /// library's own, the whole path: code in a model's folder may compute anything.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Whether this is a module without files, which may state the path of another one.
    pub fn has_no_files(&self) -> bool {
        self.kind == "FlexibleQuantizer"
    }
}

/// Reads `modules.json` of a model whose first module is a transformer; without one, the model is a transformer at the
/// top and its tokens are averaged.
pub(crate) fn modules(folder: ModelFolder) -> Result<Option<Vec<Module>>> {
    let Some(modules) = any_modules(folder)? else { return Ok(None) };
    match modules.first().map(Module::kind) {
        Some("Transformer") => Ok(Some(modules)),
        other => {
            let other = other.unwrap_or_default();
            let reason = format!("the first module is `{other}`, expected `Transformer`");
            Err(Error::file(folder.path.join("modules.json"), reason))
        }
    }
}

/// An entry of `modules.json` as it is stored.
#[derive(serde::Deserialize)]
struct Entry {
    path: String,
    #[serde(rename = "type")]
    class: String,
}

/// Reads `modules.json`, whatever its modules are.
///
/// The file counts as absent only if nothing has its name. A link that leads nowhere, as an emptied cache leaves it, is
/// an error: without its modules a model would give other embeddings.
pub(crate) fn any_modules(folder: ModelFolder) -> Result<Option<Vec<Module>>> {
    let path = folder.path.join("modules.json");
    let Some(entries) = folder.optional::<Vec<Entry>>(&path)? else { return Ok(None) };
    if entries.len() > MAX_MODULES {
        return Err(Error::file(&path, format!("{} modules, expected at most {MAX_MODULES}", entries.len())));
    }
    let modules = entries.into_iter().map(|entry| {
        // As model2vec names the top.
        let inside = if entry.path == "." { String::new() } else { entry.path };
        Module::new(folder, inside, &entry.class)
    });
    let modules = modules.collect::<Result<Vec<Module>>>()?;
    for (i, module) in modules.iter().enumerate() {
        let parts = || Path::new(&module.path).components();
        if inside(Path::new(&module.path)).is_none() {
            return Err(Error::file(&path, format!("module path `{}` leads out of the folder", module.path)));
        }
        let is_there = |earlier: &Module| Path::new(&earlier.path).components().eq(parts());
        if !module.has_no_files() && modules[..i].iter().any(is_there) {
            return Err(Error::file(&path, format!("two modules have the path `{}`", module.path)));
        }
    }
    ensure!(!modules.is_empty(), Error::file(&path, "no modules, expected `Transformer` first"));
    Ok(Some(modules))
}

/// The transformer of a model without further modules, and its configuration. `kind` names such a model in the error.
pub(crate) fn only_transformer(folder: ModelFolder, kind: &str) -> Result<(PathBuf, TextModelConfig)> {
    if let Some(file) = folder.gguf() {
        gguf::check_classifier(&file, kind)?;
        return Ok((folder.path.to_path_buf(), folder.transformer_config(folder.path)?));
    }
    let modules = modules(folder)?;
    if let Some([_, other, ..]) = modules.as_deref() {
        let reason = format!("module `{}` after the transformer: this is not a {kind}", other.kind());
        return Err(Error::file(folder.path.join("modules.json"), reason));
    }
    let transformer = transformer_of(folder.path, modules.as_deref());
    let config = folder.transformer_config(&transformer)?;
    Ok((transformer, config))
}

/// Where in a folder the transformer itself is.
pub(crate) fn transformer_of(folder: &Path, modules: Option<&[Module]>) -> PathBuf {
    match modules {
        Some([first, ..]) => folder.join(&first.path),
        _ => folder.to_path_buf(),
    }
}

#[cfg(all(test, feature = "hub"))]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_known_to_be_there_is_never_absent() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        assert!(modules(ModelFolder::new(path)).unwrap().is_none());
        let files = ["modules.json", "tokenizer_config.json"].map(|name| path.join(name));
        let known = BTreeSet::from(files);
        let folder = ModelFolder::with_files(path, &known);
        for error in [modules(folder).unwrap_err(), TokenizerConfig::load(folder, path).unwrap_err()] {
            assert!(matches!(error, Error::Io { .. }), "{error}");
        }
        assert!(TransformerSettings::load(ModelFolder::new(path), path).is_ok());
    }
}
