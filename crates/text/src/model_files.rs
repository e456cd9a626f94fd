//! The files of a model in memory.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Component, Path};

use candle_attention::checkpoint::Checkpoint;
use candle_attention::{Error, Result};

use crate::gguf;

/// The name of a weight file.
pub(crate) const WEIGHTS: &str = "model.safetensors";

/// The files of a model folder in memory, such as `include_bytes!` compiles into a program. They take the same checks
/// as files on disk.
///
/// ```
/// use candle_attention_text::{EncodeOptions, ModelFiles, SentenceEncoder};
/// use candle_core::{DType, Device};
/// # macro_rules! file {
/// #     ($name:literal) => { include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../weights/", $name)) }
/// # }
/// let files = ModelFiles::new()
///     .with("config.json", file!("config.json"))?
///     .with("tokenizer.json", file!("tokenizer.json"))?
///     .with("model.safetensors", file!("model.safetensors"))?;
/// let encoder = SentenceEncoder::from_files(&files, DType::F32, &Device::Cpu)?;
/// assert_eq!(encoder.encode(&["A cat sleeps."], &EncodeOptions::default())?.dims(), [1, 128]);
/// # Ok::<(), candle_attention::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct ModelFiles {
    small: BTreeMap<String, Cow<'static, [u8]>>,
    weights: BTreeMap<String, Checkpoint>,
}

impl ModelFiles {
    /// No files.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file under its path in the folder, with `/` between the parts: `config.json`, `1_Pooling/config.json`.
    /// Bytes of type `&'static [u8]` are not copied, and those of a `Vec` neither. The weights of a model are one file,
    /// `model.safetensors`. A `.gguf` file at the top is a whole model: the small files are made of its metadata, but
    /// for those that are added after it.
    ///
    /// # Errors
    /// A name that leads out of the folder; a `.safetensors` or `.gguf` file that is malformed; a part or an index of
    /// weights in several files.
    pub fn with<'a>(mut self, name: impl Into<Cow<'a, str>>, bytes: impl Into<Cow<'static, [u8]>>) -> Result<Self> {
        let (name, bytes) = (name.into(), bytes.into());
        let Some(key) = inside(Path::new(&*name)).filter(|key| !key.is_empty()) else {
            return Err(Error::file(&*name, "is not the name of a file inside a folder"));
        };
        let file = key.rsplit('/').next().unwrap_or_default();
        let is_weights = file.ends_with(".safetensors");
        let is_part = (is_weights && file.contains("-of-")) || file.ends_with(".safetensors.index.json");
        match file {
            // At the top alone; below it there are other files of the model, as on disk.
            _ if file == key && key.strip_suffix(gguf::EXTENSION).is_some_and(|stem| stem.ends_with('.')) => {
                return self.with_gguf(Checkpoint::from_named_bytes(Path::new(&*name), bytes)?);
            }
            _ if is_weights && !is_part => {
                let checkpoint = Checkpoint::from_named_bytes(Path::new(&*name), bytes)?;
                self.weights.insert(key, checkpoint);
            }
            _ if is_part => return Err(Error::file(&*name, format!("expected the weights in one file, {WEIGHTS}"))),
            _ => {
                self.small.insert(key, bytes);
            }
        }
        Ok(self)
    }

    /// The files that a GGUF file stands for: `config.json`, `tokenizer.json`, `tokenizer_config.json`, those of
    /// modules, `chat_template.jinja` if it states one, and the weights, which are read when they are asked for.
    ///
    /// # Errors
    /// The file is not GGUF, is malformed, or of an architecture, tokenizer or pooling that is not known.
    pub fn from_gguf(path: &Path) -> Result<Self> {
        Self::new().with_gguf(Checkpoint::open(path)?)
    }

    /// The content of a file that holds no weights.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.small.get(name).map(|bytes| &**bytes)
    }

    /// The weights of the model, `model.safetensors` or those of a GGUF file.
    pub fn weights(&self) -> Option<&Checkpoint> {
        self.weights.get(WEIGHTS)
    }

    fn with_gguf(mut self, checkpoint: Checkpoint) -> Result<Self> {
        let no_gguf = || Error::file(checkpoint.path().unwrap_or(Path::new("<bytes>")), "is not a GGUF file");
        let (small, weights) = gguf::folder_of(&checkpoint)?.ok_or_else(no_gguf)?;
        self.small.extend(small.into_iter().map(|(name, bytes)| (name, bytes.into())));
        for (tensor, folder) in gguf::DENSE {
            if weights.contains(tensor) {
                let rename = |name: &str| if name == tensor { "linear.weight".to_string() } else { name.to_string() };
                self.weights.insert(format!("{folder}/{WEIGHTS}"), weights.rename(rename)?);
            }
        }
        self.weights.insert(WEIGHTS.to_string(), weights);
        Ok(self)
    }

    /// Whether there is a file of this name.
    pub(crate) fn contains(&self, path: &Path) -> bool {
        inside(path).is_some_and(|key| self.small.contains_key(&key) || self.weights.contains_key(&key))
    }

    /// The content of a file of at most `limit` bytes.
    pub(crate) fn read(&self, path: &Path, limit: u64) -> Result<&[u8]> {
        let bytes = inside(path).and_then(|key| self.small.get(&key));
        let bytes = bytes.ok_or_else(|| Error::file(path, "the file is not among those in memory"))?;
        match bytes.len() as u64 {
            length if length > limit => {
                Err(Error::file(path, format!("the file has {length} bytes, expected at most {limit}")))
            }
            _ => Ok(bytes),
        }
    }

    /// The tensors of a file.
    pub(crate) fn tensors(&self, path: &Path) -> Result<Checkpoint> {
        let found = inside(path).and_then(|key| self.weights.get(&key));
        found.cloned().ok_or_else(|| Error::file(path, "the file is not among those in memory"))
    }
}

/// A path below a folder, with `/` between its parts; `None` if it leads out.
pub(crate) fn inside(path: &Path) -> Option<String> {
    let mut parts = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(part) => parts.push(part.to_str()?),
            _ => return None,
        }
    }
    Some(parts.join("/"))
}
