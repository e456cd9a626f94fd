//! One file of tensors, safetensors or GGUF, on disk or in memory: its header, and reads of its data.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::path::{Path, PathBuf};

use bytemuck::Pod;
use candle_core::safetensors::Load;
use candle_core::{Device, Tensor, WithDType};
use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::checkpoint::gguf::blocks;
use crate::checkpoint::gguf::header::{Gguf, GgufHeader, MAGIC, read as read_gguf};
use crate::checkpoint::header::{self, Entry, Header, MAX_HEADER_BYTES};
use crate::error::{Error, Result};
use crate::io::{StoredFile, foreign_content};

/// The data of one file.
pub(crate) struct Shard {
    path: PathBuf,
    bytes: Bytes,
    /// Where the data starts: after the header.
    start: u64,
}

enum Bytes {
    Stored(StoredFile),
    Memory(Cow<'static, [u8]>),
}

/// A shard, the tensors that its header lists, and its metadata.
pub(crate) struct OpenShard {
    pub shard: Shard,
    pub tensors: BTreeMap<String, Entry>,
    pub metadata: HashMap<String, String>,
    /// The metadata of a GGUF file, and what it shows about its tensors; `None` for safetensors.
    pub gguf: Option<Gguf>,
}

impl Shard {
    /// Opens a file and reads its header, of at most `most` bytes.
    pub fn open(path: &Path, most: u64) -> Result<OpenShard> {
        Self::with_header(path, Bytes::Stored(StoredFile::open(path)?), most)
    }

    /// The content of a file, which errors call `name`.
    pub fn from_bytes(name: &Path, bytes: Cow<'static, [u8]>) -> Result<OpenShard> {
        Self::with_header(name, Bytes::Memory(bytes), MAX_HEADER_BYTES)
    }

    /// Reads the header of a file.
    fn with_header(path: &Path, bytes: Bytes, most: u64) -> Result<OpenShard> {
        let mut shard = Self { path: path.to_path_buf(), bytes, start: 8 };
        let whole = match &shard.bytes {
            Bytes::Stored(file) => file.len(),
            Bytes::Memory(bytes) => bytes.len() as u64,
        };
        if whole >= MAGIC.len() as u64 {
            let mut magic = [0; MAGIC.len()];
            shard.read_bytes(0, &mut magic, &"the first bytes")?;
            if magic == MAGIC {
                let GgufHeader { tensors, texts, gguf, start } = read_gguf(&shard, whole)?;
                shard.start = start;
                return Ok(OpenShard { shard, tensors, metadata: texts, gguf: Some(gguf) });
            }
        }
        let mut start = vec![0; whole.min(64) as usize];
        shard.read_bytes(0, &mut start, &"the first bytes")?;
        shard.with_safetensors_header(whole, most).map_err(|error| match foreign_content(&start) {
            Some(what) => Error::file(path, format!("the file is {what}")),
            None if path.extension().is_some_and(|extension| extension == "gguf") => {
                Error::file(path, "not a valid GGUF file: it does not begin with `GGUF`")
            }
            None => error,
        })
    }

    /// Reads the header of a file of `whole` bytes that is not GGUF.
    fn with_safetensors_header(mut self, whole: u64, most: u64) -> Result<OpenShard> {
        let path = &self.path;
        let invalid = |what: String| Error::file(path, format!("not a valid safetensors file: {what}"));
        let Some(rest) = whole.checked_sub(8) else {
            return Err(invalid(format!("it has {whole} bytes, expected at least 8")));
        };
        let mut size = [0; 8];
        self.read_bytes(0, &mut size, &"the length of the header")?;
        let size = u64::from_le_bytes(size);
        let limit = match () {
            () if size > rest => Some((rest, "the bytes that follow")),
            () if size > MAX_HEADER_BYTES => Some((MAX_HEADER_BYTES, "the limit of a header")),
            () if size > most => Some((most, "what the headers of other shards left of the limit of all")),
            () => None,
        };
        if let Some((limit, why)) = limit {
            return Err(invalid(format!("it states a header of {size} bytes, expected at most {limit}, {why}")));
        }
        let mut header = zeros::<u8>(path, size, &"the header")?;
        self.read_bytes(8, &mut header, &"the header")?;
        let Header { tensors, metadata } = header::parse(path, &header, rest - size)?;
        self.start += size;
        Ok(OpenShard { shard: self, tensors, metadata, gguf: None })
    }

    /// The file, or the name of the bytes.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is the content of a file, not the file.
    pub fn is_in_memory(&self) -> bool {
        matches!(self.bytes, Bytes::Memory(_))
    }

    /// The length of the header in bytes.
    pub fn header_bytes(&self) -> u64 {
        self.start - 8
    }

    /// Closes the file until the next read.
    pub fn close(&mut self) {
        if let Bytes::Stored(file) = &mut self.bytes {
            file.close();
        }
    }

