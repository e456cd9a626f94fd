//! Reading texts and JSON files, with errors that name the file.

use std::io::Read;
use std::path::Path;

use super::{Result, about};

/// The longest text that is read, in bytes: 4 GiB. A device such as `/dev/zero` never ends.
const MAX_TEXT_BYTES: u64 = 1 << 32;

/// The largest JSON file that is read, in bytes: 16 MiB.
const MAX_JSON_BYTES: u64 = 1 << 24;

/// Reads a text file or a pipe, or standard input where the path is `-`, without a byte order mark.
pub fn text(path: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    let read = if path.as_os_str() == "-" {
        std::io::stdin().lock().take(MAX_TEXT_BYTES + 1).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(MAX_TEXT_BYTES + 1).read_to_end(&mut bytes))
    };
    if read.map_err(|e| about(path, &e))? as u64 > MAX_TEXT_BYTES {
        return Err(about(path, &format!("more than {MAX_TEXT_BYTES} bytes of text")).into());
    }
    if bytes.starts_with("\u{feff}".as_bytes()) {
        bytes.drain(..3);
    }
    String::from_utf8(bytes).map_err(|e| {
        let before = &e.as_bytes()[..e.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
        about(path, &format!("line {line} is not UTF-8")).into()
    })
}

/// The lines of a text that are not blank, without the spaces around them.
pub fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty())
}

/// Reads a JSON file.
pub fn json(path: &Path) -> Result<serde_json::Value> {
    let metadata = std::fs::metadata(path).map_err(|e| about(path, &e))?;
    if !metadata.is_file() || metadata.len() > MAX_JSON_BYTES {
        return Err(about(path, &format!("expected a regular file of at most {MAX_JSON_BYTES} bytes")).into());
    }
    let text = std::fs::read_to_string(path).map_err(|e| about(path, &e))?;
    Ok(serde_json::from_str(&text).map_err(|e| about(path, &e))?)
}
