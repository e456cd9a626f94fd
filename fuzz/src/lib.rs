//! What the fuzz targets share: checkpoints and configurations made from the bytes of the fuzzer.
//!
//! The bytes choose a family of `tests/fixtures/families` and the damage to it. Random files would nearly all be rejected by
//! the first check.

use arbitrary::{Result, Unstructured};

mod config;
mod file;
mod templates;

pub use config::config;
pub use file::{Entry, Folder, entries, header, safetensors};
pub use templates::{Template, template};

/// True for one in `n` inputs, and false where the bytes have run out: a short input has little damage.
pub fn rarely(u: &mut Unstructured, n: u8) -> Result<bool> {
    Ok(u.int_in_range(1..=n)? == n)
}

/// The message of an error, which must not be trivial.
pub fn message_of(error: impl std::fmt::Display) -> String {
    let message = error.to_string();
    assert!(message.len() > 8, "an error without a message: `{message}`");
    message
}
