//! Downloads of models from the Hugging Face Hub.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hf_hub::progress::{DownloadEvent, ProgressEvent, ProgressHandler};
use hf_hub::repository::RepoTypeModel;
use hf_hub::{HFClient, HFError, HFRepositorySync};
use indicatif::{ProgressBar, ProgressStyle};

use crate::checkpoint::{Checkpoint, read_index};
use crate::encoder::folder::modules;
use crate::encoder::hub::model_id::check_id;
use crate::error::{Error, Result};
use crate::macros::setters;

/// Where and how a model is downloaded. A field that is `None` takes its value from the environment: `HF_ENDPOINT`, `HF_TOKEN`,
/// `HF_HOME`, `HF_HUB_CACHE`, and `HF_HUB_OFFLINE` or `TRANSFORMERS_OFFLINE`.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct HubOptions {
    /// A branch, tag or commit; default `main`.
    pub revision: Option<String>,
    /// An access token.
    pub token: Option<String>,
    /// The hub's address.
    pub endpoint: Option<String>,
    /// The cache folder.
    pub cache_dir: Option<PathBuf>,
    /// Only use the cache, and make no request.
    pub offline: Option<bool>,
    /// Show a progress bar on standard error, if that is a terminal.
    pub progress: bool,
}

impl std::fmt::Debug for HubOptions {
    /// Everything but the token itself.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HubOptions")
            .field("revision", &self.revision)
            .field("token", &self.token.as_ref().map(|_| "…"))
            .field("endpoint", &self.endpoint)
            .field("cache_dir", &self.cache_dir)
            .field("offline", &self.offline)
            .field("progress", &self.progress)
            .finish()
    }
}

impl HubOptions {
    setters! {
        /// Sets the branch, tag or commit.
        with_revision, revision: impl Into<String> = Some(revision.into());
        /// Sets the access token.
        with_token, token: impl Into<String> = Some(token.into());
        /// Sets the hub's address.
        with_endpoint, endpoint: impl Into<String> = Some(endpoint.into());
        /// Sets the cache folder.
        with_cache_dir, cache_dir: impl Into<PathBuf> = Some(cache_dir.into());
        /// Sets whether only the cache is used.
        with_offline, offline: bool = Some(offline);
        /// Sets whether a progress bar is shown.
        with_progress, progress: bool = progress;
    }
}

/// Downloads the files that [`SentenceEncoder`](crate::encoder::SentenceEncoder) needs of the model `id` into the hub's cache,
/// and returns their folder. All files are of one commit.
///
/// Each downloaded file is checked against the size that the hub announced. An incomplete file is removed from the cache,
/// so that the next call downloads it again.
///
/// # Errors
/// [`Error::Hub`]: no such model or file, no access, no network, offline and not in the cache, a truncated file.
pub fn download(id: &str, options: &HubOptions) -> Result<PathBuf> {
    let fetcher = Fetcher::new(id, options)?;
    let mut revision = fetcher.revision.clone();
    let top = match fetcher.optional("modules.json", &revision)? {
        Some(modules) => modules,
        None => fetcher.required("config.json", &revision)?,
    };
    let folder = top.parent().map(Path::to_path_buf).unwrap_or_default();
    // All other files come from the commit of the first one, because a branch may move meanwhile.
    if let Some(commit) = folder.file_name().and_then(|name| name.to_str()) {
        revision = commit.to_string();
    }
    let modules = modules(&folder)?.unwrap_or_default();
    let transformer = modules.first().map(|module| module.path.clone()).unwrap_or_default();
    fetcher.required(&inside(&transformer, "config.json"), &revision)?;
    fetcher.required(&inside(&transformer, "tokenizer.json"), &revision)?;
    for file in ["tokenizer_config.json", "sentence_bert_config.json"] {
        fetcher.optional(&inside(&transformer, file), &revision)?;
    }
    fetcher.optional("config_sentence_transformers.json", &revision)?;
    for module in modules.iter().skip(1) {
        fetcher.optional(&inside(&module.path, "config.json"), &revision)?;
        if module.kind() == "Dense" {
            fetcher.weights(&inside(&module.path, "model.safetensors"), &revision)?;
        }
    }
    let single = inside(&transformer, "model.safetensors");
    if fetcher.optional_weights(&single, &revision)?.is_none() {
        fetcher.sharded(&transformer, &revision)?;
    }
    Ok(folder)
}

