//! Files and folders that a command writes, checked before any work.
//!
//! A file that exists is replaced if it is of the kind that the command writes, any other only with `--force`; a folder
//! that exists is not. A link is followed. A device or a pipe is written to, and `-` is standard output. That a file
//! can be written is tried by a temporary file beside it, before the command works for minutes.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use candle_attention::ensure;
use candle_attention::io::{write_file, write_tensors};
use candle_core::Tensor;

use super::{Result, about, fail, interrupt, print};

/// The kind of file that is written, and so may be replaced.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Html,
    Svg,
    /// NumPy's format for one array.
    Npy,
    /// Tensors in a safetensors file whose metadata has this `format`.
    Tensors(&'static str),
}

/// The extensions of what this program and others write, which a file of another kind does not get.
const EXTENSIONS: [&str; 9] = ["html", "svg", "png", "pdf", "jpg", "npy", "safetensors", "json", "csv"];

/// The start of a file that is looked at, in bytes.
const START: u64 = 4096;

impl Kind {
    /// The kind in words, and the extension of its name.
    fn name(self) -> (&'static str, &'static str) {
        match self {
            Self::Html => ("an HTML page", "html"),
            Self::Svg => ("an SVG picture", "svg"),
            Self::Npy => ("a NumPy array", "npy"),
            Self::Tensors(_) => ("tensors of this command", "safetensors"),
        }
    }

    /// Whether a file that starts like this may be replaced. An empty file holds nothing to lose.
    fn is_of(self, start: &[u8]) -> bool {
        start.is_empty()
            || match self {
                Self::Html => start.starts_with(b"<!doctype html>"),
                Self::Svg => start.starts_with(b"<svg "),
                Self::Npy => start.starts_with(b"\x93NUMPY"),
                Self::Tensors(format) => {
                    let entry = format!("\"format\":\"{format}\"");
                    start.get(8) == Some(&b'{') && start.windows(entry.len()).any(|part| part == entry.as_bytes())
                }
            }
    }

    fn is_text(self) -> bool {
        matches!(self, Self::Html | Self::Svg)
    }
}

/// A place to write to that has been checked.
pub struct Output {
    /// As the user named it.
    pub path: PathBuf,
    pub kind: Kind,
    target: Target,
}

#[derive(PartialEq)]
enum Target {
    Stdout,
    /// A device or a pipe, which is written to.
    Stream,
    /// A file, behind all links; it need not exist.
    File(PathBuf),
}

impl Output {
    /// Checks that `path` can be written and, without `force`, that no file of another kind would be replaced.
    pub fn new(path: &Path, kind: Kind, force: bool) -> Result<Self> {
        let output = |target| Ok(Self { path: path.to_path_buf(), kind, target });
        let (what, own) = kind.name();
        if ["-", "/dev/stdout"].map(Path::new).contains(&path) {
            if !kind.is_text() && io::stdout().is_terminal() {
                return fail(path, format!("standard output is a terminal, which cannot show {what}"));
            }
            return output(Target::Stdout);
        }
        let extension = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
        if extension != own && EXTENSIONS.contains(&extension.as_str()) {
            return fail(path, format!("is the name of a .{extension} file, expected .{own}"));
        }
        match path.metadata() {
            Ok(metadata) if metadata.is_dir() => return fail(path, "is a folder, expected a file to write"),
            Ok(metadata) if !metadata.is_file() => return output(Target::Stream),
            Ok(_) => {
                if !force && !kind.is_of(&start(path).map_err(|e| about(path, &e))?) {
                    return fail(path, format!("exists and is not {what}; --force replaces it"));
                }
                // A file that is read-only is not replaced, although its folder would allow it.
                OpenOptions::new().append(true).open(path).map_err(|e| about(path, &e))?;
            }
            Err(_) => {}
        }
        let target = behind_links(path).map_err(|e| about(path, &e))?;
        check_folder(folder_of(&target), path)?;
        output(Target::File(target))
    }

