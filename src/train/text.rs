use std::collections::HashSet;
use std::path::Path;

use crate::error::{Error, Result};

/// Reads texts, one a line: each once, without those in `held_back`, none empty, in the order of the file.
///
/// # Errors
/// If the file cannot be read, is not UTF-8, or has no text.
pub fn read_texts(path: impl AsRef<Path>, held_back: &[String]) -> Result<Vec<String>> {
    let path = path.as_ref();
    let file = std::fs::read_to_string(path).map_err(|e| Error::io(path, e))?;
    let mut seen: HashSet<&str> = held_back.iter().map(|text| text.trim()).collect();
    let texts = file.trim_start_matches('\u{feff}').lines().map(str::trim).filter(|text| !text.is_empty());
    let texts: Vec<String> = texts.filter(|text| seen.insert(text)).map(str::to_string).collect();
    match texts.is_empty() {
        true => Err(Error::file(path, "no text to train on: expected one text a line")),
        false => Ok(texts),
    }
}
