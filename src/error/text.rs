//! Text from outside in messages: names of tensors, values of configurations, paths.
//!
//! A message often ends on a terminal. A control character in a name would move its cursor or set its title, one that
//! turns the direction of writing would show another name, and a name of 10 MB would fill it.

use std::any::Any;
use std::fmt::{self, Display, Formatter, Write};

/// The most characters of one name or value in a message. Names of published tensors have up to 200.
const MAX_NAME: usize = 200;

/// The most characters of a phrase of a message, which may list a dozen names.
const MAX_PHRASE: usize = 4000;

/// A text with escapes in place of the characters that do not show as themselves, and without what is too long.
pub struct Shown<T> {
    text: T,
    most: usize,
}

/// A name or value.
pub fn name<T: Display>(text: T) -> Shown<T> {
    Shown { text, most: MAX_NAME }
}

/// A phrase, in which names are cut already.
pub fn phrase<T: Display>(text: T) -> Shown<T> {
    Shown { text, most: MAX_PHRASE }
}

/// A name or value for a phrase.
pub fn cut(text: &str) -> String {
    cut_to(text, MAX_NAME)
}

/// A text of at most `most` characters for a phrase.
pub fn cut_to(text: &str, most: usize) -> String {
    Shown { text, most }.to_string()
}

impl<T: Display> Display for Shown<T> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let mut writer = Writer { to: f, left: self.most, more: 0 };
        write!(writer, "{}", self.text)?;
        match writer.more {
            0 => Ok(()),
            more => write!(f, "… ({more} more characters)"),
        }
    }
}

struct Writer<'a, 'b> {
    to: &'a mut Formatter<'b>,
    left: usize,
    more: usize,
}

impl Write for Writer<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            match self.left.checked_sub(1) {
                None => self.more += 1,
                Some(left) => {
                    self.left = left;
                    match c {
                        '\n' | '\r' | '\t' => write!(self.to, "{}", c.escape_debug())?,
                        c if shows_as_itself(c) => self.to.write_char(c)?,
                        c => write!(self.to, "{}", c.escape_unicode())?,
                    }
                }
            }
        }
        Ok(())
    }
}

/// Whether a character neither controls a terminal, nor turns the direction of writing, nor is invisible.
fn shows_as_itself(c: char) -> bool {
    let hidden = matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    !c.is_control() && !hidden
}

/// What a panic that was caught said.
pub fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without a message")
}

#[cfg(test)]
mod tests {
    use crate::error::Error;

    fn message(name: &str) -> String {
        Error::MissingTensor { name: name.to_string(), why: "it is needed".to_string() }.to_string()
    }

    #[test]
    fn characters_that_control_a_terminal_are_escaped() {
        assert_eq!(message("a\x1b]0;owned\x07b"), r"tensor `a\u{1b}]0;owned\u{7}b` is missing: it is needed");
        assert_eq!(
            message("a\u{202e}b\u{2066}\u{9b}2J"),
            r"tensor `a\u{202e}b\u{2066}\u{9b}2J` is missing: it is needed"
        );
        assert_eq!(message("a\nb\r\t"), r"tensor `a\nb\r\t` is missing: it is needed");
    }

    #[test]
    fn letters_and_quotes_stay() {
        let plain = r#"größe 大きさ हिन्दी e\ "x" 'y' 🙂"#;
        assert_eq!(message(plain), format!("tensor `{plain}` is missing: it is needed"));
    }

    #[test]
    fn long_names_are_cut() {
        let long = message(&"ä".repeat(10_000_000));
        assert_eq!(long, format!("tensor `{}… (9999800 more characters)` is missing: it is needed", "ä".repeat(200)));
    }

    /// Every variant with text from outside in each of its fields.
    #[test]
    fn no_variant_prints_its_text_raw() {
        let bad = || format!("\x1b[2J\u{202e}\n{}", "x".repeat(100_000));
        let path = || std::path::PathBuf::from(bad());
        let errors = [
            Error::Config { field: "field", value: bad(), allowed: bad() },
            Error::Shape { tensor: bad(), found: vec![1], expected: bad() },
            Error::DType { tensor: bad(), found: bad(), expected: bad() },
            Error::Device { tensor: bad(), found: bad(), expected: bad() },
            Error::Value { what: bad(), found: bad(), expected: bad() },
            Error::CachedRotation { sequence: 0, cached: 1, rotated_for: 1, length: 2, position: bad() },
            Error::Backend { backend: bad(), reason: bad() },
            Error::Io { path: path(), source: std::io::Error::other(bad()) },
            Error::File { path: path(), reason: bad() },
            Error::MissingTensor { name: bad(), why: bad() },
            Error::Tensor { name: bad(), found: bad(), expected: bad() },
            Error::UnknownLayout { prefix: bad(), keys: bad(), nearest: "nearest", lacks: bad(), hint: bad() },
            Error::UnsupportedTensor { name: bad(), layout: "layout", why: bad() },
            Error::UnknownFamily { model_type: Some(bad()), near: bad() },
            Error::UnsupportedFamily { model_type: bad(), why: bad() },
            Error::UnsupportedKey { key: bad(), value: bad(), model_type: bad(), what: bad() },
            Error::Tokenizer(bad()),
            Error::TokenizerMismatch { what: bad(), found: 1, expected: bad() },
            Error::Hub { id: bad(), reason: bad() },
        ];
        for error in errors {
            let message = error.to_string();
            assert!(!message.contains(['\x1b', '\u{202e}', '\n']), "{message}");
            assert!(message.contains(r"\u{1b}[2J\u{202e}\n"), "{message}");
            assert!(message.chars().count() < 20_000, "{}", message.len());
        }
    }
}
