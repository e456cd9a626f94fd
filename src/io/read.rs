//! Reading files that others wrote: only regular ones, and only up to a limit.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{ErrorKind, Read};
use std::path::Path;

use crate::ensure;
use crate::error::{Error, Result};

/// Opens a file for reading if it is a regular one, and returns its length in bytes. Links are followed.
///
/// A named pipe would block, and a device such as `/dev/zero` never ends.
///
/// # Errors
/// [`Error::File`] for a path that is no regular file; [`Error::Io`] for a file that cannot be opened.
pub fn open_regular(path: &Path) -> Result<(File, u64)> {
    let io = |e| Error::io(path, e);
    // Opening some devices has effects, so the kind is looked at before and, because the path may change, again after
    // it.
    let check_regular =
        |metadata: &Metadata| if metadata.is_file() { Ok(()) } else { Err(Error::file(path, "not a regular file")) };
    check_regular(&std::fs::metadata(path).map_err(io)?)?;
    let mut options = OpenOptions::new();
    // A pipe is opened without waiting for someone at its other end.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    let file = options.read(true).open(path).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    check_regular(&metadata)?;
    Ok((file, metadata.len()))
}

/// Reads a whole regular file of at most `limit` bytes.
///
/// # Errors
/// The errors of [`open_regular`]; [`Error::File`] for a longer file, which is then not read; [`Error::Io`] for one
/// that cannot be read.
pub fn read_limited(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let too_long = |length: u64| Error::file(path, format!("the file has {length} bytes, expected at most {limit}"));
    let (file, length) = open_regular(path)?;
    ensure!(length <= limit, too_long(length));
    let mut bytes = Vec::new();
    // One byte more than allowed: the file may have grown, and the length of some files (/proc) is 0.
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(|e| Error::io(path, e))?;
    match bytes.len() as u64 {
        length if length > limit => Err(too_long(length)),
        _ => Ok(bytes),
    }
}

/// Whether something has this name, also a link that leads nowhere.
///
/// # Errors
/// [`Error::Io`] if the name cannot be looked up (no permission, a loop of links): to take an optional file for absent
/// would change a model in silence.
pub fn is_present(path: &Path) -> Result<bool> {
    match std::fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        Err(e) => Err(Error::io(path, e)),
    }
}
