//! Opens checkpoints: a file, a folder or a sharded index, or the bytes of a file.
//!
//! A file is GGUF if it starts with its name; anything else is to be safetensors.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::ops::{Bound, Range};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use candle_core::{Device, Tensor};

use crate::checkpoint::gguf::header::Gguf;
use crate::checkpoint::gguf::{GgufMetadata, config_of};
use crate::checkpoint::header::{Entry, Header, MAX_HEADER_BYTES};
use crate::checkpoint::quantized::{QuantizedWeight, Settings, take_modules};
use crate::checkpoint::shard::{OpenShard, Shard, read_tensor};
use crate::checkpoint::source::missing;
use crate::checkpoint::trainer_names::{unwrap, with_prefix};
use crate::error::{Error, Result, cut};
use crate::io::{is_present, parse_json, read_json, read_limited};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The path of a checkpoint in memory, in errors.
const BYTES: &str = "<bytes>";

/// The most files that a checkpoint keeps open. Those of its other shards are opened again for each tensor: a system
/// allows a process some hundred open files (256 on macOS), and the largest published models have 200 shards.
const MAX_OPEN_FILES: usize = 32;

/// The tensors of a checkpoint: on disk, of which opening reads the headers only; or in memory. Cheap to clone.
///
/// Files are not memory-mapped. A tensor is read when it is asked for, and only its memory is taken. Threads may read
/// at the same time.
#[derive(Clone)]
pub struct Checkpoint {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    shards: Arc<[Shard]>,
    tensors: BTreeMap<String, Stored>,
    /// Metadata of the first shard.
    metadata: HashMap<String, String>,
    /// The metadata of a GGUF file, and what it states about its tensors.
    gguf: Option<Arc<Gguf>>,
}

/// How a tensor is stored.
#[derive(Clone)]
pub(crate) enum Stored {
    /// As it is: the index of the shard that holds it, and what its header states.
    Plain(usize, Entry),
    /// As the tensors of a quantized module.
    Quantized(Box<QuantizedWeight>),
}

impl std::fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (path, tensors) = (&self.inner.path, self.inner.tensors.len());
        f.debug_struct("Checkpoint").field("path", path).field("tensors", &tensors).finish_non_exhaustive()
    }
}

