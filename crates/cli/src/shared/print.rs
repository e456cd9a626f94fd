//! Printing to standard output and standard error without a panic: `println!` panics on a closed pipe and on a full
//! disk.

use std::fmt::{Arguments, Display};
use std::io::{BufWriter, Error, ErrorKind, Result, StdoutLock, Write};

use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::Formatter;

/// Standard output, with errors that name it. It must be flushed.
pub struct Stdout {
    inner: BufWriter<StdoutLock<'static>>,
    /// Whether a closed pipe ends the command.
    ends: bool,
    closed: bool,
}

/// Standard output of a command that only prints: a reader that closes the pipe ends the command by an error, which
/// [`run`](super::program::run) takes for success.
pub fn stdout() -> Stdout {
    Stdout { inner: BufWriter::new(std::io::stdout().lock()), ends: true, closed: false }
}

/// Standard output of a command that also writes files: after its reader has closed it, what is printed is lost, and
/// the command goes on. A full disk is still an error.
pub fn stdout_beside_files() -> Stdout {
    Stdout { ends: false, ..stdout() }
}

/// Standard output of a command that also writes files, or standard error if one of these files is standard output.
pub fn unless_taken(is_taken: bool) -> Box<dyn Write> {
    if is_taken { Box::new(Stderr) } else { Box::new(stdout_beside_files()) }
}

/// Standard error. If it is closed or its disk is full, there is nobody to tell.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let _ = std::io::stderr().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Stdout {
    fn checked<T: Default>(&mut self, result: Result<T>) -> Result<T> {
        match named(result, "standard output") {
            Err(error) if error.kind() == ErrorKind::BrokenPipe && !self.ends => {
                self.closed = true;
                Ok(T::default())
            }
            result => result,
        }
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        if self.closed {
            return Ok(bytes.len());
        }
        let result = self.inner.write_all(bytes);
        self.checked(result)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<()> {
        if self.closed {
            return Ok(());
        }
        let result = self.inner.flush();
        self.checked(result)
    }
}

/// An error that names what could not be written; its kind stays.
pub fn named<T>(result: Result<T>, name: &str) -> Result<T> {
    result.map_err(|error| Error::new(error.kind(), format!("{name}: {error}")))
}

/// Prints one line to standard error: line breaks in it, as the name of a file may have, become spaces. If that is
/// closed or its disk is full, there is nobody to tell.
pub fn to_stderr(line: Arguments) {
    let _ = writeln!(Stderr, "{}", plain(line));
}

/// Prints one line that begins with `note: ` to standard error.
pub fn note(line: Arguments) {
    to_stderr(format_args!("note: {line}"));
}

/// `1 text`, `2 texts`.
pub fn count(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// A text from outside with spaces in place of the characters that control a terminal, or turn the direction of writing
/// ("explicit directional formatting characters" of Unicode's annex 9).
pub fn plain(text: impl Display) -> String {
    let turns =
        |c| matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.to_string().chars().map(|c| if c.is_control() || turns(c) { ' ' } else { c }).collect()
}

/// [Plain](plain) text of at most `width` columns. A Chinese character takes two columns.
pub fn one_line(text: &str, width: usize) -> String {
    console::truncate_str(&plain(text), width, "…").into_owned()
}

/// [One line](one_line), filled up with spaces to `width` columns.
pub fn column(text: &str, width: usize) -> String {
    console::pad_str(&one_line(text, width), width, console::Alignment::Left, None).into_owned()
}

/// Writes a value as one line of JSON, with escapes in place of what is not ASCII: a text must not control the
/// terminal.
pub fn json(out: &mut impl Write, value: &impl Serialize) -> Result<()> {
    value.serialize(&mut Serializer::with_formatter(&mut *out, Ascii))?;
    writeln!(out)
}

/// JSON in one line whose texts are ASCII.
struct Ascii;

impl Formatter for Ascii {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, out: &mut W, text: &str) -> Result<()> {
        for part in text.split_inclusive(|c: char| !c.is_ascii_graphic() && c != ' ') {
            let last = part.chars().next_back().filter(|c| !c.is_ascii_graphic() && *c != ' ');
            let (shown, escaped) = part.split_at(part.len() - last.map_or(0, char::len_utf8));
            out.write_all(shown.as_bytes())?;
            escaped.encode_utf16().try_for_each(|unit| write!(out, "\\u{unit:04x}"))?;
        }
        Ok(())
    }
}
