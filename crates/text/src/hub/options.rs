//! Where and how a model is downloaded: by the caller, else by the environment variables of huggingface_hub.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

use candle_attention::{Error, Result, setters};

/// The longest revision, in bytes. Git's own limit is that of a path.
const MAX_REVISION: usize = 255;

/// How long the hub may stay silent.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Where and how a model is downloaded. A field that is `None` takes its value from the environment: `HF_ENDPOINT`,
/// `HF_TOKEN`, `HF_HOME`, `HF_HUB_CACHE`, and `HF_HUB_OFFLINE` or `TRANSFORMERS_OFFLINE`. Proxies are those of
/// `HTTPS_PROXY` and `NO_PROXY`.
///
/// # Trust
/// The hub's operator is trusted with more than the content of the files: see [`download`](crate::download).
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

/// The settings of the caller and the environment, checked.
impl HubOptions {
    /// The revision. A branch becomes a path in the cache.
    pub(crate) fn checked_revision(&self) -> Result<String> {
        let text = self.revision.as_deref().unwrap_or("main");
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
        let part = |part: &str| {
            let edges = !part.starts_with(['.', '-']) && !part.ends_with('.') && !part.ends_with(".lock");
            !part.is_empty() && edges && !part.contains("..")
        };
        if text.len() <= MAX_REVISION && text.chars().all(plain) && text.split('/').all(part) {
            return Ok(text.to_string());
        }
        let expected = format!(
            "a branch, tag or commit of at most {MAX_REVISION} letters, digits, `.`, `_`, `-` and `/`, without `..` \
             and empty parts"
        );
        Err(Error::value("the revision", text, expected))
    }

    /// The cache folder. hf-hub's own default is in `/tmp` where HOME is not set, as on Windows.
    pub(crate) fn cache_folder(&self) -> Result<PathBuf> {
        let named = || variable("HF_HUB_CACHE").or_else(|| variable("HUGGINGFACE_HUB_CACHE")).map(PathBuf::from);
        let folder = self.cache_dir.clone().or_else(named).or_else(|| Some(home()?.join("hub")));
        folder.ok_or_else(|| Error::value("the hub's cache folder", "not set", "HF_HOME or a home folder"))
    }

    pub(crate) fn checked_timeout(&self) -> Result<Duration> {
        match self.timeout.unwrap_or(TIMEOUT) {
            Duration::ZERO => Err(Error::value("the hub's timeout", "0", "more")),
            timeout => Ok(timeout),
        }
    }

    pub(crate) fn is_offline(&self) -> bool {
        self.offline.unwrap_or_else(|| is_on("HF_HUB_OFFLINE") || is_on("TRANSFORMERS_OFFLINE"))
    }

