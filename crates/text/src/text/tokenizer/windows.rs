//! Windows of a long text: overlapping parts that each fit into the maximum length.

use std::ops::Range;

use candle_attention::Result;
use tokenizers::OffsetType;

use crate::text::tokenizer::{MAX_BYTES_PER_TOKEN, Tokenizer, guarded};

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
            let offsets = guarded(|| Ok(self.sequence(seen, 0, OffsetType::Byte, None)?.get_offsets().to_vec()))?;
            match offsets.get(room) {
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
