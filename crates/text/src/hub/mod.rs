//! Models by name: a local folder, or the id of a model on the Hugging Face hub.
//!
//! Only `download` talks to the network, and only it is behind the feature `hub`: hf-hub brings TLS and a runtime, and
//! a program that ships its model does not need them. Names are resolved here in any build, so that a hub id in a build
//! without the client is an error that names the missing feature.
//!
//! The client is hf-hub 1.0, and not 0.5, although 0.5 is the lighter one. Measured on 2 cores of an AMD EPYC (Zen 4):
//!
//! | | hf-hub 0.5, `ureq` | hf-hub 1.0 |
//! |---|---|---|
//! | crates beside candle and tokenizers | 29 | 173 |
//! | its release build, from nothing | 80 s (79 s of one core) | 271 s (440 s of one core) |
//! | C compiler | yes (ring) | yes (aws-lc) |
//! | the hub redirects a file | often fails, without `Content-Range` ([141]) | works |
//! | the host that it redirects to | gets the token | does not |
//! | certificates of the system | not used | used |
//! | a hub that is busy | an error | asked again |
//! | `ETag` and commit | become paths unchecked | the same |
//! | status of the content's answer | checked | not checked: a page becomes the file |
//! | length, silence, offline variables | not looked at | the same |
//! | maintained | no, 1.0 is current | yes |
//!
//! The gaps of 1.0 are checked in `repository` and `client`, as far as a few lines reach; what is left to
//! trust is said at `download`.
//!
//! [141]: https://github.com/huggingface/hf-hub/issues/141

#[cfg(feature = "hub")]
mod client;
#[cfg(feature = "hub")]
mod download;
#[cfg(feature = "hub")]
mod options;
#[cfg(feature = "hub")]
mod repository;

use std::path::{Path, PathBuf};

use candle_attention::ensure;
use candle_attention::{Error, Result};

use crate::gguf;

#[cfg(feature = "hub")]
pub use download::download;
#[cfg(feature = "hub")]
pub(crate) use download::snapshot;
#[cfg(feature = "hub")]
pub use options::HubOptions;

/// The folder of a model that is named by a path or by a hub id, as programs take it on their command line.
///
/// A folder or a `.gguf` file that exists is returned as it is. Anything else is a hub id: its files are downloaded
/// at `revision` (a branch, tag or commit; `main` by default) into the hub's cache, with a progress bar on standard
/// error if `show_progress`.
///
/// # Errors
/// Another file; a name that is neither a folder nor a hub id; [`Error::Hub`] if the download fails, or if the crate
/// was built without its feature `hub`.
pub fn locate_model(model: &str, revision: Option<&str>, show_progress: bool) -> Result<PathBuf> {
    let path = Path::new(model);
    if path.is_dir() || gguf::is_alone(path)? {
        return Ok(path.into());
    }
    ensure!(!path.exists(), Error::file(path, "not a folder, expected a model folder, a .gguf file or a hub id"));
    check_id(model)?;
    from_hub(model, revision, show_progress)
}

#[cfg(feature = "hub")]
fn from_hub(id: &str, revision: Option<&str>, show_progress: bool) -> Result<PathBuf> {
    let mut options = HubOptions::default().with_progress(show_progress);
    options.revision = revision.map(str::to_string);
    download(id, &options)
}

#[cfg(not(feature = "hub"))]
fn from_hub(id: &str, _revision: Option<&str>, _show_progress: bool) -> Result<PathBuf> {
    let reason = "this program was built without the feature `hub`, which downloads models: build it with \
                  `--features hub`, or give a folder";
    Err(Error::Hub { id: id.to_string(), reason: reason.to_string() })
}

/// The longest owner or name, in characters: the hub's own limit of a name.
const MAX_PART: usize = 96;

/// Checks that `id` is `name` or `owner/name`, by the rules of the hub (`validate_repo_id` of huggingface_hub):
/// letters, digits, `.`, `_` and `-`, at most 96 characters each, no `--` and no `..`; neither begins or ends with `.`
/// or `-`, and the name does not end with `.git`.
fn check_id(id: &str) -> Result<()> {
    let plain = |part: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
        let length = (1..=MAX_PART).contains(&part.len());
        length && !part.starts_with(['.', '-']) && !part.ends_with(['.', '-']) && part.chars().all(allowed)
    };
    // The cache writes `owner--name`: two ids with `--` could share a folder.
    let clear = !id.contains("--") && !id.contains("..") && !id.ends_with(".git");
    if clear && id.split('/').count() <= 2 && id.split('/').all(plain) {
        return Ok(());
    }
    Err(Error::value("the model", id, "a folder that exists, or a hub id such as owner/name"))
}
