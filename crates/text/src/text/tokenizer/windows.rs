//! Windows of a long text: overlapping parts that each fit into the maximum length.

use std::ops::Range;

use candle_attention::Result;
use tokenizers::OffsetType;

use crate::text::tokenizer::spans::places_before_lowering;
use crate::text::tokenizer::{Tokenizer, guarded};

/// The most bytes of a text that are tokenized for one token of a window. Words of published vocabularies have about
/// five letters; a longer word, which is one unknown token, is cut here. It bounds the work for a text without spaces.
const MAX_BYTES_PER_TOKEN: usize = 32;

/// The bytes of a token that are guessed for the first window.
const GUESSED_BYTES_PER_TOKEN: usize = 8;

impl Tokenizer {
    /// Byte ranges of `text` that fit into the maximum length beside `prompt`, in order: each begins and ends at a word
    /// if there is one, and repeats the words in the last quarter of the one before, so that no sentence of that length
    /// is split in all of them. A text that fits is one window. Text around the words is in none.
    pub(crate) fn windows(&self, text: &str, prompt: &str) -> Result<Vec<Range<usize>>> {
        // A text that touches its prompt may be split into one more token.
        let room = guarded(|| {
            let of_prompt =
                if prompt.is_empty() { 0 } else { self.sequence(prompt, 0, OffsetType::None, None)?.len() + 1 };
            Ok(self.room(false)?.saturating_sub(of_prompt).max(1))
        })?;
        let (mut windows, mut start) = (Vec::new(), 0);
        // How many bytes to read for a window: half more than the one before had.
        let mut guess = room.saturating_mul(GUESSED_BYTES_PER_TOKEN);
        loop {
            let rest = &text[start..];
            let Some(cut) = self.first_beyond(rest, room, &mut guess)? else {
                windows.push(trimmed(text, start..text.len()));
                return Ok(windows);
            };
            let end = rest[..cut].rfind(char::is_whitespace).filter(|&end| end > cut / 2).unwrap_or(cut);
            windows.push(trimmed(text, start..start + end));
            let from = rest.ceil_char_boundary(end - end / 4);
            let word = rest[from..end].find(char::is_whitespace).map_or(end, |space| from + space);
            start += word;
        }
    }

    /// The byte at which the token after the first `room` tokens begins; `None` if there is none. The first `guess`
    /// bytes are tokenized, and more only if they have too few tokens.
    fn first_beyond(&self, text: &str, room: usize, guess: &mut usize) -> Result<Option<usize>> {
        // A token has at least one byte. A normalizer may lengthen a text; then it is cut later, where that is
        // reported.
        if text.len() <= room {
            return Ok(None);
        }
        let most = room.saturating_mul(MAX_BYTES_PER_TOKEN);
        let cut = loop {
            let seen = &text[..text.floor_char_boundary((*guess).min(most))];
            let read = if self.lower_case { seen.to_lowercase() } else { seen.to_string() };
            let offsets = guarded(|| Ok(self.sequence(&read, 0, OffsetType::Byte, None)?.get_offsets().to_vec()))?;
            match offsets.get(room) {
                Some(&(start, _)) if self.lower_case => {
                    break places_before_lowering("", seen).get(start).copied().unwrap_or(seen.len());
                }
                Some(&(start, _)) => break seen.floor_char_boundary(start),
                None if seen.len() == text.len() => return Ok(None),
                None if *guess >= most => break seen.len(),
                None => *guess = guess.saturating_mul(2),
            }
        };
        // At least one character, so that every window is longer than nothing.
        let cut = cut.max(text.chars().next().map_or(1, char::len_utf8));
        *guess = cut + cut / 2;
        Ok(Some(cut))
    }
}

/// A range without the spaces at its ends.
fn trimmed(text: &str, range: Range<usize>) -> Range<usize> {
    let part = &text[range.clone()];
    let start = range.start + part.len() - part.trim_start().len();
    start..(start + part.trim().len()).max(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokenizer(max_length: usize, lower_case: bool) -> Tokenizer {
        let json = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../weights/tokenizer.json")).unwrap();
        Tokenizer::from_json(&json, max_length, lower_case).unwrap()
    }

    /// Every window fits, every word is in one, and neighbors overlap.
    #[test]
    fn windows_fit_overlap_and_leave_nothing_out() {
        let words: Vec<String> = (0..700)
            .map(|i| ["Grüße", "cat", "ﬂow", "日本語", "İstanbul", "x"][i % 6].to_string() + &i.to_string())
            .collect();
        let text = words.join(" ");
        for (max_length, lower_case, prompt) in [(16, false, ""), (64, true, ""), (40, true, "search for: ")] {
            let tokenizer = tokenizer(max_length, lower_case);
            let windows = tokenizer.windows(&text, prompt).unwrap();
            assert!(windows.len() > 10);
            let parts: Vec<&str> = windows.iter().map(|window| &text[window.clone()]).collect();
            for (i, part) in parts.iter().enumerate() {
                let tokens = tokenizer.encode(&[(*part).into()], prompt).unwrap().remove(0);
                let is_full = tokens.len() * 2 > max_length || i + 1 == parts.len();
                assert!(!tokens.truncated && is_full, "{part}: {} tokens", tokens.len());
            }
            assert!(words.iter().all(|word| parts.iter().any(|part| part.split(' ').any(|other| other == word))));
            // Where the last quarter of a window has no two words, the next one begins after it.
            let gap =
                |pair: &[Range<usize>]| text.get(pair[0].end..pair[1].start).unwrap_or_default().trim().to_string();
            assert!(windows.windows(2).all(|pair| pair[0].start < pair[1].start && gap(pair).is_empty()));
            let overlaps = windows.windows(2).filter(|pair| pair[1].start < pair[0].end).count();
            assert!(max_length < 40 || overlaps * 2 > windows.len(), "{overlaps} of {}", windows.len());
        }
    }

    #[test]
    fn a_text_that_fits_is_one_window_and_one_without_spaces_is_cut() {
        let tokenizer = tokenizer(16, false);
        let only = |text: &str| match &tokenizer.windows(text, "").unwrap()[..] {
            [window] => text[window.clone()].to_string(),
            windows => panic!("{windows:?}"),
        };
        assert_eq!((only("  a cat sleeps ").as_str(), only("").as_str()), ("a cat sleeps", ""));
        let long = "ab日".repeat(2000);
        let windows = tokenizer.windows(&long, "").unwrap();
        assert!(windows.len() > 10 && windows.last().unwrap().end == long.len());
        assert!(windows.windows(2).all(|pair| pair[1].start <= pair[0].end));
        let spaces = " ".repeat(100_000);
        assert!(tokenizer.windows(&spaces, "").unwrap().iter().all(|window| window.is_empty()));
    }
}
