//! The checkpoint or the model that a user names: a file, a folder, or a hub id; its name for people, its size, and
//! whether its weights are finite.

use std::io::{ErrorKind, IsTerminal, Read};
use std::path::{Path, PathBuf};

use candle_attention::Error;
use candle_attention::checkpoint::Checkpoint;
use candle_attention::io::open_regular;
#[cfg(feature = "program")]
use candle_attention_text::model_card;
use candle_attention_text::{gguf_notes, locate_model};

use super::{Result, about, fail, print};

/// Opens the checkpoint that a user names: a file or a folder, or a hub id, in a build with the feature `hub`. A name
/// that looks like a path must exist; it is not looked up on the Hub.
pub fn open(name: &Path) -> Result<Checkpoint> {
    let path = match (std::fs::metadata(name), name.to_str()) {
        (Ok(_), _) => name.to_path_buf(),
        (Err(error), Some(id)) if error.kind() == ErrorKind::NotFound && could_be_id(name) => locate(id, None)?,
        (Err(error), _) => return fail(name, error),
    };
    // Weight files keep the reader's own error.
    let is_other = |path: &&Path| !path.to_string_lossy().ends_with(".index.json") && !is_weights(path);
    Checkpoint::open(&path).map_err(|error| match Some(path.as_path()).filter(is_other).and_then(hint) {
        Some(hint) => about(&path, hint).into(),
        None => error.into(),
    })
}

/// The folder of a model, by its path or its hub id. A name that looks like a path is not looked up on the Hub.
pub fn locate(model: &str, revision: Option<&str>) -> Result<PathBuf> {
    if let Some(revision) = revision.filter(|_| Path::new(model).is_dir()) {
        return Err(format!("--revision {revision}: {model} is a folder, and only hub models have revisions").into());
    }
    let show_progress = std::io::stderr().is_terminal();
    let found = locate_model(model, revision, show_progress).map_err(|error| match error {
        Error::Hub { .. } if !cfg!(feature = "hub") => {
            format!("{model}: no such folder; models are downloaded by their ids only in a build with `--features hub`")
        }
        Error::Hub { reason, .. } => format!("{model}: no such folder, and as a hub id: {reason}"),
        other => hint(Path::new(model)).map_or(other.to_string(), |hint| format!("{model}: {hint}")),
    })?;
    match hint(&found).filter(|_| found.is_dir()) {
        Some(hint) => fail(&found, hint),
        None => Ok(found),
    }
}

/// A hint about a path that is no model, if there is a plain one: of a file in the folder of a model or another text
/// file, and of a folder with a model further down.
fn hint(path: &Path) -> Option<String> {
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
        Some(name) => fail(path, format!("NaN or an infinity in `{}`{others}", name.escape_debug())),
        None => Ok(()),
    }
}

/// Checks that all weights of a model are finite. One infinity may be hidden by a softmax, and still change every
/// result.
pub fn check_weights(folder: &Path) -> Result<()> {
    // Some models have their weights in a folder of their own; what is computed with them is checked.
    let Ok(opened) = Checkpoint::open(folder) else { return Ok(()) };
    if !folder.join("config.json").is_file() {
        gguf_notes(&opened)?.iter().for_each(|note| print::note(format_args!("{} {note}", folder.display())));
    }
    check_finite(folder, &opened, "")
}

/// The bytes of all weights of a model: of its transformer and of its other modules.
#[cfg(feature = "program")]
pub fn weight_bytes(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    // Deeper than a module there are copies of the model in other formats.
    let walk = ignore::WalkBuilder::new(folder).standard_filters(false).max_depth(Some(2)).follow_links(true).build();
    for entry in walk.filter_map(|e| e.ok()) {
        if entry.path().is_file() && is_weights(entry.path()) {
            bytes += entry.metadata()?.len();
        }
    }
    Ok(bytes)
}

/// The name of the model that `--model` names, for titles of pictures and for model cards: the title of its model
/// card,
/// or else the name of its folder or file. A model that is no path is a hub id.
#[cfg(feature = "program")]
pub fn model_name(model: &str) -> String {
    let Ok(path) = std::fs::canonicalize(model) else { return model.to_string() };
    let titled = model_card(&path).ok().and_then(|card| title(&card).map(str::to_string));
    titled.or_else(|| Some(path.file_name()?.to_string_lossy().into_owned())).unwrap_or_else(|| model.to_string())
}

/// The title of a model card: its first heading, if that is one of the first level.
#[cfg(feature = "program")]
fn title(card: &str) -> Option<&str> {
    let (_, text) = split_card(card);
    let heading = text.lines().take_while(|line| !line.starts_with("```")).find(|line| line.starts_with('#'))?;
    Some(heading.strip_prefix("# ")?.trim()).filter(|title| !title.is_empty())
}

/// The metadata at the start of a model card, between lines `---`, and the text after it.
#[cfg(feature = "program")]
pub fn split_card(card: &str) -> (&str, &str) {
    let end = card.strip_prefix("---\n").and_then(|rest| rest.find("\n---\n"));
    end.map_or(("", card), |end| card.split_at("---\n".len() + end + "\n---\n".len()))
}
