//! Tokens with their places in the text, in characters.

use tokenizers::models::ModelWrapper;
use tokenizers::parallelism::MaybeParallelRefIterator;
use tokenizers::{Decoder, OffsetType, TruncationDirection};

use crate::encoder::text::tokenizer::panics::guarded;
use crate::encoder::text::tokenizer::{Text, Tokenizer, Tokens, check_length, cut};
use crate::error::Result;

/// Where a token is in its text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// The first character of the text that it stands for.
    pub start: usize,
    /// The character after the last one.
    pub end: usize,
    /// Whether the tokenizer added it to the text.
    pub special: bool,
}

impl Tokenizer {
    /// The same tokenizer that keeps the place of each token in its text, the prompt included.
    pub(crate) fn with_places(&self) -> Self {
        Self { places: true, ..self.clone() }
    }

    /// The same tokenizer that puts the token `id` into each text, as token `at`, within the maximum length.
    ///
    /// # Errors
    /// As [`with_max_length`](Self::with_max_length).
    pub(crate) fn with_inserted(&self, at: usize, id: u32) -> Result<Self> {
        let shorter = self.with_max_length(self.max_length.saturating_sub(1))?;
        Ok(Self { inserted: Some((at, id)), ..shorter })
    }

    /// The tokens of each text after `prompt` without special ones, cut at the maximum length.
    pub(crate) fn encode_without_special(&self, texts: &[Text], prompt: &str) -> Result<Vec<Tokens>> {
        let tokens = |text: &Text| {
            let (text, _) = self.read(*text, prompt);
            check_length(&text)?;
            // One more, which shows whether any is cut.
            let limit = Some((self.max_length.saturating_add(1), TruncationDirection::Right));
            let found = guarded(|| self.sequence(&text, 0, OffsetType::None, limit))?;
            let truncated = found.len() > self.max_length;
            Ok(Tokens::new(&cut(found, self.max_length), truncated))
        };
        texts.maybe_par_iter().map(tokens).collect()
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

    /// Whether texts are lower-cased first.
    pub(crate) fn lower_cases(&self) -> bool {
        self.lower_case
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
}
