//! Requests to a hub.
//!
//! One GET brings both what the hub says of a file and its content, so that there is no second answer that could differ
//! from the one that was checked. Redirects are followed here and not by the HTTP library: the hub itself may name a
//! file, the hosts to which it redirects only deliver the content.

use std::time::Duration;

use candle_attention::{Error, Result};
use ureq::http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, ETAG, LOCATION};
use ureq::http::{HeaderMap, HeaderName, HeaderValue, Response, Uri};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};

use crate::hub::endpoint::Endpoint;
use crate::hub::fault::Fault;
use crate::hub::names::{BlobName, Commit, RepoPath, Revision, shown};

/// The most redirects of one request. The hub itself needs two.
const MAX_REDIRECTS: usize = 10;

/// How often a request is repeated to a hub that is busy or cannot be reached.
const RETRIES: u32 = 3;

/// The pause before the first repetition; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

const X_REPO_COMMIT: HeaderName = HeaderName::from_static("x-repo-commit");
const X_LINKED_ETAG: HeaderName = HeaderName::from_static("x-linked-etag");
const X_LINKED_SIZE: HeaderName = HeaderName::from_static("x-linked-size");
const X_ERROR_CODE: HeaderName = HeaderName::from_static("x-error-code");

/// What the hub says of a file, checked.
#[derive(Debug)]
pub(crate) struct Facts {
    pub commit: Commit,
    pub name: BlobName,
    /// In bytes, if the hub says it.
    pub size: Option<u64>,
}

/// The hub's answer for a file.
pub(crate) enum Reply {
    File(Facts, Body),
    /// The repository does not hold it, at this commit if the hub names one.
    Absent(Option<Commit>),
}

/// A connection to one hub.
pub(crate) struct Client {
    agent: Agent,
    endpoint: Endpoint,
    authorization: Option<HeaderValue>,
}

impl Client {
    /// `timeout` is how long the hub may stay silent.
    pub fn new(endpoint: Endpoint, token: Option<&str>, timeout: Duration) -> Result<Self> {
        let authorization = token.map(|token| {
            let value = HeaderValue::from_str(&format!("Bearer {token}"));
            value
                .map_err(|_| Error::value("the hub's token", "one that no header can hold", "visible ASCII characters"))
        });
        let timeout = Some(timeout);
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("candle-attention/", env!("CARGO_PKG_VERSION")))
            // Sizes and hashes are those of the file itself.
            .accept_encoding("identity")
            // The certificates of the system, to which companies add their own.
            .tls_config(TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build())
            .timeout_resolve(timeout)
            .timeout_connect(timeout)
            .timeout_send_request(timeout)
            .timeout_recv_response(timeout)
            .timeout_per_read(timeout)
            .timeout_per_write(timeout);
        if endpoint.is_this_machine() {
            config = config.proxy(None);
        }
        Ok(Self { agent: config.build().new_agent(), endpoint, authorization: authorization.transpose()? })
    }

    /// Asks for the file `path` of the repository `id`.
    pub fn get(&self, id: &str, revision: &Revision, path: &RepoPath) -> std::result::Result<Reply, Fault> {
        let mut address = self.endpoint.file(id, revision, path).map_err(Fault::Refused)?;
        let mut headers = HeaderMap::new();
        for _ in 0..=MAX_REDIRECTS {
            let own = self.endpoint.is_own(&address);
            let response = self.ask(&address, own)?;
            let next = match response.status().as_u16() {
                301 | 302 | 303 | 307 | 308 => {
                    let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
                    Some(self.endpoint.follow(&address, location.unwrap_or_default()).map_err(Fault::Refused)?)
                }
                _ => None,
            };
            if own {
                let within = next.as_ref().is_some_and(|next| self.endpoint.is_own(next));
                take_names(&mut headers, response.headers(), within);
            }
            match next {
                Some(next) => address = next,
                None => return reply(response, own, &headers, revision, path),
            }
        }
        Err(Fault::refused(format!("more than {MAX_REDIRECTS} redirects")))
    }

    /// Sends one request, and repeats it while the hub is busy or cannot be reached.
    fn ask(&self, address: &Uri, own: bool) -> std::result::Result<Response<Body>, Fault> {
        let mut pause = FIRST_PAUSE;
        for last in (0..=RETRIES).map(|retry| retry == RETRIES) {
            let mut request = self.agent.get(address);
            if let Some(authorization) = self.authorization.as_ref().filter(|_| own) {
                request = request.header(AUTHORIZATION, authorization);
            }
            match request.call() {
                Ok(response) if last || !is_busy(response.status().as_u16()) => return Ok(response),
                Err(error) if last || !is_passing(&error) => return Err(no_answer(error)),
                _ => std::thread::sleep(pause),
            }
            pause *= 2;
        }
        Err(Fault::Unreachable("no answer from the hub".to_string()))
    }
}

/// Keeps what an answer of the hub says of the file. A redirect within the hub says it of itself, except for what is
/// linked.
fn take_names(headers: &mut HeaderMap, answer: &HeaderMap, within: bool) {
    let plain = [ETAG].into_iter().filter(|_| !within);
    for name in [X_REPO_COMMIT, X_LINKED_ETAG, X_LINKED_SIZE, X_ERROR_CODE].into_iter().chain(plain) {
        if let Some(value) = answer.get(&name) {
            headers.insert(name, value.clone());
        }
    }
}

