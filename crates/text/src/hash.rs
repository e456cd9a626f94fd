//! SHA-256 fingerprints, the same on every machine.

use std::io::Read;
use std::path::Path;

use candle_attention::io::open_regular;
use candle_attention::{Error, Result};
use sha2::{Digest, Sha256};

/// A SHA-256 hash of a sequence of parts, the same on every machine, such as the key of what a cache holds for them. An
/// iterator of parts collects into it.
///
/// ```
/// use candle_attention_text::Fingerprint;
///
/// let key = ["a model", "a text"].iter().map(|part| part.as_bytes()).collect::<Fingerprint>().hex();
/// assert_eq!(key.len(), 64);
/// ```
#[derive(Default)]
pub struct Fingerprint(Sha256);

impl Fingerprint {
    /// Adds a part of any length. Its length is hashed too, so that moving bytes from one part to the next changes the
    /// fingerprint.
    pub fn add_part(&mut self, part: &[u8]) {
        self.0.update((part.len() as u64).to_le_bytes());
        self.0.update(part);
    }

    /// Adds a hash, whose length is fixed.
    pub fn add_hash(&mut self, hash: &[u8; 32]) {
        self.0.update(hash);
    }

    /// The fingerprint as 64 hexadecimal digits.
    pub fn hex(self) -> String {
        hex(&self.0.finalize())
    }
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl<'a> FromIterator<&'a [u8]> for Fingerprint {
    fn from_iter<I: IntoIterator<Item = &'a [u8]>>(parts: I) -> Self {
        let mut fingerprint = Self::default();
        parts.into_iter().for_each(|part| fingerprint.add_part(part));
        fingerprint
    }
}

/// The SHA-256 hash of a regular file's content.
pub fn hash_file(path: &Path) -> Result<[u8; 32]> {
    let (mut file, _) = open_regular(path)?;
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; 1 << 18]);
    loop {
        match file.read(&mut buffer).map_err(|e| Error::io(path, e))? {
            0 => return Ok(hash.finalize().into()),
            read => hash.update(&buffer[..read]),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn where_a_part_ends_changes_the_fingerprint() {
        let parts: [&[&str]; 6] = [&["ab", "c"], &["a", "bc"], &["abc"], &["abc", ""], &["", "abc"], &[]];
        let of = |parts: &[&str]| parts.iter().map(|part| part.as_bytes()).collect::<Fingerprint>().hex();
        assert_eq!(parts.map(of).into_iter().collect::<HashSet<_>>().len(), parts.len());
    }
}
