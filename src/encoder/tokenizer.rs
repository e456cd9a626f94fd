use std::path::Path;

use tokenizers::{Encoding, TruncationDirection, TruncationParams, TruncationStrategy};

use crate::error::{Error, Result};

/// A `tokenizer.json`, with the model's own maximum length in place of the file's truncation and padding.
#[derive(Debug, Clone)]
pub(super) struct Tokenizer {
    inner: tokenizers::Tokenizer,
    lower_case: bool,
}

impl Tokenizer {
    pub(super) fn load(path: &Path, max_length: usize, lower_case: bool) -> Result<Self> {
        // Its own error for a missing file does not name the file.
        std::fs::metadata(path).map_err(|e| Error::io(path, e))?;
        let mut inner = tokenizers::Tokenizer::from_file(path).map_err(|e| Error::file(path, e))?;
        let truncation = TruncationParams {
            direction: TruncationDirection::Right,
            max_length,
            strategy: TruncationStrategy::LongestFirst,
            stride: 0,
        };
        inner.with_truncation(Some(truncation)).map_err(|e| Error::file(path, e))?;
        inner.with_padding(None);
        Ok(Self { inner, lower_case })
    }

    /// Token ids of each text, special tokens included, none longer than the maximum.
    pub(super) fn encode(&self, texts: &[&str]) -> Result<Vec<Encoding>> {
        let wrong = |e: tokenizers::Error| Error::Tokenizer(e.to_string());
        if self.lower_case {
            let texts = texts.iter().map(|text| text.to_lowercase()).collect::<Vec<_>>();
            return self.inner.encode_batch_fast(texts, true).map_err(wrong);
        }
        self.inner.encode_batch_fast(texts.to_vec(), true).map_err(wrong)
    }
}