impl Checkpoint {
    /// Opens a `.safetensors` or `.gguf` file, a `.safetensors.index.json`, or a folder that holds `model.safetensors`,
    /// `model.safetensors.index.json` or else one `.gguf` file.
    ///
    /// Tensors of a GGUF file have the names and the shapes of Hugging Face, if its architecture is one that this crate
    /// knows ([`config`](Self::config)), and blocks of few bits are read as f32.
    ///
    /// Components that wrappers of training libraries put into names are left out: `_orig_mod` of `torch.compile`,
    /// those of FSDP and activation checkpointing, and `module` in front. A file with both names of a tensor keeps
    /// them.
    ///
    /// Reads headers only, and the shapes that modules of compressed-tensors' `pack-quantized` hold as tensors. If a
    /// file is truncated or rewritten while the checkpoint is open, reading a tensor of it is an error that names both.
    /// Replacing a file (`rename`) is allowed: up to 32 open shards keep reading the old file, others give that error.
    ///
    /// # Quantized weights
    /// A quantized module `X`, with tensors such as `X.qweight` and `X.scales`, is one tensor `X.weight` of shape
    /// `(out, in)` and dtype f32, which is dequantized whenever it is read; its other tensors are not listed. The
    /// formats are MLX's affine one, `metal` of transformers, FP8 in blocks, compressed-tensors (int8, int4 and FP8),
    /// GPTQ and AWQ. What tensors do not show is read from the `config.json` in the folder of the file. A module that
    /// cannot be read has its weight listed, and reading it is an error that says why.
    ///
    /// # Limits
    /// A header has at most 100,000,000 bytes (as in safetensors), and so have the headers of all shards together and
    /// an index. A file or an index lists at most 1,048,576 tensors with names of up to 1,024 bytes and shapes of up to
    /// 32 dimensions, and its metadata has at most 65,536 entries. Published models have far less.
    ///
    /// # Errors
    /// If a file is missing, is not a regular file or not a valid safetensors or GGUF file, is beyond a limit, or an
    /// index names a shard outside its own folder or a tensor that its shard does not hold. The error holds the path.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let metadata = std::fs::metadata(path).map_err(|e| Error::io(path, e))?;
        if metadata.is_dir() {
            let (single, index) = (path.join(SINGLE), path.join(INDEX));
            return match (is_present(&single)?, is_present(&index)?) {
                (true, _) => Self::open_single(&single),
                (false, true) => Self::open_index(&index),
                (false, false) => match gguf_in(path)? {
                    Some(file) => Self::open_single(&file),
                    None => Err(no_weights(path)),
                },
            };
        }
        if path.extension().is_some_and(|extension| extension == "json") {
            Self::open_index(path)
        } else {
            Self::open_single(path)
        }
    }

    fn open_single(path: &Path) -> Result<Self> {
        Self::single(path, Shard::open(path, MAX_HEADER_BYTES)?).settings_from_file()
    }

    /// A checkpoint in memory: the content of a `.safetensors` file, from `Vec<u8>`, or from `&'static [u8]` such as
    /// `include_bytes!` gives, which is not copied.
    ///
    /// # Errors
    /// If it is not the content of a valid safetensors file, with the same checks as in [`open`](Self::open). The error
    /// calls the file `<bytes>`.
    pub fn from_bytes(bytes: impl Into<Cow<'static, [u8]>>) -> Result<Self> {
        Self::from_named_bytes(Path::new(BYTES), bytes.into())
    }

    /// [`from_bytes`](Self::from_bytes) of a file that errors call `name`.
    pub fn from_named_bytes(name: &Path, bytes: Cow<'static, [u8]>) -> Result<Self> {
        let checkpoint = Self::single(name, Shard::from_bytes(name, bytes)?);
        Ok(checkpoint.with_quantization_config(&serde_json::Value::Null))
    }

    fn single(path: &Path, OpenShard { shard, tensors, metadata, gguf }: OpenShard) -> Self {
        match gguf {
            // Its tensors are blocks in themselves.
            Some(gguf) => {
                let tensors = tensors.into_iter().map(|(name, entry)| (name, Stored::Plain(0, entry))).collect();
                Self::new(path, vec![shard].into(), tensors, metadata, Some(Arc::new(gguf)))
            }
            None => {
                let tensors = tensors.into_iter().map(|(name, entry)| (name, (0, entry))).collect();
                Self::read(path, vec![shard].into(), tensors, metadata)
            }
        }
    }

    /// The checkpoint of these stored tensors, those of quantized modules together.
    fn read(
        path: &Path,
        shards: Arc<[Shard]>,
        stored: BTreeMap<String, (usize, Entry)>,
        metadata: HashMap<String, String>,
    ) -> Self {
        let mut stored = unwrap(stored);
        let quantized = take_modules(&mut stored, &shards).into_iter();
        let quantized = quantized.map(|(name, weight)| (name, Stored::Quantized(Box::new(weight))));
        let plain = stored.into_iter().map(|(name, (shard, entry))| (name, Stored::Plain(shard, entry)));
        Self::new(path, shards, plain.chain(quantized).collect(), metadata, None)
    }

    /// Whether there are quantized modules, read or refused.
    pub fn is_quantized(&self) -> bool {
        self.inner.tensors.values().any(|stored| matches!(stored, Stored::Quantized(_)))
    }

    /// Reads what the `config.json` in the folder of the file states about quantized modules.
    fn settings_from_file(self) -> Result<Self> {
        if self.is_quantized() { Ok(self.with_settings(&Settings::beside(&self.inner.path)?)) } else { Ok(self) }
    }

    /// This checkpoint with quantized modules as this `config.json` describes them: for files in memory, and for a
    /// configuration elsewhere. It is not needed where the file is beside the weights.
    #[must_use]
    pub fn with_quantization_config(&self, config: &serde_json::Value) -> Self {
        if self.is_quantized() { self.with_settings(&Settings::new(config)) } else { self.clone() }
    }

    fn with_settings(&self, settings: &Settings) -> Self {
        let Inner { path, shards, metadata, tensors, gguf } = &*self.inner;
        let mut tensors = tensors.clone();
        for stored in tensors.values_mut() {
            if let Stored::Quantized(weight) = stored {
                weight.plan(shards, settings);
            }
        }
        Self::new(path, shards.clone(), tensors, metadata.clone(), gguf.clone())
    }

    fn open_index(path: &Path) -> Result<Self> {
        let folder = path.parent().unwrap_or(Path::new(""));
        let mut shards: Vec<Shard> = Vec::new();
        // The tensors of each shard that the index has not listed yet.
        let mut unlisted: Vec<BTreeMap<String, Entry>> = Vec::new();
        let mut position: HashMap<String, usize> = HashMap::new();
        let (mut tensors, mut metadata) = (BTreeMap::new(), HashMap::new());
        let mut left = MAX_HEADER_BYTES;
        for (name, file) in read_index(path)? {
            let shard = match position.get(&file) {
                Some(&shard) => shard,
                None => {
                    let mut opened = open_shard(path, folder, &file, &name, left)?;
                    left -= opened.shard.header_bytes();
                    if shards.is_empty() {
                        metadata = opened.metadata;
                    }
                    if shards.len() >= MAX_OPEN_FILES {
                        opened.shard.close();
                    }
                    shards.push(opened.shard);
                    unlisted.push(opened.tensors);
                    position.insert(file.clone(), shards.len() - 1);
                    shards.len() - 1
                }
            };
            let Some(entry) = unlisted[shard].remove(&name) else {
                let (name, file) = (cut(&name), cut(&file));
                let reason = format!("the index lists tensor `{name}` in `{file}`, which does not hold it");
                return Err(Error::file(path, reason));
            };
            tensors.insert(name, (shard, entry));
        }
        Self::read(path, shards.into(), tensors, metadata).settings_from_file()
    }

    fn new(
        path: &Path,
        shards: Arc<[Shard]>,
        tensors: BTreeMap<String, Stored>,
        metadata: HashMap<String, String>,
        gguf: Option<Arc<Gguf>>,
    ) -> Self {
        Self { inner: Arc::new(Inner { path: path.to_path_buf(), shards, tensors, metadata, gguf }) }
    }

    /// A checkpoint of these tensors under other names: `rename` gives the new name of each. What is read or detected
    /// from it knows the new names alone; nothing is read or copied here.
    ///
    /// `VarBuilder::rename_f` has the opposite direction: from the name that a model asks for to the stored one.
    ///
    /// # Errors
    /// If two tensors get one name.
    pub fn rename(&self, rename: impl Fn(&str) -> String) -> Result<Self> {
        let mut tensors = BTreeMap::new();
        for (name, entry) in &self.inner.tensors {
            let new = rename(name);
            if tensors.contains_key(&new) {
                let what = format!("the new name of `{}`", cut(name));
                return Err(Error::value(what, format!("`{}`", cut(&new)), "one that no other tensor has"));
            }
            tensors.insert(new, entry.clone());
        }
        let Inner { path, shards, metadata, gguf, .. } = &*self.inner;
        Ok(Self::new(path, shards.clone(), tensors, metadata.clone(), gguf.clone()))
    }

    /// The metadata of the file, or of the first shard: the `__metadata__` of the header; of a GGUF file, its numbers
    /// and texts.
    pub fn metadata(&self) -> &HashMap<String, String> {
        &self.inner.metadata
    }

    /// All metadata of a GGUF file; `None` for safetensors.
    pub fn gguf(&self) -> Option<&GgufMetadata> {
        self.inner.gguf.as_ref().map(|gguf| &gguf.metadata)
    }

    /// The `config.json` of the model: the file in the folder of the weights; of a GGUF file, what its metadata states,
    /// under the keys of Hugging Face. `None` for safetensors without one beside them, and in memory.
    ///
    /// # Errors
    /// A file that cannot be read, has more than 16 MiB or is not JSON. For GGUF: if the architecture is not known, a
    /// key is missing or has another type, one says something that is not applied here, or a tensor is not one of the
    /// architecture's. The error holds the path.
    pub fn config(&self) -> Result<Option<serde_json::Value>> {
        const FREQUENCIES: &str = "rope_freqs.weight";
        /// Rotary positions have half as many frequencies as a head has numbers.
        const MAX_FREQUENCIES: usize = 1 << 12;
        let Some(gguf) = &self.inner.gguf else {
            let beside = self.path().map(|path| path.with_file_name("config.json"));
            return match beside {
                Some(path) if is_present(&path)? => read_json(&path).map(Some),
                _ => Ok(None),
            };
        };
        let config = || {
            let frequencies = if self.contains(FREQUENCIES) {
                let entry = self.entry(FREQUENCIES)?;
                if entry.shape.len() != 1 || entry.shape[0] > MAX_FREQUENCIES {
                    let found = format!("has shape {:?}", entry.shape);
                    return Err(Error::tensor(FREQUENCIES, found, format!("up to {MAX_FREQUENCIES} factors")));
                }
                let factors = self.tensor(FREQUENCIES, &Device::Cpu)?.to_dtype(candle_core::DType::F32)?;
                Some(factors.to_vec1::<f32>()?)
            } else {
                None
            };
            let config = config_of(&gguf.metadata, &|name| gguf.rows.get(name).copied(), frequencies)?;
            match &gguf.unlisted {
                None => Ok(config),
                Some(name) => {
                    let expected = "those that its architecture is known to have";
                    Err(Error::tensor(cut(name), "is one that nothing here reads", expected))
                }
            }
        };
        config().map(Some).map_err(|e| Error::file(&self.inner.path, e))
    }

    /// The file that was opened; `None` if the checkpoint is in memory.
    pub fn path(&self) -> Option<&Path> {
        Some(self.inner.path.as_path()).filter(|_| !self.inner.shards.iter().any(Shard::is_in_memory))
    }

    /// The files that hold the tensors; none if the checkpoint is in memory.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.inner.shards.iter().filter(|shard| !shard.is_in_memory()).map(Shard::path)
    }

    /// Every tensor's name, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.inner.tensors.keys().map(String::as_str)
    }

    /// Whether the checkpoint holds a tensor of exactly this name.
    pub fn contains(&self, name: &str) -> bool {
        self.inner.tensors.contains_key(name)
    }

    /// Reads one tensor as it is stored; booleans, which candle has no dtype for, as u8 of 0 and 1; the weight of a
    /// quantized module, and blocks of a GGUF file, in f32.
    ///
    /// # Errors
    /// If no tensor has this name, candle lacks its dtype, a block has a scale that is not finite, its file has changed
    /// or cannot be read, or there is no memory for it. The error of a missing tensor names the file, unless the
    /// checkpoint is in memory.
    pub fn tensor(&self, name: &str, device: &Device) -> Result<Tensor> {
        match self.lookup(name)? {
            Stored::Plain(shard, entry) => read_tensor(&self.inner.shards[*shard], name, entry, device),
            Stored::Quantized(weight) => Ok(weight.tensor(&self.inner.shards)?.to_device(device)?),
        }
    }

    /// Calls `on_rows` with consecutive rows of a [`tensor`](Self::tensor), until it had all: what they take in memory
    /// does not grow with the tensor, unless its format can be read as a whole only.
    pub(crate) fn each_rows(&self, name: &str, on_rows: &mut dyn FnMut(Tensor) -> Result<()>) -> Result<()> {
        /// The most numbers that are held at a time, if that is a row.
        const NUMBERS: usize = 1 << 18;
        let shape = &*self.entry(name)?.shape;
        let (all, row) = (shape.first().copied().unwrap_or(0), shape.iter().skip(1).product::<usize>());
        let step = (NUMBERS / row.max(1)).max(1);
        if all <= step {
            return on_rows(self.tensor(name, &Device::Cpu)?);
        }
        for start in (0..all).step_by(step) {
            match self.rows(name, &(start..all.min(start + step))) {
                Ok(Some(rows)) => on_rows(rows)?,
                // Either all rows can be read in parts or none.
                Ok(None) => return on_rows(self.tensor(name, &Device::Cpu)?),
                // Report the position in the whole tensor.
                Err(part) => return Err(self.tensor(name, &Device::Cpu).err().unwrap_or(part)),
            }
        }
        Ok(())
    }

    /// Some rows of a tensor, which it has; `None` if they cannot be read alone.
    fn rows(&self, name: &str, rows: &Range<usize>) -> Result<Option<Tensor>> {
        let shards = &self.inner.shards;
        match self.lookup(name)? {
            Stored::Plain(shard, entry) => {
                entry.rows(rows).map(|rows| read_tensor(&shards[*shard], name, &rows, &Device::Cpu)).transpose()
            }
            Stored::Quantized(weight) => weight.rows(rows).map(|rows| rows.tensor(shards)).transpose(),
        }
    }

    /// The names of tensors from `start` on, sorted.
    pub fn names_from(&self, start: &str) -> impl Iterator<Item = &str> {
        self.inner.tensors.range::<str, _>((Bound::Included(start), Bound::Unbounded)).map(|(name, _)| name.as_str())
    }

    /// The dtype and the shape of a tensor as the header of its file states them; of the weight of a quantized module,
    /// and of blocks of a GGUF file, f32 and the shape.
    ///
    /// # Errors
    /// If no tensor has this name, or a quantized module cannot be read.
    pub fn tensor_info(&self, name: &str) -> Result<(safetensors::Dtype, &[usize])> {
        let entry = self.entry(name)?;
        Ok((entry.dtype, &entry.shape))
    }

    /// Fills `into` with the stored bytes of a tensor, from its byte `from` on: of blocks of a GGUF file, the blocks.
    ///
    /// # Errors
    /// If no tensor has this name, it is quantized, has fewer bytes, or its file has changed or cannot be read.
    pub fn read_bytes(&self, name: &str, from: u64, into: &mut [u8]) -> Result<()> {
        let (shard, entry) = self.stored(name)?;
        shard.read_part(name, entry, from, into)
    }

    /// The entry of the header for a tensor, or the one that the weight of a quantized module would have.
    pub(crate) fn entry(&self, name: &str) -> Result<&Entry> {
        match self.lookup(name)? {
            Stored::Plain(_, entry) => Ok(entry),
            Stored::Quantized(weight) => weight.entry(),
        }
    }

    /// How a tensor is stored.
    pub(crate) fn lookup(&self, name: &str) -> Result<&Stored> {
        self.inner.tensors.get(name).ok_or_else(|| self.missing(name))
    }

    pub(crate) fn shards(&self) -> &[Shard] {
        &self.inner.shards
    }

    /// The shard that holds a tensor, and what its header states.
    fn stored(&self, name: &str) -> Result<(&Shard, &Entry)> {
        match self.lookup(name)? {
            Stored::Plain(shard, entry) => Ok((&self.inner.shards[*shard], entry)),
            Stored::Quantized(weight) => Err(weight.not_plain()),
        }
    }

    /// The stored tensors that a tensor is read from, by their full names: itself, or those of a quantized module.
    pub(crate) fn stored_parts(&self, name: &str) -> Result<Vec<(String, &Shard, &Entry)>> {
        let shards = &self.inner.shards;
        Ok(match self.lookup(name)? {
            Stored::Plain(shard, entry) => vec![(name.to_string(), &shards[*shard], entry)],
            Stored::Quantized(weight) => {
                weight.stored().map(|(name, (shard, entry))| (name, &shards[*shard], entry)).collect()
            }
        })
    }

    /// The error for a tensor that is not there; it names the file.
    fn missing(&self, name: &str) -> Error {
        let mut error = missing(name.to_string());
        if let Error::MissingTensor { why, .. } = &mut error {
            if let Some(path) = self.path() {
                *why = format!("{} does not hold it", path.display());
            }
            if let Some(stored) = with_prefix(name, self.names()) {
                let prefix = cut(stored.strip_suffix(name).unwrap_or_default());
                *why += &format!(", but `{}`: its tensors have to be renamed, without `{prefix}`", cut(stored));
            }
        }
        error
    }
}

