//! The crate's error and result type.
//!
//! One enum for all rooms, so that a caller matches on one type. Variants are there in every build, whatever the
//! features: a `match` that compiles with one set of features compiles with all.

mod text;

use std::path::PathBuf;

#[cfg(feature = "checkpoints")]
pub(crate) use text::cut;
pub use text::cut_to;
pub(crate) use text::panic_message;
use text::{model_phrase, name, phrase};

/// An error while configuring, loading, calling, writing or training a layer or model.
///
/// Every message names the thing, what was expected and what was found. The text in `found` and `expected` is for
/// people and may change; match on the variant.
///
/// Fields hold text from files as it is. The message is one line that is safe to print: characters that control a
/// terminal or turn the direction of writing are escaped, and names of more than 200 characters are cut.
///
/// # Inside candle's errors
/// `?` turns this error into a [`candle_core::Error`] with the same message: in the `forward` of candle's traits, which
/// return [`candle_core::Result`], and in functions that use both crates. It is not lost there. `?` in the other
/// direction gives it back, it is a `source` of candle's error, and [`find_in`](Self::find_in) finds it.
///
/// ```
/// use candle_attention::{AttentionConfig, Error, MultiHeadAttention};
/// use candle_core::{DType, Device, Module, Tensor};
/// # let vb = candle_nn::VarBuilder::zeros(DType::F32, &Device::Cpu);
/// let layer = MultiHeadAttention::new(&AttentionConfig::new(8, 2), vb)?;
/// let xs = Tensor::zeros((1, 5, 7), DType::F32, &Device::Cpu)?;
/// assert!(matches!(layer.forward_t(&xs, true), Err(Error::Shape { .. })));
///
/// let candle_error: candle_core::Error = layer.forward(&xs).unwrap_err();
/// assert!(matches!(Error::find_in(&candle_error), Some(Error::Shape { .. })));
/// assert!(matches!(Error::from(candle_error), Error::Shape { .. }));
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A field of a configuration has a value that is not allowed.
    #[error("config: {field} = {} is not allowed: expected {}", name(value), phrase(allowed))]
    Config {
        /// Name of the field.
        field: &'static str,
        /// Its value, as text.
        value: String,
        /// The allowed values, in words.
        allowed: String,
    },

    /// A tensor passed to a call has the wrong shape.
    #[error("{} has shape {found:?}, expected {}", name(tensor), phrase(expected))]
    Shape {
        /// Name of the argument or weight.
        tensor: String,
        /// Its shape.
        found: Vec<usize>,
        /// The expected shape, in words or numbers.
        expected: String,
    },

    /// A tensor passed to a call has the wrong dtype.
    #[error("{} has dtype {}, expected {}", name(tensor), name(found), phrase(expected))]
    DType {
        /// Name of the argument or weight.
        tensor: String,
        /// Its dtype, as candle names it.
        found: String,
        /// The expected dtype or dtypes, in words.
        expected: String,
    },

    /// A tensor passed to a call is on the wrong device.
    #[error("{} is on {}, expected {}", name(tensor), name(found), phrase(expected))]
    Device {
        /// Name of the argument or weight.
        tensor: String,
        /// Its device.
        found: String,
        /// The expected device.
        expected: String,
    },

    /// A value in an argument, a tensor or a list is not allowed.
    #[error("{} is {}, expected {}", phrase(what), name(found), phrase(expected))]
    Value {
        /// The value's name, with its index if it has one.
        what: String,
        /// The value, as text.
        found: String,
        /// The allowed values, in words.
        expected: String,
    },

    /// A result holds NaN or an infinity: weights are damaged, or the dtype is too narrow, as f16 is for some models.
    #[error("NaN or an infinity in {}", phrase(what))]
    NotFinite {
        /// The result, with the text that it belongs to.
        what: String,
    },

    /// A key-value cache of fixed capacity has no room for the tokens of a call.
    #[error("the cache is full: {tokens} tokens, expected at most {capacity}, its capacity")]
    CacheFull {
        /// Tokens of the longest sequence, those of the call included.
        tokens: usize,
        /// Tokens that each sequence of the cache can hold.
        capacity: usize,
    },

    /// A call makes a sequence longer than the length up to which its cached keys are rotated alike.
    ///
    /// With LongRoPE and dynamic scaling one run over all tokens would rotate every key otherwise: reset the cache and
    /// run all tokens again, in one call.
    #[error(
        "sequence {sequence} of the cache has {cached} tokens, whose keys are rotated for a length of {rotated_for}; with a \
         length of {length} {} rotates them otherwise: reset the cache and run all tokens in one call",
        name(position)
    )]
    CachedRotation {
        /// Index of the sequence in the batch.
        sequence: usize,
        /// Its tokens in the cache.
        cached: usize,
        /// Its length when the keys were rotated.
        rotated_for: usize,
        /// Its length with the tokens of the call.
        length: usize,
        /// The positions of the layer.
        position: String,
    },

    /// The backend that was asked for cannot run this call.
    #[error("backend {} cannot run this call: {}", name(backend), phrase(reason))]
    Backend {
        /// Name of the backend.
        backend: String,
        /// The reason.
        reason: String,
    },

    /// A file or folder could not be read or written.
    #[error("{}: {}", phrase(path.display()), phrase(source))]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },

    /// A file or folder exists but cannot be used.
    #[error("{}: {}", phrase(path.display()), phrase(reason))]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The reason.
        reason: String,
    },

    /// A required tensor is not in the checkpoint or in the weights.
    #[error("tensor `{}` is missing: {}", text::name(name), phrase(why))]
    MissingTensor {
        /// Its full name.
        name: String,
        /// The part that needs it.
        why: String,
    },

    /// A tensor of a checkpoint has the wrong shape or dtype.
    #[error("tensor `{}` {}, expected {}", text::name(name), phrase(found), phrase(expected))]
    Tensor {
        /// Its full name.
        name: String,
        /// Its shape or dtype, as a phrase such as `has shape [3, 4]`.
        found: String,
        /// The expected shape or dtype.
        expected: String,
    },

    /// The tensor names under a prefix match no known layout of attention weights.
    #[error(
        "no known attention layout under prefix `{}`: {}; nearest is layout `{nearest}`, which lacks {}{}",
        name(prefix),
        phrase(keys),
        phrase(lacks),
        phrase(hint)
    )]
    UnknownLayout {
        /// The prefix that was searched.
        prefix: String,
        /// The tensor names found there.
        keys: String,
        /// Name of the layout with the most matching names.
        nearest: &'static str,
        /// The names of that layout that are missing.
        lacks: String,
        /// A prefix that matches, as a phrase; empty if there is none.
        hint: String,
    },

    /// A tensor under the prefix changes what attention computes in a way that this crate does not support.
    #[error("tensor `{}` is not supported in layout `{layout}`: {}", text::name(name), phrase(why))]
    UnsupportedTensor {
        /// Its full name.
        name: String,
        /// Name of the detected layout.
        layout: &'static str,
        /// The change of attention that it stands for.
        why: String,
    },

    /// The family of a model is not known, so that what its attention does is not known either. With
    /// [`ModelConfig::with_like`](crate::checkpoint::ModelConfig::with_like) its configuration can be read as that of
    /// another family.
    #[error(
        "{}; if its attention is that of a known family, name that one (`ModelConfig::with_like`, `--like`){}",
        unknown_family(model_type.as_deref()), phrase(near)
    )]
    UnknownFamily {
        /// The `model_type` of the configuration, or the name that was asked for; `None` if there is none.
        model_type: Option<String>,
        /// Known names that are spelled alike, as a phrase; empty if there are none.
        near: String,
    },

    /// A call lacks an input that the layer requires
    /// ([`AttentionConfig::requires`](crate::AttentionConfig::requires)).
    #[error("the call lacks {input}{}: expected {expected}", model_phrase(*model_type))]
    MissingInput {
        /// The missing input: a [`CallInput`](crate::CallInput), as it prints.
        input: String,
        /// Its shape, and how a call gives it.
        expected: &'static str,
        /// The model type of the layer, if it is known.
        model_type: Option<&'static str>,
    },

    /// The family is known, and its attention is one that this crate does not compute.
    #[error("model_type `{}` is not supported: {}", name(model_type), phrase(why))]
    UnsupportedFamily {
        /// The `model_type` of the configuration.
        model_type: String,
        /// The part of its attention that is not supported.
        why: String,
    },

    /// A key of a configuration changes attention in a way that the family is not known to have.
    #[error(
        "config key `{}` = {} is not supported for model_type `{}`: it sets {}",
        name(key),
        name(value),
        name(model_type),
        phrase(what)
    )]
    UnsupportedKey {
        /// The key.
        key: String,
        /// Its value, as JSON.
        value: String,
        /// The family as which the configuration is read.
        model_type: String,
        /// The part of attention that the key sets.
        what: String,
    },

    /// A tokenizer cannot be read, trained or applied; only in `candle-attention-text`. A panic of the tokenizers
    /// library on a malformed `tokenizer.json` is this error too.
    #[error("tokenizer: {}", phrase(.0))]
    Tokenizer(String),

    /// A tokenizer and its model do not belong together: a token has an id or a segment type that the model does not
    /// have, which shows with the first text that has such a token; only in `candle-attention-text`.
    #[error("{} is {found}, expected {}", phrase(what), phrase(expected))]
    TokenizerMismatch {
        /// The id or the type, with its token.
        what: String,
        /// Its value.
        found: u32,
        /// The values that the model has, in words.
        expected: String,
    },

    /// A model cannot be downloaded from the Hugging Face hub; also if the crate was built without the feature `hub`.
    #[error("hub: {}: {}", name(id), phrase(reason))]
    Hub {
        /// The model id.
        id: String,
        /// The failure, and what to do about it.
        reason: String,
    },

    /// The caller cancelled a call while it ran; only in `candle-attention-text`.
    #[error("the call was cancelled")]
    Cancelled,

    /// An error of candle. The message is candle's without its backtrace, which the source has.
    #[error("{}", phrase(one_line(.0)))]
    Candle(#[source] candle_core::Error),
}

