//! Reading JSON files, and whole numbers from parsed JSON.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::io::read_limited;

/// The longest configuration file that is read, in bytes: 16 MiB. Parsed, it takes up to 16 times as much memory. The
/// longest published ones, with the names of 22,000 classes, have 2 MB.
const MAX_CONFIG_BYTES: u64 = 1 << 24;

/// Reads a JSON file of at most 16 MiB.
///
/// # Errors
/// The errors of [`read_limited`]; [`Error::File`] for a file that does not hold a `T`.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    serde_json::from_slice(&read_limited(path, MAX_CONFIG_BYTES)?).map_err(|e| Error::file(path, e))
}

/// The whole number at `key`, which may be written as a float such as `2.0`; `None` if it is absent or null.
pub(crate) fn whole_number(section: &Value, key: &str) -> Result<Option<usize>> {
    match section.get(key).and_then(Value::as_f64) {
        Some(n) if n >= 1.0 && n.fract() == 0.0 => Ok(Some(n as usize)),
        _ => number(section, key),
    }
}

/// The whole number at `key`, written as an integer; `None` if it is absent or null.
pub(crate) fn number(section: &Value, key: &str) -> Result<Option<usize>> {
    match section.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64().and_then(|n| usize::try_from(n).ok()) {
            Some(n) => Ok(Some(n)),
            None => Err(Error::value(format!("config key `{key}`"), value, "a whole number")),
        },
    }
}
