//! The checkpoint that a user names: a file, a folder, or a hub id; and whether its weights are finite.

use std::path::{Path, PathBuf};

use candle_attention::checkpoint::Checkpoint;

use super::{Result, about};

/// The path of a checkpoint: of a file or a folder as it is, or of the folder of a hub id, in a build with the feature
/// `hub`. A name that is a path is said to be none before the hub is asked.
pub fn locate(name: &Path) -> Result<PathBuf> {
    let Err(error) = std::fs::metadata(name) else { return Ok(name.to_path_buf()) };
    if let Some(id) = name.to_str().filter(|_| error.kind() == std::io::ErrorKind::NotFound && could_be_id(name)) {
        return super::model::locate(id, None);
    }
    Err(about(name, &error).into())
}

/// Whether a name has the parts of a hub id, `name` or `owner/name`, and is not that of a file of weights or a
/// configuration.
fn could_be_id(name: &Path) -> bool {
    let parts = || name.components();
    let file = name
        .extension()
        .is_some_and(|extension| extension == "safetensors" || extension == "gguf" || extension == "json");
    !file && parts().count() <= 2 && parts().all(|part| matches!(part, std::path::Component::Normal(_)))
}

/// Checks that all weights under a prefix are finite. `path` is where they come from.
pub fn check_finite(path: &Path, checkpoint: &Checkpoint, prefix: &str) -> Result<()> {
    let damaged = checkpoint.non_finite(prefix)?;
    let others = if damaged.len() > 1 { format!(" and {} more tensors", damaged.len() - 1) } else { String::new() };
    match damaged.first() {
        Some(name) => Err(about(path, &format!("NaN or an infinity in `{}`{others}", name.escape_debug())).into()),
        None => Ok(()),
    }
}
