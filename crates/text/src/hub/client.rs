//! Requests to the hub, by hf-hub.

use std::collections::BTreeSet;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hf_hub::progress::{DownloadEvent, ProgressEvent, ProgressHandler};
use hf_hub::{HFClient, HFError, HFRepository, RepoTypeModel, split_id};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::runtime::Runtime;

use crate::hub::options::HubOptions;
use candle_attention::{Error, Result};

/// How often a request is repeated to a hub that is busy or cannot be reached.
const RETRIES: usize = 3;

/// The slowest download that is waited for, in bytes per second. The slowest mobile networks have ten times as much.
const MIN_SPEED: f64 = 1024.0;

/// The answer of hf-hub; `None` is a hub that stayed silent.
type Answer<T> = std::result::Result<T, Option<HFError>>;

/// A connection to the hub, for one model.
pub(crate) struct Client {
    /// `Some` until it is dropped.
    runtime: Option<Runtime>,
    repository: HFRepository<RepoTypeModel>,
    timeout: Duration,
    progress: bool,
}

impl Client {
    /// The client of a model, or why the hub is not asked.
    pub fn new(id: &str, cache: &Path, options: &HubOptions) -> Result<std::result::Result<Self, String>> {
        let timeout = options.checked_timeout()?;
        if options.is_offline() {
            return Ok(Err("offline mode is on".to_string()));
        }
        let mut builder = HFClient::builder().endpoint(options.checked_endpoint()?).cache_dir(cache);
        builder =
            builder.retry_max_attempts(RETRIES).user_agent(concat!("candle-attention/", env!("CARGO_PKG_VERSION")));
        if let Some(token) = options.checked_token()? {
            builder = builder.token(token);
        }
        let client = builder.build().map_err(|e| Fault::new(Some(e), None).into_error(id, cache))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = Some(runtime.map_err(|e| Error::io(cache, e))?);
        let (owner, name) = split_id(id);
        Ok(Ok(Self { runtime, repository: client.model(owner, name), timeout, progress: options.progress }))
    }

