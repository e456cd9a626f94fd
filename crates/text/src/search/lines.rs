//! The distinct lines of a text.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// The distinct non-blank lines of a text, trimmed, with their line numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lines<'a> {
    /// Each distinct line once, in order of first occurrence.
    pub texts: Vec<&'a str>,
    /// Per entry of `texts`, its line numbers, from 1, ascending.
    pub numbers: Vec<Vec<usize>>,
}

impl<'a> Lines<'a> {
    /// Splits a text into lines; a byte order mark at its start is skipped.
    pub fn new(text: &'a str) -> Self {
        let (mut lines, mut indices) = (Self::default(), HashMap::new());
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() {
                continue;
            }
            match indices.entry(line) {
                Entry::Occupied(entry) => {
                    let index: &usize = entry.get();
                    lines.numbers[*index].push(number);
                }
                Entry::Vacant(entry) => {
                    entry.insert(lines.texts.len());
                    lines.texts.push(line);
                    lines.numbers.push(vec![number]);
                }
            }
        }
        lines
    }
}
