//! Look-ups in the vocabulary of a tokenizer.

use candle_attention::{Error, Result};
use tokenizers::Decoder;
use tokenizers::models::ModelWrapper;

use crate::text::tokenizer::{Tokenizer, guarded};

impl Tokenizer {
    /// The id of a token.
    pub(crate) fn id(&self, token: &str) -> Option<u32> {
        self.inner.tokenizer.token_to_id(token)
    }

    /// Whether a token is marked as special, such as those that begin and end a text.
    pub(crate) fn is_special(&self, id: u32) -> bool {
        let added = self.inner.tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        added.get(&id).is_some_and(|token| token.special)
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
        self.token(id).map_or(Ok(String::new()), |token| self.join(vec![token]))
    }

    /// The number of tokens, added ones included.
    pub(crate) fn vocabulary_size(&self) -> usize {
        self.inner.tokenizer.get_vocab_size(true)
    }

    /// Tokens of the vocabulary as one text, as the tokenizer's decoder joins them; without a decoder, by spaces.
    pub(crate) fn join(&self, tokens: Vec<String>) -> Result<String> {
        match self.inner.tokenizer.get_decoder() {
            Some(decoder) => guarded(|| decoder.decode(tokens)),
            None => Ok(tokens.join(" ")),
        }
    }

    /// Whether tokens within a word are marked by a prefix, such as `##`.
    pub(crate) fn marks_subwords(&self) -> bool {
        match self.inner.tokenizer.get_model() {
            ModelWrapper::WordPiece(model) => !model.continuing_subword_prefix.is_empty(),
            ModelWrapper::BPE(model) => {
                model.continuing_subword_prefix.as_ref().is_some_and(|prefix| !prefix.is_empty())
            }
            ModelWrapper::WordLevel(_) | ModelWrapper::Unigram(_) => false,
        }
    }

    /// The id of the token for what the vocabulary lacks: `stated`, or the tokenizer's own.
    pub(crate) fn unknown(&self, stated: Option<&str>) -> Option<u32> {
        let own = match self.inner.tokenizer.get_model() {
            ModelWrapper::WordPiece(model) => Some(model.unk_token.as_str()),
            ModelWrapper::BPE(model) => model.unk_token.as_deref(),
            ModelWrapper::WordLevel(model) => Some(model.unk_token.as_str()),
            ModelWrapper::Unigram(_) => None,
        };
        stated.into_iter().chain(own).chain(["[UNK]", "<unk>"]).find_map(|token| self.id(token))
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
