//! Reading JSON files, and whole numbers from parsed JSON.

use std::borrow::Cow;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::io::{foreign_content, read_limited};

/// The longest configuration file that is read, in bytes: 16 MiB. Parsed, it takes up to 16 times as much memory. The
/// longest published ones, with the names of 22,000 classes, have 2 MB.
const MAX_CONFIG_BYTES: u64 = 1 << 24;

/// Reads a JSON file of at most 16 MiB, as [`parse_json`].
///
/// # Errors
/// The errors of [`read_limited`] and of [`parse_json`].
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    parse_json(path, &read_limited(path, MAX_CONFIG_BYTES)?)
}

/// Parses the content of the JSON file `path`, as Python reads it: with the numbers `NaN`, `Infinity` and `-Infinity`,
/// which JSON does not have and Python writes. Each becomes a text, so a key that is read as a number is an error.
///
/// # Errors
/// [`Error::File`] for a content that does not hold a `T`. It says what the content is instead, where that is known,
/// such as a Git LFS pointer.
pub fn parse_json<T: DeserializeOwned>(path: &Path, bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).or_else(|error| {
        let error = match python_numbers_as_texts(bytes) {
            Cow::Owned(bytes) => match serde_json::from_slice(&bytes) {
                Ok(parsed) => return Ok(parsed),
                Err(error) => error,
            },
            Cow::Borrowed(_) => error,
        };
        match foreign_content(bytes) {
            Some(what) => Err(Error::file(path, format!("the file is {what}"))),
            None => Err(Error::file(path, error)),
        }
    })
}

/// JSON with quotes around the numbers that only Python has.
fn python_numbers_as_texts(json: &[u8]) -> Cow<'_, [u8]> {
    const NUMBERS: [&[u8]; 3] = [b"NaN", b"Infinity", b"-Infinity"];
    let mut changed = Vec::new();
    let (mut copied, mut at, mut in_text) = (0, 0, false);
    while at < json.len() {
        match json[at] {
            // The escaped character belongs to the text.
            b'\\' if in_text => at += 1,
            b'"' => in_text = !in_text,
            _ if in_text => {}
            _ => {
                if let Some(number) = NUMBERS.iter().find(|number| json[at..].starts_with(number)) {
                    changed.extend([&json[copied..at], b"\"", number, b"\""].concat());
                    at += number.len();
                    copied = at;
                    continue;
                }
            }
        }
        at += 1;
    }
    if copied == 0 {
        return Cow::Borrowed(json);
    }
    changed.extend_from_slice(&json[copied..]);
    Cow::Owned(changed)
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
    stated(section.get(key), key, "a whole number", |value| usize::try_from(value.as_u64()?).ok())
}

/// The value of `key` as `read` gives it, if it is neither absent nor null. A value of another kind is an error: a
/// default in its place would be another model.
pub(crate) fn stated<'a, T>(
    value: Option<&'a Value>,
    key: &str,
    kind: &str,
    read: impl Fn(&'a Value) -> Option<T>,
) -> Result<Option<T>> {
    match value.filter(|value| !value.is_null()) {
        None => Ok(None),
        Some(value) => match read(value) {
            None => Err(Error::value(format!("config key `{key}`"), value, kind)),
            read => Ok(read),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Value> {
        parse_json(Path::new("config.json"), json.as_bytes())
    }

    #[test]
    fn numbers_of_python_are_read_as_texts() {
        let json = r#"{"a": [0.0, Infinity], "b": -Infinity, "c": NaN, "d": "NaN \" -Infinity", "e": {"f":NaN}}"#;
        let read = parse(json).unwrap();
        assert_eq!(read["a"][1], "Infinity");
        assert_eq!(read["b"], "-Infinity");
        assert_eq!(read["c"], "NaN");
        assert_eq!(read["d"], "NaN \" -Infinity");
        assert_eq!(read["e"]["f"], "NaN");
        for bad in ["NaN0", "{\"a\": Infinit}", "-NaN", "[Infinity", "\"NaN"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_file_that_is_no_json_is_named() {
        let error = parse("version https://git-lfs.github.com/spec/v1").unwrap_err();
        assert!(error.to_string().contains("config.json: the file is a Git LFS pointer"), "{error}");
        assert!(parse("{").unwrap_err().to_string().contains("EOF"));
    }
}
