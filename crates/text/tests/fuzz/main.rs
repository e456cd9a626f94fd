//! The fuzz targets, and what they share: checkpoints, configurations and other files made from the bytes of a fuzzer.
//!
//! The bytes choose a real file and the damage to it. Random files would nearly all be rejected by the first check.
//!
//! The file is compiled twice: as the library of the fuzzers (`fuzz/fuzz_targets`), and as this test, which runs every
//! target over the corpus and some mutations of it (`short.rs`).

#[path = "../../../../tests/common/mod.rs"]
#[allow(dead_code, unused_imports)]
mod common;
mod config;
mod file;
mod folder;
mod gguf;
mod json;
mod masks;
mod model_folder;
#[cfg(test)]
mod short;
mod start;
pub mod targets;
mod templates;

use std::path::PathBuf;

use arbitrary::{Result, Unstructured};

pub use start::{report, start};

/// A file of the repository.
fn repository(path: &str) -> PathBuf {
    common::repository().join(path)
}

/// True for one in `n` inputs, and false where the bytes have run out: a short input has little damage.
fn rarely(u: &mut Unstructured, n: u8) -> Result<bool> {
    Ok(u.int_in_range(1..=n)? == n)
}

/// The message of an error, which must not be trivial.
fn message_of(error: impl std::fmt::Display) -> String {
    let message = error.to_string();
    assert!(message.len() > 8, "an error without a message: `{message}`");
    message
}
