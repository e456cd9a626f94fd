//! Tokens without special ones, as static embeddings take them.

use std::borrow::Cow;

use candle_attention::{Error, Result};
use tokenizers::{OffsetType, TruncationDirection};

use crate::text::tokenizer::{MAX_TEXT_BYTES, Tokenizer, guarded};

impl Tokenizer {
    /// The ids of a text after `prompt`, at most `most`, without special tokens; and whether any were cut off, at the end
    /// that `tokenizer.json` states.
    pub(crate) fn bare_ids(&self, text: &str, prompt: &str, most: Option<usize>) -> Result<(Vec<u32>, bool)> {
        let text = if prompt.is_empty() { Cow::Borrowed(text) } else { Cow::Owned(format!("{prompt}{text}")) };
        if text.len() > MAX_TEXT_BYTES {
            let expected = format!("at most {MAX_TEXT_BYTES}");
            return Err(Error::value("the length of a text in bytes", text.len(), expected));
        }
        let truncation = self.inner.tokenizer.get_truncation();
        let from_left = truncation.is_some_and(|stated| stated.direction == TruncationDirection::Left);
        // One token more says that some are cut off.
        let limit = most.filter(|_| !from_left).map(|most| (most.saturating_add(1), TruncationDirection::Right));
        let encoding = guarded(|| self.sequence(&text, 0, OffsetType::None, limit))?;
        let ids = encoding.get_ids();
        Ok(match most.filter(|most| ids.len() > *most) {
            Some(most) if from_left => (ids[ids.len() - most..].to_vec(), true),
            Some(most) => (ids[..most].to_vec(), true),
            None => (ids.to_vec(), false),
        })
    }

    /// The number of tokens at which `tokenizer.json` cuts texts.
    pub(crate) fn stated_length(&self) -> Option<usize> {
        self.inner.tokenizer.get_truncation().map(|stated| stated.max_length)
    }

    /// The median number of characters of the tokens of the vocabulary, rounded down.
    pub(crate) fn median_token_chars(&self) -> usize {
        let vocabulary = self.inner.tokenizer.get_vocab(true);
        let mut lengths: Vec<usize> = vocabulary.keys().map(|token| token.chars().count()).collect();
        lengths.sort_unstable();
        match lengths.len() {
            0 => 0,
            n => (lengths[(n - 1) / 2] + lengths[n / 2]) / 2,
        }
    }
}
