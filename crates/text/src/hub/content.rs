//! The content of a file: receiving it, and proving that it is whole.

use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use candle_attention::io::open_regular;
use candle_attention::{Error, Result};
use sha1::Sha1;
use sha2::{Digest, Sha256};

use crate::hub::client::Facts;
use crate::hub::fault::Fault;
use crate::hub::names::{BlobName, Naming, shown};

/// The slowest download that is waited for, in bytes per second, so that a byte now and then does not keep a program
/// for ever. The slowest mobile networks have ten times as much.
const MIN_SPEED: u64 = 1024;

/// The longest file, in bytes, that is received without a size: it is held in memory.
const MAX_COLLECTED: u64 = 1 << 28;

/// How much is read at once, in bytes.
const BUFFER: usize = 1 << 17;

/// How a content relates to the name under which the hub or the cache has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Proof {
    /// The name is its hash.
    Whole,
    /// The name is the hash of something else: which hash.
    Broken(&'static str),
    /// The name is no hash.
    Unknown,
}

/// The hashes of a content by which its name may call it.
struct Hashes {
    naming: Naming,
    sha256: Sha256,
    /// With git's header, which holds the length, and without.
    sha1: [Sha1; 2],
}

impl Hashes {
    fn new(name: &BlobName, length: u64) -> Self {
        let sha1 = [Sha1::new_with_prefix(format!("blob {length}\0")), Sha1::new()];
        Self { naming: name.naming(), sha256: Sha256::new(), sha1 }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self.naming {
            Naming::Sha256 => self.sha256.update(bytes),
            Naming::Sha1 => self.sha1.iter_mut().for_each(|hash| hash.update(bytes)),
            Naming::Opaque => {}
        }
    }

    fn proof(self, name: &BlobName) -> Proof {
        let hex = |hash: &[u8]| hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let proof = |matches: bool, hash| if matches { Proof::Whole } else { Proof::Broken(hash) };
        match self.naming {
            Naming::Sha256 => proof(hex(&self.sha256.finalize()) == name.as_str(), "SHA-256"),
            Naming::Sha1 => proof(self.sha1.into_iter().any(|hash| hex(&hash.finalize()) == name.as_str()), "SHA-1"),
            Naming::Opaque => Proof::Unknown,
        }
    }
}

/// Compares a file of the cache with the hash that is its name.
pub(crate) fn prove(path: &Path, name: &BlobName) -> Result<Proof> {
    let io = |e| Error::io(path, e);
    if name.naming() == Naming::Opaque {
        return Ok(Proof::Unknown);
    }
    let (mut file, length) = open_regular(path)?;
    let (mut hashes, mut buffer) = (Hashes::new(name, length), vec![0; BUFFER]);
    loop {
        match file.read(&mut buffer).map_err(io)? {
            0 => return Ok(hashes.proof(name)),
            read => hashes.update(&buffer[..read]),
        }
    }
}

/// A download that is under way.
pub(crate) struct Transfer<'a> {
    pub facts: &'a Facts,
    /// The longest file, in bytes.
    pub at_most: u64,
    /// How long the hub may stay silent.
    pub timeout: Duration,
}

