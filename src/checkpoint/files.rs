//! Writing the files of a model: any tensors, and bytes such as a `config.json`.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use candle_core::Tensor;

use crate::error::Result;
use crate::io;

/// Writes tensors to a safetensors file, as [`write_file`] writes bytes. `metadata` goes into the header.
///
/// The `save` of candle and of its `VarMap` writes without waiting for the disk, and leaves a file that only its owner can read.
///
/// # Errors
/// A dtype that candle cannot write (`F8E8M0`, `F6E2M3`, `F6E3M2`, `F4`); a file that cannot be written.
///
/// ```
/// use candle_attention::checkpoint::{Checkpoint, write_tensors};
/// use candle_core::{DType, Device, Tensor};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("model.safetensors");
/// let weight = Tensor::ones((2, 3), DType::F32, &Device::Cpu)?;
/// write_tensors(&path, [("weight", weight)], Default::default())?;
/// assert!(Checkpoint::open(&path)?.contains("weight"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn write_tensors(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (impl Into<String>, Tensor)>,
    metadata: HashMap<String, String>,
) -> Result<()> {
    let path = path.as_ref();
    let tensors: BTreeMap<String, Tensor> = tensors.into_iter().map(|(name, tensor)| (name.into(), tensor)).collect();
    io::write_atomic(path, |file| io::write_tensors(file, path, &tensors, &metadata))
}

/// Writes a file: `config.json`, a page with attention maps, or anything else. Whatever happens meanwhile, a kill, a full
/// disk or a power failure, the path has its old content or all of the new one, and other processes that write it or read
/// it do no harm.
///
/// The content goes to a file of a random name in the same folder, `.candle-attention-….part`, is synced to the disk, and
/// renamed. A link at `path` is replaced, not followed. A file that is replaced passes on its permissions. Temporary files
/// of processes that were killed are removed by the next call that writes in the folder, an hour later.
///
/// # Errors
/// [`Error::File`](crate::Error::File) for a folder, a device or a pipe; [`Error::Io`](crate::Error::Io) for a file that
/// cannot be written.
pub fn write_file(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> Result<()> {
    io::write_bytes(path.as_ref(), bytes.as_ref())
}
