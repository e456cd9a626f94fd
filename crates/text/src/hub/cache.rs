//! The cache of huggingface_hub, which other programs and other languages share.
//!
//! `blobs/` holds contents by their ETag, `snapshots/<commit>/` links to them by the names of files, `refs/` the
//! commits of branches, and `.no_exist/<commit>/` marks of files that the repository does not hold. Nothing is removed
//! here, and everything is replaced by a rename, so that a reader sees the old state or the new one.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[cfg(not(unix))]
use candle_attention::io::write_atomic;
use candle_attention::io::{read_limited, write_bytes};
use candle_attention::{Error, Result};

use crate::hub::content::{Proof, prove};
use crate::hub::names::{BlobName, Commit, RepoPath, Revision};

/// How long another process that downloads the same file is waited for. Afterwards both download it, which is safe.
const MAX_WAIT: Duration = Duration::from_secs(600);

/// How often a file that another process downloads is looked for.
const POLL: Duration = Duration::from_millis(100);

/// A commit has 40 bytes; a file of a branch that is longer is none.
const MAX_REF_BYTES: u64 = 1024;

/// The part of the cache that belongs to one repository.
pub(crate) struct Cache {
    repository: PathBuf,
    locks: PathBuf,
}

impl Cache {
    /// `id` is a checked hub id.
    pub fn new(folder: &Path, id: &str) -> Self {
        let name = format!("models--{}", id.replace('/', "--"));
        Self { repository: folder.join(&name), locks: folder.join(".locks").join(name) }
    }

    /// The folder with the files of a commit.
    pub fn snapshot(&self, commit: &Commit) -> PathBuf {
        self.repository.join("snapshots").join(commit.as_str())
    }

    /// The path of a file of a commit, if the cache holds it.
    pub fn file(&self, commit: &Commit, path: &RepoPath) -> Result<Option<PathBuf>> {
        let pointer = path.below(&self.snapshot(commit));
        Ok(is_file(&pointer)?.then_some(pointer))
    }

    /// The path of a content, whether or not the cache holds it.
    pub fn blob(&self, name: &BlobName) -> PathBuf {
        self.repository.join("blobs").join(name.as_str())
    }

    /// Whether the cache holds a content that is not known to be another than its name says. `size` is what the hub
    /// announced; the hash is compared if `thorough`.
    pub fn holds(&self, name: &BlobName, size: Option<u64>, thorough: bool) -> Result<bool> {
        let blob = self.blob(name);
        if !is_file(&blob)? {
            return Ok(false);
        }
        let found = std::fs::metadata(&blob).map_err(|e| Error::io(&blob, e))?.len();
        let fits = size.is_none_or(|size| size == found);
        Ok(fits && !(thorough && matches!(prove(&blob, name)?, Proof::Broken(_))))
    }

    /// Whether a file of a snapshot is known to be another content than the name of its blob says. On systems without
    /// links there is no such name.
    pub fn is_broken(&self, pointer: &Path) -> Result<bool> {
        Ok(match name_of_blob(pointer) {
            Some(name) => matches!(prove(pointer, &name)?, Proof::Broken(_)),
            None => false,
        })
    }

    /// The path of a file of a commit that the cache holds under another name than `name`, if its own name proves it
    /// whole. A commit never changes, so a hub that now calls the file otherwise cannot replace it.
    pub fn proven(&self, commit: &Commit, path: &RepoPath, name: &BlobName) -> Result<Option<PathBuf>> {
        let Some(pointer) = self.file(commit, path)? else { return Ok(None) };
        let other = name_of_blob(&pointer).filter(|held| held != name);
        let whole = other.is_some_and(|held| matches!(prove(&pointer, &held), Ok(Proof::Whole)));
        Ok(whole.then_some(pointer))
    }

    /// Makes the content `name` the file `path` of a commit.
    pub fn link(&self, commit: &Commit, path: &RepoPath, name: &BlobName) -> Result<PathBuf> {
        let (pointer, blob) = (path.below(&self.snapshot(commit)), self.blob(name));
        let leads_there = || Some(std::fs::canonicalize(&pointer).ok()? == std::fs::canonicalize(&blob).ok()?);
        // A link that is right is left alone: a reader may just follow it.
        if leads_there() == Some(true) || is_copy(&pointer, name)? {
            return Ok(pointer);
        }
        create_parent(&pointer)?;
        let up = "../".repeat(path.as_str().split('/').count() + 1);
        let relative = format!("{up}blobs/{}", name.as_str());
        replace_link(&relative, &blob, &pointer)?;
        Ok(pointer)
    }