/// Statuses of a hub that may answer later.
fn is_busy(status: u16) -> bool {
    matches!(status, 408 | 429 | 500 | 502 | 503 | 504)
}

/// Errors after which another try may succeed. One that waited for the whole timeout is not repeated.
fn is_passing(error: &ureq::Error) -> bool {
    matches!(error, ureq::Error::Io(_) | ureq::Error::ConnectionFailed)
}

fn no_answer(error: ureq::Error) -> Fault {
    use ureq::Error::{ConnectProxyFailed, ConnectionFailed, HostNotFound, Io, Timeout};
    let reason = format!("no answer from the hub: {}", shown(&error.to_string()));
    match error {
        Io(_) | Timeout(_) | HostNotFound | ConnectionFailed | ConnectProxyFailed(_) => Fault::Unreachable(reason),
        _ => Fault::Refused(reason),
    }
}

const NO_MODEL: &str = "no such model, or it is private and needs a valid HF_TOKEN";

/// Makes a reply of the last answer, which `own` says to be of the hub itself, and of what the hub said of the file.
fn reply(
    response: Response<Body>,
    own: bool,
    headers: &HeaderMap,
    revision: &Revision,
    path: &RepoPath,
) -> std::result::Result<Reply, Fault> {
    let status = response.status();
    let code = headers.get(X_ERROR_CODE).filter(|_| own).and_then(|code| code.to_str().ok());
    match (status.as_u16(), code) {
        (200, _) => {
            let facts = facts(headers, response.headers())?;
            Ok(Reply::File(facts, response.into_body()))
        }
        (404, Some("EntryNotFound")) => Ok(Reply::Absent(commit(headers)?)),
        (404, Some("RevisionNotFound")) => Err(Fault::Stated(format!("no revision `{}`", revision.as_str()))),
        (403, _) | (_, Some("GatedRepo")) => Err(Fault::Stated(format!(
            "access to `{}` is forbidden: the model may be gated, or HF_TOKEN may lack the right",
            path.as_str()
        ))),
        // The hub also answers this for a model that does not exist, so that it does not reveal private ones.
        (401, _) | (404, Some("RepoNotFound")) => Err(Fault::Stated(NO_MODEL.to_string())),
        // A proxy or a web server on the way also answers 404. Going on without the file could change the model.
        (404, _) if own => {
            Err(Fault::refused("the answer is 404 without the header x-error-code by which a hub says why"))
        }
        (busy, _) if is_busy(busy) => Err(Fault::Unreachable(format!("the answer is {status}"))),
        _ => Err(Fault::refused(format!("the answer is {status}, expected 200 OK"))),
    }
}

/// What the hub said of a file (`headers`) and what the host that delivers it says of its answer (`last`).
fn facts(headers: &HeaderMap, last: &HeaderMap) -> std::result::Result<Facts, Fault> {
    if let Some(encoding) = last.get(CONTENT_ENCODING).filter(|value| *value != "identity") {
        return Err(wrong("Content-Encoding", encoding, "none"));
    }
    let commit = commit(headers)?.ok_or_else(|| absent("X-Repo-Commit"))?;
    let etag = headers.get(X_LINKED_ETAG).or(headers.get(ETAG)).ok_or_else(|| absent("ETag"))?;
    let name = etag.to_str().ok().and_then(BlobName::of_etag);
    let name = name.ok_or_else(|| wrong("ETag", etag, BlobName::EXPECTED))?;
    let linked = size(headers, X_LINKED_SIZE, "X-Linked-Size")?;
    let length = size(last, CONTENT_LENGTH, "Content-Length")?;
    match (linked, length) {
        (Some(linked), Some(length)) if linked != length => {
            Err(Fault::refused(format!("Content-Length is {length}, but X-Linked-Size is {linked}")))
        }
        (linked, length) => Ok(Facts { commit, name, size: linked.or(length) }),
    }
}

fn commit(headers: &HeaderMap) -> std::result::Result<Option<Commit>, Fault> {
    let Some(value) = headers.get(X_REPO_COMMIT) else { return Ok(None) };
    let commit = value.to_str().ok().and_then(Commit::parse);
    commit.map(Some).ok_or_else(|| wrong("X-Repo-Commit", value, Commit::EXPECTED))
}

fn size(headers: &HeaderMap, name: HeaderName, title: &str) -> std::result::Result<Option<u64>, Fault> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let size = value.to_str().ok().and_then(|value| value.parse().ok());
    size.map(Some).ok_or_else(|| wrong(title, value, "a number of bytes"))
}

fn absent(header: &str) -> Fault {
    Fault::refused(format!("the answer has no header {header}"))
}

fn wrong(header: &str, found: &HeaderValue, expected: &str) -> Fault {
    let found = shown(&String::from_utf8_lossy(found.as_bytes()));
    Fault::refused(format!("the header {header} is `{found}`, expected {expected}"))
}
