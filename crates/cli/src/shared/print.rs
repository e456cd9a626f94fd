//! Printing to standard output and standard error without a panic: `println!` panics on a closed pipe and on a full
//! disk.

use std::fmt::Arguments;
use std::io::{BufWriter, Error, ErrorKind, Result, StdoutLock, Write};

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

/// Prints one line to standard error. If that is closed or its disk is full, there is nobody to tell.
pub fn to_stderr(line: Arguments) {
    let _ = writeln!(Stderr, "{line}");
}

/// Prints one line that begins with `note: ` to standard error.
pub fn note(line: Arguments) {
    to_stderr(format_args!("note: {line}"));
}

/// `1 text`, `2 texts`.
pub fn count(number: usize, of_one: &str) -> String {
    format!("{number} {of_one}{}", if number == 1 { "" } else { "s" })
}

/// A text as one line of at most `width` columns, without control characters. A Chinese character takes two columns.
pub fn one_line(text: &str, width: usize) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    console::truncate_str(&line, width, "…").into_owned()
}

/// The same, filled up with spaces to `width` columns.
pub fn column(text: &str, width: usize) -> String {
    console::pad_str(&one_line(text, width), width, console::Alignment::Left, None).into_owned()
}
