//! Opens checkpoints: a file, a folder or a sharded index, memory-mapped, or the bytes of a file.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use candle_core::safetensors::Load;
use candle_core::{Device, Tensor};
use safetensors::tensor::TensorView;

use crate::checkpoint::header;
use crate::checkpoint::header::Unique;
use crate::checkpoint::shard::Shard;
use crate::checkpoint::source::missing;
use crate::error::{Error, Result};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The path of a checkpoint in memory, in errors.
const BYTES: &str = "<bytes>";

/// The tensors of a checkpoint: on disk, memory-mapped, so that opening reads the headers only; or in memory. Cheap to
/// clone.
#[derive(Clone)]
pub struct Checkpoint {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    shards: Vec<(PathBuf, Shard)>,
    /// Name → index of the shard that holds it.
    tensors: BTreeMap<String, usize>,
    /// Metadata of the first shard.
    metadata: HashMap<String, String>,
}

impl std::fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (path, tensors) = (&self.inner.path, self.inner.tensors.len());
        f.debug_struct("Checkpoint").field("path", path).field("tensors", &tensors).finish_non_exhaustive()
    }
}

impl Checkpoint {
    /// Opens a `.safetensors` file, a `.safetensors.index.json`, or a folder that holds `model.safetensors` or
    /// `model.safetensors.index.json`.
    ///
    /// The files are memory-mapped: they must not be changed in place while the checkpoint is open.
    ///
    /// # Errors
    /// If a file is missing, is not a valid safetensors file, or an index names a shard outside its own folder or a
    /// tensor that its shard does not hold. The error holds the path.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let metadata = std::fs::metadata(path).map_err(|e| Error::io(path, e))?;
        if metadata.is_dir() {
            let (single, index) = (path.join(SINGLE), path.join(INDEX));
            return match (single.exists(), index.exists()) {
                (true, _) => Self::open_single(&single),
                (false, true) => Self::open_index(&index),
                (false, false) => Err(no_weights(path)),
            };
        }
        match path.extension().is_some_and(|extension| extension == "json") {
            true => Self::open_index(path),
            false => Self::open_single(path),
        }
    }

    fn open_single(path: &Path) -> Result<Self> {
        Ok(Self::single(path, Shard::map(path)?))
    }

    /// A checkpoint in memory: the content of a `.safetensors` file, from `Vec<u8>`, or from `&'static [u8]` such as
    /// `include_bytes!` gives, which is not copied.
    ///
    /// # Errors
    /// If it is not the content of a valid safetensors file, with the same checks as in [`open`](Self::open). The error
    /// calls the file `<bytes>`.
    pub fn from_bytes(bytes: impl Into<Cow<'static, [u8]>>) -> Result<Self> {
        let path = Path::new(BYTES);
        Ok(Self::single(path, Shard::from_bytes(path, bytes.into())?))
    }

    fn single(path: &Path, (shard, metadata): (Shard, HashMap<String, String>)) -> Self {
        let tensors = shard.names().into_iter().map(|name| (name, 0)).collect();
        Self::new(path, vec![(path.to_path_buf(), shard)], tensors, metadata)
    }

    fn open_index(path: &Path) -> Result<Self> {
        let folder = path.parent().unwrap_or(Path::new(""));
        let mut shards: Vec<(PathBuf, Shard)> = Vec::new();
        let mut position: HashMap<String, usize> = HashMap::new();
        let (mut tensors, mut metadata) = (BTreeMap::new(), HashMap::new());
        for (name, file) in read_index(path)? {
            let shard = match position.get(&file) {
                Some(&shard) => shard,
                None => {
                    let (shard_path, shard, shard_metadata) = open_shard(path, folder, &file, &name)?;
                    if shards.is_empty() {
                        metadata = shard_metadata;
                    }
                    shards.push((shard_path, shard));
                    position.insert(file.clone(), shards.len() - 1);
                    shards.len() - 1
                }
            };
            if shards[shard].1.get(&name).is_err() {
                return Err(Error::file(
                    path,
                    format!("the index lists tensor `{name}` in `{file}`, which does not hold it"),
                ));
            }
            tensors.insert(name, shard);
        }
        Ok(Self::new(path, shards, tensors, metadata))
    }

    fn new(
        path: &Path,
        shards: Vec<(PathBuf, Shard)>,
        tensors: BTreeMap<String, usize>,
        metadata: HashMap<String, String>,
    ) -> Self {
        Self { inner: Arc::new(Inner { path: path.to_path_buf(), shards, tensors, metadata }) }
    }

    /// The metadata of the file, or of the first shard: the `__metadata__` of the header.
    pub fn metadata(&self) -> &HashMap<String, String> {
        &self.inner.metadata
    }

    /// The file that was opened; `None` if the checkpoint is in memory.
    pub fn path(&self) -> Option<&Path> {
        Some(self.inner.path.as_path()).filter(|path| *path != Path::new(BYTES))
    }

    /// Every tensor's name, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.inner.tensors.keys().map(String::as_str)
    }

    /// Whether the checkpoint holds a tensor of exactly this name.
    pub fn contains(&self, name: &str) -> bool {
        self.inner.tensors.contains_key(name)
    }

    /// Reads one tensor as it is stored.
    ///
    /// # Errors
    /// If no tensor has this name, or candle lacks its dtype.
    pub fn tensor(&self, name: &str, device: &Device) -> Result<Tensor> {
        self.view(name)?.load(device).map_err(|e| Error::Tensor {
            name: name.to_string(),
            found: format!("cannot be read ({e})"),
            expected: "a dtype that candle supports".to_string(),
        })
    }

    /// The names of tensors from `start` on, sorted.
    pub(crate) fn names_from(&self, start: &str) -> impl Iterator<Item = &str> {
        self.inner.tensors.range(start.to_string()..).map(|(name, _)| name.as_str())
    }

    /// The shape and dtype of a tensor.
    pub(crate) fn header(&self, name: &str) -> Result<(Vec<usize>, String)> {
        let view = self.view(name)?;
        Ok((view.shape().to_vec(), format!("{:?}", view.dtype())))
    }

    /// A tensor as it is stored.
    pub(crate) fn view(&self, name: &str) -> Result<TensorView<'_>> {
        let &shard = self.inner.tensors.get(name).ok_or_else(|| missing(name.to_string()))?;
        let (path, shard) = &self.inner.shards[shard];
        shard.get(name).map_err(|e| Error::file(path, e))
    }
}

