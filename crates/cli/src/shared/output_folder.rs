//! Folders that a command writes, checked before any work: they must not exist.

use std::path::{Path, PathBuf};

use super::output::{folder_of, without_path};
use super::{Result, about};

/// Checks that a folder can be made at `path`: there is nothing, not even a link that leads nowhere, and the folder around
/// it can be written. Folders around it that do not exist are made with it.
pub fn check_new(path: &Path) -> Result<()> {
    if path.symlink_metadata().is_ok() {
        return Err(about(path, &"exists already, and is not replaced").into());
    }
    check_parent(path)
}

/// Checks that the folder around `path` can be written, or the nearest one that exists.
pub fn check_parent(path: &Path) -> Result<()> {
    if path.as_os_str() == "-" {
        return Err("-: standard output cannot hold a folder; for a folder of this name write ./-".into());
    }
    if path.file_name().is_none() {
        return Err(about(path, &"is not the name of a folder to make").into());
    }
    let mut around: PathBuf = folder_of(path).to_path_buf();
    while around.symlink_metadata().is_err() {
        around = folder_of(&around).to_path_buf();
    }
    match tempfile::tempdir_in(&around) {
        Ok(_) => Ok(()),
        Err(e) => Err(about(path, &without_path(&e)).into()),
    }
}

/// Whether a path, which need not exist, is a folder or in it.
pub fn is_inside(path: &Path, folder: &Path) -> bool {
    path_behind_links(path).starts_with(path_behind_links(folder))
}

/// The path behind all links, as far as it exists.
fn path_behind_links(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let existing = absolute.ancestors().find_map(|part| Some((part, std::fs::canonicalize(part).ok()?)));
    match existing {
        Some((part, found)) => absolute.strip_prefix(part).map_or(found.clone(), |rest| found.join(rest)),
        None => absolute,
    }
}
