//! Why a file did not come from the hub.

use candle_attention::Error;

use crate::hub::names::RepoPath;

/// Why a file did not come from the hub.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The hub did not answer, or said that it cannot now. What the cache holds of the revision may serve instead.
    Unreachable(String),
    /// The hub answered, and the file cannot be had or must not be used.
    Refused(String),
    /// The same, with a reason that says all: the file's name is not put before it.
    Stated(String),
    /// This machine failed: the cache cannot be read or written.
    Local(Error),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Local(error)
    }
}

impl Fault {
    pub fn refused(reason: impl Into<String>) -> Self {
        Self::Refused(reason.into())
    }

    /// The error for a caller who asked for the model `id`.
    pub fn into_error(self, id: &str, path: &RepoPath) -> Error {
        let reason = match self {
            Self::Unreachable(reason) | Self::Refused(reason) => format!("`{}`: {reason}", path.as_str()),
            Self::Stated(reason) => reason,
            Self::Local(error) => return error,
        };
        Error::Hub { id: id.to_string(), reason }
    }
}
