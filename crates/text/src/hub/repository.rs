//! One model of the hub: the commit of a revision, which files it has, and each file in the shared cache.
//!
//! hf-hub writes the cache, and does not look at what it writes: an error page becomes a blob, and a file that another
//! program left cut is taken as it is. So each file is checked here before it is used. The commit and the list of its
//! files are asked for once: a branch that moves meanwhile does not mix two commits, and a file is absent only if the
//! hub's own list lacks it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use serde::de::IgnoredAny;

use crate::hash::{hash_file, hex};
use crate::hub::client::{Client, Fault};
use crate::hub::options::HubOptions;
use crate::model_files::inside;
use candle_attention::io::{open_regular, parse_json, read_limited, write_file};
use candle_attention::{Error, Result};

/// A commit has 40 bytes; longer files are not refs.
const MAX_REF_BYTES: u64 = 1024;

/// The longest header of a safetensors file, in bytes, that the library reads.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// A model at one commit.
pub(crate) struct Repository {
    id: String,
    revision: String,
    commit: String,
    /// The cache's folder of the model.
    folder: PathBuf,
    /// The hub, or why it is not asked.
    client: std::result::Result<Client, String>,
    /// The files of the commit, once the hub was asked.
    listing: Option<BTreeSet<String>>,
    /// Held from the first download on, so that processes that need the same model do not download it twice.
    lock: Option<File>,
    /// Which file has which blob, where the blob's name is no hash.
    opaque: BTreeMap<OsString, String>,
}

impl Repository {
    /// Finds the commit of the revision. `id` is a checked hub id.
    pub fn open(id: &str, options: &HubOptions) -> Result<Self> {
        let revision = options.checked_revision()?;
        let cache = options.cache_folder()?;
        let name = format!("models--{}", id.replace('/', "--"));
        let mut new = Self {
            id: id.to_string(),
            commit: revision.clone(),
            folder: cache.join(&name),
            client: Client::new(id, &cache, options)?,
            listing: None,
            lock: None,
            opaque: BTreeMap::new(),
            revision,
        };
        if is_hex(&new.commit, 40) {
            return Ok(new);
        }
        if let Ok(client) = &new.client {
            match client.listing(&new.revision) {
                Ok((commit, files)) => {
                    (new.commit, new.listing) = (commit, Some(files));
                    return Ok(new);
                }
                // The files of the revision in the cache may serve instead.
                Err(Fault::Unreachable(reason)) => new.client = Err(reason),
                Err(fault) => return Err(fault.into_error(id, &new.folder)),
            }
        }
        new.commit = new.cached_commit()?.ok_or_else(|| new.not_cached(&format!("revision `{}`", new.revision)))?;
        Ok(new)
    }

    /// The folder with the files of the commit.
    pub fn snapshot(&self) -> PathBuf {
        self.folder.join("snapshots").join(&self.commit)
    }

    /// The file `name` of a folder of the model, which is empty for its top; `None` if the model does not have it.
    pub fn fetch(&mut self, inside_model: &str, name: &str) -> Result<Option<PathBuf>> {
        let path = if inside_model.is_empty() { name.to_string() } else { format!("{inside_model}/{name}") };
        // Names of modules and shards come from files of the repository. `:` and `\` lead elsewhere on Windows.
        if inside(Path::new(&path)).is_none_or(|plain| plain != path) || path.contains([':', '\\']) {
            return Err(self.error(format!("`{path}` is not the path of a file inside a repository")));
        }
        let pointer = self.snapshot().join(&path);
        if !pointer.is_file() {
            let mark = self.folder.join(".no_exist").join(&self.commit).join(&path);
            if mark.is_file() {
                return Ok(None);
            }
            if !self.lists(&path)? {
                // Best effort: it spares an error offline, and the cache may be read-only.
                let _ = create_parent(&mark).and_then(|()| write_file(&mark, b""));
                return Ok(None);
            }
            self.lock();
        }
        // Another process may have brought it meanwhile.
        let damage = if pointer.is_file() { damage(&pointer)? } else { Some("missing".to_string()) };
        match (damage, &self.client) {
            (None, _) => self.check_blob(&path, &pointer)?,
            (Some(reason), Err(_)) => return Err(Error::file(pointer, reason)),
            // For a link that leads nowhere hf-hub would ask whether its blob is still the right one.
            (Some(_), Ok(_)) => self.download(&path, &pointer, pointer.symlink_metadata().is_ok())?,
        }
        Ok(Some(pointer))
    }

