//! The error and result type.

use std::fmt;
use std::path::PathBuf;

use datafusion::error::DataFusionError;

/// An error of a model, of an argument or of a text.
///
/// In a query it is a [`DataFusionError::External`]; [`Error::find_in`] finds it there. An error of another node of a
/// cluster arrives as text only, which is the `Debug` form of the error there: so that form is the message too.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A model that cannot be loaded.
    #[error("model `{name}`: {source}")]
    Load {
        /// The name under which it was to be added.
        name: String,
        /// The reason.
        source: Box<candle_attention::Error>,
    },

    /// A name that no model of this node has.
    #[error("{node} has no {kind} named `{name}`; it has {known}")]
    Unknown {
        /// This node.
        node: String,
        /// Model or reranker.
        kind: &'static str,
        /// The name.
        name: String,
        /// The names that there are.
        known: String,
    },

    /// A node that has another model under the name than the plan was made for.
    #[error("{node} has another model named `{name}`: its fingerprint is {found}, the plan was made for {expected}")]
    Fingerprint {
        /// This node.
        node: String,
        /// The name.
        name: String,
        /// The fingerprint of this node's model.
        found: String,
        /// The fingerprint in the plan.
        expected: String,
    },

    /// An argument or a setting with a value that is not allowed.
    #[error("{what} is {found}, expected {expected}")]
    Value {
        /// The name of the argument or setting.
        what: String,
        /// Its value.
        found: String,
        /// The allowed values.
        expected: String,
    },

    /// A text that cannot be encoded.
    #[error("row {row} of a batch of {rows} rows, `{text}`: {reason}")]
    Row {
        /// The index of the row in the record batch, from 0.
        row: usize,
        /// The number of rows of the record batch.
        rows: usize,
        /// The beginning of the text, [`Error::TEXT_CHARS`] characters, escaped.
        text: String,
        /// The reason.
        reason: String,
    },

    /// A scheduler or executor that cannot be started or reached.
    #[error("{node}: {reason}")]
    Cluster {
        /// The scheduler or executor, with its address.
        node: String,
        /// The reason.
        reason: String,
    },

    /// A file that cannot be read.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
}

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// How many characters of a text an error has.
    pub const TEXT_CHARS: usize = 80;

    /// This crate's error in an error of a query.
    pub fn find_in(error: &DataFusionError) -> Option<&Self> {
        match error.find_root() {
            DataFusionError::External(inner) => inner.downcast_ref(),
            _ => None,
        }
    }

    pub(crate) fn value(what: impl Into<String>, found: impl ToString, expected: impl Into<String>) -> Self {
        Self::Value { what: what.into(), found: found.to_string(), expected: expected.into() }
    }

    pub(crate) fn load(name: &str, source: candle_attention::Error) -> Self {
        Self::Load { name: name.to_string(), source: Box::new(source) }
    }

    /// The error of a text in a record batch.
    pub(crate) fn in_row(row: usize, rows: usize, text: &str, error: &candle_attention::Error) -> Self {
        let reason = match error {
            candle_attention::Error::NotFinite { .. } => {
                "what the model computes for it is NaN or infinite".to_string()
            }
            other => other.to_string(),
        };
        Self::Row { row, rows, text: Self::beginning(text), reason }
    }

    /// The beginning of a text as an error shows it, on one line.
    pub fn beginning(text: &str) -> String {
        let mut shown: String = text.chars().take(Self::TEXT_CHARS).flat_map(char::escape_debug).collect();
        if text.chars().nth(Self::TEXT_CHARS).is_some() {
            shown.push('…');
        }
        shown
    }
}

impl From<Error> for DataFusionError {
    fn from(error: Error) -> Self {
        Self::External(Box::new(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginning_of_a_text_is_one_line() {
        assert_eq!(Error::beginning("a\nb\u{1b}"), r"a\nb\u{1b}");
        assert_eq!(Error::beginning(&"é".repeat(80)), "é".repeat(80));
        assert_eq!(Error::beginning(&"é".repeat(81)), "é".repeat(80) + "…");
    }

    #[test]
    fn error_is_found_inside_the_error_of_a_query() {
        let inside: DataFusionError = Error::value("the precision", "int3", "int8").into();
        let context = DataFusionError::Context("a query".to_string(), Box::new(inside));
        assert_eq!(Error::find_in(&context).unwrap().to_string(), "the precision is int3, expected int8");
        assert!(Error::find_in(&DataFusionError::Execution("another".to_string())).is_none());
    }
}
