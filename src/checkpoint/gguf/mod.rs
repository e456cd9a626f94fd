//! GGUF, the file format of llama.cpp
//! ([specification](https://github.com/ggml-org/ggml/blob/master/docs/gguf.md)), as a kind of checkpoint.
//!
//! Opening a file reads its header: the metadata, and name, type, shape and place of each tensor. From there on the
//! file looks like one of Hugging Face: [`names`] gives tensors the names of its architecture, [`config`] makes a
//! `config.json` of the metadata. Data is read and dequantized per tensor, when it is asked for.
//!
//! candle reads GGUF too, and its code dequantizes the blocks here. Its header reader is not used: one type that it
//! does not know makes the whole file unreadable, an alignment of 0 is a panic, a name that is listed twice is taken
//! once without a word, text that is not UTF-8 is changed, and an array takes 32 times the memory of the file.

pub(crate) mod blocks;
mod config;
pub(crate) mod header;
mod names;
mod tables;
mod value;

pub(crate) use config::config_of;
pub use value::{GgufMetadata, GgufValue};