#[derive(serde::Deserialize)]
struct Index {
    weight_map: Unique<String>,
}

/// Reads an index: the name of each tensor, and the file name of its shard, which is in the folder of the index.
pub(crate) fn read_index(path: &Path) -> Result<BTreeMap<String, String>> {
    let size = std::fs::metadata(path).map_err(|e| Error::io(path, e))?.len();
    if size > header::MAX_HEADER_BYTES {
        return Err(Error::file(
            path,
            format!("not an index: {size} bytes are more than {}", header::MAX_HEADER_BYTES),
        ));
    }
    let text = std::fs::read_to_string(path).map_err(|e| Error::io(path, e))?;
    let index: Index = serde_json::from_str(&text).map_err(|e| Error::file(path, format!("not an index: {e}")))?;
    let Unique(shards) = index.weight_map;
    for (tensor, file) in &shards {
        let mut components = Path::new(file).components();
        // An index must not lead out of its folder.
        let plain = matches!((components.next(), components.next()), (Some(Component::Normal(_)), None));
        if !plain || file.contains(['/', '\\']) {
            return Err(Error::file(
                path,
                format!("shard name `{file}` of tensor `{tensor}` is not a plain file name"),
            ));
        }
    }
    Ok(shards)
}

type Opened = (PathBuf, Shard, HashMap<String, String>);

fn open_shard(index: &Path, folder: &Path, file: &str, tensor: &str) -> Result<Opened> {
    let path = folder.join(file);
    if !path.exists() {
        return Err(Error::file(index, format!("shard `{file}`, which holds `{tensor}`, is missing")));
    }
    let (shard, metadata) = Shard::map(&path)?;
    Ok((path, shard, metadata))
}

fn no_weights(folder: &Path) -> Error {
    let others = ["pytorch_model.bin", "tf_model.h5", "flax_model.msgpack"];
    let hint = match others.into_iter().find(|name| folder.join(name).exists()) {
        Some(name) => format!("; it holds `{name}`, which has to be converted to safetensors first"),
        None => String::new(),
    };
    Error::file(folder, format!("the folder holds neither `{SINGLE}` nor `{INDEX}`{hint}"))
}
