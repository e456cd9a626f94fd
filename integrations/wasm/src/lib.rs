//! Sentence embeddings of `candle-attention` in JavaScript.
//!
//! This is what the module exports to `js/index.js`, the API of the package: numbers, strings and arrays of them go in and
//! out, and what a user passes is checked before it is computed with, because a panic ends the call it happens in.

mod attention;
mod encoder;
mod error;
mod files;
mod index;
mod options;
mod panic;

pub use attention::Attention;
pub use encoder::Encoder;
pub use files::Files;
pub use index::Index;
pub use panic::{keep_messages, take_panic};
