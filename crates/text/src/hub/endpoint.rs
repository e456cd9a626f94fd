//! Addresses of a hub, and which of them may be asked.

use std::net::{Ipv4Addr, Ipv6Addr};

use candle_attention::{Error, Result};
use ureq::http::Uri;
use ureq::http::uri::Scheme;

use crate::hub::names::{RepoPath, Revision, shown};

/// Where plain http may go: anybody on the way can read the token and change the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PlainHttp {
    Nowhere,
    ThisMachine,
    Anywhere,
}

/// The address of a hub or a mirror.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    address: Uri,
    plain_http: PlainHttp,
}

impl Endpoint {
    /// Checks an address: `https`, or `http` to this machine, or any `http` if `plain_http`.
    pub fn parse(text: &str, plain_http: bool) -> Result<Self> {
        let expected = "a web address such as https://huggingface.co";
        let wrong = |expected: &str| Error::value("the hub's endpoint", shown(text), expected);
        if text.contains('@') {
            // The address may hold a password.
            return Err(Error::value("the hub's endpoint", "an address with a user name", "one without; give a token"));
        }
        let address: Uri = text.trim_end_matches('/').parse().map_err(|_| wrong(expected))?;
        if text.contains(['?', '#']) || address.host().is_none_or(str::is_empty) {
            return Err(wrong(expected));
        }
        let plain_http = match address.scheme_str() {
            Some("https") => PlainHttp::Nowhere,
            Some("http") if plain_http => PlainHttp::Anywhere,
            Some("http") if is_this_machine(&address) => PlainHttp::ThisMachine,
            Some("http") => {
                return Err(wrong(
                    "https: over plain http anybody on the way can read the token and change the files. A mirror in a \
                     trusted network can be asked for by HubOptions::with_plain_http or CANDLE_ATTENTION_PLAIN_HTTP=1",
                ));
            }
            _ => return Err(wrong(expected)),
        };
        Ok(Self { address, plain_http })
    }

    /// The address of a file of the repository `id`.
    pub fn file(&self, id: &str, revision: &Revision, path: &RepoPath) -> std::result::Result<Uri, String> {
        // A `/` in a revision is not a separator of the path.
        let revision = encoded(revision.as_str(), "");
        let path = encoded(path.as_str(), "/");
        let base = self.address.to_string();
        let address = format!("{}/{id}/resolve/{revision}/{path}", base.trim_end_matches('/'));
        address.parse().map_err(|e| format!("no address `{}`: {e}", shown(&address)))
    }

    /// Whether an address is of the hub itself, which alone gets the token.
    pub fn is_own(&self, address: &Uri) -> bool {
        let port = |uri: &Uri| uri.port_u16().unwrap_or(if uri.scheme() == Some(&Scheme::HTTP) { 80 } else { 443 });
        let host = |uri: &Uri| uri.host().map(str::to_ascii_lowercase);
        address.scheme() == self.address.scheme()
            && host(address) == host(&self.address)
            && port(address) == port(&self.address)
    }

    /// Whether the hub runs on this machine.
    pub fn is_this_machine(&self) -> bool {
        is_this_machine(&self.address)
    }

    /// The address to which the answer of `from` redirects.
    pub fn follow(&self, from: &Uri, location: &str) -> std::result::Result<Uri, String> {
        let refuse = |expected: &str| Err(format!("it is redirected to `{}`, expected {expected}", shown(location)));
        let web = "a web address or a path of the hub";
        let next = match location.starts_with('/') && !location.starts_with("//") {
            true => {
                let mut parts = from.clone().into_parts();
                let Ok(path) = location.parse() else { return refuse(web) };
                parts.path_and_query = Some(path);
                Uri::from_parts(parts).ok()
            }
            false => location.parse().ok(),
        };
        let Some(next) = next else { return refuse(web) };
        if next.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return refuse("an address without a user name");
        }
        match (next.scheme_str(), self.plain_http) {
            (Some("https"), _) | (Some("http"), PlainHttp::Anywhere) => Ok(next),
            (Some("http"), PlainHttp::ThisMachine) if is_this_machine(&next) => Ok(next),
            (Some("http"), _) => refuse("https, not plain http"),
            _ => refuse(web),
        }
    }
}