#[derive(serde::Deserialize)]
struct Index {
    weight_map: Header<String, false>,
}

/// Reads a `model.safetensors.index.json`: the name of each tensor, and the file name of its shard, which is in the
/// folder of the index.
///
/// # Errors
/// [`Error::File`] for a file that is no index, or names a shard in another folder; the errors of
/// [`read_limited`](crate::io::read_limited) with 100 MB.
pub fn read_index(path: &Path) -> Result<BTreeMap<String, String>> {
    let text = read_limited(path, MAX_HEADER_BYTES)?;
    let index: Index = parse_json(path, &text).map_err(|e| match e {
        Error::File { reason, .. } => Error::file(path, format!("not an index: {}", cut(&reason))),
        e => e,
    })?;
    let shards = index.weight_map.tensors;
    for (tensor, file) in &shards {
        let mut components = Path::new(file).components();
        // An index must not lead out of its folder.
        let plain = matches!((components.next(), components.next()), (Some(Component::Normal(_)), None));
        if !plain || file.contains(['/', '\\']) {
            let (file, tensor) = (cut(file), cut(tensor));
            let reason = format!("shard name `{file}` of tensor `{tensor}` is not a plain file name");
            return Err(Error::file(path, reason));
        }
    }
    Ok(shards)
}

/// Opens the shard `file`, which an index names for `tensor`. Its header has at most `most` bytes.
fn open_shard(index: &Path, folder: &Path, file: &str, tensor: &str, most: u64) -> Result<OpenShard> {
    let path = folder.join(file);
    if !path.exists() {
        let (file, tensor) = (cut(file), cut(tensor));
        return Err(Error::file(index, format!("shard `{file}`, which holds `{tensor}`, is missing")));
    }
    let opened = Shard::open(&path, most)?;
    match opened.gguf {
        Some(_) => Err(Error::file(index, format!("shard `{}` is a GGUF file, expected safetensors", cut(file)))),
        None => Ok(opened),
    }
}

/// The only `.gguf` file of a folder, `None` if there is none.
fn gguf_in(folder: &Path) -> Result<Option<PathBuf>> {
    let io = |e| Error::io(folder, e);
    let mut found: Option<PathBuf> = None;
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if path.extension().is_some_and(|extension| extension == "gguf") {
            if let Some(other) = &found {
                let name = |path: &Path| cut(&path.file_name().unwrap_or_default().to_string_lossy());
                let reason = format!("the folder holds `{}` and `{}`: name one of them", name(other), name(&path));
                return Err(Error::file(folder, reason));
            }
            found = Some(path);
        }
    }
    Ok(found)
}

fn no_weights(folder: &Path) -> Error {
    let others = ["pytorch_model.bin", "tf_model.h5", "flax_model.msgpack"];
    let hint = match others.into_iter().find(|name| folder.join(name).exists()) {
        Some(name) => format!("; it holds `{name}`, which has to be converted to safetensors first"),
        None => String::new(),
    };
    Error::file(folder, format!("the folder holds neither `{SINGLE}` nor `{INDEX}` nor a `.gguf` file{hint}"))
}