struct Fetcher<'a> {
    id: &'a str,
    repository: HFRepositorySync<RepoTypeModel>,
    revision: String,
    offline: bool,
    progress: bool,
}

impl<'a> Fetcher<'a> {
    fn new(id: &'a str, options: &HubOptions) -> Result<Self> {
        check_id(id)?;
        let mut builder = HFClient::builder();
        if let Some(endpoint) = &options.endpoint {
            builder = builder.endpoint(endpoint);
        }
        if let Some(token) = &options.token {
            builder = builder.token(token);
        }
        if let Some(cache_dir) = &options.cache_dir {
            builder = builder.cache_dir(cache_dir);
        }
        let client = builder.build_sync().map_err(|e| hub_error(id, format!("no client: {e}")))?;
        let (owner, name) = hf_hub::split_id(id);
        Ok(Self {
            id,
            repository: client.model(owner, name),
            revision: options.revision.clone().unwrap_or_else(|| "main".to_string()),
            offline: options.offline.unwrap_or_else(offline_by_environment),
            progress: options.progress,
        })
    }

    fn required(&self, file: &str, revision: &str) -> Result<PathBuf> {
        self.optional(file, revision)?.ok_or_else(|| self.absent(&format!("`{file}`"), revision))
    }

    /// Why a required file is missing. The client reports a missing file, revision and repository in the same way.
    fn absent(&self, file: &str, revision: &str) -> Error {
        let no_model = || matches!(self.repository.exists().send(), Ok(false) | Err(HFError::AuthRequired { .. }));
        let no_revision = || matches!(self.repository.revision_exists().revision(revision).send(), Ok(false));
        // Offline, only files that the hub once reported as absent reach this point.
        let reason = if !self.offline && no_model() {
            NO_MODEL.to_string()
        } else if !self.offline && no_revision() {
            format!("no revision `{revision}`")
        } else {
            format!("the repository holds no {file} at revision `{revision}`")
        };
        hub_error(self.id, reason)
    }

    /// The path of a file in the cache, `None` if the repository does not have it.
    fn optional(&self, file: &str, revision: &str) -> Result<Option<PathBuf>> {
        let progress = Arc::new(Progress::new(file, self.progress));
        let result = self
            .repository
            .download_file()
            .filename(file)
            .revision(revision)
            .local_files_only(self.offline)
            .progress(progress.clone())
            .send();
        progress.bar.finish_and_clear();
        match result {
            Ok(path) => {
                self.check_size(file, &path, progress.announced.load(Ordering::Relaxed))?;
                Ok(Some(path))
            }
            Err(HFError::EntryNotFound { .. }) => Ok(None),
            // Not known to be absent: continuing without it could change the embeddings.
            Err(HFError::LocalEntryNotFound { .. }) => {
                Err(hub_error(self.id, format!("`{file}` is not in the cache, and offline mode is on")))
            }
            Err(error) => Err(hub_error(self.id, explain(&error, file, revision))),
        }
    }

    /// Checks the size, because the client checks neither the status nor the length of the response that it stores.
    fn check_size(&self, file: &str, path: &Path, announced: u64) -> Result<()> {
        let found = std::fs::metadata(path).map_err(|e| Error::io(path, e))?.len();
        if announced == 0 || found == announced {
            return Ok(());
        }
        discard(path);
        let reason = format!("`{file}` arrived with {found} bytes of {announced}; it was discarded, try again");
        Err(hub_error(self.id, reason))
    }

