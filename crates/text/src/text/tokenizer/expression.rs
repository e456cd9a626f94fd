//! The regular expressions of a tokenizer, with an error where the tokenizers library has none.
//!
//! An expression with look-around, as GPT-2's, is searched by backtracking, which fancy-regex ends after a million
//! steps or a million stored places: a million spaces in a row are enough. The library then takes the rest of the text
//! as one piece and reports nothing, which gives other tokens than the Python library (whose engine, Oniguruma, has
//! other limits).

use fancy_regex::Regex;
use tokenizers::Offsets;
use tokenizers::pattern::Pattern;

/// A regular expression.
#[derive(Debug)]
pub(super) struct Expression(Regex);

impl Expression {
    pub(super) fn new(expression: &str) -> tokenizers::Result<Self> {
        Ok(Self(Regex::new(expression)?))
    }
}

impl Pattern for &Expression {
    /// All of the text in pieces: those that match, and those between them.
    fn find_matches(&self, text: &str) -> tokenizers::Result<Vec<(Offsets, bool)>> {
        if text.is_empty() {
            return Ok(vec![((0, 0), false)]);
        }
        let mut pieces = Vec::new();
        let mut end = 0;
        for found in self.0.find_iter(text) {
            let found = found.map_err(|e| {
                let text = format!("a text of {} bytes, at byte {end}", text.len());
                format!("the expression `{}` could not be searched in {text}: {e}", self.0.as_str())
            })?;
            if end != found.start() {
                pieces.push(((end, found.start()), false));
            }
            pieces.push(((found.start(), found.end()), true));
            end = found.end();
        }
        if end != text.len() {
            pieces.push(((end, text.len()), false));
        }
        Ok(pieces)
    }
}

/// Texts of which pieces are compared with those of the library.
#[cfg(test)]
pub(super) const TEXTS: [&str; 6] =
    ["", " ", "It's 12.5  dollars,\n\n\tdoesn't it?  ", "你好 caf\u{e9} e\u{301} 1\u{ff12}3", "aaa", "  a\u{a0}b "];
