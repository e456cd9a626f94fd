//! Where and how a model is downloaded.

use std::path::PathBuf;
use std::time::Duration;

use candle_attention::setters;

/// Where and how a model is downloaded. A field that is `None` takes its value from the environment: `HF_ENDPOINT`,
/// `HF_TOKEN`, `HF_HOME`, `HF_HUB_CACHE`, and `HF_HUB_OFFLINE` or `TRANSFORMERS_OFFLINE`. Proxies are those of
/// `HTTPS_PROXY` and `NO_PROXY`.
///
/// # Trust
/// The hub's operator is trusted for the content of the files, which hold numbers and settings and no code. It is not
/// trusted with anything else: see [`download`](crate::download).
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct HubOptions {
    /// A branch, tag or commit; default `main`. Letters, digits, `.`, `_`, `-` and `/`. Only a commit, 40 hexadecimal
    /// digits, names the same files for ever.
    pub revision: Option<String>,
    /// An access token. It is sent to the endpoint only, not to other hosts to which that redirects.
    pub token: Option<String>,
    /// The hub's address: `https://…`, or `http://…` on this machine.
    pub endpoint: Option<String>,
    /// The cache folder.
    pub cache_dir: Option<PathBuf>,
    /// Only use the cache, and make no request.
    pub offline: Option<bool>,
    /// Show a progress bar on standard error, if that is a terminal.
    pub progress: bool,
    /// Allow an endpoint `http://…` on another machine. Anybody on the way can then read the token and change the
    /// files. `None`: only if the environment variable `CANDLE_ATTENTION_PLAIN_HTTP` is 1.
    pub plain_http: Option<bool>,
    /// How long the hub may stay silent; default 60 seconds.
    pub timeout: Option<Duration>,
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
            .field("plain_http", &self.plain_http)
            .field("timeout", &self.timeout)
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
        /// Sets whether the endpoint may be an `http` address of another machine.
        with_plain_http, plain_http: bool = Some(plain_http);
        /// Sets how long the hub may stay silent.
        with_timeout, timeout: Duration = Some(timeout);
    }
}
