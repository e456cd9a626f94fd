//! Temporary files and folders: how they are named, held while they are written, and removed if their writer was killed.
//!
//! A name is random and the file must not exist, so no two writers share one, whatever machine or container they run in,
//! and a link that someone has put there is not followed. A process id in the name would not do: two containers that share
//! a folder can both be process 1. A writer holds a lock on its temporary file, which the system releases when the
//! process ends, however it ends.

use std::ffi::OsStr;
use std::fs::{File, Metadata, OpenOptions};
use std::io::Result;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::io::file_system::file_system;
use crate::io::read::open_without_waiting;

const PREFIX: &str = ".candle-attention-";
const SUFFIX: &str = ".part";
/// Random letters and digits of a name.
const RANDOM: usize = 16;

/// The file inside a temporary folder that is locked while the folder is written.
const LOCK: &str = "lock";

/// What is not locked and has not been written to for this long belongs to a process that was killed: an hour. A living
/// writer is without its lock only between two calls, or on a network share that does not pass locks on.
pub(super) const ABANDONED: Duration = Duration::from_secs(3600);

/// The path of a temporary file or folder, removed on drop unless it was renamed.
pub(super) struct Temporary {
    path: PathBuf,
    is_folder: bool,
    renamed: bool,
}

impl Temporary {
    /// A new file in `folder`, which is locked as long as it is open. On Unix nobody else can read one that is `private`.
    pub fn file(folder: &Path, private: bool) -> Result<(Self, File)> {
        let (path, file) = create(folder, |path| file_system().create_file(path, private))?;
        lock(&file);
        Ok((Self { path, is_folder: false, renamed: false }, file))
    }

    /// A new folder in `folder`, and the file that locks it as long as it is open.
    pub fn folder(folder: &Path) -> Result<(Self, File)> {
        let (path, ()) = create(folder, |path| file_system().create_folder(path))?;
        let temporary = Self { path, is_folder: true, renamed: false };
        let file = file_system().create_file(&temporary.path.join(LOCK), false)?;
        lock(&file);
        Ok((temporary, file))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the file its name. It has to be closed: Windows lets nobody else read a locked file.
    pub fn rename(mut self, target: &Path) -> Result<()> {
        file_system().rename(&self.path, target)?;
        self.renamed = true;
        Ok(())
    }
}

impl Drop for Temporary {
    /// Best effort: what stays is removed by a later writer.
    fn drop(&mut self) {
        let _ = match (self.renamed, self.is_folder) {
            (true, _) => Ok(()),
            (_, true) => file_system().remove_folder(&self.path),
            (_, false) => file_system().remove_file(&self.path),
        };
    }
}

fn create<T>(folder: &Path, mut create: impl FnMut(&Path) -> Result<T>) -> Result<(PathBuf, T)> {
    let mut names = tempfile::Builder::new();
    names.prefix(PREFIX).suffix(SUFFIX).rand_bytes(RANDOM).disable_cleanup(true);
    let (made, path) = names.make_in(folder, |path| create(path))?.into_parts();
    Ok((path.to_path_buf(), made))
}

/// Locks the file if the file system has locks. Where it has none, nobody can tell that the file is abandoned: it is
/// never removed.
fn lock(file: &File) {
    let _ = file.try_lock();
}

/// Removes temporary files and folders in `folder` whose writers were killed at least `age` ago. Best effort.
pub(super) fn remove_abandoned(folder: &Path, age: Duration) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if !is_temporary(&name) {
            continue;
        }
        // Of the link, not of what it points to.
        let Ok(metadata) = entry.metadata() else { continue };
        if metadata.is_file() && is_abandoned(&path, &metadata, age) {
            let _ = file_system().remove_file(&path);
        } else if metadata.is_dir() {
            let lock = path.join(LOCK);
            let abandoned = match std::fs::symlink_metadata(&lock) {
                Ok(metadata) => is_abandoned(&lock, &metadata, age),
                // Killed before it made its lock, or while it removed the folder.
                Err(e) => e.kind() == std::io::ErrorKind::NotFound && is_older(&metadata, age),
            };
            if abandoned {
                let _ = file_system().remove_folder(&path);
            }
        }
    }
}

/// Whether a file or folder of this name is temporary.
pub fn is_temporary(name: &OsStr) -> bool {
    let random = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX));
    random.is_some_and(|random| random.len() == RANDOM && random.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

/// Whether nobody has written to the file for `age`, and nobody holds its lock.
fn is_abandoned(path: &Path, metadata: &Metadata, age: Duration) -> bool {
    // To be locked on a network share, a file has to be open for writing.
    let open = || open_without_waiting(OpenOptions::new().read(true).write(true), path, false);
    is_older(metadata, age) && open().is_ok_and(|file| file.try_lock().is_ok())
}

fn is_older(metadata: &Metadata, age: Duration) -> bool {
    metadata.modified().is_ok_and(|modified| modified.elapsed().is_ok_and(|elapsed| elapsed >= age))
}
