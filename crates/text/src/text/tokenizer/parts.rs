//! Parts of a long text that each fit into the maximum length: some that share tokens with their neighbors, as the
//! tokenizers library makes them of a text that overflows, and windows of whole words.

use std::ops::Range;

use candle_attention::{Error, Result};
use tokenizers::OffsetType;
use tokenizers::parallelism::MaybeParallelRefIterator;

use crate::text::tokenizer::{MAX_BYTES_PER_TOKEN, Text, Tokenizer, Tokens, check_length, guarded, part, places};

/// The bytes of a token that are guessed for the first window.
const GUESSED_BYTES_PER_TOKEN: usize = 8;

impl Tokenizer {
    /// This tokenizer, which then makes several parts of a text that is too long, each with the last `stride` tokens of
    /// the one before, instead of cutting it.
    ///
    /// # Errors
    /// If a part would hold no other tokens than these.
    pub(crate) fn with_stride(&self, stride: usize) -> Result<Self> {
        let room = guarded(|| self.room(false))?;
        if stride >= room {
            let expected =
                format!("less than {room}, the tokens of a text that fit into the model beside special ones");
            return Err(Error::config("stride", stride, expected));
        }
        Ok(Self { stride: Some(stride), ..self.clone() })
    }

    /// The tokens of each text after `prompt`, with its index: of a text once, unless the tokenizer has a
    /// [stride](Self::with_stride).
    pub(crate) fn encode_parts(&self, texts: &[Text], prompt: &str) -> Result<Vec<(usize, Tokens)>> {
        let Some(stride) = self.stride else {
            return Ok(self.encode(texts, prompt)?.into_iter().enumerate().collect());
        };
        let parts: Vec<Vec<Tokens>> =
            texts.maybe_par_iter().map(|text| self.parts(*text, prompt, stride)).collect::<Result<_>>()?;
        let parts = parts.into_iter().enumerate();
        Ok(parts.flat_map(|(text, parts)| parts.into_iter().map(move |tokens| (text, tokens))).collect())
    }

    /// The parts of one text, with the places of their tokens in all of it.
    fn parts(&self, text: Text, prompt: &str, stride: usize) -> Result<Vec<Tokens>> {
        let (text, _) = self.read(text, prompt);
        check_length(&text)?;
        guarded(|| {
            let room = self.room(false)?;
            let whole = self.sequence(&text, 0, OffsetType::Char, None)?;
            let (mut parts, mut start) = (Vec::new(), 0);
            loop {
                let end = whole.len().min(start + room);
                let encoding = self.process(part(&whole, start..end), None)?;
                parts.push(Tokens { places: places(&encoding), ..Tokens::new(&encoding, false) });
                if end == whole.len() {
                    return Ok(parts);
                }
                start += room - stride;
            }
        })
    }

    /// Byte ranges of `text` that fit into the maximum length beside `prompt`, in order: each begins and ends at a word
    /// if there is one, and repeats the words in the last quarter of the one before, so that no sentence of that length
    /// is split in all of them. A text that fits is one window. Text around the words is in none.
    pub(crate) fn windows(&self, text: &str, prompt: &str) -> Result<Vec<Range<usize>>> {
        // A text that touches its prompt may be split into one more token.
        let room = guarded(|| {
            let prompt_tokens =
                if prompt.is_empty() { 0 } else { self.sequence(prompt, 0, OffsetType::None, None)?.len() + 1 };
            Ok(self.room(false)?.saturating_sub(prompt_tokens).max(1))
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
