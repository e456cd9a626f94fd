//! Files: atomic writes, safetensors, typed access to JSON, hashes.
//!
//! A model, an index or a training run can be hours of work, so nothing is written in place: a file or folder is made
//! beside its target under a random name, synced, and renamed when it is complete. A kill, a full disk or a power failure
//! leaves the old content or the new one, however many processes write.

mod atomic;
mod file_system;
#[cfg(feature = "encoder")]
mod hash;
mod json;
#[cfg(feature = "encoder")]
mod new_folder;
mod read;
mod stored_file;
mod temporary;
mod tensors;
#[cfg(all(test, feature = "train"))]
mod tests;

pub(crate) use atomic::{write_atomic, write_bytes};
#[cfg(feature = "encoder")]
pub(crate) use hash::{Fingerprint, hash_file};
#[cfg(feature = "encoder")]
pub(crate) use json::{MAX_CONFIG_BYTES, json};
pub(crate) use json::{number, whole_number};
#[cfg(feature = "train")]
pub(crate) use new_folder::create_folder;
#[cfg(feature = "encoder")]
pub(crate) use new_folder::{NewFolder, check_absent, write_new_folder};
#[cfg(feature = "encoder")]
pub(crate) use read::open_regular;
pub(crate) use read::{is_present, read_limited};
pub(crate) use stored_file::StoredFile;
#[cfg(feature = "train")]
pub(crate) use temporary::is_temporary;
pub(crate) use tensors::write_tensors;
