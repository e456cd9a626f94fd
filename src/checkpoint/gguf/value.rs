//! The metadata of a GGUF file: values by key.

use std::collections::BTreeMap;
use std::fmt;

use crate::error::{Error, Result, cut};

/// A value of the metadata of a GGUF file. Numbers of all widths are held in the widest.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum GgufValue {
    /// A truth value.
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// A floating-point number; of one of 32 bits, the shortest decimal number that is rounded to it.
    Float(f64),
    /// A text.
    Text(String),
    /// An array of 8-bit numbers, or of truth values as 0 and 1.
    Bytes(Vec<u8>),
    /// An array of whole numbers.
    Integers(Vec<i64>),
    /// An array of floating-point numbers.
    Floats(Vec<f64>),
    /// An array of texts.
    Texts(Vec<String>),
    /// An array of arrays, whose content is not kept.
    Nested,
}

impl GgufValue {
    /// The kind of the value, in errors.
    fn kind(&self) -> &'static str {
        match self {
            Self::Bool(_) => "a truth value",
            Self::Integer(_) => "a whole number",
            Self::Float(_) => "a floating-point number",
            Self::Text(_) => "a text",
            Self::Bytes(_) => "an array of bytes",
            Self::Integers(_) => "an array of whole numbers",
            Self::Floats(_) => "an array of floating-point numbers",
            Self::Texts(_) => "an array of texts",
            Self::Nested => "an array of arrays",
        }
    }
}

/// Scalars as they are, arrays by their kind.
impl fmt::Display for GgufValue {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Bool(value) => value.fmt(f),
            Self::Integer(value) => value.fmt(f),
            Self::Float(value) => value.fmt(f),
            Self::Text(value) => value.fmt(f),
            array => array.kind().fmt(f),
        }
    }
}

/// The metadata of a GGUF file: what the model is, its sizes and its tokenizer.
#[derive(Debug, Clone, Default)]
pub struct GgufMetadata {
    pub(super) values: BTreeMap<String, GgufValue>,
}

impl GgufMetadata {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&GgufValue> {
        self.values.get(key)
    }

    /// All keys with their values, sorted.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &GgufValue)> {
        self.values.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The architecture, as llama.cpp names it: `general.architecture`.
    ///
    /// # Errors
    /// If the key is absent or no text.
    pub fn architecture(&self) -> Result<&str> {
        self.text("general.architecture")?.ok_or_else(|| absent("general.architecture"))
    }

    /// The text at a key, `None` if it is absent.
    ///
    /// # Errors
    /// If the value is not a text.
    pub fn text(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "a text", |value| match value {
            GgufValue::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// The truth value at a key, `None` if it is absent.
    ///
    /// # Errors
    /// If the value is not one.
    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "a truth value", |value| match value {
            GgufValue::Bool(flag) => Some(*flag),
            _ => None,
        })
    }

    /// The count at a key, `None` if it is absent.
    ///
    /// # Errors
    /// If the value is not a whole number from 0.
    pub fn count(&self, key: &str) -> Result<Option<usize>> {
        self.typed(key, "a whole number from 0", |value| match value {
            GgufValue::Integer(count) => usize::try_from(*count).ok(),
            _ => None,
        })
    }

    /// The number at a key, `None` if it is absent.
    ///
    /// # Errors
    /// If the value is not a finite number.
    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a finite number", |value| match value {
            GgufValue::Float(number) => Some(*number).filter(|number| number.is_finite()),
            GgufValue::Integer(number) => Some(*number as f64),
            _ => None,
        })
    }

    /// The texts of the array at a key, `None` if it is absent.
    ///
    /// # Errors
    /// If the value is not an array of texts.
    pub fn texts(&self, key: &str) -> Result<Option<&[String]>> {
        self.typed(key, "an array of texts", |value| match value {
            GgufValue::Texts(texts) => Some(texts.as_slice()),
            _ => None,
        })
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        read: impl Fn(&'a GgufValue) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let found = || match value {
            GgufValue::Integer(_) | GgufValue::Float(_) => value.to_string(),
            other => other.kind().to_string(),
        };
        read(value).map(Some).ok_or_else(|| Error::value(format!("metadata `{}`", cut(key)), found(), expected))
    }
}

/// The error for a key that has to be there.
pub(super) fn absent(key: &str) -> Error {
    Error::value(format!("metadata `{}`", cut(key)), "absent", "a value")
}
