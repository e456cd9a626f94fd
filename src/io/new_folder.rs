//! Folders that appear under their name complete or not at all.
//!
//! A folder that exists is never replaced: no call of the standard library exchanges two folders, and between removing the
//! old one and renaming the new one there would be neither.

use std::cell::RefCell;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::io::atomic::{fill_and_sync, folder_of};
use crate::io::file_system::file_system;
use crate::io::read::{is_present, open_regular};
use crate::io::temporary::{ABANDONED, Temporary, remove_abandoned};

/// The name of the new folder inside its temporary one.
const NEW: &str = "new";

/// A folder that is being made.
pub struct NewFolder<'a> {
    /// Where it is made.
    path: PathBuf,
    /// Where it will be, for errors.
    target: &'a Path,
    /// It and the folders in it, to be synced.
    folders: RefCell<Vec<PathBuf>>,
}

/// Makes the folder `target`, which must not exist; its parent must. It gets its name when `fill` has returned and all
/// of it is on disk.
///
/// # Errors
/// What `fill` returns; [`Error::File`] if something has the name; [`Error::Io`] with `target` if it cannot be written.
pub fn write_new_folder<T>(target: &Path, fill: impl FnOnce(&NewFolder) -> Result<T>) -> Result<T> {
    let io = |e| Error::io(target, e);
    let parent = folder_of(target)?;
    check_absent(target)?;
    remove_abandoned(parent, ABANDONED);
    // The lock is closed before the folder is removed.
    let (temporary, _lock) = Temporary::folder(parent).map_err(io)?;
    let new = NewFolder { path: temporary.path().join(NEW), target, folders: RefCell::default() };
    new.create_folder("")?;
    let filled = fill(&new)?;
    for folder in new.folders.borrow().iter() {
        file_system().sync_folder(folder).map_err(io)?;
    }
    // Someone may have made an empty folder of this name meanwhile, which Unix replaces. Nothing else is.
    file_system().rename(&new.path, target).map_err(io)?;
    file_system().sync_folder(parent).map_err(io)?;
    Ok(filled)
}

/// Checks that nothing has the name of a new folder, not even a link that leads nowhere.
pub fn check_absent(target: &Path) -> Result<()> {
    if is_present(target)? { Err(Error::file(target, "exists already")) } else { Ok(()) }
}

impl NewFolder<'_> {
    /// Creates a folder in it; it may be there already. Its parent must be.
    pub fn create_folder(&self, name: impl AsRef<Path>) -> Result<()> {
        let path = self.path.join(name.as_ref());
        if !self.folders.borrow().contains(&path) {
            file_system().create_folder(&path).map_err(|e| Error::io(self.target.join(name), e))?;
            self.folders.borrow_mut().push(path);
        }
        Ok(())
    }

    /// Writes a new file in it.
    pub fn write<T>(&self, name: impl AsRef<Path>, fill: impl FnOnce(&mut dyn Write) -> Result<T>) -> Result<T> {
        let target = self.target.join(name.as_ref());
        let file = file_system().create_file(&self.path.join(name), false).map_err(|e| Error::io(&target, e))?;
        fill_and_sync(&file, &target, fill)
    }

    /// Writes bytes to a new file in it.
    pub fn write_bytes(&self, name: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
        let target = self.target.join(name.as_ref());
        self.write(name, |file| file.write_all(bytes).map_err(|e| Error::io(target, e)))
    }

    /// Copies a regular file to a new file in it, with the permissions of any new file.
    pub fn copy(&self, from: &Path, name: impl AsRef<Path>) -> Result<()> {
        let target = self.target.join(name.as_ref());
        let (mut source, _): (File, u64) = open_regular(from)?;
        self.write(name, |file| std::io::copy(&mut source, file).map(drop).map_err(|e| Error::io(target, e)))
    }
}

/// Creates a folder and its parents, if they do not exist.
pub fn create_folder(path: &Path) -> Result<()> {
    // A link to a folder is one.
    if path.as_os_str().is_empty() || path.is_dir() {
        return Ok(());
    }
    let parent = folder_of(path)?;
    create_folder(parent)?;
    match file_system().create_folder(path) {
        // Another process was faster.
        Err(_) if path.is_dir() => Ok(()),
        created => created.and_then(|()| file_system().sync_folder(parent)).map_err(|e| Error::io(path, e)),
    }
}
