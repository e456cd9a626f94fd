//! SHA-256 digests as hexadecimal text.

use sha2::{Digest, Sha256};

/// The digits of a finished hash.
pub(crate) fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
