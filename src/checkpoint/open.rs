use std::collections::{BTreeMap, HashMap};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use candle_core::safetensors::{Load, MmapedSafetensors};
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::VarMap;
use safetensors::tensor::TensorView;

use crate::checkpoint::header;
use crate::checkpoint::header::Unique;
use crate::checkpoint::source::{WeightSource, join, missing, wrong_shape};
use crate::error::{Error, Result};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The tensors of a checkpoint on disk, memory-mapped: opening reads the headers only. Cheap to clone.
#[derive(Clone)]
pub struct Checkpoint {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    shards: Vec<(PathBuf, MmapedSafetensors)>,
    /// Name → which shard holds it.
    tensors: BTreeMap<String, usize>,
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
        let shard = map(path)?;
        let tensors = shard.tensors().into_iter().map(|(name, _)| (name, 0)).collect();
        Ok(Self::new(path, vec![(path.to_path_buf(), shard)], tensors))
    }

    fn open_index(path: &Path) -> Result<Self> {
        let folder = path.parent().unwrap_or(Path::new(""));
        let mut shards: Vec<(PathBuf, MmapedSafetensors)> = Vec::new();
        let mut position: HashMap<String, usize> = HashMap::new();
        let mut tensors = BTreeMap::new();
        for (name, file) in read_index(path)? {
            let shard = match position.get(&file) {
                Some(&shard) => shard,
                None => {
                    shards.push(open_shard(path, folder, &file, &name)?);
                    position.insert(file.clone(), shards.len() - 1);
                    shards.len() - 1
                }
            };
            if shards[shard].1.get(&name).is_err() {
                return Err(Error::file(
                    path,
                    format!("tensor `{name}` is said to be in `{file}`, which does not hold it"),
                ));
            }
            tensors.insert(name, shard);
        }
        Ok(Self::new(path, shards, tensors))
    }

    fn new(path: &Path, shards: Vec<(PathBuf, MmapedSafetensors)>, tensors: BTreeMap<String, usize>) -> Self {
        Self { inner: Arc::new(Inner { path: path.to_path_buf(), shards, tensors }) }
    }

    /// The file that was opened.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Every tensor's name, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.inner.tensors.keys().map(String::as_str)
    }

    /// Whether there is a tensor of exactly this name.
    pub fn contains(&self, name: &str) -> bool {
        self.inner.tensors.contains_key(name)
    }

    /// Reads one tensor as it is stored.
    ///
    /// # Errors
    /// If there is none of this name, or its dtype is not one of candle's.
    pub fn tensor(&self, name: &str, device: &Device) -> Result<Tensor> {
        self.view(name)?.load(device).map_err(|e| Error::Tensor {
            name: name.to_string(),
            found: format!("cannot be read ({e})"),
            expected: "a dtype that candle has".to_string(),
        })
    }

    /// The weights below `prefix`, which may be empty, to be read in `dtype` onto `device`.
    pub fn at(&self, prefix: &str, dtype: DType, device: &Device) -> CheckpointSource {
        let prefix = prefix.trim_end_matches('.').to_string();
        CheckpointSource { checkpoint: self.clone(), prefix, dtype, device: device.clone() }
    }

    /// Every f16, bf16, f32 or f64 tensor below `prefix` as a trainable variable, under its full name; integers and
    /// booleans are left out. A layer loaded from `VarBuilder::from_varmap(&map, dtype, device)` then learns, and
    /// `map.save` writes it under the same names.
    ///
    /// # Errors
    /// If a tensor cannot be read, or is quantised.
    pub fn to_varmap(&self, prefix: &str, dtype: DType, device: &Device) -> Result<VarMap> {
        use safetensors::Dtype::{BOOL, I8, I16, I32, I64, U8, U16, U32, U64};
        let source = self.at(prefix, dtype, device);
        let map = VarMap::new();
        for name in source.names().into_iter().flatten() {
            let full_name = source.full_name(&name);
            let view = self.view(&full_name)?;
            if !matches!(view.dtype(), BOOL | I8 | I16 | I32 | I64 | U8 | U16 | U32 | U64) {
                let variable = Var::from_tensor(&source.get(&name, view.shape())?)?;
                let mut data = map.data().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                data.insert(full_name, variable);
            }
        }
        Ok(map)
    }

    pub(crate) fn first_shard(&self) -> &Path {
        self.inner.shards.first().map_or(&self.inner.path, |(path, _)| path)
    }

    /// The shape and dtype of a tensor.
    pub(crate) fn header(&self, name: &str) -> Result<(Vec<usize>, String)> {
        let view = self.view(name)?;
        Ok((view.shape().to_vec(), format!("{:?}", view.dtype())))
    }

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

