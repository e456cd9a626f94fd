//! Tokens for static embeddings and for spans of a text.

use std::ops::Range;

use candle_attention::Result;
use tokenizers::{OffsetType, TruncationDirection};

use crate::text::tokenizer::{Text, Tokenizer, Tokens, check_length, guarded};

impl Tokenizer {
    /// The ids of a text after `prompt`, at most `most`, without special tokens; and whether any were cut off, at the
    /// end that `tokenizer.json` states.
    pub(crate) fn bare_ids(&self, text: &str, prompt: &str, most: Option<usize>) -> Result<(Vec<u32>, bool)> {
        let (text, _) = self.read(Text::One(text), prompt);
        check_length(&text)?;
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

    /// The tokens of a text after `prompt`, as [`encode`](Self::encode) gives them, and the bytes of `text` that each
    /// stands for: none for special tokens and those of the prompt.
    pub(crate) fn encode_with_bytes(&self, text: &str, prompt: &str) -> Result<(Tokens, Vec<Range<usize>>)> {
        let (read, _) = self.read(Text::One(text), prompt);
        let kept = self.encoding(&read, None, OffsetType::Byte)?;
        let (encoding, truncated) = (kept.encoding, kept.truncated);
        // A byte of what was read as one of `text`.
        let place = |byte: usize| byte.saturating_sub(prompt.len()).min(text.len());
        let offsets = encoding.get_offsets().iter().zip(encoding.get_special_tokens_mask());
        let bytes = offsets.map(|(&(start, end), &special)| match special {
            1 => 0..0,
            _ => place(start)..place(end),
        });
        let bytes = bytes.collect();
        Ok((Tokens::new(&encoding, truncated), bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_stand_for_their_bytes_of_the_text() {
        let json = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../weights/tokenizer.json")).unwrap();
        let text = "The İstanbul CAFÉ, 日本";
        for (lower_case, prompt) in [(false, ""), (true, ""), (false, "search: "), (true, "SEARCH: ")] {
            let tokenizer = Tokenizer::from_json(&json, 64, lower_case).unwrap();
            let (tokens, bytes) = tokenizer.encode_with_bytes(text, prompt).unwrap();
            assert_eq!(tokens.ids, tokenizer.encode(&[text.into()], prompt).unwrap()[0].ids);
            assert_eq!((tokens.len(), bytes.first(), bytes.last()), (bytes.len(), Some(&(0..0)), Some(&(0..0))));
            let parts: Vec<&str> = bytes.iter().filter(|bytes| !bytes.is_empty()).map(|b| &text[b.clone()]).collect();
            let joined = parts.concat();
            assert_eq!(joined, text.replace(' ', ""), "{parts:?}");
            assert_eq!((parts[0], parts[parts.len() - 2]), ("The", "日"));
        }
    }
}