/// Whether the host is `localhost` or a loopback address.
fn is_this_machine(address: &Uri) -> bool {
    let Some(host) = address.host() else { return false };
    let six = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<Ipv4Addr>().is_ok_and(|ip| ip.is_loopback())
        || six.is_some_and(|host| host.parse::<Ipv6Addr>().is_ok_and(|ip| ip.is_loopback()))
}

/// Percent-encodes everything but unreserved characters and those in `keep`.
fn encoded(text: &str, keep: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        let c = char::from(byte);
        match c.is_ascii_alphanumeric() || "-._~".contains(c) || keep.contains(c) {
            true => encoded.push(c),
            false => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_is_for_this_machine() {
        let good = [
            "https://huggingface.co",
            "https://huggingface.co/",
            "https://mirror.example:8443/hf",
            "http://localhost:80",
        ];
        for address in
            good.iter().chain(&["http://127.0.0.1:1234", "http://127.9.9.9", "http://[::1]:80", "HTTP://LOCALHOST"])
        {
            assert!(Endpoint::parse(address, false).is_ok(), "{address}");
        }
        for address in ["http://huggingface.co", "http://0.0.0.0", "http://10.0.0.1", "http://[::]", "http://127.1"] {
            assert!(Endpoint::parse(address, false).is_err(), "{address}");
            assert!(Endpoint::parse(address, true).is_ok(), "{address}");
        }
        for address in
            ["", "/", "huggingface.co", "file:///etc", "https://", "https://a@b", "https://a/?b", "https://a/#b"]
        {
            assert!(Endpoint::parse(address, true).is_err(), "{address}");
        }
        let error = Endpoint::parse("https://user:secret@host", true).unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
    }

    #[test]
    fn redirects() {
        let secure = Endpoint::parse("https://hub.example/hf", true).unwrap();
        let local = Endpoint::parse("http://127.0.0.1:80", false).unwrap();
        let asked = Endpoint::parse("http://hub.example", true).unwrap();
        let from: Uri = "https://hub.example/hf/a/b?c".parse().unwrap();
        assert_eq!(secure.follow(&from, "/x?y").unwrap().to_string(), "https://hub.example/x?y");
        assert_eq!(secure.follow(&from, "https://other.example/x").unwrap().to_string(), "https://other.example/x");
        // A secure hub leads nowhere by plain http, not even to this machine, whose services are not meant for it.
        for location in ["http://other.example/x", "http://127.0.0.1/x", "http://hub.example/x"] {
            assert!(secure.follow(&from, location).is_err(), "{location}");
            assert!(asked.follow(&from, location).is_ok(), "{location}");
        }
        assert!(local.follow(&from, "http://127.0.0.1:99/x").is_ok());
        assert!(local.follow(&from, "http://hub.example/x").is_err());
        for location in ["", "x", "//other.example/x", "file:///x", "https:/x", "https://a@b/x", "javascript:x", "/a b"]
        {
            assert!(asked.follow(&from, location).is_err(), "{location}");
        }
    }

    #[test]
    fn the_hub_itself_is_scheme_host_and_port() {
        let hub = Endpoint::parse("https://Hub.example", false).unwrap();
        let own = |address: &str| hub.is_own(&address.parse().unwrap());
        assert!(own("https://hub.example/x") && own("https://hub.example:443/x"));
        assert!(!own("https://hub.example:444/x") && !own("http://hub.example/x") && !own("https://hub.example.org/x"));
    }

    #[test]
    fn names_are_encoded() {
        let hub = Endpoint::parse("https://hub.example/hf/", false).unwrap();
        let path = RepoPath::parse("a b", "é#%.json").unwrap();
        let address = hub.file("x/y", &Revision::parse("refs/pr/1").unwrap(), &path).unwrap().to_string();
        assert_eq!(address, "https://hub.example/hf/x/y/resolve/refs%2Fpr%2F1/a%20b/%C3%A9%23%25.json");
    }
}
