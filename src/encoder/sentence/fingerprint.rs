use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::encoder::folder::modules;
use crate::error::{Error, Result};
use crate::io::hex;

/// A hash of what a model's folder says about its embeddings: the content of the weights, the tokenizer and the
/// configurations (`*.safetensors`, `*.json`), at the top and in the folders of its modules. 64 hexadecimal digits of
/// SHA-256. Where the folder lies, and other files in it, change nothing.
///
/// # Errors
/// A folder or file that cannot be read; a `modules.json` that is none.
pub fn fingerprint(folder: impl AsRef<Path>) -> Result<String> {
    let folder = folder.as_ref();
    let modules = modules(folder)?.unwrap_or_default();
    let inside: BTreeSet<&str> = modules.iter().map(|module| module.path.as_str()).chain([""]).collect();
    let mut hash = Sha256::new();
    for inside in inside {
        let path = if inside.is_empty() { folder.to_path_buf() } else { folder.join(inside) };
        // A module without settings may have no folder; the top has to be there.
        if !inside.is_empty() && !path.exists() {
            continue;
        }
        for name in names(&path)? {
            // Lengths keep the end of one file apart from the name of the next.
            let name = format!("{inside}/{name}");
            hash.update((name.len() as u64).to_le_bytes());
            hash.update(&name);
            hash.update(content(&folder.join(name.trim_start_matches('/')))?);
        }
    }
    Ok(hex(hash))
}

/// The names of the files that count, sorted.
fn names(folder: &Path) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(folder).map_err(|e| Error::io(folder, e))? {
        let path = entry.map_err(|e| Error::io(folder, e))?.path();
        let counts = path.extension().is_some_and(|extension| extension == "json" || extension == "safetensors");
        if let Some(name) = path.file_name().filter(|_| counts && path.is_file()) {
            names.insert(name.to_string_lossy().into_owned());
        }
    }
    Ok(names)
}

fn content(path: &Path) -> Result<impl AsRef<[u8]>> {
    let mut file = std::fs::File::open(path).map_err(|e| Error::io(path, e))?;
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; 1 << 18]);
    loop {
        match file.read(&mut buffer).map_err(|e| Error::io(path, e))? {
            0 => return Ok(hash.finalize()),
            read => hash.update(&buffer[..read]),
        }
    }
}
