//! Names that become parts of addresses and of paths in the cache.
//!
//! Each type comes from a check and from nowhere else, so nothing that a hub sends or a caller passes is joined to a
//! path unchecked.

use std::path::{Path, PathBuf};

use candle_attention::{Error, Result};

/// The longest revision, in bytes. Git's own limit is that of a path.
const MAX_REVISION: usize = 255;

/// The longest part of a path in a repository, in bytes: what common file systems can store.
const MAX_PART: usize = 255;

/// The longest ETag, in characters. SHA-256, the longest that the hub uses, has 64.
const MAX_ETAG: usize = 128;

/// The shortest ETag, in characters: longer than names that Windows keeps for devices, such as `COM1`.
const MIN_ETAG: usize = 8;

/// A git commit: 40 lower-case hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Commit(String);

impl Commit {
    pub const EXPECTED: &str = "40 hexadecimal digits";

    pub fn parse(text: &str) -> Option<Self> {
        is_hex(text, 40).then(|| Self(text.to_string()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A branch, tag or commit.
#[derive(Debug, Clone)]
pub(crate) struct Revision(String);

impl Revision {
    /// Checks a revision as a caller gives it.
    pub fn parse(text: &str) -> Result<Self> {
        let part = |part: &str| {
            let edges = !part.starts_with(['.', '-']) && !part.ends_with('.') && !part.ends_with(".lock");
            !part.is_empty() && edges && !part.contains("..") && !is_device(part)
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
        if text.len() <= MAX_REVISION && text.chars().all(plain) && text.split('/').all(part) {
            return Ok(Self(text.to_string()));
        }
        let expected = format!(
            "a branch, tag or commit of at most {MAX_REVISION} letters, digits, `.`, `_`, `-` and `/`, without `..` and \
             empty parts"
        );
        Err(Error::value("the revision", shown(text), expected))
    }

    pub fn of(commit: &Commit) -> Self {
        Self(commit.0.clone())
    }

    /// The commit, if the revision is one.
    pub fn commit(&self) -> Option<Commit> {
        Commit::parse(&self.0)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The path of a file in a repository, with `/` between its parts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RepoPath(String);

impl RepoPath {
    /// The file `name` in `folder`, which is empty for the top of the repository.
    pub fn parse(folder: &str, name: &str) -> std::result::Result<Self, String> {
        let path = if folder.is_empty() { name.to_string() } else { format!("{folder}/{name}") };
        // What Windows reads as a drive, a stream, a separator or a device is refused on every system.
        let plain = |c: char| !c.is_control() && !r#"\:*?"<>|"#.contains(c);
        let part = |part: &str| {
            let edges = !part.ends_with(['.', ' ']) && part.len() <= MAX_PART;
            !part.is_empty() && edges && !is_device(part) && part.chars().all(plain)
        };
        if path.split('/').all(part) {
            return Ok(Self(path));
        }
        Err(format!("`{}` is not the path of a file inside a repository", shown(&path)))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path below a folder of the cache.
    pub fn below(&self, folder: &Path) -> PathBuf {
        self.0.split('/').fold(folder.to_path_buf(), |path, part| path.join(part))
    }
}

/// The name under which the cache stores a content: the ETag that the hub gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BlobName(String);

/// What an ETag says about the content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Naming {
    /// The SHA-256 of a large file.
    Sha256,
    /// The SHA-1 of a small file, with git's header or, on some mirrors, without.
    Sha1,
    /// Nothing that can be checked.
    Opaque,
}

impl BlobName {
    pub const EXPECTED: &str = "8 to 128 letters, digits, `-` and `_`";

    /// The name in an `ETag` header: without the mark of a weak one, and without quotes. The digits of a hash become lower
    /// case, for where file names of either case are one, another spelling would be the same blob and prove nothing.
    pub fn of_etag(header: &str) -> Option<Self> {
        let header = header.strip_prefix("W/").unwrap_or(header);
        let name = header.strip_prefix('"').and_then(|header| header.strip_suffix('"')).unwrap_or(header);
        let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        let lower = name.to_ascii_lowercase();
        let name = if is_hex(&lower, 64) || is_hex(&lower, 40) { lower } else { name.to_string() };
        (plain && (MIN_ETAG..=MAX_ETAG).contains(&name.len())).then_some(Self(name))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn naming(&self) -> Naming {
        if is_hex(&self.0, 64) {
            Naming::Sha256
        } else if is_hex(&self.0, 40) {
            Naming::Sha1
        } else {
            Naming::Opaque
        }
    }
}

/// Whether Windows takes a name for a device, with any extension.
fn is_device(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or_default().to_ascii_uppercase();
    let numbered = stem.strip_prefix("COM").or(stem.strip_prefix("LPT"));
    ["CON", "PRN", "AUX", "NUL"].contains(&stem.as_str()) || numbered.is_some_and(|n| n.len() == 1)
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// Text from outside as it may stand in a message: on one line, and not too long.
pub(crate) fn shown(text: &str) -> String {
    const LONGEST: usize = 200;
    let mut shown: String = text.chars().take(LONGEST).flat_map(char::escape_debug).collect();
    if text.chars().nth(LONGEST).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revisions() {
        for good in ["main", "v1.0", "refs/pr/1", "refs/convert/parquet", "feature_x-2", &"a".repeat(255)] {
            assert!(Revision::parse(good).is_ok(), "{good}");
        }
        let long = "a".repeat(256);
        for bad in ["", "/", "/a", "a/", "a//b", ".", "..", "a..b", "a/../b", ".a", "a/.b", "-a", "a.lock", "a.", &long]
        {
            assert!(Revision::parse(bad).is_err(), "{bad}");
        }
        for bad in "\0 \n\\:*?\"<>|%#@{}~^é".chars() {
            assert!(Revision::parse(&format!("a{bad}b")).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_lower_case_digits_are_a_commit() {
        assert!(Commit::parse("0123456789abcdef0123456789abcdef01234567").is_some());
        for bad in ["", "main", "0123456789ABCDEF0123456789ABCDEF01234567", "0123456789abcdef0123456789abcdef0123456g"]
        {
            assert!(Commit::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn paths_in_a_repository() {
        let path = RepoPath::parse("1_Pooling", "config.json").unwrap();
        assert_eq!(path.below(Path::new("x")), Path::new("x").join("1_Pooling").join("config.json"));
        for good in ["", "a b", "0_WordEmbeddings/é", "...a"] {
            assert!(RepoPath::parse(good, "config.json").is_ok(), "{good}");
        }
        for bad in [
            "/", "/a", "a/", "a//b", ".", "..", "a/..", "a/../b", "a.", "a ", "C:", "nul", "a/COM1.x", "a\\b", "a\0b",
            "a\nb", "a:b",
        ] {
            assert!(RepoPath::parse(bad, "config.json").is_err(), "{bad}");
        }
        assert!(RepoPath::parse(&"a".repeat(256), "config.json").is_err());
    }

    #[test]
    fn etags() {
        let name = |etag: &str| BlobName::of_etag(etag).map(|name| name.0);
        assert_eq!(name("\"0123456789abcdef\"").as_deref(), Some("0123456789abcdef"));
        assert_eq!(name("W/\"5f2a3c1d-2f1\"").as_deref(), Some("5f2a3c1d-2f1"));
        let long = "a".repeat(129);
        for bad in
            ["", "\"\"", "COM1", "..", "../../../x", "/etc/passwd", "a.b.c.d.e.f", "a\"b\"cdefgh", "\"abcdefgh", &long]
        {
            assert_eq!(name(bad), None, "{bad}");
        }
        let naming = |digits| BlobName::of_etag(&"a".repeat(digits)).unwrap().naming();
        assert_eq!([40, 64, 32].map(naming), [Naming::Sha1, Naming::Sha256, Naming::Opaque]);
    }

    #[test]
    fn messages_stay_on_one_line() {
        assert_eq!(shown("a\n\u{1b}[31m"), "a\\n\\u{1b}[31m");
        assert_eq!(shown(&"a".repeat(300)).chars().count(), 201);
    }
}
