//! Atomic writes of files: a reader, a crash, a kill or a full disk sees the old content or the new one.
//!
//! The content goes to a temporary file in the folder of the target, is synced, and gets the target's name; then the
//! folder is synced. Without the syncs a power failure could leave an empty file under the name: some file systems write
//! names before contents.

use std::fs::{File, Permissions};
use std::io::{BufWriter, ErrorKind, Write};
use std::path::Path;

use crate::error::{Error, Result};
use crate::io::file_system::file_system;
use crate::io::temporary::{ABANDONED, Temporary, remove_abandoned};

/// Size of the buffer before a file, in bytes.
const BUFFER: usize = 1 << 20;

/// Replaces the content of the file `target`, or creates it. `fill` writes the new content; until all of it is on disk,
/// and if `fill` fails, the old content stays.
///
/// A new file gets the permissions of any new file, and one that replaces another gets those of the other. A link at
/// `target` is replaced, not followed. With several writers at once the last one wins.
///
/// # Errors
/// What `fill` returns; [`Error::Io`] with `target` if it cannot be written; [`Error::File`] if it is a folder, a device
/// or a pipe.
pub fn write_atomic<T>(target: &Path, fill: impl FnOnce(&mut dyn Write) -> Result<T>) -> Result<T> {
    let io = |e| Error::io(target, e);
    let folder = folder_of(target)?;
    let permissions = permissions_of_file(target)?;
    remove_abandoned(folder, ABANDONED);
    // The file is closed before the temporary name is removed.
    // Until it has the permissions of the file that it replaces, nobody else may open it.
    let (temporary, file) = Temporary::file(folder, permissions.is_some()).map_err(io)?;
    if let Some(permissions) = permissions {
        file_system().set_permissions(&file, permissions).map_err(io)?;
    }
    let filled = fill_and_sync(&file, target, fill)?;
    drop(file);
    temporary.rename(target).map_err(io)?;
    file_system().sync_folder(folder).map_err(io)?;
    Ok(filled)
}

/// Writes bytes to a file by [`write_atomic`].
pub fn write_bytes(target: &Path, bytes: &[u8]) -> Result<()> {
    write_atomic(target, |file| file.write_all(bytes).map_err(|e| Error::io(target, e)))
}

/// Writes to a new file and waits until it is on disk. Errors name `target`.
pub(super) fn fill_and_sync<T>(
    file: &File,
    target: &Path,
    fill: impl FnOnce(&mut dyn Write) -> Result<T>,
) -> Result<T> {
    let io = |e| Error::io(target, e);
    let mut writer = BufWriter::with_capacity(BUFFER, NewFile(file));
    let filled = fill(&mut writer)?;
    writer.flush().map_err(io)?;
    file_system().sync_file(file).map_err(io)?;
    Ok(filled)
}

/// A file that is written through the file system of the writers.
struct NewFile<'a>(&'a File);

impl Write for NewFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        file_system().write(self.0, bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The folder of a file to write.
pub(super) fn folder_of(target: &Path) -> Result<&Path> {
    match (target.file_name(), target.parent()) {
        (Some(_), Some(folder)) if folder.as_os_str().is_empty() => Ok(Path::new(".")),
        (Some(_), Some(folder)) => Ok(folder),
        _ => Err(Error::file(target, "is not the name of a file")),
    }
}

/// The permissions of the file that is replaced: what was private stays private. `None` if there is no file.
fn permissions_of_file(target: &Path) -> Result<Option<Permissions>> {
    let io = |e| Error::io(target, e);
    // What is behind a link decides whether it may be replaced: `/dev/stdout` is a link.
    match std::fs::metadata(target) {
        Ok(metadata) if metadata.is_dir() => return Err(Error::file(target, "is a folder, expected a file to write")),
        Ok(metadata) if !metadata.is_file() => {
            return Err(Error::file(target, "is a device or a pipe, expected a file to write"));
        }
        Ok(_) => {}
        // The link leads nowhere, or in a circle.
        Err(e) if e.kind() == ErrorKind::NotFound || std::fs::symlink_metadata(target).is_ok() => return Ok(None),
        Err(e) => return Err(io(e)),
    }
    let metadata = std::fs::symlink_metadata(target).map_err(io)?;
    Ok(metadata.is_file().then(|| metadata.permissions()))
}