    /// The data of the tensor `name` as numbers of type `T`, of which it has a whole number.
    pub fn read<T: bytemuck::Pod>(&self, name: &str, entry: &Entry) -> Result<Vec<T>> {
        let what = Named(name);
        let mut numbers = zeros(&self.path, entry.bytes() / size_of::<T>() as u64, &what)?;
        self.read_bytes(self.start + entry.offsets[0], bytemuck::cast_slice_mut(&mut numbers), &what)?;
        Ok(numbers)
    }

    /// `count` zeros to make the tensor `name` in; an error if there is no memory for them.
    pub fn zeros(&self, count: u64, name: &str) -> Result<Vec<f32>> {
        zeros(&self.path, count, &Named(name))
    }

    /// Fills `into` with the data of the tensor `name` from byte `from` of it on.
    pub fn read_part(&self, name: &str, entry: &Entry, from: u64, into: &mut [u8]) -> Result<()> {
        let end = from.checked_add(into.len() as u64).filter(|end| *end <= entry.bytes());
        end.ok_or_else(|| Error::file(&self.path, format!("{} ends after the last byte", Named(name))))?;
        self.read_bytes(self.start + entry.offsets[0] + from, into, &Named(name))
    }

    /// Calls `on_part` with consecutive parts of the tensor `name`, until it returns true. Parts have a length
    /// that is a multiple of 8, but for the last.
    pub fn any_part(&self, name: &str, entry: &Entry, mut on_part: impl FnMut(&[u8]) -> bool) -> Result<bool> {
        /// The most bytes that are held at a time.
        const PART: u64 = 1 << 20;
        let [mut from, to] = entry.offsets;
        let mut part = vec![0; entry.bytes().min(PART) as usize];
        while from < to {
            let length = (to - from).min(PART);
            let part = &mut part[..length as usize];
            self.read_bytes(self.start + from, part, &Named(name))?;
            if on_part(part) {
                return Ok(true);
            }
            from += length;
        }
        Ok(false)
    }

    /// Fills `into` with the bytes of the file from `offset` on.
    pub(super) fn read_bytes(&self, offset: u64, into: &mut [u8], what: &dyn Display) -> Result<()> {
        match &self.bytes {
            Bytes::Stored(file) => file.read_at(offset, into, what),
            Bytes::Memory(bytes) => {
                let from = usize::try_from(offset).ok();
                match from.and_then(|from| bytes.get(from..)?.get(..into.len())) {
                    Some(bytes) => into.copy_from_slice(bytes),
                    None => return Err(Error::file(&self.path, format!("{what} ends after the last byte"))),
                }
                Ok(())
            }
        }
    }
}

/// The name of a tensor that is read, in errors.
struct Named<'a>(&'a str);

impl Display for Named<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "tensor `{}`", crate::error::cut(self.0))
    }
}

/// `count` zeros to read `what` into; an error if there is no memory for them.
pub(super) fn zeros<T: bytemuck::Zeroable + Clone>(path: &Path, count: u64, what: &dyn Display) -> Result<Vec<T>> {
    let mut zeros = Vec::new();
    let reserved = usize::try_from(count).ok().filter(|count| zeros.try_reserve_exact(*count).is_ok());
    let count = reserved.ok_or_else(|| {
        let bytes = count.saturating_mul(size_of::<T>() as u64);
        Error::file(path, format!("{what} cannot be read: there is no memory for its {bytes} bytes"))
    })?;
    zeros.resize(count, T::zeroed());
    Ok(zeros)
}

/// Reads the tensor `name` of a shard as it is stored, blocks of a GGUF file as f32; booleans, which candle lacks, as
/// u8.
pub(crate) fn read_tensor(shard: &Shard, name: &str, entry: &Entry, device: &Device) -> Result<Tensor> {
    if let Some(stored) = &entry.gguf {
        return blocks::read(shard, name, entry, stored, device);
    }
    match entry.dtype {
        Dtype::F64 => numbers::<f64>(shard, name, entry, device),
        Dtype::F32 => numbers::<f32>(shard, name, entry, device),
        Dtype::F16 => numbers::<f16>(shard, name, entry, device),
        Dtype::BF16 => numbers::<bf16>(shard, name, entry, device),
        Dtype::I64 => numbers::<i64>(shard, name, entry, device),
        Dtype::U32 => numbers::<u32>(shard, name, entry, device),
        Dtype::U8 | Dtype::BOOL => numbers::<u8>(shard, name, entry, device),
        // Candle converts rarer formats, for the price of a second copy.
        dtype => {
            let bytes = shard.read::<u8>(name, entry)?;
            let failed =
                |e: String| Error::tensor(name, format!("cannot be read ({e})"), "a dtype that candle supports");
            let view = TensorView::new(dtype, entry.shape.to_vec(), &bytes).map_err(|e| failed(e.to_string()))?;
            view.load(device).map_err(|e| failed(e.to_string()))
        }
    }
}

/// Reads numbers straight into the tensor's memory.
fn numbers<T: Pod + WithDType>(shard: &Shard, name: &str, entry: &Entry, device: &Device) -> Result<Tensor> {
    Ok(Tensor::from_vec(shard.read::<T>(name, entry)?, &*entry.shape, device)?)
}
