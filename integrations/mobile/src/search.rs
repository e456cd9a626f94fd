//! `SearchIndex`: the nearest of many texts.

use std::sync::{Arc, PoisonError, RwLock};

use candle_attention_text::search::Vectors;

use crate::cancellation::Cancellation;
use crate::encoder::SentenceEncoder;
use crate::error::{EncoderError, Result};
use crate::options::EncodeOptions;

/// The embeddings of texts, searched by the cosine similarity: exactly, without an approximation. They take 2 bytes per
/// feature. The texts themselves stay with the app, in the order in which they were added.
#[derive(Debug, uniffi::Object)]
pub struct SearchIndex {
    encoder: Arc<SentenceEncoder>,
    vectors: RwLock<Vectors>,
}

/// A text that was found.
#[derive(Debug, Clone, Copy, PartialEq, uniffi::Record)]
pub struct SearchHit {
    /// The number of texts that were added before it.
    pub index: u32,
    /// The cosine similarity to the query, -1 to 1.
    pub score: f32,
}

#[uniffi::export]
impl SearchIndex {
    /// An index without texts, for the embeddings of `encoder`.
    #[uniffi::constructor]
    pub fn new(encoder: Arc<SentenceEncoder>) -> Result<Arc<Self>> {
        let vectors = RwLock::new(Vectors::new(encoder.dimension() as usize)?);
        Ok(Arc::new(Self { encoder, vectors }))
    }

    /// The number of texts.
    pub fn count(&self) -> u32 {
        self.vectors.read().unwrap_or_else(PoisonError::into_inner).len() as u32
    }

    /// Embeds texts as documents and adds them: all of them, or none if there is an error. The first one gets the index
    /// that is returned, the next ones those after it.
    #[uniffi::method(default(cancellation = None))]
    pub fn add(&self, texts: Vec<String>, cancellation: Option<Arc<Cancellation>>) -> Result<u32> {
        let embeddings = self.encoder.encode_document(texts, EncodeOptions::default(), cancellation)?;
        self.add_embeddings(embeddings)
    }

    /// Adds embeddings that were computed before, such as those that the app saved: all of them, or none if there is an
    /// error.
    pub fn add_embeddings(&self, embeddings: Vec<Vec<f32>>) -> Result<u32> {
        let mut vectors = self.vectors.write().unwrap_or_else(PoisonError::into_inner);
        let first = vectors.len();
        if first + embeddings.len() > u32::MAX as usize {
            return Err(EncoderError::argument("the number of texts", first + embeddings.len(), "less than 2^32"));
        }
        // Nothing of a list with an error is kept.
        let mut added = Vectors::new(self.encoder.dimension() as usize)?;
        embeddings.iter().try_for_each(|embedding| added.push(embedding))?;
        vectors.append(added)?;
        Ok(first as u32)
    }

    /// The `k` texts that are nearest to a query, the best first.
    pub fn search(&self, query: String, k: u32) -> Result<Vec<SearchHit>> {
        let embeddings = self.encoder.encode_query(vec![query], EncodeOptions::default(), None)?;
        self.search_embedding(embeddings.concat(), k)
    }

    /// The `k` texts that are nearest to an embedding, the best first.
    pub fn search_embedding(&self, embedding: Vec<f32>, k: u32) -> Result<Vec<SearchHit>> {
        let vectors = self.vectors.read().unwrap_or_else(PoisonError::into_inner);
        let found = vectors.search(&embedding, k as usize)?;
        Ok(found.into_iter().map(|hit| SearchHit { index: hit.index as u32, score: hit.score }).collect())
    }
}
