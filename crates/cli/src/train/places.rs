//! The folders that a run writes, checked before any work, and the lock that keeps a second process from a run.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

use super::super::shared::output::{check_folder, check_parent, is_inside};
use super::super::shared::{Result, about};

/// The name of the lock in the folder of a run.
const LOCK: &str = "lock";
/// The name of the saved run, which runs of earlier versions have without a lock.
const SAVED: &str = "run.safetensors";

/// The folder of the run: as it is given, or beside the output.
pub fn run_folder(output: &Path, given: Option<&Path>) -> Result<PathBuf> {
    if let Some(given) = given {
        return Ok(given.to_path_buf());
    }
    let Some(name) = output.file_name() else {
        return Err(about(output, &"is not the name of a folder; give one, or the folder of the run with --run").into());
    };
    let mut name = name.to_owned();
    name.push(".run");
    Ok(output.with_file_name(name))
}

/// Checks that the folder of the run may and can be written.
pub fn check_run(run: &Path, teacher: Option<&Path>) -> Result<()> {
    let wrong = |reason: String| Err(about(run, &reason).into());
    if let Some(teacher) = teacher.filter(|teacher| is_inside(run, teacher)) {
        return wrong(format!("the run cannot be in {}, the teacher", teacher.display()));
    }
    let mut files = run.read_dir().into_iter().flatten();
    if files.next().is_some() && ![LOCK, SAVED].iter().any(|name| run.join(name).exists()) {
        return wrong("is a folder that no run made, expected a new or an empty one".to_string());
    }
    check_writable(run)
}

/// Checks that the folder of the model can be written, and is apart from the teacher, the run and the picture. Whether
/// this run may write to a folder that exists, `Trainer::check` knows.
pub fn check_output(output: &Path, run: &Path, teacher: Option<&Path>, plot: Option<&Path>) -> Result<()> {
    let wrong = |reason: String| Err(about(output, &reason).into());
    if let Some(teacher) = teacher.filter(|teacher| is_inside(output, teacher)) {
        return wrong(format!("the model cannot be written to {}, the teacher", teacher.display()));
    }
    if is_inside(run, output) {
        return wrong(format!("the folder of the run, {}, cannot be in the one of the model", run.display()));
    }
    if let Some(plot) = plot.filter(|plot| is_inside(plot, output)) {
        return wrong(format!("the picture, {}, cannot be in the folder of the model", plot.display()));
    }
    check_writable(output)
}

/// Checks that a folder can be written to, or made.
fn check_writable(path: &Path) -> Result<()> {
    let Ok(metadata) = std::fs::metadata(path) else {
        if path.is_symlink() {
            return Err(about(path, &"is a link that leads nowhere, expected a folder").into());
        }
        return check_parent(path);
    };
    if !metadata.is_dir() {
        return Err(about(path, &"is a file, expected a folder").into());
    }
    check_folder(path, path)
}

/// The folder of a run, which no other process writes meanwhile.
pub struct RunFolder {
    path: PathBuf,
    /// Locked as long as it is open. `None` where the file system has no locks.
    _lock: Option<File>,
}

impl RunFolder {
    /// Makes the folder if it does not exist, and locks it.
    pub fn lock(path: &Path) -> Result<Self> {
        std::fs::create_dir_all(path).map_err(|e| about(path, &e))?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(path.join(LOCK));
        let lock = lock.map_err(|e| about(path, &e))?;
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) => Err(about(path, &"another process is training this run").into()),
            locked => Ok(Self { path: path.to_path_buf(), _lock: locked.is_ok().then_some(lock) }),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunFolder {
    /// Removes a folder in which nothing was saved.
    fn drop(&mut self) {
        let is_lock = |entry: std::io::Result<std::fs::DirEntry>| entry.is_ok_and(|entry| entry.file_name() == LOCK);
        if std::fs::read_dir(&self.path).is_ok_and(|mut entries| entries.all(is_lock)) {
            let _ = std::fs::remove_file(self.path.join(LOCK));
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}
