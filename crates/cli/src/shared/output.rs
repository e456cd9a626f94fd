//! Files that a command writes, checked before any work so that nothing is destroyed.
//!
//! A file is replaced only if this program wrote it, which a mark inside tells: `--html notes.txt` is refused, and so is a page
//! that somebody else wrote. A link is followed. A device or a pipe is written to, and `-` is standard output. Anything that
//! the command reads is refused. That a file can be written is tried by a temporary file beside it, before the command works
//! for minutes.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{IsTerminal, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use candle_attention::checkpoint::{write_file, write_tensors};
use candle_core::Tensor;

use super::{Result, about, print};

/// What is written, and so what may be replaced.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Html,
    Svg,
    /// NumPy's format for one array.
    Npy,
    Json,
    /// Tensors in a safetensors file whose metadata has this `format`.
    Tensors(&'static str),
}

/// The longest start of a file that is looked at, in bytes.
const START: u64 = 4096;

/// The end of the pages and pictures that this program writes.
const MARK: &str = "<!-- written by candle-attention -->\n";

/// A header of an array ends in at least this many spaces if this program wrote it. NumPy's own ends in at most 84: 20 for
/// a longer first dimension, and up to 64 of padding.
pub const NPY_MARK: usize = 128;

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Html => "an HTML page of this program",
            Self::Svg => "an SVG picture of this program",
            Self::Npy => "a NumPy array of this program",
            Self::Json => "JSON",
            Self::Tensors(_) => "tensors of this command",
        }
    }

    /// Whether a file with this start and this end may be replaced. An empty file holds nothing to lose.
    fn is_own(self, start: &[u8], end: &[u8]) -> bool {
        start.trim_ascii().is_empty()
            || match self {
                Self::Html => start.starts_with(b"<!doctype html>") && end.ends_with(MARK.as_bytes()),
                Self::Svg => start.starts_with(b"<svg ") && end.ends_with(MARK.as_bytes()),
                Self::Npy => {
                    let header = start.split(|&byte| byte == b'\n').next().unwrap_or_default();
                    start.starts_with(b"\x93NUMPY") && header.ends_with(&[b' '; NPY_MARK])
                }
                Self::Json => start.trim_ascii_start().starts_with(b"{"),
                Self::Tensors(format) => {
                    let header = start.get(8..).unwrap_or_default();
                    let entry = format!("\"format\":\"{format}\"");
                    header.starts_with(b"{") && header.windows(entry.len()).any(|part| part == entry.as_bytes())
                }
            }
    }

    fn is_text(self) -> bool {
        !matches!(self, Self::Npy | Self::Tensors(_))
    }
}

/// A place to write to that has been checked.
pub struct Output {
    /// As the user named it.
    path: PathBuf,
    kind: Kind,
    target: Target,
}

enum Target {
    Stdout,
    /// A device or a pipe, which is written to.
    Stream,
    /// A file, behind all links; it need not exist.
    File(PathBuf),
}