    /// The token of the options, of the environment, or the one that `hf auth login` stored.
    pub(crate) fn checked_token(&self) -> Result<Option<String>> {
        let file = || variable("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| Some(home()?.join("token")));
        let implicit = || variable("HF_TOKEN").or_else(|| std::fs::read_to_string(file()?).ok());
        let implicit = || implicit().filter(|_| !is_on("HF_HUB_DISABLE_IMPLICIT_TOKEN"));
        let token = self.token.clone().or_else(implicit).map(|token| token.trim().to_string());
        // hf-hub would send none.
        match token.filter(|token| !token.is_empty()) {
            Some(token) if !token.bytes().all(|byte| byte.is_ascii_graphic()) => {
                Err(Error::value("the hub's token", "one that no header can hold", "visible ASCII characters"))
            }
            token => Ok(token),
        }
    }

    /// The address of the hub: `https`, or `http` to this machine, or any `http` that was asked for. Over plain http
    /// anybody on the way is the hub.
    pub(crate) fn checked_endpoint(&self) -> Result<String> {
        let default = || variable("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_string());
        let address = self.endpoint.clone().unwrap_or_else(default);
        let wrong = |expected: &str| Err(Error::value("the hub's endpoint", &address, expected));
        if address.contains('@') {
            // The address may hold a password.
            return Err(Error::value("the hub's endpoint", "an address with a user name", "one without; give a token"));
        }
        let (scheme, rest) = address.split_once("://").unwrap_or_default();
        let host = rest.split(['/', '\\']).next().unwrap_or_default();
        if host.is_empty() || address.contains(['?', '#']) || address.contains(char::is_whitespace) {
            return wrong("a web address such as https://huggingface.co");
        }
        let plain_http = || self.plain_http.unwrap_or_else(|| is_on("CANDLE_ATTENTION_PLAIN_HTTP"));
        match scheme.to_ascii_lowercase().as_str() {
            "https" => Ok(address),
            "http" if is_this_machine(host) || plain_http() => Ok(address),
            "http" => wrong(
                "https: over plain http anybody on the way can read the token and change the files. A mirror in a \
                 trusted network can be asked for by HubOptions::with_plain_http or CANDLE_ATTENTION_PLAIN_HTTP=1",
            ),
            _ => wrong("a web address such as https://huggingface.co"),
        }
    }
}

/// Whether a host, with or without a port, is `localhost` or a loopback address.
fn is_this_machine(host: &str) -> bool {
    if let Some((six, _)) = host.strip_prefix('[').and_then(|host| host.split_once(']')) {
        return six.parse::<Ipv6Addr>().is_ok_and(|ip| ip.is_loopback());
    }
    let name = host.split(':').next().unwrap_or_default();
    name.eq_ignore_ascii_case("localhost") || name.parse::<Ipv4Addr>().is_ok_and(|ip| ip.is_loopback())
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Whether a variable is `1`, `ON`, `YES` or `TRUE`, in any case.
fn is_on(name: &str) -> bool {
    variable(name).is_some_and(|value| ["1", "ON", "YES", "TRUE"].contains(&value.to_uppercase().as_str()))
}

/// The folder of huggingface_hub, `None` if the user has no home folder.
fn home() -> Option<PathBuf> {
    let cache = || variable("XDG_CACHE_HOME").map(PathBuf::from).or_else(|| Some(std::env::home_dir()?.join(".cache")));
    variable("HF_HOME").map(PathBuf::from).or_else(|| Some(cache()?.join("huggingface")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revisions() {
        for good in ["main", "v1.0", "refs/pr/1", "refs/convert/parquet", "feature_x-2", &"a".repeat(255)] {
            assert!(HubOptions::default().with_revision(good).checked_revision().is_ok(), "{good}");
        }
        for bad in "\0 \n\\:*?\"<>|%#@{}~^é".chars() {
            assert!(HubOptions::default().with_revision(format!("a{bad}b")).checked_revision().is_err(), "{bad}");
        }
    }

    #[test]
    fn plain_http_is_for_this_machine() {
        let parse = |address: &str, plain_http| {
            HubOptions::default().with_endpoint(address).with_plain_http(plain_http).checked_endpoint()
        };
        let secure = ["https://huggingface.co", "https://huggingface.co/", "https://mirror.example:8443/hf"];
        let local =
            ["http://localhost:80", "http://127.0.0.1:1234", "http://127.9.9.9", "http://[::1]:80", "HTTP://LOCALHOST"];
        for address in secure.iter().chain(&local) {
            assert!(parse(address, false).is_ok(), "{address}");
        }
        let near = ["http://127.0.0.1.example", "http://localhost.example", "http://127.1", "http://[::]"];
        for address in ["http://huggingface.co", "http://0.0.0.0", "http://10.0.0.1"].iter().chain(&near) {
            assert!(parse(address, false).is_err(), "{address}");
            assert!(parse(address, true).is_ok(), "{address}");
        }
        for address in
            ["", "/", "huggingface.co", "file:///etc", "https://", "https://a@b", "https://a/?b", "https://a/#b"]
        {
            assert!(parse(address, true).is_err(), "{address}");
        }
        let error = parse("https://user:secret@host", true).unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
    }
}