/// The result type of every function of this crate, except for methods of candle's traits.
pub type Result<T> = std::result::Result<T, Error>;

/// An [`Error`] on its way through candle's error type.
///
/// `candle_core::Error::wrap` keeps only the message: a `dyn Display` has no source and cannot be downcast. Of candle's
/// variants `Io` is the one that holds any error and returns its source.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct InCandle(#[source] Error);

impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Candle(error) => error,
            // No backtrace: candle's wrapper for one has no source.
            other => candle_core::Error::Io(std::io::Error::other(InCandle(other))),
        }
    }
}

impl From<candle_attention_kernels::Error> for Error {
    fn from(error: candle_attention_kernels::Error) -> Self {
        use candle_attention_kernels::Error as Kernel;
        match error {
            Kernel::Shape { operand, found, expected } => Self::Shape { tensor: operand, found, expected },
            Kernel::Value { what, found, expected } => Self::Value { what, found, expected },
        }
    }
}

impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        match error {
            candle_core::Error::Io(error) => match error.downcast::<InCandle>() {
                Ok(InCandle(error)) => error,
                Err(error) => Self::Candle(candle_core::Error::Io(error)),
            },
            error => Self::Candle(error),
        }
    }
}

/// The message of an error of candle, without what candle adds in lines below it.
fn one_line(error: &candle_core::Error) -> String {
    use candle_core::Error as Candle;
    match error {
        Candle::WithBacktrace { inner, .. } => one_line(inner),
        Candle::WithPath { inner, path } => format!("{}: {}", path.display(), one_line(inner)),
        Candle::Context { inner, context } => format!("{context}: {}", one_line(inner)),
        other => other.to_string().lines().next().unwrap_or_default().to_string(),
    }
}

