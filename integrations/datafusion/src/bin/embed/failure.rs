//! The errors of `embed`, one line each.

use std::path::Path;

/// What went wrong, as a line for people.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Failure(String);

pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub fn new(message: impl ToString) -> Self {
        Self(message.to_string())
    }

    /// An error that belongs to a file.
    pub fn at(path: &Path, error: impl ToString) -> Self {
        Self(format!("{}: {}", path.display(), error.to_string()))
    }
}

impl From<candle_attention_datafusion::Error> for Failure {
    fn from(error: candle_attention_datafusion::Error) -> Self {
        Self(error.to_string())
    }
}
