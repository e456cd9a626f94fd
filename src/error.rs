use std::path::PathBuf;

/// What can go wrong while configuring, loading or calling attention.
///
/// Every message names the thing, what was expected and what was found. `forward` and `attend` return
/// [`candle_core::Result`]; there this error arrives wrapped, with the same message.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A configuration field holds a value that is not allowed.
    #[error("config: {field} = {value} is not allowed: expected {allowed}")]
    Config {
        /// The field, as spelled in the configuration.
        field: &'static str,
        /// The value found.
        value: String,
        /// What is allowed.
        allowed: String,
    },

    /// A tensor passed to a call has the wrong shape.
    #[error("{tensor} has shape {found:?}, expected {expected}")]
    Shape {
        /// Which tensor.
        tensor: String,
        /// Its shape.
        found: Vec<usize>,
        /// The expected shape, in words or numbers.
        expected: String,
    },

    /// A tensor passed to a call has the wrong dtype.
    #[error("{tensor} has dtype {found}, expected {expected}")]
    DType {
        /// Which tensor.
        tensor: String,
        /// Its dtype.
        found: String,
        /// The expected dtype or dtypes.
        expected: String,
    },

    /// A tensor passed to a call lies on another device than the layer.
    #[error("{tensor} is on {found}, expected {expected}")]
    Device {
        /// Which tensor.
        tensor: String,
        /// Where it is.
        found: String,
        /// Where it has to be.
        expected: String,
    },

    /// A value inside a tensor or list is out of range.
    #[error("{what} is {found}, expected {expected}")]
    Value {
        /// Which value, with its index.
        what: String,
        /// The value.
        found: String,
        /// What is allowed.
        expected: String,
    },

    /// A backend was forced that cannot run this call.
    #[error("backend {backend} cannot run this call: {reason}")]
    Backend {
        /// The backend asked for.
        backend: String,
        /// Why it cannot run.
        reason: String,
    },

    /// A file or folder could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },

    /// A file is there but its content is not what it should be.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },

    /// A tensor that is needed is not in the checkpoint.
    #[error("tensor `{name}` is missing: {why}")]
    MissingTensor {
        /// The full name.
        name: String,
        /// What it is needed for.
        why: String,
    },

    /// A tensor of the checkpoint cannot be used as it is.
    #[error("tensor `{name}` {found}, expected {expected}")]
    Tensor {
        /// The full name.
        name: String,
        /// Its shape or dtype.
        found: String,
        /// What was expected.
        expected: String,
    },

    /// No known layout of attention weights fits the names under a prefix.
    #[error(
        "no known attention layout under prefix `{prefix}`: {keys}; nearest is layout `{nearest}`, which lacks {lacks}{hint}"
    )]
    UnknownLayout {
        /// The prefix that was searched.
        prefix: String,
        /// The keys found there.
        keys: String,
        /// The layout that came nearest.
        nearest: &'static str,
        /// The names that the nearest layout needs and that are absent.
        lacks: String,
        /// A prefix that would fit, if there is one.
        hint: String,
    },

    /// A tensor under the prefix changes what attention computes, in a way this version does not know.
    #[error("tensor `{name}` is not understood by layout `{layout}`: {why}")]
    UnsupportedTensor {
        /// The full name.
        name: String,
        /// The layout that was detected.
        layout: &'static str,
        /// What it would do.
        why: String,
    },

    /// The tokenizer could not be used.
    #[cfg(feature = "encoder")]
    #[error("tokenizer: {0}")]
    Tokenizer(String),

    /// A model could not be brought from the hub.
    #[error("hub: {id}: {reason}")]
    Hub {
        /// The model id.
        id: String,
        /// What went wrong, and what to do.
        reason: String,
    },

    /// An error of candle itself.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

/// The crate's result type.
pub type Result<T> = std::result::Result<T, Error>;

impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Candle(error) => error,
            other => candle_core::Error::wrap(other),
        }
    }
}

impl Error {
    pub(crate) fn config(field: &'static str, value: impl ToString, allowed: impl Into<String>) -> Self {
        Self::Config { field, value: value.to_string(), allowed: allowed.into() }
    }

    pub(crate) fn shape(tensor: impl Into<String>, found: &[usize], expected: impl Into<String>) -> Self {
        Self::Shape { tensor: tensor.into(), found: found.to_vec(), expected: expected.into() }
    }

    pub(crate) fn dtype(tensor: impl Into<String>, found: candle_core::DType, expected: impl Into<String>) -> Self {
        Self::DType { tensor: tensor.into(), found: found.as_str().to_string(), expected: expected.into() }
    }

    pub(crate) fn value(what: impl Into<String>, found: impl ToString, expected: impl Into<String>) -> Self {
        Self::Value { what: what.into(), found: found.to_string(), expected: expected.into() }
    }

    pub(crate) fn io(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Self::Io { path: path.into(), source }
    }

    pub(crate) fn file(path: impl Into<PathBuf>, reason: impl ToString) -> Self {
        Self::File { path: path.into(), reason: reason.to_string() }
    }
}