impl Output {
    /// Checks that `path` may and can be written; `inputs` are what the command reads.
    pub fn new(path: &Path, kind: Kind, inputs: &[&Path]) -> Result<Self> {
        let output = |target| Ok(Self { path: path.to_path_buf(), kind, target });
        let wrong = |reason: String| Err(about(path, &reason).into());
        if ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"].map(Path::new).contains(&path) {
            if !kind.is_text() && std::io::stdout().is_terminal() {
                return wrong(format!("standard output is a terminal, which cannot show {}", kind.name()));
            }
            return output(Target::Stdout);
        }
        if kind == Kind::Svg && path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("png")) {
            return wrong(
                "is the name of a PNG picture, expected .svg; browsers and Inkscape make a PNG of it".to_string(),
            );
        }
        let Ok(metadata) = path.metadata() else {
            let target = behind_links(path)?;
            try_to_write(&target).map_err(|e| about(path, &e))?;
            return output(Target::File(target));
        };
        if metadata.is_dir() {
            return wrong("is a folder, expected a file to write".to_string());
        }
        // A file behind `/dev/fd/3` is one that the caller has open: replaced, it would not be the caller's any more.
        let is_open = ["/dev/fd", "/dev/stderr", "/proc"].iter().any(|start| path.starts_with(start));
        if !metadata.is_file() || is_open {
            return output(Target::Stream);
        }
        // To compare two files opens them, which waits for the other end of a pipe.
        let is_same = |input: &&&Path| input.is_file() && same_file::is_same_file(path, input).unwrap_or(false);
        if let Some(input) = inputs.iter().find(is_same) {
            let name = if *input == path {
                "what this command reads".to_string()
            } else {
                format!("{}, which this command reads", input.display())
            };
            return wrong(format!("is {name}; its content would be lost"));
        }
        let (start, end) = ends(path).map_err(|e| about(path, &e))?;
        if !kind.is_own(&start, &end) {
            return wrong(format!("exists and is not {}; its content would be lost", kind.name()));
        }
        // A file that is read-only is not replaced, although its folder would allow it.
        OpenOptions::new().append(true).open(path).map_err(|e| about(path, &e))?;
        let target = behind_links(path)?;
        try_to_write(&target).map_err(|e| about(path, &e))?;
        output(Target::File(target))
    }

    /// Whether this is standard output, where then nothing else should be printed.
    pub fn is_stdout(&self) -> bool {
        matches!(self.target, Target::Stdout)
    }

    /// Whether this is a file, which each write replaces; a pipe would get one content after the other.
    pub fn is_file(&self) -> bool {
        matches!(self.target, Target::File(_))
    }

    /// What is written.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// As the user named it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A page or a picture with the mark of this program at its end, to be written.
    pub fn marked(&self, text: &str) -> Vec<u8> {
        let end = if text.ends_with('\n') { "" } else { "\n" };
        [text, end, MARK].concat().into_bytes()
    }

    /// Writes bytes: a file atomically, a stream as they are.
    pub fn write(&self, bytes: &[u8]) -> Result<()> {
        match &self.target {
            Target::File(target) => write_file(target, bytes).map_err(|e| self.error(&e, target)),
            Target::Stdout => {
                let mut out = print::stdout();
                out.write_all(bytes)?;
                Ok(out.flush()?)
            }
            Target::Stream => {
                let write = |mut file: File| file.write_all(bytes);
                let written = OpenOptions::new().write(true).truncate(true).open(&self.path).and_then(write);
                Ok(print::named(written, &self.path.display().to_string())?)
            }
        }
    }

    /// Writes tensors with the `format` of this output in the metadata.
    pub fn write_tensors(&self, tensors: HashMap<String, Tensor>) -> Result<()> {
        let format = match self.kind {
            Kind::Tensors(format) => format,
            _ => return Err(about(&self.path, &"is no output of tensors").into()),
        };
        let metadata = HashMap::from([("format".to_string(), format.to_string())]);
        match &self.target {
            Target::File(target) => write_tensors(target, tensors, metadata).map_err(|e| self.error(&e, target)),
            _ => self.write(&safetensors::serialize(tensors, Some(metadata)).map_err(|e| about(&self.path, &e))?),
        }
    }

    /// An error with the path that the user gave, in place of the one behind links.
    fn error(&self, error: &dyn std::fmt::Display, target: &Path) -> Box<dyn std::error::Error> {
        error.to_string().replace(&target.display().to_string(), &self.path.display().to_string()).into()
    }
}

/// Checks that no two outputs are one file.
pub fn check_distinct(outputs: &[&Output]) -> Result<()> {
    let target = |output: &Output| match &output.target {
        Target::Stdout => Some(PathBuf::from("-")),
        Target::Stream => None,
        Target::File(target) => Some(target.clone()),
    };
    for (i, output) in outputs.iter().enumerate() {
        if let Some(other) =
            outputs[..i].iter().find(|other| target(other).is_some() && target(other) == target(output))
        {
            let reason = match other.path == output.path {
                true => "is named for two outputs".to_string(),
                false => format!("is the same file as {}", other.path.display()),
            };
            return Err(about(&output.path, &reason).into());
        }
    }
    Ok(())
}

/// The most links that are followed, as Linux does.
const MAX_LINKS: usize = 40;

/// The file behind all links, which need not exist, in a folder that does.
fn behind_links(path: &Path) -> Result<PathBuf> {
    let mut target = path.to_path_buf();
    for _ in 0..MAX_LINKS {
        match std::fs::read_link(&target) {
            Ok(link) => target = folder_of(&target).join(link),
            Err(_) => {
                let name = target.file_name().ok_or_else(|| about(path, &"is not the name of a file"))?;
                let folder = std::fs::canonicalize(folder_of(&target));
                return Ok(folder.map_err(|_| about(path, &"its folder does not exist"))?.join(name));
            }
        }
    }
    Err(about(path, &"too many links").into())
}

/// The first and the last bytes of a file.
fn ends(path: &Path) -> std::io::Result<(Vec<u8>, Vec<u8>)> {
    let mut file = File::open(path)?;
    let (mut start, mut end) = (Vec::new(), Vec::new());
    Read::by_ref(&mut file).take(START).read_to_end(&mut start)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MARK.len() as u64)))?;
    file.take(START).read_to_end(&mut end)?;
    Ok((start, end))
}

/// Tries to make a file in the folder of `target`, and removes it. The error does not have its name.
fn try_to_write(target: &Path) -> std::result::Result<(), String> {
    tempfile::tempfile_in(folder_of(target)).map(|_| ()).map_err(|e| without_path(&e))
}

/// An error without the name of the temporary file that it is about.
pub fn without_path(error: &std::io::Error) -> String {
    error.to_string().split(" at path ").next().unwrap_or_default().to_string()
}

/// The folder of a path; the current one for a bare name.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
