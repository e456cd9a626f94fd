//! Fingerprint of a model folder.

use std::collections::BTreeSet;
use std::path::Path;

use candle_attention::io::is_present;
use candle_attention::{Error, Result};

use crate::folder::ModelFolder;
use crate::hash::{Fingerprint, hash_file};
use crate::router::routes;

/// SHA-256, as 64 hexadecimal digits, of the files that determine a model's embeddings: weights, tokenizer and
/// configurations (`*.safetensors`, `*.gguf`, `*.json`) in its folder and in the folders of its modules. The location
/// of the folder and its other files have no influence. Of a model that is a file, that file.
///
/// # Errors
/// A folder or file that cannot be read; an invalid `modules.json`.
pub fn fingerprint(folder: impl AsRef<Path>) -> Result<String> {
    let folder = folder.as_ref();
    if folder.is_file() {
        let mut fingerprint = Fingerprint::default();
        fingerprint.add_hash(&hash_file(folder)?);
        return Ok(fingerprint.hex());
    }
    let inside = routes(ModelFolder::new(folder))?.map_or_else(|| [String::new()].into(), |routes| routes.folders());
    let mut fingerprint = Fingerprint::default();
    for inside in inside {
        let path = if inside.is_empty() { folder.to_path_buf() } else { folder.join(&inside) };
        // A module without settings may have no folder; the top has to be there.
        if !inside.is_empty() && !is_present(&path)? {
            continue;
        }
        for name in names(&path)? {
            let name = format!("{inside}/{name}");
            fingerprint.add_part(name.as_bytes());
            fingerprint.add_hash(&hash_file(&folder.join(name.trim_start_matches('/')))?);
        }
    }
    Ok(fingerprint.hex())
}

/// The names of the files that count, sorted.
fn names(folder: &Path) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(folder).map_err(|e| Error::io(folder, e))? {
        let path = entry.map_err(|e| Error::io(folder, e))?.path();
        let counts = path
            .extension()
            .is_some_and(|extension| extension == "json" || extension == "safetensors" || extension == "gguf");
        // A file that cannot be read, such as a link that leads nowhere, is an error when it is hashed.
        if let Some(name) = path.file_name().filter(|_| counts && !path.is_dir()) {
            names.insert(name.to_string_lossy().into_owned());
        }
    }
    Ok(names)
}
