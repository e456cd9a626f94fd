//! Atomic writes: a file or folder appears under its name complete or not at all.

use std::path::Path;
use std::time::Duration;

use crate::error::{Error, Result};

/// A temporary file that nobody has written to for this long belongs to a process that was killed.
const ABANDONED: Duration = Duration::from_secs(600);

/// Calls `make` with a temporary path beside `target`, then renames what it made to `target`. Until then, and if `make`
/// fails, the old content of `target` stays.
pub(crate) fn write_atomic<T>(target: &Path, make: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    let name = target.file_name().ok_or_else(|| Error::file(target, "is not the name of a file"))?.to_string_lossy();
    let part = target.with_file_name(format!(".{name}.{}.part", std::process::id()));
    remove_abandoned(target, &format!(".{name}."));
    // A killed process with the same id may have left a folder.
    let _ = std::fs::remove_dir_all(&part);
    let made = make(&part).and_then(|made| {
        std::fs::rename(&part, target).map_err(|e| Error::io(target, e))?;
        Ok(made)
    });
    if made.is_err() {
        // Best effort: it may not exist at all.
        let _ = std::fs::remove_file(&part);
        let _ = std::fs::remove_dir_all(&part);
    }
    made
}

/// Writes bytes to a file by [`write_atomic`].
#[cfg(feature = "train")]
pub(crate) fn write_bytes(path: &Path, bytes: &[u8]) -> Result<()> {
    write_atomic(path, |part| std::fs::write(part, bytes).map_err(|e| Error::io(path, e)))
}

/// Creates a folder and its parents, if they do not exist.
#[cfg(feature = "train")]
pub(crate) fn create_folder(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).map_err(|e| Error::io(path, e))
}

/// Removes temporary files of killed processes that were to become `target`. Best effort.
fn remove_abandoned(target: &Path, prefix: &str) {
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let process = name.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(".part"));
        if process.is_none_or(|id| id.is_empty() || id.contains(|c: char| !c.is_ascii_digit())) {
            continue;
        }
        let age = entry.metadata().and_then(|metadata| metadata.modified()).map(|time| time.elapsed());
        if matches!(age, Ok(Ok(age)) if age > ABANDONED) {
            let _ = std::fs::remove_file(entry.path());
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}
