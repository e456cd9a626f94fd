//! Facts about the tokens of a map beside their labels: special tokens, pieces of words, the second text, and what
//! was cut from the text.

use candle_attention::setters;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The kind of a token. Default: a whole word, or the first piece of one, of the only or first text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TokenMarks {
    /// The token is none of the text, such as `[CLS]`. The page can hide special tokens.
    pub special: bool,
    /// The token continues the word of the token before it. Its label is shown with `##` before it.
    pub continues: bool,
    /// The token is of the second text of a pair.
    pub second: bool,
}

impl TokenMarks {
    setters! {
        /// Sets whether the token is a special one.
        with_special, special: bool = special;
        /// Sets whether the token continues a word.
        with_continues, continues: bool = continues;
        /// Sets whether the token is of the second text.
        with_second, second: bool = second;
    }

    /// The label as pictures show it.
    pub(super) fn label(self, name: &str) -> String {
        if self.continues { format!("##{name}") } else { name.to_string() }
    }

    /// The marks as bits, for the page.
    pub(super) fn bits(self) -> u8 {
        u8::from(self.special) | u8::from(self.continues) << 1 | u8::from(self.second) << 2
    }
}

/// The labels of the tokens of one axis, with their marks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Axis {
    pub names: Vec<String>,
    /// One per name.
    pub marks: Vec<TokenMarks>,
}

impl Axis {
    pub fn new<T: AsRef<str>>(names: &[T]) -> Self {
        let names: Vec<String> = names.iter().map(|name| visible(name.as_ref())).collect();
        Self { marks: vec![TokenMarks::default(); names.len()], names }
    }

    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// The labels as pictures show them.
    pub fn labels(&self) -> Vec<String> {
        self.names.iter().zip(&self.marks).map(|(name, marks)| marks.label(name)).collect()
    }

    /// The index of the first token of the second text, if tokens of a first text come before it.
    pub fn border(&self) -> Option<usize> {
        self.marks.iter().position(|marks| marks.second).filter(|&at| at > 0)
    }

    /// Whether a token has a mark.
    pub fn any(&self, mark: impl Fn(&TokenMarks) -> bool) -> bool {
        self.marks.iter().any(mark)
    }
}

/// The end that was cut from a text, or from a pair of texts.
#[derive(Debug, Clone)]
pub(super) struct Truncation {
    /// Number of tokens before the cut.
    pub total_tokens: usize,
    /// The part of each text that was cut.
    pub cut: Vec<String>,
}

/// A count with a comma before each group of three digits.
pub(super) fn grouped(count: usize) -> String {
    let digits = count.to_string();
    let mut grouped = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// The text with a visible substitute for each character that would move the cursor, reverse the direction of writing,
/// be illegal in XML, or be invisible.
pub(super) fn visible(text: &str) -> String {
    if !text.is_empty() && text.chars().all(char::is_whitespace) {
        return text.chars().map(|c| if c == ' ' { '␣' } else { substitute(c) }).collect();
    }
    let shown: String = text.chars().map(substitute).collect();
    match shown.width() {
        0 => shown.chars().map(|c| format!("U+{:04X}", u32::from(c))).collect(),
        _ => shown,
    }
}

fn substitute(c: char) -> char {
    match c {
        '\n' | '\r' | '\u{2028}' | '\u{2029}' => '⏎',
        '\t' => '⇥',
        '\0'..='\u{1f}' => char::from_u32(0x2400 + u32::from(c)).unwrap_or('\u{fffd}'),
        '\u{7f}'..='\u{9f}' => '\u{fffd}',
        // Directional controls, a byte order mark, noncharacters.
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '\u{fffd}',
        '\u{feff}' | '\u{fffe}' | '\u{ffff}' => '\u{fffd}',
        c => c,
    }
}

/// The text truncated to a number of columns.
pub(super) fn fit(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_string();
    }
    let mut left = columns.saturating_sub(1);
    let fits = |c: &char| {
        let width = c.width().unwrap_or(0);
        let fits = width <= left;
        left = if fits { left - width } else { 0 };
        fits
    };
    text.chars().take_while(fits).chain(['…']).collect()
}

/// The width of a text in columns.
pub(super) fn width(text: &str) -> usize {
    text.width()
}

/// The characters of a text that is written downwards, each with its combining marks, and their widths.
pub(super) fn letters(text: &str) -> Vec<(String, usize)> {
    let mut letters: Vec<(String, usize)> = Vec::new();
    for c in text.chars() {
        match (c.width().unwrap_or(0), letters.last_mut()) {
            (0, Some((last, _))) => last.push(c),
            (width, _) => letters.push((c.to_string(), width)),
        }
    }
    letters
}
