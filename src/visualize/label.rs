//! Tokens as they can be shown.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The text with a visible stand-in for what would move a cursor, turn a line around, break XML, or not be seen.
pub(super) fn visible(text: &str) -> String {
    if !text.is_empty() && text.chars().all(char::is_whitespace) {
        return text.chars().map(|c| if c == ' ' { '␣' } else { stand_in(c) }).collect();
    }
    let shown: String = text.chars().map(stand_in).collect();
    match shown.width() {
        0 => shown.chars().map(|c| format!("U+{:04X}", u32::from(c))).collect(),
        _ => shown,
    }
}

fn stand_in(c: char) -> char {
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

/// The text cut to so many columns.
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

/// The width in columns.
pub(super) fn width(text: &str) -> usize {
    text.width()
}

/// What stands in a column of its own when the text is written downwards: a letter with its marks, and its width.
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
