//! Reading files that others wrote: only regular ones, and only up to a limit.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::path::Path;

use crate::error::{Error, Result};

/// Opens a file for reading if it is a regular one, and returns its length in bytes.
///
/// A named pipe would block, and a device such as `/dev/zero` never ends. Links are followed.
pub fn open_regular(path: &Path) -> Result<(File, u64)> {
    // Opening some devices has effects, so the kind is looked at before and, because the path may change, again after it.
    let regular = |metadata: &std::fs::Metadata| match metadata.is_file() {
        true => Ok(()),
        false => Err(Error::file(path, "not a regular file")),
    };
    regular(&std::fs::metadata(path).map_err(|e| Error::io(path, e))?)?;
    let file = open_without_waiting(OpenOptions::new().read(true), path, true).map_err(|e| Error::io(path, e))?;
    let metadata = file.metadata().map_err(|e| Error::io(path, e))?;
    regular(&metadata)?;
    Ok((file, metadata.len()))
}

/// Opens a file, or a pipe without waiting for someone at its other end. A link at `path` is followed or, on Unix, an error.
pub(super) fn open_without_waiting(options: &mut OpenOptions, path: &Path, follow_link: bool) -> std::io::Result<File> {
    #[cfg(unix)]
    {
        let no_follow = if follow_link { 0 } else { libc::O_NOFOLLOW };
        std::os::unix::fs::OpenOptionsExt::custom_flags(options, libc::O_NONBLOCK | no_follow);
    }
    #[cfg(not(unix))]
    let _ = follow_link;
    options.open(path)
}

/// Reads a whole regular file of at most `limit` bytes.
///
/// # Errors
/// If the path is no regular file, the file is longer (it is then not read), or it cannot be read.
pub fn read_limited(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let too_long = |length: u64| Error::file(path, format!("the file has {length} bytes, expected at most {limit}"));
    let (file, length) = open_regular(path)?;
    if length > limit {
        return Err(too_long(length));
    }
    let mut bytes = Vec::new();
    // One byte more than allowed: the file may have grown, and the length of some files (/proc) is 0.
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(|e| Error::io(path, e))?;
    match bytes.len() as u64 {
        length if length > limit => Err(too_long(length)),
        _ => Ok(bytes),
    }
}

/// Whether something has this name, also a link that leads nowhere. An optional file that cannot be looked for (no
/// permission, a loop of links) is an error: taking it for absent would change a model in silence.
pub fn is_present(path: &Path) -> Result<bool> {
    match std::fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        Err(e) => Err(Error::io(path, e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_counts_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, b"12345").unwrap();
        assert_eq!(read_limited(&path, 5).unwrap(), b"12345");
        let error = read_limited(&path, 4).unwrap_err().to_string();
        assert!(error.ends_with("the file has 5 bytes, expected at most 4"), "{error}");
    }

    #[test]
    fn holes_are_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        File::create(&path).unwrap().set_len(1 << 36).unwrap();
        let error = read_limited(&path, 1 << 24).unwrap_err().to_string();
        assert!(error.contains("68719476736 bytes") && error.contains("16777216"), "{error}");
    }

    #[test]
    fn only_regular_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let error = read_limited(folder.path(), 10).unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn a_device_is_refused() {
        let error = read_limited(Path::new("/dev/zero"), 10).unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn a_link_that_leads_nowhere_is_present() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("link");
        assert!(!is_present(&path).unwrap());
        std::os::unix::fs::symlink("nowhere", &path).unwrap();
        assert!(is_present(&path).unwrap());
    }
}
