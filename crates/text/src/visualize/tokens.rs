//! What is known of the tokens of a map beside their labels: special tokens, pieces of words, the second text, and what was
//! cut from the text.

use candle_attention::setters;

use crate::visualize::label::visible;

/// What a token is. Default: a whole word, or the first piece of one, of the only or first text.
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

/// What was cut from a text, or from a pair of texts.
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