fn unknown_family(model_type: Option<&str>) -> String {
    match model_type {
        Some(model_type) => format!("model_type `{}` is not a known family", name(model_type)),
        None => "the configuration has no `model_type`".to_string(),
    }
}

impl Error {
    /// The error of this crate in `error` or in one of its sources, also where candle added a context, a path or a
    /// backtrace to it.
    pub fn find_in<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a Self> {
        use candle_core::Error as Candle;
        let mut next = Some(error);
        while let Some(error) = next {
            let candle = match error.downcast_ref::<Self>() {
                Some(Self::Candle(candle)) => Some(candle),
                Some(found) => return Some(found),
                None => error.downcast_ref::<Candle>(),
            };
            next = match candle {
                Some(
                    Candle::Context { inner, .. }
                    | Candle::WithPath { inner, .. }
                    | Candle::WithBacktrace { inner, .. },
                ) => Some(&**inner),
                _ => error.source(),
            };
        }
        None
    }

    /// [`Error::Config`]: `field` of a configuration is `value`, and `allowed` says in words what it may be.
    pub fn config(field: &'static str, value: impl ToString, allowed: impl Into<String>) -> Self {
        Self::Config { field, value: value.to_string(), allowed: allowed.into() }
    }

    /// A result of a model in `dtype` that holds NaN or an infinity.
    pub fn not_finite(what: impl std::fmt::Display, dtype: candle_core::DType) -> Self {
        let reason = match dtype {
            candle_core::DType::F16 => ", computed in f16, which holds no number beyond 65504: load the model in f32",
            _ => "",
        };
        Self::NotFinite { what: format!("{what}{reason}") }
    }

    /// [`Error::Shape`] of an argument or a weight.
    pub fn shape(tensor: impl Into<String>, found: &[usize], expected: impl Into<String>) -> Self {
        Self::Shape { tensor: tensor.into(), found: found.to_vec(), expected: expected.into() }
    }

    /// [`Error::DType`] of an argument or a weight.
    pub fn dtype(tensor: impl Into<String>, found: candle_core::DType, expected: impl Into<String>) -> Self {
        Self::DType { tensor: tensor.into(), found: found.as_str().to_string(), expected: expected.into() }
    }

    /// [`Error::Value`] of an argument, a tensor or a list.
    pub fn value(what: impl Into<String>, found: impl ToString, expected: impl Into<String>) -> Self {
        Self::Value { what: what.into(), found: found.to_string(), expected: expected.into() }
    }

    /// [`Error::Tensor`] of a stored tensor, by its full name.
    pub fn tensor(name: impl Into<String>, found: impl Into<String>, expected: impl Into<String>) -> Self {
        Self::Tensor { name: name.into(), found: found.into(), expected: expected.into() }
    }

    /// The error of a value of a weight, such as NaN, with the name of the weight.
    pub(crate) fn with_weight(self, name: &str) -> Self {
        match self {
            Self::Value { what, found, expected } => {
                Self::Value { what: format!("{what} of `{name}`"), found, expected }
            }
            other => other,
        }
    }

    /// [`Error::Io`] of a file or folder.
    pub fn io(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Self::Io { path: path.into(), source }
    }

    /// [`Error::File`] with the reason why a file or folder cannot be used.
    pub fn file(path: impl Into<PathBuf>, reason: impl ToString) -> Self {
        Self::File { path: path.into(), reason: reason.to_string() }
    }
}
