//! A file that stays as it was when it was opened, read at any offset.

use std::fs::{File, Metadata};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::ensure;
use crate::error::{Error, Result};
use crate::io::open_regular;

/// Shows that a file was replaced or written to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct State {
    length: u64,
    /// `None` on file systems that keep no time.
    modified: Option<SystemTime>,
    /// Device and number of the file, where the system has them.
    identity: Option<[u64; 2]>,
}

impl State {
    fn from_metadata(metadata: &Metadata) -> Self {
        #[cfg(unix)]
        let identity = {
            use std::os::unix::fs::MetadataExt;
            Some([metadata.dev(), metadata.ino()])
        };
        #[cfg(not(unix))]
        let identity = None;
        Self { length: metadata.len(), modified: metadata.modified().ok(), identity }
    }
}

/// A regular file that is read in parts.
///
/// Reads are positional and copy: other threads read at the same time, and a file that another process truncates or
/// rewrites is an error. A memory map would end the process there, or change numbers under a running layer.
pub struct StoredFile {
    path: PathBuf,
    state: State,
    /// `None` once the file is closed: each read then opens it again.
    file: Option<File>,
}

impl StoredFile {
    /// Opens a regular file.
    pub fn open(path: &Path) -> Result<Self> {
        let (file, _) = open_regular(path)?;
        let state = State::from_metadata(&file.metadata().map_err(|e| Error::io(path, e))?);
        Ok(Self { path: path.to_path_buf(), state, file: Some(file) })
    }

    /// The length of the file in bytes.
    pub fn len(&self) -> u64 {
        self.state.length
    }

    /// Closes the file until the next read.
    pub fn close(&mut self) {
        self.file = None;
    }

    /// Fills `into` with the bytes from `offset` on. `what` names the data in error messages.
    ///
    /// # Errors
    /// If the file is not as it was when it was opened, or cannot be read.
    pub fn read_at(&self, offset: u64, into: &mut [u8], what: &dyn std::fmt::Display) -> Result<()> {
        let failed =
            |reason: &dyn std::fmt::Display| Error::file(&self.path, format!("{what} cannot be read: {reason}"));
        let opened;
        let file = match &self.file {
            Some(file) => file,
            None => {
                opened = open_regular(&self.path)?.0;
                &opened
            }
        };
        let read = read_exact_at(file, into, offset);
        // After the read, so that a change before it and one during it are both seen.
        let state = State::from_metadata(&file.metadata().map_err(|e| failed(&e))?);
        ensure!(state == self.state, failed(&"the file has changed since it was opened"));
        read.map_err(|e| failed(&e))
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, into: &mut [u8], offset: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, into, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut into: &mut [u8], mut offset: u64) -> std::io::Result<()> {
    use std::os::windows::fs::FileExt;
    while !into.is_empty() {
        match file.seek_read(into, offset) {
            Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                into = &mut into[read..];
                offset += read as u64;
            }
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Where the system has no positional reads, one thread at a time moves the position of the file.
#[cfg(not(any(unix, windows)))]
fn read_exact_at(mut file: &File, into: &mut [u8], offset: u64) -> std::io::Result<()> {
    use std::io::{Read, Seek, SeekFrom};
    static POSITION: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _guard = POSITION.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    file.seek(SeekFrom::Start(offset))?;
    file.read_exact(into)
}
