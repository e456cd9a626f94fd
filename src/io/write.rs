//! Atomic writes of files and folders.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use tempfile::Builder;

use crate::ensure;
use crate::error::{Error, Result};
use crate::io::is_present;

/// Size of the buffer before a file, in bytes.
const BUFFER: usize = 1 << 20;

/// Writes a file: `config.json`, a page with attention maps, or anything else. It replaces an old file atomically; see
/// [`write_atomic`].
///
/// # Errors
/// [`Error::File`] for a folder, a device or a pipe; [`Error::Io`] for a file that cannot be written.
pub fn write_file(target: &Path, bytes: impl AsRef<[u8]>) -> Result<()> {
    write_atomic(target, |file| file.write_all(bytes.as_ref()).map_err(|e| Error::io(target, e)))
}

/// Replaces the content of the file `target`, or creates it. `fill` writes the new content. The file gets it when all
/// of it is on disk, and keeps its old content if `fill` fails.
///
/// A new file has the permissions of any new file, and one that replaces another has those of the other. A link at
/// `target` is replaced, not followed.
///
/// # Errors
/// The errors of `fill`; [`Error::File`] for a folder, a device or a pipe; [`Error::Io`] for a file that cannot be
/// written.
pub fn write_atomic<T>(target: &Path, fill: impl FnOnce(&mut dyn Write) -> Result<T>) -> Result<T> {
    let io = |e| Error::io(target, e);
    let folder = folder_of(target)?;
    let permissions = permissions_of(target)?;
    let temporary = temporary_names().make_in(folder, |path| create(path, permissions.is_some())).map_err(io)?;
    if let Some(permissions) = permissions {
        temporary.as_file().set_permissions(permissions).map_err(io)?;
    }
    let mut writer = BufWriter::with_capacity(BUFFER, temporary.as_file());
    let filled = fill(&mut writer)?;
    writer.flush().map_err(io)?;
    drop(writer);
    // Some file systems write names before contents: a power failure could leave an empty file under the name.
    temporary.as_file().sync_all().map_err(io)?;
    temporary.persist(target).map_err(|e| io(e.error))?;
    sync_folder(folder).map_err(io)?;
    Ok(filled)
}

/// Makes the folder `target`, which must not exist; its parent must. `fill` writes it, file by file with
/// [`write_file`], [`write_atomic`] or [`write_tensors`](crate::io::write_tensors), at the path that it gets. The
/// folder has its name when all of it is on disk, and nothing is left if `fill` fails.
///
/// # Errors
/// The errors of `fill`, with paths inside `target`; [`Error::File`] if something has the name, also a link that leads
/// nowhere; [`Error::Io`] if the folder cannot be written.
pub fn write_new_folder<T>(target: &Path, fill: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    // `new/.` is no name that a folder can be renamed to.
    let target = &target.components().collect::<PathBuf>();
    let io = |e| Error::io(target, e);
    let parent = folder_of(target)?;
    let exists = || Error::file(target, "exists already");
    ensure!(!is_present(target)?, exists());
    let temporary = temporary_names().tempdir_in(parent).map_err(io)?;
    let made = temporary.path();
    let moved = |path: &Path| path.strip_prefix(made).map_or(path.to_path_buf(), |inside| target.join(inside));
    let filled = fill(made).map_err(|error| match error {
        Error::Io { path, source } => Error::io(moved(&path), source),
        Error::File { path, reason } => Error::file(moved(&path), reason),
        other => other,
    })?;
    sync_folders(made).map_err(io)?;
    // Someone may have made an empty folder of this name meanwhile, which Unix replaces. Nothing else is.
    fs::rename(made, target).map_err(|e| match e.kind() {
        ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists | ErrorKind::NotADirectory => exists(),
        _ => io(e),
    })?;
    let _ = temporary.keep();
    sync_folder(parent).map_err(io)?;
    Ok(filled)
}

/// Creates a folder and its parents, if they do not exist.
///
/// # Errors
/// [`Error::Io`] with the folder that cannot be created.
pub fn create_folder(path: &Path) -> Result<()> {
    // A link to a folder is one.
    if path.as_os_str().is_empty() || path.is_dir() {
        return Ok(());
    }
    let parent = folder_of(path)?;
    create_folder(parent)?;
    match fs::create_dir(path) {
        // Another process was faster.
        Err(_) if path.is_dir() => Ok(()),
        created => created.and_then(|()| sync_folder(parent)).map_err(|e| Error::io(path, e)),
    }
}

/// Random names beside a target: no two writers share one, whatever machine or container they run in.
fn temporary_names() -> Builder<'static, 'static> {
    let mut names = Builder::new();
    names.prefix(".candle-attention-").suffix(".part");
    names
}

/// Creates an empty file; an error if anything has this name, also a link. On Unix nobody else can open one that is
/// `private`: it is to get the permissions of the file that it replaces.
fn create(path: &Path, private: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    if private {
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    }
    #[cfg(not(unix))]
    let _ = private;
    options.write(true).create_new(true).open(path)
}

/// The folder of a file or folder to write.
fn folder_of(target: &Path) -> Result<&Path> {
    match (target.file_name(), target.parent()) {
        (Some(_), Some(folder)) if folder.as_os_str().is_empty() => Ok(Path::new(".")),
        (Some(_), Some(folder)) => Ok(folder),
        _ => Err(Error::file(target, "is not the name of a file")),
    }
}

/// The permissions of the file that is replaced: what was private stays private. `None` if there is no file.
fn permissions_of(target: &Path) -> Result<Option<Permissions>> {
    // The target of a link decides whether it may be replaced: `/dev/stdout` is a link.
    match fs::metadata(target) {
        Ok(metadata) if metadata.is_dir() => return Err(Error::file(target, "is a folder, expected a file to write")),
        Ok(metadata) if !metadata.is_file() => {
            return Err(Error::file(target, "is a device or a pipe, expected a file to write"));
        }
        Ok(_) => {}
        // The link leads nowhere, or in a circle.
        Err(e) if e.kind() == ErrorKind::NotFound || fs::symlink_metadata(target).is_ok() => return Ok(None),
        Err(e) => return Err(Error::io(target, e)),
    }
    let metadata = fs::symlink_metadata(target).map_err(|e| Error::io(target, e))?;
    Ok(metadata.is_file().then(|| metadata.permissions()))
}

/// Waits until the names in a folder have reached the disk.
fn sync_folder(path: &Path) -> io::Result<()> {
    if cfg!(not(unix)) {
        return Ok(());
    }
    // Some network file systems cannot sync a folder, and a folder that may not be read cannot be opened.
    let allowed = [ErrorKind::InvalidInput, ErrorKind::Unsupported, ErrorKind::PermissionDenied];
    match File::open(path).and_then(|folder| folder.sync_all()) {
        Err(e) if allowed.contains(&e.kind()) => Ok(()),
        synced => synced,
    }
}

/// [`sync_folder`] for a folder and the folders in it.
fn sync_folders(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_folders(&entry.path())?;
        }
    }
    sync_folder(path)
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// A temporary file is nobody else's from the start, and never one that is there already, not even as a link.
    #[test]
    fn private_files_are_new() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        create(&path("private"), true).unwrap();
        assert_eq!(fs::metadata(path("private")).unwrap().permissions().mode() & 0o777, 0o600);
        symlink("private", path("taken")).unwrap();
        symlink("nowhere", path("free")).unwrap();
        for name in ["taken", "free", "private"] {
            assert!(create(&path(name), true).is_err(), "{name}");
        }
        assert!(!path("nowhere").exists());
    }
}