/// Reads an index: the name of each tensor and of the shard that holds it, which is a file beside the index.
pub(crate) fn read_index(path: &Path) -> Result<BTreeMap<String, String>> {
    let size = std::fs::metadata(path).map_err(|e| Error::io(path, e))?.len();
    if size > header::MOST {
        return Err(Error::file(path, format!("not an index: {size} bytes are more than {}", header::MOST)));
    }
    let text = std::fs::read_to_string(path).map_err(|e| Error::io(path, e))?;
    let index: Index = serde_json::from_str(&text).map_err(|e| Error::file(path, format!("not an index: {e}")))?;
    let Unique(shards) = index.weight_map;
    for (tensor, file) in &shards {
        let mut components = Path::new(file).components();
        // The name comes from the file: it may only be that of a neighbour.
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

/// A prefix of a [`Checkpoint`], with the dtype and device to read in.
#[derive(Debug, Clone)]
pub struct CheckpointSource {
    checkpoint: Checkpoint,
    prefix: String,
    dtype: DType,
    device: Device,
}

impl WeightSource for CheckpointSource {
    fn child(&self, name: &str) -> Self {
        Self { prefix: join(&self.prefix, name), ..self.clone() }
    }

    fn full_name(&self, name: &str) -> String {
        join(&self.prefix, name)
    }

    fn names(&self) -> Option<Vec<String>> {
        if self.prefix.is_empty() {
            return Some(self.checkpoint.names().map(str::to_string).collect());
        }
        let start = format!("{}.", self.prefix);
        let tensors = self.checkpoint.inner.tensors.range(start.clone()..);
        Some(tensors.map_while(|(name, _)| name.strip_prefix(&start)).map(str::to_string).collect())
    }

    fn contains(&self, name: &str) -> bool {
        self.checkpoint.contains(&self.full_name(name))
    }

    fn shape(&self, name: &str) -> Result<Option<Vec<usize>>> {
        Ok(Some(self.checkpoint.view(&self.full_name(name))?.shape().to_vec()))
    }

    fn get(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        // Cast on the CPU first: a device without the stored dtype (f64 on Metal) need not know it.
        let tensor = self.view(name, shape)?.load(&Device::Cpu)?.to_dtype(self.dtype)?;
        Ok(tensor.to_device(&self.device)?)
    }
}

impl CheckpointSource {
    /// A tensor that must have this shape and be one of floats.
    pub(crate) fn view(&self, name: &str, shape: &[usize]) -> Result<TensorView<'_>> {
        use safetensors::Dtype::{BF16, F16, F32, F64};
        let name = self.full_name(name);
        let view = self.checkpoint.view(&name)?;
        if view.shape() != shape {
            return Err(wrong_shape(name, view.shape(), shape));
        }
        match view.dtype() {
            F16 | BF16 | F32 | F64 => Ok(view),
            // Quantised weights need scales that a cast would leave out.
            dtype => {
                let expected = "f16, bf16, f32 or f64".to_string();
                Err(Error::Tensor { name, found: format!("has dtype {dtype:?}"), expected })
            }
        }
    }
}

fn open_shard(index: &Path, folder: &Path, file: &str, tensor: &str) -> Result<(PathBuf, MmapedSafetensors)> {
    let path = folder.join(file);
    if !path.exists() {
        return Err(Error::file(index, format!("shard `{file}`, which holds `{tensor}`, is missing")));
    }
    let shard = map(&path)?;
    Ok((path, shard))
}

fn map(path: &Path) -> Result<MmapedSafetensors> {
    let metadata = std::fs::metadata(path).map_err(|e| Error::io(path, e))?;
    if !metadata.is_file() {
        return Err(Error::file(path, "not a regular file"));
    }
    header::check(path)?;
    // SAFETY: the map is read-only and lives as long as the tensors' views. What mmap cannot promise is that no other
    // process truncates or rewrites the file meanwhile; `Checkpoint::open` states that as the caller's duty.
    #[allow(unsafe_code)]
    let mapped = unsafe { MmapedSafetensors::new(path) };
    mapped.map_err(|e| match e {
        candle_core::Error::Io(e) => Error::io(path, e),
        // candle adds the path and a backtrace to the message; the cause is enough.
        e => Error::file(path, format!("not a valid safetensors file: {}", cause(&e))),
    })
}

fn cause(error: &candle_core::Error) -> String {
    match error {
        candle_core::Error::WithPath { inner, .. } | candle_core::Error::WithBacktrace { inner, .. } => cause(inner),
        other => other.to_string(),
    }
}

fn no_weights(folder: &Path) -> Error {
    let others = ["pytorch_model.bin", "tf_model.h5", "flax_model.msgpack"];
    let hint = match others.into_iter().find(|name| folder.join(name).exists()) {
        Some(name) => format!("; it holds `{name}`, which has to be converted to safetensors first"),
        None => String::new(),
    };
    Error::file(folder, format!("the folder holds neither `{SINGLE}` nor `{INDEX}`{hint}"))
}