    /// The commit of a revision, and the files that it has.
    pub fn listing(&self, revision: &str) -> std::result::Result<(String, BTreeSet<String>), Fault> {
        let watch = Watch::new(ProgressBar::hidden(), self.timeout);
        let info = self.wait(&watch, self.repository.info().revision(revision).send());
        let info = info.map_err(|error| match error {
            Some(HFError::RevisionNotFound { context: Some(context), .. }) => match context.error_code.as_deref() {
                Some("RevisionNotFound") => Fault::Refused(format!("no revision `{revision}`")),
                Some(_) => Fault::Refused(NO_MODEL.to_string()),
                // A proxy or a web server on the way also answers 404.
                None => {
                    Fault::Refused("the answer is 404 without the header x-error-code by which a hub says why".into())
                }
            },
            error => Fault::new(error, None),
        })?;
        // It becomes a part of paths.
        let commit =
            info.sha.filter(|sha| sha.len() == 40 && sha.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f')));
        let commit = commit.ok_or_else(|| Fault::Refused("the hub names no commit of 40 hexadecimal digits".into()))?;
        let files = info.siblings.ok_or_else(|| Fault::Refused("the hub lists no files".into()))?;
        Ok((commit, files.into_iter().map(|file| file.rfilename).collect()))
    }

    /// Brings a file of a commit into the cache, and returns its path and the size that the hub announced. `force`:
    /// also if the cache holds a blob of its name.
    pub fn download(&self, path: &str, commit: &str, force: bool) -> Answer<(PathBuf, Option<u64>)> {
        let bar = if self.progress { ProgressBar::no_length() } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template("{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(path.escape_debug().to_string());
        let watch = Watch::new(bar, self.timeout);
        let work = self.repository.download_file().filename(path).revision(commit).force_download(force);
        let found = self.wait(&watch, work.progress(watch.clone()).send());
        watch.bar.finish_and_clear();
        // hf-hub says 0 for a size that it does not know.
        let size = Some(watch.size.load(Ordering::Relaxed)).filter(|size| *size > 0);
        Ok((found?, size))
    }

    /// Waits for an answer as long as bytes arrive. hf-hub itself would wait for ever.
    fn wait<T>(&self, watch: &Watch, work: impl Future<Output = hf_hub::HFResult<T>>) -> Answer<T> {
        let Some(runtime) = &self.runtime else { return Err(None) };
        runtime.block_on(async {
            let (mut work, mut before) = (pin!(work), 0);
            loop {
                if let Ok(answer) = tokio::time::timeout(self.timeout, &mut work).await {
                    return answer.map_err(Some);
                }
                let received = watch.received.load(Ordering::Relaxed);
                if received < before + watch.least {
                    return Err(None);
                }
                before = received;
            }
        })
    }
}

impl Drop for Client {
    /// Leaves threads that still wait, as one for the lock of another program.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The bytes of a file that have arrived.
struct Watch {
    bar: ProgressBar,
    size: AtomicU64,
    received: AtomicU64,
    /// The bytes that must arrive within one timeout.
    least: u64,
}

impl Watch {
    fn new(bar: ProgressBar, timeout: Duration) -> Arc<Self> {
        let least = ((timeout.as_secs_f64() * MIN_SPEED) as u64).max(1);
        Arc::new(Self { bar, size: AtomicU64::new(0), received: AtomicU64::new(0), least })
    }

    fn has(&self, bytes: u64) {
        self.bar.set_position(bytes);
        self.received.fetch_max(bytes.saturating_add(self.least), Ordering::Relaxed);
    }
}

impl ProgressHandler for Watch {
    fn on_progress(&self, event: &ProgressEvent) {
        match event {
            ProgressEvent::Download(DownloadEvent::Start { total_bytes, .. }) => {
                self.bar.set_length(*total_bytes);
                self.size.store(*total_bytes, Ordering::Relaxed);
                // An answer is progress too.
                self.has(0);
            }
            ProgressEvent::Download(DownloadEvent::Progress { files }) => {
                files.iter().for_each(|file| self.has(file.bytes_completed));
            }
            ProgressEvent::Download(DownloadEvent::AggregateProgress { bytes_completed, .. }) => {
                self.has(*bytes_completed)
            }
            _ => {}
        }
    }
}

/// Why something did not come from the hub.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The hub did not answer, or said that it cannot now. What the cache holds of the revision may serve instead.
    Unreachable(String),
    /// The hub answered, and what was asked for cannot be had.
    Refused(String),
    /// This machine failed: the cache cannot be read or written.
    Local(std::io::Error),
}

const NO_MODEL: &str = "no such model, or it is private and needs a valid HF_TOKEN";

impl Fault {
    /// The reason in one line. `file` is what was asked for, `None` for the model itself.
    pub fn new(error: Option<HFError>, file: Option<&str>) -> Self {
        let at = file.map_or(String::new(), |file| format!("`{file}`: "));
        let forbidden = || {
            let what = file.map_or("the model".to_string(), |file| format!("`{file}`"));
            format!("access to {what} is forbidden: the model may be gated, or HF_TOKEN may lack the right")
        };
        match error {
            None => Self::Unreachable(format!("{at}no answer from the hub: it stays silent or is too slow")),
            Some(HFError::Io(error)) => Self::Local(error),
            Some(HFError::Forbidden { .. }) => Self::Refused(forbidden()),
            Some(HFError::AuthRequired { context }) if context.error_code.as_deref() == Some("GatedRepo") => {
                Self::Refused(forbidden())
            }
            // The hub also answers this for a model that does not exist, so that it does not reveal private ones.
            Some(HFError::AuthRequired { .. } | HFError::RepoNotFound { .. }) => Self::Refused(NO_MODEL.to_string()),
            Some(HFError::EntryNotFound { .. }) => Self::Refused(format!("{at}the hub lists it, and does not have it")),
            Some(HFError::RateLimited { context, .. }) => {
                Self::Unreachable(format!("{at}the answer is {}", context.status))
            }
            Some(HFError::Http { context }) => match context.status.as_u16() {
                408 | 500 | 502 | 503 | 504 => Self::Unreachable(format!("{at}the answer is {}", context.status)),
                _ => Self::Refused(format!("{at}the answer is {}", context.status)),
            },
            Some(HFError::Request { source, .. }) => {
                let cause = root(&source);
                if source.is_builder() || source.is_decode() || source.is_redirect() {
                    Self::Refused(format!("{at}{cause}"))
                } else {
                    Self::Unreachable(format!("{at}no answer from the hub: {cause}"))
                }
            }
            Some(HFError::CacheLockTimeout { path }) => {
                Self::Refused(format!("{at}another program downloads it, or holds the lock {}", path.display()))
            }
            Some(other) => Self::Refused(format!("{at}{other}")),
        }
    }

    /// The error for a caller who asked for the model `id`, whose cache is `folder`.
    pub fn into_error(self, id: &str, folder: &Path) -> Error {
        match self {
            Self::Unreachable(reason) | Self::Refused(reason) => Error::Hub { id: id.to_string(), reason },
            Self::Local(error) => Error::io(folder, error),
        }
    }
}

/// The innermost cause of an error, which says what happened.
fn root(mut error: &dyn std::error::Error) -> String {
    while let Some(cause) = error.source() {
        error = cause;
    }
    error.to_string()
}
