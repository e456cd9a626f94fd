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
#[cfg(feature = "checkpoints")]
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

/// The message of a panic that was caught.
pub fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without a message")
}

/// Says which model type a layer is of, if that is known.
pub fn model_phrase(model_type: Option<&'static str>) -> String {
    model_type.map(|name| format!(", which a layer of `{name}` requires")).unwrap_or_default()
}
