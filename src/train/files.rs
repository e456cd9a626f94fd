//! Files that are there whole or not at all.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use candle_core::Tensor;

use crate::error::{Error, Result};
use crate::part::renamed;

/// Writes a temporary file beside `path`, then gives it its name.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    renamed(path, |part| std::fs::write(part, bytes).map_err(|e| Error::io(path, e)))
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

/// A number that tells parts apart, the same on every machine
/// ([FNV-1a](https://datatracker.ietf.org/doc/html/draft-eastlake-fnv)).
pub(super) fn fingerprint<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    let mut add = |byte: u8| hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    for part in parts {
        part.iter().copied().for_each(&mut add);
        (part.len() as u64).to_le_bytes().into_iter().for_each(&mut add);
    }
    hash
}