    /// The commit that a branch or tag had when it was last asked for.
    pub fn commit_of(&self, revision: &Revision) -> Result<Option<Commit>> {
        if let Some(commit) = revision.commit() {
            return Ok(Some(commit));
        }
        let path = self.reference(revision);
        if !is_file(&path)? {
            return Ok(None);
        }
        let text = read_limited(&path, MAX_REF_BYTES)?;
        let commit = std::str::from_utf8(&text).ok().and_then(|text| Commit::parse(text.trim()));
        commit.map(Some).ok_or_else(|| Error::file(&path, format!("not a commit, expected {}", Commit::EXPECTED)))
    }

    /// Remembers the commit of a branch or tag.
    pub fn set_commit(&self, revision: &Revision, commit: &Commit) -> Result<()> {
        if revision.commit().is_some() || matches!(self.commit_of(revision), Ok(Some(known)) if known == *commit) {
            return Ok(());
        }
        write(&self.reference(revision), commit.as_str())
    }

    fn reference(&self, revision: &Revision) -> PathBuf {
        revision.as_str().split('/').fold(self.repository.join("refs"), |path, part| path.join(part))
    }

    /// Whether the hub once said that the repository does not hold the file at this commit.
    pub fn is_absent(&self, commit: &Commit, path: &RepoPath) -> Result<bool> {
        is_file(&self.absence(commit, path))
    }

    /// Remembers that the repository does not hold the file.
    pub fn set_absent(&self, commit: &Commit, path: &RepoPath) -> Result<()> {
        let mark = self.absence(commit, path);
        if is_file(&mark)? { Ok(()) } else { write(&mark, "") }
    }

    fn absence(&self, commit: &Commit, path: &RepoPath) -> PathBuf {
        path.below(&self.repository.join(".no_exist").join(commit.as_str()))
    }

    /// Waits until no other process downloads this file. The lock only saves a second download, so where there are no
    /// locks, or its holder does not come to an end, the file is downloaded without it.
    pub fn lock(&self, path: &RepoPath) -> Option<File> {
        let lock = self.locks.join(format!("{}.lock", path.as_str().replace('/', "--")));
        create_parent(&lock).ok()?;
        let file = File::options().create(true).truncate(false).write(true).open(lock).ok()?;
        let start = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Some(file),
                Err(std::fs::TryLockError::WouldBlock) if start.elapsed() < MAX_WAIT => std::thread::sleep(POLL),
                Err(_) => return None,
            }
        }
    }
}

/// The name of the blob that a file of a snapshot links to.
fn name_of_blob(pointer: &Path) -> Option<BlobName> {
    let target = std::fs::read_link(pointer).ok()?;
    BlobName::of_etag(target.file_name()?.to_str()?)
}

/// Creates the folder of a file.
pub(crate) fn create_parent(path: &Path) -> Result<()> {
    let parent = path.parent().unwrap_or(path);
    std::fs::create_dir_all(parent).map_err(|e| Error::io(parent, e))
}

/// Whether a path leads to a regular file. Not being able to look is an error.
fn is_file(path: &Path) -> Result<bool> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => Ok(true),
        Ok(_) => Err(Error::file(path, "not a regular file")),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
        Err(e) => Err(Error::io(path, e)),
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    create_parent(path)?;
    write_bytes(path, text.as_bytes())
}

/// Makes a link, or puts it in the place of another. A link that a power failure loses is made again by the next
/// download.
#[cfg(unix)]
fn replace_link(relative: &str, _blob: &Path, pointer: &Path) -> Result<()> {
    use std::hash::{BuildHasher, RandomState};
    // The standard library draws these keys at random for each hasher.
    let part = pointer.with_file_name(format!(".{:016x}.part", RandomState::new().hash_one(0)));
    let made = std::os::unix::fs::symlink(relative, &part).and_then(|()| std::fs::rename(&part, pointer));
    made.map_err(|e| {
        // Best effort: it may not exist.
        let _ = std::fs::remove_file(&part);
        Error::io(pointer, e)
    })
}

/// Whether the pointer is not a link but the content itself.
#[cfg(unix)]
fn is_copy(_pointer: &Path, _name: &BlobName) -> Result<bool> {
    Ok(false)
}

#[cfg(not(unix))]
fn is_copy(pointer: &Path, name: &BlobName) -> Result<bool> {
    Ok(is_file(pointer)? && prove(pointer, name)? == Proof::Whole)
}

/// Links need a privilege on Windows, so the content is copied.
#[cfg(not(unix))]
fn replace_link(_relative: &str, blob: &Path, pointer: &Path) -> Result<()> {
    let mut content = File::open(blob).map_err(|e| Error::io(blob, e))?;
    write_atomic(pointer, |file| std::io::copy(&mut content, file).map(drop).map_err(|e| Error::io(pointer, e)))
}
