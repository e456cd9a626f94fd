//! Sentence embeddings of candle-attention for Swift and Kotlin.
//!
//! UniFFI makes the bindings from the items of this library: [`SentenceEncoder`] embeds texts, [`SearchIndex`] finds the
//! nearest of them.

mod cancellation;
mod device;
mod encoder;
mod error;
mod matrix;
mod options;
mod search;

pub use cancellation::Cancellation;
pub use device::{ComputeDevice, NumberFormat};
pub use encoder::SentenceEncoder;
pub use error::EncoderError;
pub use options::EncodeOptions;
pub use search::{SearchHit, SearchIndex};

uniffi::setup_scaffolding!();
