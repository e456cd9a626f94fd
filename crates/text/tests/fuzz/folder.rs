//! The folder of an input.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

/// A temporary folder, in memory if the system has such a file system. A thread has one, which all its inputs share:
/// making and removing one for each would take longer than the input.
pub struct Folder {
    path: PathBuf,
}

thread_local! {
    static SHARED: tempfile::TempDir = {
        let memory = Path::new("/dev/shm");
        // `fuzz/run` chooses a folder that it removes: a fuzzer ends without destructors.
        let chosen = std::env::var_os("TMPDIR").is_some();
        let made = if memory.is_dir() && !chosen { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        made.expect("a temporary folder")
    };
    /// The files of the input before.
    static WRITTEN: RefCell<Vec<PathBuf>> = const { RefCell::new(Vec::new()) };
}

impl Folder {
    /// The folder, without the files of the input before.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        WRITTEN.with_borrow_mut(|files| files.drain(..).for_each(|file| drop(std::fs::remove_file(file))));
        Self { path: SHARED.with(|folder| folder.path().to_path_buf()) }
    }

    /// The path of a file, which the next input removes.
    pub fn path(&self, file: &str) -> PathBuf {
        let path = self.path.join(file);
        if !file.is_empty() {
            WRITTEN.with_borrow_mut(|files| files.push(path.clone()));
        }
        path
    }

    pub fn write(&self, file: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(file);
        if let Some((inner, _)) = file.rsplit_once('/') {
            std::fs::create_dir_all(self.path.join(inner)).expect("a folder inside");
        }
        std::fs::write(&path, bytes).expect("a file written");
        path
    }
}
