//! One file of a repository: from the cache, or from the hub into the cache.

use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use candle_attention::io::write_atomic;
use candle_attention::{Error, Result};

use crate::hub::cache::{Cache, create_parent};
use crate::hub::client::{Client, Facts, Reply};
use crate::hub::content::Transfer;
use crate::hub::fault::Fault;
use crate::hub::names::{Commit, RepoPath, Revision};
use crate::hub::progress;

/// What a file is, and so how long it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// JSON.
    Small,
    /// Safetensors.
    Weights,
}

impl Kind {
    /// The longest file, in bytes, so that a hub cannot fill the disk. The longest published tokenizers have 60 MB; the
    /// hub takes no file over 500 GB.
    fn at_most(self) -> u64 {
        match self {
            Self::Small => 1 << 28,
            Self::Weights => 1 << 39,
        }
    }
}

/// Where a file was found.
#[derive(Debug)]
pub(crate) struct Found {
    /// Its path in the cache, `None` if the repository does not hold it.
    pub path: Option<PathBuf>,
    /// The commit of the revision, if the hub named it.
    pub commit: Option<Commit>,
}

/// Brings files of one repository.
pub(crate) struct Fetcher<'a> {
    pub id: &'a str,
    pub cache: Cache,
    /// `None` offline.
    pub client: Option<Client>,
    pub timeout: Duration,
    pub progress: bool,
}

impl Fetcher<'_> {
    /// The file of a revision. One of a commit that the cache holds is not asked for again.
    pub fn fetch(&self, path: &RepoPath, revision: &Revision, kind: Kind) -> Result<Found> {
        let Some(client) = &self.client else {
            return self.cached(path, revision)?.ok_or_else(|| self.offline(path));
        };
        let commit = revision.commit();
        let held = || match &commit {
            Some(commit) => self.cache.file(commit, path),
            None => Ok(None),
        };
        let mut thorough = false;
        if let Some(held) = held()? {
            // Weights are too long to be compared at every start; a broken one is noticed when it is opened.
            thorough = kind == Kind::Small && self.cache.is_broken(&held)?;
            if !thorough {
                return Ok(Found { path: Some(held), commit });
            }
        }
        let _lock = if kind == Kind::Weights { self.cache.lock(path) } else { None };
        // Another process may have brought it meanwhile.
        if let Some(held) = held()?.filter(|_| !thorough) {
            return Ok(Found { path: Some(held), commit });
        }
        self.ask(client, path, revision, kind, thorough).or_else(|fault| {
            let cached = matches!(fault, Fault::Unreachable(_)).then(|| self.cached(path, revision));
            match cached {
                Some(Ok(Some(found))) => Ok(found),
                _ => Err(fault.into_error(self.id, path)),
            }
        })
    }

    /// Downloads a file of a commit again if the one that the cache holds, `held`, is broken.
    pub fn mend(&self, path: &RepoPath, revision: &Revision, held: PathBuf) -> Result<PathBuf> {
        let Some(client) = &self.client else { return Ok(held) };
        let found =
            self.ask(client, path, revision, Kind::Weights, true).map_err(|fault| fault.into_error(self.id, path))?;
        Ok(found.path.unwrap_or(held))
    }

    /// What the cache alone knows of a file, `None` if nothing.
    fn cached(&self, path: &RepoPath, revision: &Revision) -> Result<Option<Found>> {
        let Some(commit) = self.cache.commit_of(revision)? else { return Ok(None) };
        Ok(match self.cache.file(&commit, path)? {
            Some(path) => Some(Found { path: Some(path), commit: Some(commit) }),
            None if self.cache.is_absent(&commit, path)? => Some(Found { path: None, commit: Some(commit) }),
            // Not known to be absent: continuing without it could change the embeddings.
            None => None,
        })
    }

    fn offline(&self, path: &RepoPath) -> Error {
        let reason = format!("`{}` is not in the cache, and offline mode is on", path.as_str());
        Error::Hub { id: self.id.to_string(), reason }
    }

    /// Asks the hub for a file, and brings its content unless the cache holds it. Its hash is compared if `thorough`.
    fn ask(
        &self,
        client: &Client,
        path: &RepoPath,
        revision: &Revision,
        kind: Kind,
        thorough: bool,
    ) -> std::result::Result<Found, Fault> {
        match client.get(self.id, revision, path)? {
            Reply::Absent(commit) => {
                let commit = agreed(revision, commit)?;
                if let Some(commit) = &commit {
                    // Best effort: it spares an error offline, and the cache may be read-only.
                    let _ = self.cache.set_absent(commit, path);
                }
                Ok(Found { path: None, commit })
            }
            Reply::File(facts, body) => {
                agreed(revision, Some(facts.commit.clone()))?;
                if let Some(held) = self.cache.proven(&facts.commit, path, &facts.name)? {
                    return Ok(Found { path: Some(held), commit: Some(facts.commit) });
                }
                // The hash of a small file is compared always: it takes no time.
                if !self.cache.holds(&facts.name, facts.size, thorough || kind == Kind::Small)? {
                    self.store(path, &facts, body.into_reader(), kind)?;
                }
                let pointer = self.cache.link(&facts.commit, path, &facts.name)?;
                Ok(Found { path: Some(pointer), commit: Some(facts.commit) })
            }
        }
    }

    /// Receives a content, and gives it its name in the cache when it is proven whole.
    fn store(&self, path: &RepoPath, facts: &Facts, body: impl Read, kind: Kind) -> Result<()> {
        let blob = self.cache.blob(&facts.name);
        create_parent(&blob)?;
        let bar = progress::bar(path, facts.size, self.progress);
        let transfer = Transfer { facts, at_most: kind.at_most(), timeout: self.timeout };
        let stored = write_atomic(&blob, |file| {
            let received = transfer.receive(body, |piece| {
                bar.inc(piece.len() as u64);
                file.write_all(piece).map_err(|e| Error::io(&blob, e))
            });
            received.map_err(|fault| fault.into_error(self.id, path))
        });
        bar.finish_and_clear();
        stored
    }
}

/// The commit that the hub named; an error if another one was asked for.
fn agreed(revision: &Revision, commit: Option<Commit>) -> std::result::Result<Option<Commit>, Fault> {
    match (revision.commit(), commit) {
        (Some(asked), Some(named)) if asked != named => {
            Err(Fault::refused(format!("the hub answers with commit {}, expected {}", named.as_str(), asked.as_str())))
        }
        (asked, named) => Ok(named.or(asked)),
    }
}
