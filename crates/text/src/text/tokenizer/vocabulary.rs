//! Look-ups in the vocabulary of a tokenizer.

use candle_attention::{Error, Result};
use tokenizers::Decoder;

use crate::text::tokenizer::{Tokenizer, guarded};

impl Tokenizer {
    /// The id of a token.
    pub(crate) fn id(&self, token: &str) -> Option<u32> {
        self.inner.tokenizer.token_to_id(token)
    }

    /// Whether a token is marked as special, such as those that begin and end a text.
    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.inner
            .tokenizer
            .get_added_vocabulary()
            .get_added_tokens_decoder()
            .get(&id)
            .is_some_and(|token| token.special)
    }

    /// A token as it is in the vocabulary.
    pub(crate) fn token(&self, id: u32) -> Option<String> {
        self.inner.tokenizer.id_to_token(id)
    }

    /// The error of a token whose id its model does not have.
    pub(crate) fn unknown_id(&self, id: u32, expected: impl Into<String>) -> Error {
        let what = format!("the id of token `{}`", self.token(id).unwrap_or_default());
        Error::TokenizerMismatch { what, found: id, expected: expected.into() }
    }

    /// A token as text; empty if there is none with this id.
    pub(crate) fn text(&self, id: u32) -> Result<String> {
        let Some(token) = self.token(id) else { return Ok(String::new()) };
        match self.inner.tokenizer.get_decoder() {
            Some(decoder) => guarded(|| decoder.decode(vec![token])),
            None => Ok(token),
        }
    }
}
