//! The calls of the file system that writing uses, so that a test can let each of them fail.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{ErrorKind, Result, Write};
use std::path::Path;

/// What a writer asks of the file system. The default methods are the real one.
pub(super) trait FileSystem {
    /// Creates an empty file, on Unix for nobody else if it is `private`. It is an error if anything has this name already,
    /// a link that leads nowhere too.
    fn create_file(&self, path: &Path, private: bool) -> Result<File> {
        let mut options = OpenOptions::new();
        #[cfg(unix)]
        if private {
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        }
        #[cfg(not(unix))]
        let _ = private;
        options.write(true).create_new(true).open(path)
    }

    /// Creates an empty folder. It is an error if anything has this name already.
    fn create_folder(&self, path: &Path) -> Result<()> {
        std::fs::create_dir(path)
    }

    /// Sets the permissions of an open file.
    fn set_permissions(&self, file: &File, permissions: Permissions) -> Result<()> {
        file.set_permissions(permissions)
    }

    /// Writes a part of `bytes` and returns its length.
    fn write(&self, mut file: &File, bytes: &[u8]) -> Result<usize> {
        file.write(bytes)
    }

    /// Waits until the content of a file has reached the disk.
    fn sync_file(&self, file: &File) -> Result<()> {
        file.sync_all()
    }

    /// Waits until the names in a folder have reached the disk. Only Unix can: Windows has no such call, and NTFS keeps a
    /// journal of names.
    fn sync_folder(&self, path: &Path) -> Result<()> {
        if cfg!(not(unix)) {
            return Ok(());
        }
        match File::open(path).and_then(|folder| folder.sync_all()) {
            // Some network file systems cannot sync a folder, and a folder that may not be read cannot be opened.
            Err(e)
                if [ErrorKind::InvalidInput, ErrorKind::Unsupported, ErrorKind::PermissionDenied]
                    .contains(&e.kind()) =>
            {
                Ok(())
            }
            synced => synced,
        }
    }

    /// Gives a file or folder another name. A file of that name is replaced; a folder that holds something is not.
    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        std::fs::rename(from, to)
    }

    /// Removes a file.
    fn remove_file(&self, path: &Path) -> Result<()> {
        std::fs::remove_file(path)
    }

    /// Removes a folder and what it holds. Links are removed, never followed.
    fn remove_folder(&self, path: &Path) -> Result<()> {
        std::fs::remove_dir_all(path)
    }
}

/// The real file system.
pub(super) struct Disk;

impl FileSystem for Disk {}

/// The file system that writers use.
#[cfg(not(test))]
pub(super) fn file_system() -> &'static dyn FileSystem {
    &Disk
}

#[cfg(test)]
pub(super) use in_tests::file_system;
#[cfg(test)]
pub(super) use in_tests::with_file_system;

/// A file system for each thread.
#[cfg(test)]
mod in_tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::{Disk, FileSystem};

    thread_local! {
        static CURRENT: RefCell<Rc<dyn FileSystem>> = RefCell::new(Rc::new(Disk));
    }

    pub(in crate::io) fn file_system() -> Rc<dyn FileSystem> {
        CURRENT.with_borrow(Rc::clone)
    }

    /// Calls `run` with another file system for the writers of this thread.
    pub(in crate::io) fn with_file_system<T>(other: Rc<dyn FileSystem>, run: impl FnOnce() -> T) -> T {
        let before = CURRENT.replace(other);
        let result = run();
        CURRENT.replace(before);
        result
    }
}
