//! A file system that fails at one of its calls.

use std::cell::{Cell, RefCell};
use std::fs::{File, Permissions};
use std::io::{Error, ErrorKind, Result, Write};
use std::path::{Path, PathBuf};

use crate::io::file_system::{Disk, FileSystem};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fault {
    /// The call fails; those after it do not.
    Error,
    /// The disk is full: half of the bytes are written, and no call after it creates or writes anything.
    Full,
    /// The process is killed: half of the bytes are written, and nothing happens after that.
    Kill,
    /// No fault: half of the bytes are written, and the writer has to come back.
    ShortWrite,
    /// No fault: a signal interrupts the call.
    Interrupted,
}

pub(super) const FAULTS: [Fault; 5] = [Fault::Error, Fault::Full, Fault::Kill, Fault::ShortWrite, Fault::Interrupted];

/// A call, for a look at their order.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Call {
    CreateFile,
    CreateFolder(PathBuf),
    SetPermissions,
    Write,
    SyncFile,
    SyncFolder(PathBuf),
    Rename(PathBuf),
    Remove,
}

pub(super) struct Faulty {
    fault: Fault,
    /// The number of the call that fails.
    at: usize,
    pub calls: RefCell<Vec<Call>>,
    pub failed: Cell<bool>,
}

impl Faulty {
    pub fn new(fault: Fault, at: usize) -> Self {
        Self { fault, at, calls: RefCell::default(), failed: Cell::new(false) }
    }

    /// Counts a call; an error if it fails.
    fn call(&self, call: Call) -> Result<()> {
        let (number, is_write) = (self.calls.borrow().len(), call == Call::Write);
        let grows = matches!(call, Call::CreateFile | Call::CreateFolder(_) | Call::Write);
        self.calls.borrow_mut().push(call);
        let now = number == self.at;
        let fails = match self.fault {
            Fault::Error => now,
            Fault::Full => number >= self.at && grows,
            Fault::Kill => number >= self.at,
            Fault::ShortWrite | Fault::Interrupted => now && is_write,
        };
        if !fails {
            return Ok(());
        }
        self.failed.set(true);
        Err(match self.fault {
            Fault::Error => Error::other("injected"),
            Fault::Full => Error::new(ErrorKind::StorageFull, "injected"),
            Fault::Kill => Error::other("killed"),
            Fault::ShortWrite | Fault::Interrupted => Error::new(ErrorKind::Interrupted, "injected"),
        })
    }
}

impl FileSystem for Faulty {
    fn create_file(&self, path: &Path, private: bool) -> Result<File> {
        self.call(Call::CreateFile)?;
        Disk.create_file(path, private)
    }

    fn create_folder(&self, path: &Path) -> Result<()> {
        self.call(Call::CreateFolder(path.to_path_buf()))?;
        Disk.create_folder(path)
    }

    fn set_permissions(&self, file: &File, permissions: Permissions) -> Result<()> {
        self.call(Call::SetPermissions)?;
        Disk.set_permissions(file, permissions)
    }

    fn write(&self, mut file: &File, bytes: &[u8]) -> Result<usize> {
        match self.call(Call::Write) {
            Ok(()) => Disk.write(file, bytes),
            Err(_) if self.fault == Fault::ShortWrite => Disk.write(file, &bytes[..bytes.len().div_ceil(2)]),
            Err(e) => {
                if [Fault::Full, Fault::Kill].contains(&self.fault) && self.calls.borrow().len() == self.at + 1 {
                    file.write_all(&bytes[..bytes.len() / 2])?;
                }
                Err(e)
            }
        }
    }

    fn sync_file(&self, file: &File) -> Result<()> {
        self.call(Call::SyncFile)?;
        Disk.sync_file(file)
    }

    fn sync_folder(&self, path: &Path) -> Result<()> {
        self.call(Call::SyncFolder(path.to_path_buf()))?;
        Disk.sync_folder(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.call(Call::Rename(to.to_path_buf()))?;
        Disk.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> Result<()> {
        self.call(Call::Remove)?;
        Disk.remove_file(path)
    }

    fn remove_folder(&self, path: &Path) -> Result<()> {
        self.call(Call::Remove)?;
        Disk.remove_folder(path)
    }
}
