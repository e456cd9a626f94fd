//! Texts that can be searched.

use candle_attention::candle_core::Tensor;
use candle_attention_text::SentenceEncoder;
use wasm_bindgen::prelude::*;

use crate::encoder::{Encoder, borrowed, numbers};
use crate::error::Result;
use crate::options::Options;

/// The embeddings of texts, to be compared with queries.
#[wasm_bindgen]
pub struct Index {
    encoder: SentenceEncoder,
    /// `(texts, dimension)`.
    embeddings: Tensor,
    /// How queries are embedded.
    queries: Options,
}

#[wasm_bindgen]
impl Index {
    /// Embeds texts as documents.
    ///
    /// # Errors
    /// Those of `encodeDocument`.
    #[wasm_bindgen(constructor)]
    pub fn new(encoder: &Encoder, texts: Vec<String>, options: JsValue) -> Result<Self> {
        let options = Options::read(&options)?;
        let embeddings = encoder.0.encode_document(&borrowed(&texts), &options.encode())?;
        Ok(Self { encoder: encoder.0.clone(), embeddings, queries: options.for_queries() })
    }

    /// The number of texts.
    #[wasm_bindgen(getter)]
    pub fn length(&self) -> usize {
        self.embeddings.dims()[0]
    }

    /// The indices and scores of the `k` best texts for a query in turn, the best first; of equal ones, the first text first.
    ///
    /// # Errors
    /// Those of `encodeQuery`.
    pub fn search(&self, query: &str, k: usize) -> Result<Vec<f64>> {
        if self.length() == 0 {
            return Ok(Vec::new());
        }
        let query = self.encoder.encode_query(&[query], &self.queries.encode())?;
        let scores = numbers(&self.encoder.similarity(&query, &self.embeddings)?)?;
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        Ok(order.into_iter().take(k).flat_map(|i| [i as f64, f64::from(scores[i])]).collect())
    }
}
