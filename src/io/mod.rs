//! Files and JSON: atomic writes, typed access to parsed JSON, hashes.

mod atomic;
#[cfg(feature = "encoder")]
mod hash;
mod json;

pub(crate) use atomic::write_atomic;
#[cfg(feature = "encoder")]
pub(crate) use hash::hex;
#[cfg(feature = "encoder")]
pub(crate) use json::{json, json_or_default};
pub(crate) use json::{number, whole_number};
