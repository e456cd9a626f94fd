//! Fingerprint of a model folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use candle_attention::checkpoint::Checkpoint;
use candle_attention::io::is_present;
use candle_attention::{Error, Result};

use crate::folder::ModelFolder;
use crate::hash::{Fingerprint, hash_file};
use crate::router::routes;
use crate::sentence::adapters::base_folder;

/// SHA-256, as 64 hexadecimal digits, of the files that determine a model's embeddings: weights, tokenizer and
/// configurations (`*.safetensors`, `*.gguf`, `*.json`, shards of any name) in its folder and in the folders of its
/// modules, and of the base model that an adapter names. The locations of the folders and other files have no
/// influence. Of a model that is a file, that file.
///
/// # Errors
/// A folder or file that cannot be read; an invalid `modules.json` or `adapter_config.json`.
pub fn fingerprint(folder: impl AsRef<Path>) -> Result<String> {
    let folder = folder.as_ref();
    let mut fingerprint = Fingerprint::default();
    if folder.is_file() {
        fingerprint.add_hash(&hash_file(folder)?);
        return Ok(fingerprint.hex());
    }
    let model = ModelFolder::new(folder);
    for inside in routes(model)?.map_or_else(|| [String::new()].into(), |routes| routes.folders()) {
        let path = if inside.is_empty() { folder.to_path_buf() } else { folder.join(&inside) };
        // A module without settings may have no folder; the top has to be there.
        if !inside.is_empty() && !is_present(&path)? {
            continue;
        }
        let base = base_folder(model, &path)?;
        let base = base.iter().map(|base| (format!("{inside}/base"), base));
        for (inside, path) in [(inside.clone(), &path)].into_iter().chain(base) {
            for (name, file) in files(path)? {
                fingerprint.add_part(format!("{inside}/{name}").as_bytes());
                fingerprint.add_hash(&hash_file(&file)?);
            }
        }
    }
    Ok(fingerprint.hex())
}

/// The files that count, by their names.
fn files(folder: &Path) -> Result<BTreeMap<String, PathBuf>> {
    // Weights that cannot be opened are no model's.
    let shards = Checkpoint::open(folder).map(|weights| weights.files().map(Path::to_path_buf).collect::<Vec<_>>());
    let mut paths = shards.unwrap_or_default();
    for entry in std::fs::read_dir(folder).map_err(|e| Error::io(folder, e))? {
        let path = entry.map_err(|e| Error::io(folder, e))?.path();
        let counts =
            path.extension().is_some_and(|ending| ["json", "safetensors", "gguf"].iter().any(|e| ending == *e));
        // A file that cannot be read, such as a link that leads nowhere, is an error when it is hashed.
        if counts && !path.is_dir() {
            paths.push(path);
        }
    }
    let name = |path: PathBuf| (path.strip_prefix(folder).unwrap_or(&path).to_string_lossy().into_owned(), path);
    Ok(paths.into_iter().map(name).collect())
}
