//! Reading texts, with errors that name the file.

use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::path::{Path, PathBuf};

use candle_attention::io::utf8_text;

use super::{Result, about, fail};

/// The longest text that is read, in bytes: 4 GiB. A device such as `/dev/zero` never ends.
const MAX_TEXT_BYTES: u64 = 1 << 32;

/// The bytes at the start of a file that are read first: the rest of a file with a NUL byte in them need not be read.
const START: u64 = 8192;

/// Reads the text of a file or a pipe, or of standard input where the path is `-`, without a byte order mark; or why it
/// is not text in UTF-8.
pub fn text_or_reason(path: &Path) -> Result<std::result::Result<String, String>> {
    let mut reader = open(path)?;
    let mut bytes = Vec::new();
    for most in [START, MAX_TEXT_BYTES] {
        if !bytes.contains(&0) {
            reader.by_ref().take(most).read_to_end(&mut bytes).map_err(|e| about(path, &e))?;
        }
    }
    if bytes.len() as u64 > MAX_TEXT_BYTES {
        return fail(path, format!("more than {MAX_TEXT_BYTES} bytes of text"));
    }
    Ok(utf8_text(&bytes, 1).map(str::to_string))
}

/// Reads a text, as [`text_or_reason`].
pub fn text(path: &Path) -> Result<String> {
    Ok(text_or_reason(path)?.map_err(|reason| about(path, &reason))?)
}

/// Opens a file or a pipe, or standard input where the path is `-`.
fn open(path: &Path) -> Result<Box<dyn Read>> {
    Ok(if path.as_os_str() == "-" {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(path).map_err(|e| about(path, &e))?)
    })
}

/// The longest line of a file of texts, in bytes: 16 MiB, as a text of the encoder.
const MAX_LINE_BYTES: u64 = 1 << 24;

/// The bytes that are read at once, if that many are there.
const BUFFER: usize = 1 << 20;

/// The lines of a file, a pipe, or standard input (`-`) that are not blank, as they arrive: without line breaks and a
/// byte order mark at the start, else as they are, because a tokenizer may have tokens for white space.
pub struct Lines {
    path: PathBuf,
    reader: BufReader<Box<dyn Read>>,
    /// The number of the last line, from 1.
    pub number: usize,
}

impl Lines {
    pub fn open(path: &Path) -> Result<Self> {
        let reader = BufReader::with_capacity(BUFFER, open(path)?);
        Ok(Self { path: path.to_path_buf(), reader, number: 0 })
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
                return fail(&self.path, format!("line {} has more than {MAX_LINE_BYTES} bytes", self.number));
            }
            let text = utf8_text(&line, self.number).map_err(|reason| about(&self.path, &reason))?;
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

/// The lines of a file that are not blank; at least one. `thing` is what a line is, such as `text`.
pub fn texts(path: &Path, thing: &str) -> Result<Vec<String>> {
    let texts = Lines::open(path)?.collect::<Result<Vec<String>>>()?;
    if texts.is_empty() { fail(path, format!("no {thing}: every line is blank, or there is none")) } else { Ok(texts) }
}

/// At most `limit` texts of a file, at least two: every second one is for another purpose than the others.
#[cfg(feature = "program")]
pub fn first_texts(path: &Path, limit: usize) -> Result<Vec<String>> {
    candle_attention::ensure!(limit >= 2, format!("--limit is {limit}, expected at least 2 texts").into());
    let mut texts = texts(path, "text")?;
    texts.truncate(limit);
    if texts.len() < 2 { fail(path, "1 text, expected at least 2") } else { Ok(texts) }
}

/// Texts as commands give them to a model.
pub fn borrowed(texts: &[String]) -> Vec<&str> {
    texts.iter().map(String::as_str).collect()
}

/// Every second text from the first one, and the others.
#[cfg(feature = "program")]
pub fn halves(texts: &[String]) -> [Vec<&str>; 2] {
    [0, 1].map(|first| texts.iter().skip(first).step_by(2).map(String::as_str).collect())
}

/// The files to read instead of the texts of the command line: those that are named, or standard input (`-`) where the
/// only text is `-`, or where there is no text and it is no terminal. None if there are texts.
pub fn files_given(given: &[String], files: &[PathBuf], thing: &str) -> Result<Vec<PathBuf>> {
    match given {
        _ if !files.is_empty() => Ok(files.to_vec()),
        [] if std::io::stdin().is_terminal() => {
            Err(format!("no {thing}: give {thing}s as arguments, by --file, or through a pipe").into())
        }
        [] => Ok(vec![PathBuf::from("-")]),
        [only] if only == "-" => Ok(vec![PathBuf::from("-")]),
        _ if given.iter().any(|text| text == "-") => {
            Err(format!("`-` is standard input: expected no other {thing} beside it").into())
        }
        _ => Ok(Vec::new()),
    }
}

/// The texts of the command line, or of the [files](files_given) instead of them; at least one.
pub fn texts_given(given: &[String], files: &[PathBuf], thing: &str) -> Result<Vec<String>> {
    let files = files_given(given, files, thing)?;
    if files.is_empty() {
        return Ok(given.to_vec());
    }
    Ok(files.iter().map(|path| texts(path, thing)).collect::<Result<Vec<_>>>()?.concat())
}
