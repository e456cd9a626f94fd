//! The checkpoint that a user names: a file, a folder, or a hub id; and whether its weights are finite.

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use candle_attention::checkpoint::Checkpoint;
use candle_attention::io::open_regular;

use super::{Result, about};

/// Opens the checkpoint that a user names: a file or a folder, or a hub id, in a build with the feature `hub`. A name
/// that looks like a path must exist; it is not looked up on the Hub.
pub fn open(name: &Path) -> Result<Checkpoint> {
    let path = match (std::fs::metadata(name), name.to_str()) {
        (Ok(_), _) => name.to_path_buf(),
        (Err(error), Some(id)) if error.kind() == ErrorKind::NotFound && could_be_id(name) => {
            super::model::locate(id, None)?
        }
        (Err(error), _) => return Err(about(name, &error).into()),
    };
    // Of what is a file of weights by its name, the error says what is wrong with it.
    let is_other = |path: &&Path| !path.to_string_lossy().ends_with(".index.json") && !is_weights(path);
    Checkpoint::open(&path).map_err(|error| match Some(path.as_path()).filter(is_other).and_then(hint) {
        Some(hint) => about(&path, &hint).into(),
        None => error.into(),
    })
}

/// What to say of a path that is no model, if that is plain: of a file in the folder of a model or another text file,
/// and of a folder with a model further down.
pub fn hint(path: &Path) -> Option<String> {
    if path.is_dir() {
        let found = model_below(path, 2).filter(|found| found != path)?;
        return Some(format!("holds no model; there is one in {}", found.display()));
    }
    if let Some(folder) = path.parent().filter(|folder| folder.join("config.json").is_file()) {
        return Some(format!("is a file of a model, expected its folder: {}", folder.display()));
    }
    let mut start = Vec::new();
    open_regular(path).ok()?.0.take(40).read_to_end(&mut start).ok()?;
    let start = String::from_utf8_lossy(&start);
    let line = start.lines().next().filter(|line| !line.contains(char::is_control))?;
    Some(format!("is a text, which starts with `{line}`: expected a model folder, a .safetensors or .gguf file"))
}

/// The first folder of a model in a folder, at most so many folders down.
fn model_below(folder: &Path, down: usize) -> Option<PathBuf> {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).collect();
    entries.sort();
    let settings = ["config.json", "modules.json", "adapter_config.json"];
    if entries.iter().any(|path| is_weights(path) || settings.iter().any(|name| path.ends_with(name))) {
        return Some(folder.to_path_buf());
    }
    let down = down.checked_sub(1)?;
    entries.iter().filter(|path| path.is_dir()).find_map(|path| model_below(path, down))
}

/// Whether a name has the parts of a hub id, `name` or `owner/name`, and is not that of a file of weights or a
/// configuration.
fn could_be_id(name: &Path) -> bool {
    let parts = || name.components();
    let file = is_weights(name) || name.extension().is_some_and(|extension| extension == "json");
    !file && parts().count() <= 2 && parts().all(|part| matches!(part, std::path::Component::Normal(_)))
}

/// Whether a path has the name of a file of weights.
fn is_weights(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "safetensors" || extension == "gguf")
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
