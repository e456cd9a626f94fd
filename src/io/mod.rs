//! Files: atomic writes, safetensors, typed access to JSON, hashes.
//!
//! A model, an index or a training run can be hours of work, so nothing is written in place: a file or folder is made
//! beside its target under a random name, synced, and renamed when it is complete. A kill, a full disk or a power failure
//! leaves the old content or the new one, however many processes write.

mod atomic;
mod file_system;
mod hash;
mod json;
mod new_folder;
mod read;
mod stored_file;
mod temporary;
mod tensors;

pub use atomic::{write_atomic, write_bytes};
pub use hash::{Fingerprint, hash_file};
pub use json::{MAX_CONFIG_BYTES, json};
pub use json::{number, whole_number};
pub use new_folder::create_folder;
pub use new_folder::{NewFolder, check_absent, write_new_folder};
pub use read::open_regular;
pub use read::{is_present, read_limited};
pub use stored_file::StoredFile;
pub use temporary::is_temporary;
pub use tensors::write_tensors;
