//! Reading the small JSON files of a model folder.

use std::path::Path;

use serde::de::DeserializeOwned;

use crate::error::{Error, Result};

/// Reads a JSON file.
pub(super) fn json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = std::fs::read(path).map_err(|e| Error::io(path, e))?;
    serde_json::from_slice(&text).map_err(|e| Error::file(path, e))
}

/// Reads a JSON file, or gives the default if there is none.
pub(super) fn json_or_default<T: DeserializeOwned + Default>(path: &Path) -> Result<T> {
    if path.exists() { json(path) } else { Ok(T::default()) }
}
