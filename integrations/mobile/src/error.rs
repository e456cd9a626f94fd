//! The error of all calls.

use candle_attention::Error;

/// What went wrong. The message names the thing, what was expected and what was found.
#[derive(Debug, thiserror::Error, uniffi::Error)]
#[uniffi(flat_error)]
pub enum EncoderError {
    /// A file of a model is missing or malformed, or this version cannot run the model. Some faults of a tokenizer show with
    /// the first text that meets them.
    #[error("{0}")]
    Model(Error),

    /// An argument is not allowed.
    #[error("{0}")]
    Argument(Error),

    /// A text cannot be tokenized.
    #[error("{0}")]
    Tokenizer(Error),

    /// An embedding holds NaN or an infinity: the weights are damaged, or the number format is too narrow for the model.
    #[error("{0}")]
    NotFinite(Error),

    /// There is no such device, or it failed.
    #[error("{0}")]
    Device(String),

    /// The call was cancelled.
    #[error("the call was cancelled")]
    Cancelled,
}

impl EncoderError {
    /// The error of loading a model.
    pub(crate) fn loading(error: Error) -> Self {
        match error {
            Error::Candle(_) | Error::Device { .. } => Self::Device(error.to_string()),
            error => Self::Model(error),
        }
    }

    /// An argument that is not allowed.
    pub(crate) fn argument(what: impl Into<String>, found: impl ToString, expected: impl Into<String>) -> Self {
        Self::Argument(Error::Value { what: what.into(), found: found.to_string(), expected: expected.into() })
    }
}

/// The error of calling a loaded model.
impl From<Error> for EncoderError {
    fn from(error: Error) -> Self {
        match error {
            Error::Cancelled => Self::Cancelled,
            Error::NotFinite { .. } => Self::NotFinite(error),
            Error::Tokenizer(_) => Self::Tokenizer(error),
            Error::TokenizerMismatch { .. } => Self::Model(error),
            Error::Config { .. } | Error::Value { .. } | Error::Shape { .. } => Self::Argument(error),
            error => Self::Device(error.to_string()),
        }
    }
}

/// The result of all calls.
pub(crate) type Result<T> = std::result::Result<T, EncoderError>;
