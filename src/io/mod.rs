//! Files: atomic writes, reads of untrusted files, safetensors.
//!
//! A model, an index or a training run can be hours of work, so nothing is written in place. A file or folder is made
//! beside its target under a random name (`.candle-attention-….part`), synced to the disk, and renamed when it is
//! complete; then the folder around it is synced. After a kill, a full disk or a power failure the target has its old
//! content or all of the new one, however many processes write it; the last one wins. What is incomplete is removed on
//! every error. Only a process that is killed, or whose machine fails, leaves its `.part` behind, which may be deleted.
//!
//! - A file that replaces another has its permissions, not its owner. A link at the target is replaced, not followed.
//! - A folder is never replaced: no call of the standard library exchanges two folders, and between removing the old
//!   one and renaming the new one there would be neither.
//! - Only Unix can sync the names in a folder. On Windows, and on network shares that do not pass syncs on, the old
//!   content may be back after a power failure.
//!
//! Files of others are read only if they are regular ones, and only up to a limit: a pipe would block, a device may
//! never end. Regular expressions in them are compiled only up to an amount of work.

mod foreign;
mod json;
mod pattern_work;
mod read;
mod stored_file;
mod tensors;
mod text;
mod write;

pub use foreign::foreign_content;
pub(crate) use json::{number, stated, whole_number};
pub use json::{parse_json, read_json};
pub use pattern_work::PatternWork;
pub use read::{is_present, open_regular, read_limited};
pub(crate) use stored_file::StoredFile;
pub(crate) use tensors::MAX_HEADER_BYTES;
pub use tensors::{WrittenTensor, write_tensors};
pub use text::utf8_text;
pub use write::{create_folder, write_atomic, write_file, write_new_folder};
