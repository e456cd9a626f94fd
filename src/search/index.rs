use candle_core::{DType, Device};
use half::f16;
use sha2::{Digest, Sha256};

use crate::encoder::{EncodeOptions, Ranked, SentenceEncoder};
use crate::error::{Error, Result};
use crate::search::nearest;

/// A text in a file: the first half of its SHA-256.
pub(super) type Key = [u8; 16];

/// Texts that are embedded together, between two calls of the caller's.
const CHUNK: usize = 1024;

/// Texts and their embeddings, made bit by bit, kept in a file, searched.
///
/// Vectors are kept at length 1 in f16, 2 bytes a number in memory and in the file. That moves a score by 5e-4 at most
/// (half a unit in the last place); measured over a million pairs of all-MiniLM-L6-v2, by 7e-5 at most and 9e-6 in the
/// mean. Products are summed in f32.
#[derive(Debug, Clone)]
pub struct Index<'a> {
    texts: &'a [&'a str],
    pub(super) model: String,
    pub(super) size: usize,
    /// The text of each row.
    pub(super) rows: Vec<usize>,
    /// `(rows, size)`
    pub(super) vectors: Vec<f16>,
}

impl<'a> Index<'a> {
    /// An index of `texts` that holds no vector yet; `size` is that of an embedding. `model` stands for all that the
    /// vectors depend on beside the texts: [`fingerprint`](crate::encoder::fingerprint), and dtype and prompt where they
    /// vary. Equal texts are embedded once each: see [`Lines`](crate::search::Lines).
    ///
    /// # Errors
    /// A size of 0.
    pub fn new(texts: &'a [&'a str], size: usize, model: impl Into<String>) -> Result<Self> {
        if size == 0 {
            return Err(Error::value("the size of an embedding", size, "at least 1"));
        }
        Ok(Self { texts, model: model.into(), size, rows: Vec::new(), vectors: Vec::new() })
    }

    /// The number of texts that have a vector.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether no text has a vector.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The texts that have no vector yet, by their places in `texts`, ascending.
    pub fn missing(&self) -> Vec<usize> {
        let mut missing = vec![true; self.texts.len()];
        self.rows.iter().for_each(|&text| missing[text] = false);
        (0..missing.len()).filter(|&text| missing[text]).collect()
    }

    pub(super) fn key(&self, text: usize) -> Key {
        let hash = Sha256::digest(self.texts[text]);
        std::array::from_fn(|i| hash[i])
    }

    /// Embeds the texts that have no vector yet, about a thousand at a time, and gives their number. `after` is called
    /// after each thousand: the place to save what is done so far. Progress counts the missing texts alone.
    ///
    /// # Errors
    /// Those of [`SentenceEncoder::encode`]; an embedding of another size, or one that is not finite; those of `after`.
    /// What was embedded before stays.
    pub fn embed(
        &mut self,
        encoder: &SentenceEncoder,
        options: &EncodeOptions,
        mut after: impl FnMut(&Self) -> Result<()>,
    ) -> Result<usize> {
        let missing = self.missing();
        // At once: doubling would take up to twice the memory.
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
            after(self)?;
        }
        Ok(missing.len())
    }

    /// The `top_k` texts nearest to a vector, the best first, equal ones in their order; the score is the cosine.
    ///
    /// # Errors
    /// A vector of another size, or one that is not finite.
    pub fn search(&self, query: &[f32], top_k: usize) -> Result<Vec<Ranked>> {
        let query = self.unit(query, || "the embedding of the query".to_string())?;
        let scores = nearest::scores(&self.vectors, &query);
        // A vector rounded to f16 may be a little longer than 1.
        let ranked = |(&index, score): (&usize, f32)| Ranked { index, score: score.clamp(-1.0, 1.0) };
        let ranked = self.rows.iter().zip(scores).map(ranked).collect();
        let by = |a: &Ranked, b: &Ranked| b.score.total_cmp(&a.score).then(a.index.cmp(&b.index));
        Ok(nearest::first(ranked, top_k, by))
    }

    fn unit(&self, vector: &[f32], what: impl Fn() -> String) -> Result<Vec<f32>> {
        if vector.len() != self.size {
            return Err(Error::shape(what(), &[vector.len()], format!("({})", self.size)));
        }
        nearest::unit(vector).ok_or_else(|| Error::value(what(), "not finite", "finite numbers"))
    }
}
