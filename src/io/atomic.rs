//! Files and folders that are there whole or not at all.

use std::path::Path;
use std::time::Duration;

use crate::error::{Error, Result};

/// Nobody writes to one file for so long without a pause: whoever made it was killed.
const ABANDONED: Duration = Duration::from_secs(600);

/// Lets `make` make a file or folder beside `target`, then renames it: nothing half-written ever bears the name, and
/// what bore it before stays until then.
pub(crate) fn write_atomic<T>(target: &Path, make: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    let name = target.file_name().ok_or_else(|| Error::file(target, "not a name to write to"))?.to_string_lossy();
    let part = target.with_file_name(format!(".{name}.{}.part", std::process::id()));
    remove_abandoned(target, &format!(".{name}."));
    // Of a process that had the same number.
    let _ = std::fs::remove_dir_all(&part);
    let made = make(&part).and_then(|made| {
        std::fs::rename(&part, target).map_err(|e| Error::io(target, e))?;
        Ok(made)
    });
    if made.is_err() {
        // It may not even have been made.
        let _ = std::fs::remove_file(&part);
        let _ = std::fs::remove_dir_all(&part);
    }
    made
}

/// Removes the files that killed processes left where they would have become `target`. Best effort.
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