    fn weights(&self, file: &str, revision: &str) -> Result<PathBuf> {
        self.optional_weights(file, revision)?.ok_or_else(|| self.absent(&format!("`{file}`"), revision))
    }

    fn optional_weights(&self, file: &str, revision: &str) -> Result<Option<PathBuf>> {
        let Some(path) = self.optional(file, revision)? else {
            return Ok(None);
        };
        match Checkpoint::open(&path) {
            Ok(_) => Ok(Some(path)),
            // A file of the right size that is no checkpoint never was one; offline it could not be downloaded again.
            Err(error @ Error::File { .. }) if !self.offline => {
                discard(&path);
                Err(hub_error(self.id, format!("`{file}` was discarded: {error}")))
            }
            Err(error) => Err(error),
        }
    }

    fn sharded(&self, transformer: &str, revision: &str) -> Result<()> {
        let Some(index) = self.optional(&inside(transformer, "model.safetensors.index.json"), revision)? else {
            return Err(self.absent("`model.safetensors` or `model.safetensors.index.json`", revision));
        };
        for shard in read_index(&index)?.into_values().collect::<BTreeSet<_>>() {
            self.weights(&inside(transformer, &shard), revision)?;
        }
        Ok(())
    }
}

/// A file's path in the repository.
fn inside(folder: &str, file: &str) -> String {
    if folder.is_empty() { file.to_string() } else { format!("{folder}/{file}") }
}

/// Removes a file of the cache and what it links to.
fn discard(path: &Path) {
    // Best effort: the error that follows matters more than a failed removal.
    if let Ok(blob) = std::fs::canonicalize(path) {
        let _ = std::fs::remove_file(blob);
    }
    let _ = std::fs::remove_file(path);
}

fn offline_by_environment() -> bool {
    let on = |name: &str| {
        std::env::var(name).is_ok_and(|value| ["1", "ON", "YES", "TRUE"].contains(&value.to_uppercase().as_str()))
    };
    on("HF_HUB_OFFLINE") || on("TRANSFORMERS_OFFLINE")
}

fn hub_error(id: &str, reason: impl Into<String>) -> Error {
    Error::Hub { id: id.to_string(), reason: reason.into() }
}

const NO_MODEL: &str = "no such model, or it is private and needs a valid HF_TOKEN";

fn explain(error: &HFError, file: &str, revision: &str) -> String {
    match error {
        // The hub also answers this for a model that does not exist, so that it does not reveal private ones.
        HFError::RepoNotFound { .. } | HFError::AuthRequired { .. } => NO_MODEL.to_string(),
        HFError::RevisionNotFound { .. } => format!("no revision `{revision}`"),
        HFError::Forbidden { .. } => {
            format!("access to `{file}` is forbidden: the model may be gated, or HF_TOKEN may lack the right")
        }
        HFError::Request { source, .. } => format!("`{file}`: no answer from the hub: {}", root_cause(source)),
        other => format!("`{file}`: {other}"),
    }
}

/// The innermost error; those around it only report that a request failed.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// Shows the progress of a download and records the announced size.
struct Progress {
    announced: AtomicU64,
    bar: ProgressBar,
}

impl Progress {
    fn new(file: &str, show: bool) -> Self {
        let bar = if show { ProgressBar::no_length() } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template("{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(file.to_string());
        Self { announced: AtomicU64::new(0), bar }
    }
}

impl ProgressHandler for Progress {
    fn on_progress(&self, event: &ProgressEvent) {
        let ProgressEvent::Download(event) = event else { return };
        match event {
            DownloadEvent::Start { total_bytes, .. } => {
                self.announced.store(*total_bytes, Ordering::Relaxed);
                self.bar.set_length(*total_bytes);
            }
            DownloadEvent::Progress { files } => {
                files.iter().for_each(|file| self.bar.set_position(file.bytes_completed));
            }
            DownloadEvent::AggregateProgress { bytes_completed, .. } => self.bar.set_position(*bytes_completed),
            _ => {}
        }
    }
}