    /// Whether this is standard output, where then nothing else should be printed.
    pub fn is_stdout(&self) -> bool {
        self.target == Target::Stdout
    }

    /// Writes bytes: a file atomically, a stream as they are.
    pub fn write(&self, bytes: &[u8]) -> Result<()> {
        match &self.target {
            Target::File(target) => Ok(interrupt::finish(|| write_file(target, bytes))?),
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
        let Kind::Tensors(format) = self.kind else {
            return fail(&self.path, "is not an output for tensors");
        };
        let metadata = HashMap::from([("format".to_string(), format.to_string())]);
        match &self.target {
            Target::File(target) => Ok(interrupt::finish(|| write_tensors(target, tensors, metadata))?),
            _ => self.write(&safetensors::serialize(tensors, Some(metadata)).map_err(|e| about(&self.path, &e))?),
        }
    }
}

/// Checks that no two outputs are one file.
pub fn check_distinct(outputs: &[&Output]) -> Result<()> {
    for (i, output) in outputs.iter().enumerate() {
        if output.target != Target::Stream && outputs[..i].iter().any(|other| other.target == output.target) {
            return fail(&output.path, "is named for two outputs");
        }
    }
    Ok(())
}

/// Checks that a folder can be made at `path`: there is nothing, not even a link that leads nowhere, and the folder
/// around it can be written. Folders around it that do not exist are made with it.
pub fn check_new_folder(path: &Path) -> Result<()> {
    ensure!(path.symlink_metadata().is_err(), about(path, "exists already, and is not replaced").into());
    check_parent(path)
}

/// Checks that the folder around `path` can be written, or the nearest one that exists.
pub fn check_parent(path: &Path) -> Result<()> {
    if path.as_os_str() == "-" {
        return Err("-: standard output cannot hold a folder; for a folder of this name write ./-".into());
    }
    let mut around = path;
    while around.symlink_metadata().is_err() {
        // `..` would lead elsewhere once the folder before it is made.
        ensure!(around.file_name().is_some(), about(path, "is not the name of a folder to make").into());
        around = folder_of(around);
    }
    check_folder(around, path)
}

/// Checks that files can be made in `folder`, for an output that the user named `path`.
pub fn check_folder(folder: &Path, path: &Path) -> Result<()> {
    // The error of the system, without the name of the temporary file.
    let reason = |e: io::Error| e.to_string().split(" at path ").next().unwrap_or_default().to_string();
    tempfile::tempfile_in(folder).map(drop).map_err(|e| about(path, reason(e)).into())
}

/// Checks that an output, which need not exist, is not in the folder of the model that it is made of; `made` is what is
/// done to that model.
pub fn check_outside(output: &Path, model: &Path, made: &str) -> Result<()> {
    // The path behind all links, as far as it exists.
    let behind_links = |path: &Path| {
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        let existing = absolute.ancestors().find_map(|part| Some((part, fs::canonicalize(part).ok()?)));
        let found = existing.and_then(|(part, found)| Some(found.join(absolute.strip_prefix(part).ok()?)));
        found.unwrap_or(absolute)
    };
    if behind_links(output).starts_with(behind_links(model)) {
        return fail(output, format!("cannot be written into {}, the model that is {made}", model.display()));
    }
    Ok(())
}

/// The folder of a path; the current one for a bare name.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The file behind all links, which need not exist, in a folder that does.
fn behind_links(path: &Path) -> io::Result<PathBuf> {
    match fs::canonicalize(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => match fs::read_link(path) {
            Ok(link) => behind_links(&folder_of(path).join(link)),
            Err(_) => {
                let folder = fs::canonicalize(folder_of(path));
                let folder = folder.map_err(|e| io::Error::new(e.kind(), "its folder does not exist"))?;
                Ok(folder.join(path.file_name().unwrap_or_default()))
            }
        },
        found => found,
    }
}

/// The first bytes of a file.
fn start(path: &Path) -> io::Result<Vec<u8>> {
    let mut start = Vec::new();
    File::open(path)?.take(START).read_to_end(&mut start)?;
    Ok(start)
}
