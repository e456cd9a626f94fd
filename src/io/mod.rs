//! Files: atomic writes, safetensors, typed access to JSON, hashes.
//!
//! A model, an index or a training run can be hours of work, so nothing is written in place: a file or folder is made
//! beside its target and renamed when it is complete. A process that is killed leaves the old content or the new one.

mod atomic;
#[cfg(feature = "encoder")]
mod hash;
mod json;
mod read;
mod stored_file;
mod tensors;

pub(crate) use atomic::write_atomic;
#[cfg(feature = "train")]
pub(crate) use atomic::{create_folder, write_bytes};
#[cfg(feature = "encoder")]
pub(crate) use hash::{Fingerprint, hash_file};
#[cfg(feature = "encoder")]
pub(crate) use json::{json, json_or_default};
pub(crate) use json::{number, whole_number};
#[allow(unused_imports, reason = "the rooms that read files take them over one by one")]
pub(crate) use read::{is_present, open_regular, read_limited};
pub(crate) use stored_file::StoredFile;
pub(crate) use tensors::write_tensors;
