//! The tokenizer of a model folder, and the texts it takes.

use std::fmt;
use std::path::Path;

use tokenizers::{EncodeInput, Encoding, TruncationDirection, TruncationParams, TruncationStrategy};

use crate::error::{Error, Result};

/// The tokenizer of a `tokenizer.json`, with the maximum length of the model instead of the file's truncation and padding.
#[derive(Clone)]
pub(crate) struct Tokenizer {
    inner: tokenizers::Tokenizer,
    lower_case: bool,
}

/// Without the vocabulary.
impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let vocab_size = self.inner.get_vocab_size(true);
        f.debug_struct("Tokenizer").field("vocab_size", &vocab_size).finish_non_exhaustive()
    }
}

impl Tokenizer {
    pub(crate) fn load(path: &Path, max_length: usize, lower_case: bool) -> Result<Self> {
        // Its own error for a missing file does not name the file.
        std::fs::metadata(path).map_err(|e| Error::io(path, e))?;
        let inner = tokenizers::Tokenizer::from_file(path).map_err(|e| Error::file(path, e))?;
        Self::new(inner, max_length, lower_case).map_err(|e| Error::file(path, e))
    }

    pub(crate) fn new(
        mut inner: tokenizers::Tokenizer,
        max_length: usize,
        lower_case: bool,
    ) -> tokenizers::Result<Self> {
        let truncation = TruncationParams {
            direction: TruncationDirection::Right,
            max_length,
            strategy: TruncationStrategy::LongestFirst,
            stride: 0,
        };
        inner.with_truncation(Some(truncation))?;
        inner.with_padding(None);
        Ok(Self { inner, lower_case })
    }

    /// Token ids of each text, special tokens included, none longer than the maximum: of a pair, the longer text is cut
    /// first.
    pub(crate) fn encode(&self, texts: &[Text]) -> Result<Vec<Encoding>> {
        let inputs = texts.iter().map(|text| self.input(*text)).collect();
        self.inner.encode_batch_fast(inputs, true).map_err(wrong)
    }

    fn cased(&self, text: &str) -> String {
        if self.lower_case { text.to_lowercase() } else { text.to_string() }
    }

    fn input(&self, text: Text) -> EncodeInput<'static> {
        match text {
            Text::One(text) => EncodeInput::Single(self.cased(text).into()),
            Text::Pair(first, second) => EncodeInput::Dual(self.cased(first).into(), self.cased(second).into()),
        }
    }

    /// The tokens with their places, in bytes of the texts as they were read, which come second.
    #[cfg(feature = "visualize")]
    pub(crate) fn encode_with_offsets(&self, text: Text) -> Result<(Encoding, Vec<String>)> {
        let read = match text {
            Text::One(text) => vec![self.cased(text)],
            Text::Pair(first, second) => vec![self.cased(first), self.cased(second)],
        };
        Ok((self.inner.encode(self.input(text), true).map_err(wrong)?, read))
    }

    /// The id of a token.
    pub(crate) fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// A token as text.
    pub(crate) fn text(&self, id: u32) -> Result<String> {
        self.inner.decode(&[id], false).map_err(wrong)
    }
}

fn wrong(error: tokenizers::Error) -> Error {
    Error::Tokenizer(error.to_string())
}

/// The input of a model: a text, or a pair of texts. `"a text".into()`, `("one", "two").into()`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Text<'a> {
    /// One text.
    One(&'a str),
    /// A pair, such as a question and an answer, or a premise and a hypothesis.
    Pair(&'a str, &'a str),
}

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Self {
        Self::One(text)
    }
}

impl<'a> From<(&'a str, &'a str)> for Text<'a> {
    fn from((first, second): (&'a str, &'a str)) -> Self {
        Self::Pair(first, second)
    }
}
