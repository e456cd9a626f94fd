//! What the fuzz targets share: checkpoints and configurations made from a fuzzer's bytes.
//!
//! Bytes choose a family of `tests/fixtures/families` and what is damaged in it, so that most inputs come far.

use arbitrary::{Result, Unstructured};

mod config;
mod file;
mod templates;

pub use config::config;
pub use file::{Entry, Folder, entries, header, safetensors};
pub use templates::{Template, template};

/// True once in `n` inputs, and never where the fuzzer's bytes have run out: a short input is one with little damage.
pub fn rarely(u: &mut Unstructured, n: u8) -> Result<bool> {
    Ok(u.int_in_range(1..=n)? == n)
}

/// An error's message: one that says something.
pub fn says(error: impl std::fmt::Display) -> String {
    let message = error.to_string();
    assert!(message.len() > 8, "an error without a message: `{message}`");
    message
}
