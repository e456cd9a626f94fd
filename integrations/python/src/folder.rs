//! The folder of a model that Python names.

use std::path::PathBuf;

use candle_attention_text::{HubOptions, download};
use pyo3::prelude::*;

use crate::threads::run_detached;

/// The folder of a model of the hub, downloaded if the cache does not have it.
#[pyfunction]
#[pyo3(signature = (id, revision, token, cache_folder, local_files_only, progress))]
pub fn locate(
    py: Python,
    id: String,
    revision: Option<String>,
    token: Option<String>,
    cache_folder: Option<PathBuf>,
    local_files_only: bool,
    progress: bool,
) -> PyResult<PathBuf> {
    let mut options = HubOptions::default().with_progress(progress);
    (options.revision, options.token, options.cache_dir) = (revision, token, cache_folder);
    if local_files_only {
        options = options.with_offline(true);
    }
    run_detached(py, move || download(&id, &options))
}
