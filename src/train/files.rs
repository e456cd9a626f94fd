//! Files that are there whole or not at all.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use candle_core::Tensor;
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::io::hex;
use crate::io::write_atomic;

/// Writes a temporary file beside `path`, then gives it its name.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    write_atomic(path, |part| std::fs::write(part, bytes).map_err(|e| Error::io(path, e)))
}

/// Writes tensors and what the header says of them.
pub(super) fn write_tensors(
    path: &Path,
    tensors: &BTreeMap<String, Tensor>,
    metadata: HashMap<String, String>,
) -> Result<()> {
    // Its own way to a file makes one that nobody else may read.
    write(path, &safetensors::serialize(tensors, Some(metadata)).map_err(|e| Error::file(path, e))?)
}

/// Makes a folder and those above it.
pub(super) fn make_folder(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).map_err(|e| Error::io(path, e))
}

/// A hash that tells parts apart, the same on every machine: SHA-256 in hexadecimal digits.
pub(super) fn fingerprint<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        // Lengths keep the end of one part apart from the start of the next.
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hex(hash)
}
