//! Files that a command writes, checked before any work so that nothing is destroyed.
//!
//! A file is replaced only by one of its own kind: `--html notes.txt` is refused. A link is followed. A device or a pipe is
//! written to, and `-` is standard output. Anything that the command reads is refused. That a file can be written is tried
//! by a temporary file beside it, before the command works for minutes.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use candle_attention::checkpoint::{write_file, write_tensors};
use candle_core::Tensor;

use super::{Result, about, print};

/// What is written, and so what may be replaced.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Html,
    Svg,
    Png,
    /// NumPy's format for one array.
    Npy,
    Json,
    /// Tensors in a safetensors file whose metadata has this `format`.
    Tensors(&'static str),
}

/// The longest start of a file that is looked at, in bytes.
const START: u64 = 4096;

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Html => "an HTML page",
            Self::Svg => "an SVG picture",
            Self::Png => "a PNG picture",
            Self::Npy => "a NumPy array",
            Self::Json => "JSON",
            Self::Tensors(_) => "tensors of this command",
        }
    }

    /// Whether a file with this start is of this kind. An empty file holds nothing to lose.
    fn begins(self, start: &[u8]) -> bool {
        let text = String::from_utf8_lossy(start).to_ascii_lowercase();
        let text = text.trim_start();
        text.is_empty()
            || match self {
                Self::Html => text.starts_with("<!doctype html") || text.starts_with("<html"),
                Self::Svg => text.starts_with("<svg") || text.starts_with("<?xml"),
                Self::Png => start.starts_with(b"\x89PNG"),
                Self::Npy => start.starts_with(b"\x93NUMPY"),
                Self::Json => text.starts_with(['{', '[']),
                Self::Tensors(format) => {
                    let header = start.get(8..).unwrap_or_default();
                    let entry = format!("\"format\":\"{format}\"");
                    header.starts_with(b"{") && header.windows(entry.len()).any(|part| part == entry.as_bytes())
                }
            }
    }

    fn is_text(self) -> bool {
        !matches!(self, Self::Png | Self::Npy | Self::Tensors(_))
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
        let Ok(metadata) = std::fs::metadata(path) else {
            let target = behind_links(path)?;
            try_to_write(&target).map_err(|e| about(path, &e))?;
            return output(Target::File(target));
        };
        if metadata.is_dir() {
            return wrong("is a folder, expected a file to write".to_string());
        }
        if let Some(input) = inputs.iter().find(|input| same_file::is_same_file(path, input).unwrap_or(false)) {
            let input = input.display();
            return wrong(format!("is {input}, which this command reads; its content would be lost"));
        }
        // A file behind `/dev/fd/3` is one that the caller has open: replaced, it would not be the caller's any more.
        if !metadata.is_file() || path.starts_with("/dev") || path.starts_with("/proc") {
            return output(Target::Stream);
        }
        let mut start = Vec::new();
        let read = File::open(path).and_then(|file| file.take(START).read_to_end(&mut start));
        read.map_err(|e| about(path, &e))?;
        if !kind.begins(&start) {
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

    /// As the user named it.
    pub fn path(&self) -> &Path {
        &self.path
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
                let written = OpenOptions::new().write(true).open(&self.path).and_then(write);
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
            return Err(about(&output.path, &format!("is the same as {}", other.path.display())).into());
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

/// Tries to make a file in the folder of `target`, and removes it.
fn try_to_write(target: &Path) -> std::io::Result<()> {
    tempfile::tempfile_in(folder_of(target)).map(|_| ())
}

/// The folder of a path; the current one for a bare name.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
