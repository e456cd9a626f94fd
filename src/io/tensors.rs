//! Writing safetensors files.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use candle_core::Tensor;

use crate::error::{Error, Result};

/// Writes a safetensors file to `path`; errors name `target`, the file that it will be renamed to.
///
/// The file gets the permissions of an ordinary new file. The safetensors crate writes to a temporary file first, which
/// only its owner can read.
pub(crate) fn write_tensors(
    path: &Path,
    target: &Path,
    tensors: BTreeMap<String, Tensor>,
    metadata: HashMap<String, String>,
) -> Result<()> {
    let io = |e| Error::io(target, e);
    let permissions = std::fs::File::create(path).and_then(|file| file.metadata()).map_err(io)?.permissions();
    let metadata = (!metadata.is_empty()).then_some(metadata);
    safetensors::serialize_to_file(tensors, metadata, path).map_err(|e| Error::file(target, e))?;
    std::fs::set_permissions(path, permissions).map_err(io)
}
