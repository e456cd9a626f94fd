//! Tokens as printable labels.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The text with a visible substitute for each character that would move the cursor, reverse the direction of writing, be
/// illegal in XML, or be invisible.
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