impl Transfer<'_> {
    /// Passes a body on to `take` piece by piece, and proves at the end that it was whole. Only then may it be used.
    pub fn receive(
        &self,
        body: impl Read,
        mut take: impl FnMut(&[u8]) -> Result<()>,
    ) -> std::result::Result<(), Fault> {
        self.check_size()?;
        let name = &self.facts.name;
        let Some(size) = self.facts.size else {
            // Git's hash begins with the length, so what comes without a length is collected first.
            let mut bytes = Vec::new();
            self.pieces(body, self.at_most, |piece| {
                bytes.extend_from_slice(piece);
                Ok(())
            })?;
            let mut hashes = Hashes::new(name, bytes.len() as u64);
            hashes.update(&bytes);
            self.check(hashes.proof(name))?;
            return Ok(take(&bytes)?);
        };
        let mut hashes = Hashes::new(name, size);
        let received = self.pieces(body, size, |piece| {
            hashes.update(piece);
            take(piece)
        })?;
        if received != size {
            return Err(Fault::refused(format!("it arrived with {received} bytes of {size}")));
        }
        self.check(hashes.proof(name))
    }

    /// Reads a body of at most `bound` bytes, and returns its length.
    fn pieces(
        &self,
        mut body: impl Read,
        bound: u64,
        mut take: impl FnMut(&[u8]) -> Result<()>,
    ) -> std::result::Result<u64, Fault> {
        let (start, mut received, mut buffer) = (Instant::now(), 0, vec![0; BUFFER]);
        loop {
            let read = body.read(&mut buffer).map_err(|e| {
                Fault::refused(format!("it broke off after {received} bytes: {}", shown(&e.to_string())))
            })?;
            if read == 0 {
                return Ok(received);
            }
            received += read as u64;
            if received > bound {
                return Err(Fault::refused(format!("{received} bytes arrived, expected at most {bound}")));
            }
            if start.elapsed() > self.timeout.saturating_add(Duration::from_secs(received / MIN_SPEED)) {
                let reason = format!("it comes slower than {MIN_SPEED} bytes per second: {received} bytes so far");
                return Err(Fault::Refused(reason));
            }
            take(&buffer[..read])?;
        }
    }

    /// Checks before anything is received that a file is not too long, and that it can be known to be whole.
    fn check_size(&self) -> std::result::Result<(), Fault> {
        match self.facts.size {
            Some(size) if size > self.at_most => {
                Err(Fault::refused(format!("its size is announced as {size} bytes, expected at most {}", self.at_most)))
            }
            None if self.facts.name.naming() == Naming::Opaque => Err(Fault::refused(
                "the hub announces neither a size nor a hash, so a part could not be told from the whole",
            )),
            None if self.at_most > MAX_COLLECTED => Err(Fault::refused("the hub announces no size")),
            _ => Ok(()),
        }
    }

    fn check(&self, proof: Proof) -> std::result::Result<(), Fault> {
        match proof {
            Proof::Broken(hash) => {
                let name = self.facts.name.as_str();
                Err(Fault::refused(format!("what arrived is not the file whose {hash} is {name}")))
            }
            Proof::Whole | Proof::Unknown => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::names::Commit;

    fn facts(name: &str, size: Option<u64>) -> Facts {
        Facts { commit: Commit::parse(&"0".repeat(40)).unwrap(), name: BlobName::of_etag(name).unwrap(), size }
    }

    fn received(body: impl Read, facts: &Facts) -> std::result::Result<Vec<u8>, String> {
        let (transfer, mut bytes) = (Transfer { facts, at_most: 1000, timeout: Duration::from_secs(60) }, Vec::new());
        let received = transfer.receive(body, |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        });
        received.map(|()| bytes).map_err(|fault| format!("{fault:?}"))
    }

    #[test]
    fn hashes_of_three_kinds() {
        // `git hash-object`, `sha1sum` and `sha256sum` of this text.
        let names = [
            "ce013625030ba8dba906f756967f9e9ca394464a",
            "f572d396fae9206628714fb2ce00f72e94f2258f",
            "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03",
        ];
        for name in names {
            for size in [None, Some(6)] {
                assert_eq!(received(&b"hello\n"[..], &facts(name, size)).unwrap(), b"hello\n");
                let error = received(&b"hello "[..], &facts(name, size)).unwrap_err();
                assert!(error.contains(name), "{error}");
            }
        }
    }

    #[test]
    fn sizes() {
        assert!(received(&b"hello"[..], &facts("12345678", Some(5))).is_ok());
        for (facts, reason) in [
            (facts("12345678", Some(4)), "5 bytes arrived, expected at most 4"),
            (facts("12345678", Some(6)), "5 bytes of 6"),
            (facts("12345678", Some(1001)), "1001 bytes, expected at most 1000"),
            (facts("12345678", None), "neither a size nor a hash"),
        ] {
            let error = received(&b"hello"[..], &facts).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        let error = received(std::io::repeat(0), &facts(&"0".repeat(40), None)).unwrap_err();
        assert!(error.contains("expected at most 1000"), "{error}");
    }

    /// Each byte comes in time, all together do not.
    #[test]
    fn a_byte_now_and_then_is_too_slow() {
        struct Drip;
        impl Read for Drip {
            fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                std::thread::sleep(Duration::from_millis(1));
                buffer[0] = 0;
                Ok(1)
            }
        }
        let facts = facts("12345678", Some(1000));
        let transfer = Transfer { facts: &facts, at_most: 1000, timeout: Duration::from_millis(5) };
        let error = format!("{:?}", transfer.receive(Drip, |_| Ok(())).unwrap_err());
        assert!(error.contains("slower than 1024 bytes per second"), "{error}");
    }
}
