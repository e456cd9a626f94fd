//! Reading texts, with errors that name the file.

use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::path::{Path, PathBuf};

use super::{Result, about};

/// The longest text that is read, in bytes: 4 GiB. A device such as `/dev/zero` never ends.
const MAX_TEXT_BYTES: u64 = 1 << 32;

/// Reads a file or a pipe, or standard input where the path is `-`, without a byte order mark.
pub fn bytes(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = if path.as_os_str() == "-" {
        std::io::stdin().lock().take(MAX_TEXT_BYTES + 1).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(MAX_TEXT_BYTES + 1).read_to_end(&mut bytes))
    };
    if read.map_err(|e| about(path, &e))? as u64 > MAX_TEXT_BYTES {
        return Err(about(path, &format!("more than {MAX_TEXT_BYTES} bytes of text")).into());
    }
    if bytes.starts_with("\u{feff}".as_bytes()) {
        bytes.drain(..3);
    }
    Ok(bytes)
}

/// Reads a text, as [`bytes`].
pub fn text(path: &Path) -> Result<String> {
    String::from_utf8(bytes(path)?).map_err(|e| {
        let before = &e.as_bytes()[..e.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
        about(path, &format!("line {line} is not UTF-8")).into()
    })
}

/// The longest line of a file of texts, in bytes: 16 MiB, as a text of the encoder.
const MAX_LINE_BYTES: u64 = 1 << 24;

/// The bytes that are read at once, if that many are there.
const BUFFER: usize = 1 << 20;

/// The lines of a file, a pipe, or standard input (`-`) that are not blank, as they arrive: without line breaks, and
/// without a byte order mark at the start.
pub struct Lines {
    path: PathBuf,
    reader: BufReader<Box<dyn Read>>,
    number: usize,
}

impl Lines {
    pub fn open(path: &Path) -> Result<Self> {
        let reader: Box<dyn Read> = match path.as_os_str() == "-" {
            true => Box::new(std::io::stdin()),
            false => Box::new(std::fs::File::open(path).map_err(|e| about(path, &e))?),
        };
        Ok(Self { path: path.to_path_buf(), reader: BufReader::with_capacity(BUFFER, reader), number: 0 })
    }

    /// Whether a line that is not blank can be read without waiting for more of a pipe.
    pub fn has_arrived(&self) -> bool {
        let buffer = self.reader.buffer();
        let complete = buffer.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        buffer[..complete].split(|&byte| byte == b'\n').any(|line| !line.trim_ascii().is_empty())
    }

    fn line(&mut self) -> Result<Option<String>> {
        let mut line = Vec::new();
        loop {
            line.clear();
            self.number += 1;
            let read = self.reader.by_ref().take(MAX_LINE_BYTES + 1).read_until(b'\n', &mut line);
            if read.map_err(|e| about(&self.path, &e))? == 0 {
                return Ok(None);
            }
            if line.len() as u64 > MAX_LINE_BYTES {
                let reason = format!("line {} has more than {MAX_LINE_BYTES} bytes", self.number);
                return Err(about(&self.path, &reason).into());
            }
            let text = std::str::from_utf8(&line);
            let text = text.map_err(|_| about(&self.path, &format!("line {} is not UTF-8", self.number)))?;
            let text = if self.number == 1 { text.trim_start_matches('\u{feff}') } else { text };
            if !text.trim().is_empty() {
                return Ok(Some(text.trim_end_matches(['\n', '\r']).to_string()));
            }
        }
    }
}

impl Iterator for Lines {
    type Item = Result<String>;

    fn next(&mut self) -> Option<Result<String>> {
        self.line().transpose()
    }
}

/// The lines of a file that are not blank; at least one. `of_one` is what a line is, such as `text`.
pub fn texts(path: &Path, of_one: &str) -> Result<Vec<String>> {
    let texts = Lines::open(path)?.collect::<Result<Vec<String>>>()?;
    match texts.is_empty() {
        true => Err(about(path, &format!("no {of_one}: every line is blank, or there is none")).into()),
        false => Ok(texts),
    }
}

/// The files to read instead of the texts of the command line: those that are named, or standard input (`-`) where the
/// only text is `-`, or where there is no text and it is no terminal. None if there are texts.
pub fn files_given(given: &[String], files: &[PathBuf], of_one: &str) -> Result<Vec<PathBuf>> {
    match given {
        _ if !files.is_empty() => Ok(files.to_vec()),
        [] if std::io::stdin().is_terminal() => {
            Err(format!("no {of_one}: give {of_one}s as arguments, by --file, or through a pipe").into())
        }
        [] => Ok(vec![PathBuf::from("-")]),
        [only] if only == "-" => Ok(vec![PathBuf::from("-")]),
        _ if given.iter().any(|text| text == "-") => {
            Err(format!("`-` is standard input: expected no other {of_one} beside it").into())
        }
        _ => Ok(Vec::new()),
    }
}

/// The texts of the command line, or of the [files](files_given) instead of them; at least one.
pub fn texts_given(given: &[String], files: &[PathBuf], of_one: &str) -> Result<Vec<String>> {
    let files = files_given(given, files, of_one)?;
    if files.is_empty() {
        return Ok(given.to_vec());
    }
    Ok(files.iter().map(|path| texts(path, of_one)).collect::<Result<Vec<_>>>()?.concat())
}
