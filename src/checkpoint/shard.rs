//! One safetensors file: memory-mapped, or in memory.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

use candle_core::safetensors::{BufferedSafetensors, MmapedSafetensors, SliceSafetensors};
use safetensors::tensor::TensorView;

use crate::checkpoint::header;
use crate::error::{Error, Result};

/// The tensors of one file.
pub(crate) enum Shard {
    Mapped(MmapedSafetensors),
    Buffered(BufferedSafetensors),
    Static(SliceSafetensors<'static>),
}

impl Shard {
    /// Maps a file into memory, and returns the metadata of its header.
    pub fn map(path: &Path) -> Result<(Self, HashMap<String, String>)> {
        let metadata = std::fs::metadata(path).map_err(|e| Error::io(path, e))?;
        if !metadata.is_file() {
            return Err(Error::file(path, "not a regular file"));
        }
        let metadata = header::read(path)?;
        // SAFETY: the map is read-only and lives as long as the tensors' views. What mmap cannot promise is that no other
        // process truncates or rewrites the file meanwhile; `Checkpoint::open` states that as the caller's duty.
        #[allow(unsafe_code)]
        let mapped = unsafe { MmapedSafetensors::new(path) };
        Ok((Self::Mapped(mapped.map_err(|e| invalid(path, e))?), metadata))
    }

    /// The content of a file, which errors call `name`, and the metadata of its header.
    pub fn from_bytes(name: &Path, bytes: Cow<'static, [u8]>) -> Result<(Self, HashMap<String, String>)> {
        let metadata = header::read_bytes(name, &bytes)?;
        let shard = match bytes {
            Cow::Owned(bytes) => BufferedSafetensors::new(bytes).map(Self::Buffered),
            Cow::Borrowed(bytes) => SliceSafetensors::new(bytes).map(Self::Static),
        };
        Ok((shard.map_err(|e| invalid(name, e))?, metadata))
    }

    pub fn names(&self) -> Vec<String> {
        let tensors = match self {
            Self::Mapped(shard) => shard.tensors(),
            Self::Buffered(shard) => shard.tensors(),
            Self::Static(shard) => shard.tensors(),
        };
        tensors.into_iter().map(|(name, _)| name).collect()
    }

    pub fn get(&self, name: &str) -> candle_core::Result<TensorView<'_>> {
        match self {
            Self::Mapped(shard) => shard.get(name),
            Self::Buffered(shard) => shard.get(name),
            Self::Static(shard) => shard.get(name),
        }
    }
}

fn invalid(path: &Path, error: candle_core::Error) -> Error {
    match error {
        candle_core::Error::Io(e) => Error::io(path, e),
        // Only the cause: candle adds the path and a backtrace.
        e => Error::file(path, format!("not a valid safetensors file: {}", cause(&e))),
    }
}

fn cause(error: &candle_core::Error) -> String {
    match error {
        candle_core::Error::WithPath { inner, .. } | candle_core::Error::WithBacktrace { inner, .. } => cause(inner),
        other => other.to_string(),
    }
}
