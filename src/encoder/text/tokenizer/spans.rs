//! Tokens with the bytes of the text that each stands for.

use std::ops::Range;

use tokenizers::OffsetType;

use crate::encoder::text::tokenizer::{Text, Tokenizer, Tokens};
use crate::error::Result;

impl Tokenizer {
    /// The tokens of a text after `prompt`, as [`encode`](Self::encode) gives them, and the bytes of `text` that each stands
    /// for: none for special tokens and those of the prompt.
    pub(crate) fn encode_with_bytes(&self, text: &str, prompt: &str) -> Result<(Tokens, Vec<Range<usize>>)> {
        let (read, _) = self.read(Text::One(text), prompt);
        let kept = self.encoding(&read, None, OffsetType::Byte)?;
        let (encoding, truncated) = (kept.encoding, kept.truncated);
        let places = if self.lower_case { places_before_lowering(prompt, text) } else { Vec::new() };
        // A byte of what was read as one of `text`.
        let place = |byte: usize| {
            if self.lower_case {
                return places.get(byte).copied().unwrap_or(text.len());
            }
            byte.saturating_sub(prompt.len()).min(text.len())
        };
        let offsets = encoding.get_offsets().iter().zip(encoding.get_special_tokens_mask());
        let bytes = offsets.map(|(&(start, end), &special)| match special {
            1 => 0..0,
            _ => place(start)..place(end),
        });
        let bytes = bytes.collect();
        Ok((Tokens::new(&encoding, truncated), bytes))
    }
}

/// For each byte of the lower-case form of `prompt` and `text` the place in `text` of the character that it came from.
fn places_before_lowering(prompt: &str, text: &str) -> Vec<usize> {
    let lengths = |part: &str| part.to_lowercase().len();
    let mut places = vec![0; lengths(prompt)];
    for (at, c) in text.char_indices() {
        places.extend(std::iter::repeat_n(at, c.to_lowercase().map(char::len_utf8).sum()));
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_stand_for_their_bytes_of_the_text() {
        let json = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/weights/tokenizer.json")).unwrap();
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
