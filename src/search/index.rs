//! The index: texts, their vectors, and the search.

use std::fmt;

use candle_core::{DType, Device};
use half::f16;
use sha2::{Digest, Sha256};

use crate::encoder::{EncodeOptions, Ranked, SentenceEncoder};
use crate::error::{Error, Result};
use crate::search::nearest;

/// Key of a text in a file: the first half of its SHA-256 hash.
pub(super) type Key = [u8; 16];

/// Number of texts that are embedded between two calls of the caller's function.
const CHUNK: usize = 1024;

/// A searchable index of texts by their embeddings, filled incrementally and cached in a file.
///
/// Vectors are unit vectors in f16: 2 bytes per element in memory and in the file. Rounding to f16 changes a score by at
/// most 5e-4 (half a unit in the last place); measured over a million pairs of all-MiniLM-L6-v2, by at most 7e-5, and by
/// 9e-6 on average. Dot products accumulate in f32.
#[derive(Clone)]
pub struct Index<'a> {
    texts: &'a [&'a str],
    pub(super) model: String,
    pub(super) size: usize,
    /// The index of the text of each row of `vectors`.
    pub(super) rows: Vec<usize>,
    /// `(rows, size)`.
    pub(super) vectors: Vec<f16>,
}

/// One line, without the texts and their vectors.
impl fmt::Debug for Index<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (texts, size) = (self.texts.len(), self.size);
        f.debug_struct("Index").field("texts", &texts).field("size", &size).finish_non_exhaustive()
    }
}

impl<'a> Index<'a> {
    /// An index of `texts` without vectors; `size` is the dimension of an embedding.
    ///
    /// `model` identifies everything that the vectors depend on beside the texts: the
    /// [`fingerprint`](crate::encoder::fingerprint) of the model, and the dtype and the prompt if they vary. Duplicate texts
    /// are embedded once each; [`Lines`](crate::search::Lines) removes them.
    ///
    /// # Errors
    /// [`Error::Value`] for a size of 0.
    pub fn new(texts: &'a [&'a str], size: usize, model: impl Into<String>) -> Result<Self> {
        if size == 0 {
            return Err(Error::value("the size of an embedding", size, "at least 1"));
        }
        Ok(Self { texts, model: model.into(), size, rows: Vec::new(), vectors: Vec::new() })
    }

    /// Number of texts with a vector.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether no text has a vector.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Indices of the texts without a vector, ascending.
    pub fn missing(&self) -> Vec<usize> {
        let mut missing = vec![true; self.texts.len()];
        self.rows.iter().for_each(|&text| missing[text] = false);
        (0..missing.len()).filter(|&text| missing[text]).collect()
    }

    pub(super) fn key(&self, text: usize) -> Key {
        let hash = Sha256::digest(self.texts[text]);
        std::array::from_fn(|i| hash[i])
    }

    /// Embeds the texts without a vector, about a thousand at a time, and returns their number. `after_chunk` is called after
    /// each thousand, for example to save the index. Progress counts only the texts that were missing.
    ///
    /// # Errors
    /// The errors of [`SentenceEncoder::encode`] and of `after_chunk`; [`Error::Shape`] for an embedding of another size,
    /// [`Error::Value`] for one that is not finite. The vectors embedded before the error stay.
    pub fn embed(
        &mut self,
        encoder: &SentenceEncoder,
        options: &EncodeOptions,
        mut after_chunk: impl FnMut(&Self) -> Result<()>,
    ) -> Result<usize> {
        let missing = self.missing();
        // Reserve once: growing by doubling would need up to twice the memory.
        self.vectors.reserve_exact(missing.len() * self.size);
        for (index, chunk) in missing.chunks(CHUNK).enumerate() {
            let on_progress = |done: usize, _: usize| {
                if let Some(on_progress) = options.on_progress {
                    on_progress(index * CHUNK + done, missing.len());
                }
            };
            let options = EncodeOptions { on_progress: Some(&on_progress), ..*options };
            let texts: Vec<&str> = chunk.iter().map(|&text| self.texts[text]).collect();
            let embeddings = encoder.encode(&texts, &options)?.to_dtype(DType::F32)?.to_device(&Device::Cpu)?;
            for (&text, vector) in chunk.iter().zip(embeddings.to_vec2::<f32>()?) {
                let unit = self.unit(&vector, || format!("the embedding of `{}`", self.texts[text]))?;
                self.rows.push(text);
                self.vectors.extend(unit.into_iter().map(f16::from_f32));
            }
            after_chunk(self)?;
        }
        Ok(missing.len())
    }

    /// The `top_k` texts nearest to the vector `query`, best first; the score is the cosine similarity. Texts with equal
    /// scores are in the order of their indices.
    ///
    /// # Errors
    /// [`Error::Shape`] for a vector of another size, [`Error::Value`] for one that is not finite.
    pub fn search(&self, query: &[f32], top_k: usize) -> Result<Vec<Ranked>> {
        let query = self.unit(query, || "the embedding of the query".to_string())?;
        let scores = nearest::scores(&self.vectors, &query);
        // A vector rounded to f16 may be slightly longer than 1.
        let ranked = |(&index, score): (&usize, f32)| Ranked { index, score: score.clamp(-1.0, 1.0) };
        let ranked = self.rows.iter().zip(scores).map(ranked).collect();
        let by = |a: &Ranked, b: &Ranked| b.score.total_cmp(&a.score).then(a.index.cmp(&b.index));
        Ok(nearest::top_k(ranked, top_k, by))
    }

    fn unit(&self, vector: &[f32], what: impl Fn() -> String) -> Result<Vec<f32>> {
        if vector.len() != self.size {
            return Err(Error::shape(what(), &[vector.len()], format!("({})", self.size)));
        }
        nearest::unit(vector).ok_or_else(|| Error::value(what(), "not finite", "finite numbers"))
    }
}