    /// Remembers the commit of a branch or tag. Called last, so that a download that breaks off leaves the branch at
    /// the commit whose files are all there.
    pub fn keep_commit(&self) -> Result<()> {
        let path = self.folder.join("refs").join(&self.revision);
        if self.revision == self.commit || matches!(self.cached_commit(), Ok(Some(known)) if known == self.commit) {
            return Ok(());
        }
        create_parent(&path)?;
        write_file(&path, &self.commit)
    }

    /// The error for a file that the model must have.
    pub fn absent(&self, file: &str) -> Error {
        self.error(format!("the repository holds no `{file}` at revision `{}`", self.revision))
    }

    fn error(&self, reason: String) -> Error {
        Error::Hub { id: self.id.clone(), reason }
    }

    fn not_cached(&self, what: &str) -> Error {
        let why = self.client.as_ref().err().map_or("", String::as_str);
        self.error(format!("{what} is not in the cache, and {why}"))
    }

    /// The commit that the branch or tag had when it was last asked for.
    fn cached_commit(&self) -> Result<Option<String>> {
        let path = self.folder.join("refs").join(&self.revision);
        if !path.is_file() {
            return Ok(None);
        }
        let text = read_limited(&path, MAX_REF_BYTES)?;
        let commit = std::str::from_utf8(&text).map(str::trim).ok().filter(|commit| is_hex(commit, 40));
        commit.map(|commit| Some(commit.to_string())).ok_or_else(|| {
            // Another text would become a part of a path.
            Error::file(&path, "not a commit, expected 40 hexadecimal digits")
        })
    }

    /// Whether the commit has the file, by the word of the hub.
    fn lists(&mut self, path: &str) -> Result<bool> {
        let Ok(client) = &self.client else { return Err(self.not_cached(&format!("`{path}`"))) };
        if self.listing.is_none() {
            let (commit, files) =
                client.listing(&self.commit).map_err(|fault| fault.into_error(&self.id, &self.folder))?;
            if commit != self.commit {
                return Err(self.error(format!("the hub answers with commit {commit}, expected {}", self.commit)));
            }
            self.listing = Some(files);
        }
        Ok(self.listing.as_ref().is_some_and(|files| files.contains(path)))
    }

    /// Waits until no other process downloads this model. Where there are no locks, both download it, which is safe.
    fn lock(&mut self) {
        if self.lock.is_none() && std::fs::create_dir_all(&self.folder).is_ok() {
            let file = File::create(self.folder.join(".candle-attention.lock"));
            self.lock = file.and_then(|file| file.lock().map(|()| file)).ok();
        }
    }

    /// Downloads a file, and again if it is not whole: hf-hub takes a blob that another program left as it is, unless
    /// `force` says that it is bad.
    fn download(&mut self, path: &str, pointer: &Path, force: bool) -> Result<()> {
        let Ok(client) = &self.client else { return Err(self.not_cached(&format!("`{path}`"))) };
        let (found, size) = client.download(path, &self.commit, force).map_err(|error| {
            // hf-hub takes any 404 for the word of the hub that there is no such file.
            let _ = std::fs::remove_file(self.folder.join(".no_exist").join(&self.commit).join(path));
            Fault::new(error, Some(path)).into_error(&self.id, &self.folder)
        })?;
        if found != pointer {
            return Err(self.error(format!(
                "`{path}`: the hub brought {}, expected commit {}",
                found.display(),
                self.commit
            )));
        }
        self.check_blob(path, pointer)?;
        let Some(reason) = arrived(pointer, size)? else { return Ok(()) };
        if !force {
            return self.download(path, pointer, true);
        }
        // It is not left for other programs to take for the file.
        let blob = std::fs::canonicalize(pointer);
        let _ = std::fs::remove_file(pointer);
        let blobs = std::fs::canonicalize(self.folder.join("blobs"));
        if let (Ok(blob), Ok(blobs)) = (blob, blobs)
            && blob.parent() == Some(&blobs)
        {
            let _ = std::fs::remove_file(blob);
        }
        Err(self.error(format!("`{path}`: {reason}")))
    }

    /// Refuses two files that share a blob whose name is no hash. Some mirrors make an `ETag` of time and length, and
    /// hf-hub then takes one file for the other.
    fn check_blob(&mut self, path: &str, pointer: &Path) -> Result<()> {
        let Some(name) = blob_name(pointer).filter(|name| name.to_str().is_none_or(|name| !is_hash(name))) else {
            return Ok(());
        };
        match self.opaque.insert(name, path.to_string()) {
            Some(other) if other != path => {
                let _ = std::fs::remove_file(pointer);
                Err(self.error(format!(
                    "`{path}` and `{other}` have one ETag, which is not a hash, so one replaces the other"
                )))
            }
            _ => Ok(()),
        }
    }
}

