//! The index: texts, their vectors, and the search.

use std::fmt;

use candle_attention::Result;
use candle_core::{DType, Device};
use sha2::{Digest, Sha256};

use crate::search::vectors::Vectors;
use crate::{EncodeOptions, Ranked, SentenceEncoder};

/// Key of a text in a file: the first half of its SHA-256 hash.
pub(super) type Key = [u8; 16];

/// Number of texts that are embedded between two calls of the caller's function: a second of work of a small model.
const CHUNK: usize = 128;

/// A searchable index of texts by their embeddings, filled incrementally and cached in a file, which indexes of other
/// texts by the same model may share.
///
/// Vectors are unit vectors in f16: 2 bytes per element in memory and in the file. Rounding to f16 changes a score by
/// at most 5e-4 (half a unit in the last place); measured over a million pairs of all-MiniLM-L6-v2, by at most 7e-5,
/// and by 9e-6 on average. Dot products accumulate in f32.
#[derive(Clone)]
pub struct Index<'a> {
    texts: &'a [&'a str],
    pub(super) model: String,
    /// The index of the text of each of `vectors`.
    pub(super) rows: Vec<usize>,
    pub(super) vectors: Vectors,
}

/// One line, without the texts and their vectors.
impl fmt::Debug for Index<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (texts, size) = (self.texts.len(), self.vectors.size);
        f.debug_struct("Index").field("texts", &texts).field("size", &size).finish_non_exhaustive()
    }
}

impl<'a> Index<'a> {
    /// An index of `texts` without vectors; `size` is the dimension of an embedding.
    ///
    /// `model` identifies everything that the vectors depend on beside the texts: the
    /// [`fingerprint`](crate::fingerprint) of the model, and the dtype and the prompt if they vary. A text
    /// that occurs twice is embedded twice.
    ///
    /// # Errors
    /// [`Error::Value`](candle_attention::Error::Value) for a size of 0.
    pub fn new(texts: &'a [&'a str], size: usize, model: impl Into<String>) -> Result<Self> {
        Ok(Self { texts, model: model.into(), rows: Vec::new(), vectors: Vectors::new(size)? })
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

    /// Embeds the texts without a vector, a hundred at a time, and returns their number. `after_chunk` is called
    /// after each hundred, for example to save the index. Progress counts only the texts that were missing.
    ///
    /// # Errors
    /// The errors of [`SentenceEncoder::encode`] and of `after_chunk`; [`Error::Shape`](candle_attention::Error::Shape)
    /// for an embedding of another size, [`Error::Value`](candle_attention::Error::Value) for one that is not finite.
    /// The vectors embedded before the error stay.
    pub fn embed(
        &mut self,
        encoder: &SentenceEncoder,
        options: &EncodeOptions,
        mut after_chunk: impl FnMut(&Self) -> Result<()>,
    ) -> Result<usize> {
        let missing = self.missing();
        // Reserve once: growing by doubling would need up to twice the memory.
        self.vectors.elements.reserve_exact(missing.len() * self.vectors.size);
        let size = CHUNK.next_multiple_of(options.batch_size.max(1));
        for (index, chunk) in missing.chunks(size).enumerate() {
            let on_progress = |done: usize, _: usize| {
                if let Some(on_progress) = options.on_progress {
                    on_progress(index * size + done, missing.len());
                }
            };
            let options = EncodeOptions { on_progress: Some(&on_progress), ..*options };
            let texts: Vec<&str> = chunk.iter().map(|&text| self.texts[text]).collect();
            let embeddings = encoder.encode(&texts, &options)?.to_dtype(DType::F32)?.to_device(&Device::Cpu)?;
            for (&text, vector) in chunk.iter().zip(embeddings.to_vec2::<f32>()?) {
                self.vectors.push_named(&vector, || format!("the embedding of `{}`", self.texts[text]))?;
                self.rows.push(text);
            }
            after_chunk(self)?;
        }
        Ok(missing.len())
    }

    /// The `top_k` texts nearest to the vector `query`, best first; the score is the cosine similarity. Texts with
    /// equal scores are in the order of their indices.
    ///
    /// # Errors
    /// [`Error::Shape`](candle_attention::Error::Shape) for a vector of another size,
    /// [`Error::Value`](candle_attention::Error::Value) for one that is not finite.
    pub fn search(&self, query: &[f32], top_k: usize) -> Result<Vec<Ranked>> {
        self.vectors.search_as(query, top_k, |row| self.rows[row])
    }
}
