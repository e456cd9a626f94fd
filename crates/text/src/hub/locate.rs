//! The folder of a model that a user names.

use std::path::{Path, PathBuf};

use candle_attention::{Error, Result};

use crate::hub::model_id::check_id;

/// The folder of a model that is named by a path or by a hub id, as programs take it on their command line.
///
/// A folder that exists is returned as it is. Anything else is a hub id: its files are downloaded at `revision` (a
/// branch, tag or commit; `main` by default) into the hub's cache, with a progress bar on standard error if
/// `show_progress`.
///
/// # Errors
/// A file; a name that is neither a folder nor a hub id; [`Error::Hub`](candle_attention::Error::Hub) if the download fails, or if the
/// crate was built without its feature `hub`.
pub fn locate_model(model: &str, revision: Option<&str>, show_progress: bool) -> Result<PathBuf> {
    let path = Path::new(model);
    if path.is_dir() {
        return Ok(path.into());
    }
    if path.exists() {
        return Err(Error::file(path, "not a folder, expected a model folder or a hub id"));
    }
    check_id(model)?;
    from_hub(model, revision, show_progress)
}

#[cfg(feature = "hub")]
fn from_hub(id: &str, revision: Option<&str>, show_progress: bool) -> Result<PathBuf> {
    use crate::hub::download::download;
    use crate::hub::options::HubOptions;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_is_returned_as_it_is() {
        assert_eq!(locate_model("src", None, false).unwrap(), Path::new("src"));
    }

    #[test]
    fn name_that_is_neither_folder_nor_id_is_an_error() {
        let error = locate_model("/no/such/folder", None, false).unwrap_err();
        assert!(matches!(error, Error::Value { .. }), "{error}");
    }

    #[test]
    fn file_is_not_taken_for_a_hub_id() {
        let error = locate_model("Cargo.toml", None, false).unwrap_err().to_string();
        assert!(error.contains("Cargo.toml: not a folder"), "{error}");
    }

    #[test]
    #[cfg(not(feature = "hub"))]
    fn hub_id_without_the_client_names_the_feature() {
        let error = locate_model("owner/name", None, false).unwrap_err().to_string();
        assert!(error.contains("owner/name") && error.contains("`--features hub`"), "{error}");
    }
}