/// The name of the blob that a file of a snapshot links to. On Windows files are copies.
fn blob_name(pointer: &Path) -> Option<OsString> {
    Some(std::fs::read_link(pointer).ok()?.file_name()?.to_os_string())
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// Whether a blob is named by git's SHA-1 or by SHA-256.
fn is_hash(name: &str) -> bool {
    is_hex(name, 40) || is_hex(name, 64)
}

fn create_parent(path: &Path) -> Result<()> {
    let parent = path.parent().unwrap_or(path);
    std::fs::create_dir_all(parent).map_err(|e| Error::io(parent, e))
}

/// The damage of a file that was just downloaded. `size` is what the hub announced.
fn arrived(path: &Path, size: Option<u64>) -> Result<Option<String>> {
    let found = open_regular(path)?.1;
    if let Some(size) = size.filter(|size| *size != found) {
        return Ok(Some(format!("it arrived with {found} bytes of {size}")));
    }
    if let Some(name) = blob_name(path).as_deref().and_then(|name| name.to_str()).filter(|name| is_hex(name, 64))
        && hex(&hash_file(path)?) != name
    {
        return Ok(Some(format!("what arrived is not the file whose SHA-256 is {name}")));
    }
    damage(path)
}

/// The damage of a file of the cache, as far as it shows: JSON that does not parse, or safetensors whose length is
/// not what the header says. Types of numbers that this version does not know are no damage.
fn damage(path: &Path) -> Result<Option<String>> {
    let (file, length) = open_regular(path)?;
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("json") => {
            let json: serde_json::Result<IgnoredAny> = serde_json::from_reader(BufReader::new(file));
            match json {
                Ok(_) => Ok(None),
                // Python's JSON has numbers that others lack.
                Err(e) => {
                    let json: Result<IgnoredAny> = parse_json(path, &read_limited(path, length)?);
                    Ok(json.err().map(|_| format!("what arrived is not JSON: {e}")))
                }
            }
        }
        Some("safetensors") => match safetensors_length(file) {
            Some(expected) if expected == length => Ok(None),
            Some(expected) => Ok(Some(format!("it has {length} bytes, and its header says {expected}"))),
            None => Ok(Some("what arrived is not a safetensors file".to_string())),
        },
        _ => Ok(None),
    }
}

/// The length of a safetensors file by its header.
fn safetensors_length(mut file: impl Read) -> Option<u64> {
    let mut length = [0; 8];
    file.read_exact(&mut length).ok()?;
    let length = u64::from_le_bytes(length);
    let mut header = Vec::new();
    file.take(length.min(MAX_HEADER_BYTES)).read_to_end(&mut header).ok()?;
    let header: BTreeMap<String, serde_json::Value> = serde_json::from_slice(&header).ok()?;
    let ends = header.values().filter_map(|tensor| tensor.get("data_offsets")?.get(1)?.as_u64());
    ends.max().unwrap_or(0).checked_add(length)?.checked_add(8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_of_a_safetensors_file() {
        let file = |header: &str| [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
        let tensors =
            r#"{"__metadata__":{"a":"b"},"x":{"dtype":"?","data_offsets":[4,12]},"y":{"data_offsets":[0,4]}}"#;
        assert_eq!(safetensors_length(&file(tensors)[..]), Some(8 + tensors.len() as u64 + 12));
        assert_eq!(safetensors_length(&file("{}")[..]), Some(10));
        for bad in ["", "[]", "{", "<html>"] {
            assert_eq!(safetensors_length(&file(bad)[..]), None, "{bad}");
        }
        assert_eq!(safetensors_length(&[255; 9][..]), None);
        let huge = r#"{"x":{"data_offsets":[0,18446744073709551615]}}"#;
        assert_eq!(safetensors_length(&file(huge)[..]), None);
    }

    #[test]
    fn only_lower_case_digits_are_a_hash() {
        let commit = "0123456789abcdef0123456789abcdef01234567";
        assert!(is_hash(commit) && is_hash(&"a".repeat(64)));
        for bad in ["", "main", "6b0400a3-9f8", &commit.to_uppercase(), &commit[1..]] {
            assert!(!is_hash(bad), "{bad}");
        }
    }
}
