//! Semantic search over texts: exact nearest neighbors by the cosine similarity of their embeddings.
//!
//! [`Vectors`] hold one vector per text, and a search compares the query with all of them. An approximate index was
//! rejected: for the number of lines that a file has, memory bandwidth answers in milliseconds, and exact results need
//! no tuning and no tests of recall.
//!
//! ```no_run
//! use candle_attention_text::{EncodeOptions, SentenceEncoder};
//! use candle_attention_text::search::Vectors;
//! use candle_core::{DType, Device};
//! let text = std::fs::read_to_string("notes.txt")?;
//! let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
//! let encoder = SentenceEncoder::from_folder("all-MiniLM-L6-v2", DType::F32, &Device::Cpu)?;
//!
//! let mut vectors = Vectors::new(encoder.embedding_size())?;
//! vectors.embed(&lines, &encoder, &EncodeOptions::default())?;
//!
//! let query = encoder.encode(&["When is the rent due?"], &EncodeOptions::default())?;
//! for hit in vectors.search(&query.get(0)?.to_vec1()?, 10)? {
//!     println!("{:.3} {}", hit.score, lines[hit.index]);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt;

use candle_attention::ensure;
use candle_attention::{Error, Result};
use candle_core::{DType, Device};
use half::f16;
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;

use crate::{EncodeOptions, Ranked, SentenceEncoder};

/// Number of texts that are embedded at once: their embeddings in f32 are small beside all vectors in f16.
const CHUNK: usize = 1024;

/// Unit vectors that are searched by the cosine similarity, such as embeddings of texts. The caller keeps the texts.
///
/// They are in f16, 2 bytes per element. Rounding to f16 changes a score by at most 5e-4 (half a unit in the last
/// place); measured over a million pairs of all-MiniLM-L6-v2, by at most 7e-5, and by 9e-6 on average. Dot products
/// accumulate in f32.
#[derive(Clone)]
pub struct Vectors {
    size: usize,
    /// `(n, size)`.
    elements: Vec<f16>,
}

/// One line, without the elements.
impl fmt::Debug for Vectors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vectors").field("size", &self.size).field("len", &self.len()).finish_non_exhaustive()
    }
}

impl Vectors {
    /// No vectors yet; each will have `size` elements.
    ///
    /// # Errors
    /// [`Error::Value`] for a size of 0.
    pub fn new(size: usize) -> Result<Self> {
        match size {
            0 => Err(Error::value("the size of an embedding", size, "at least 1")),
            _ => Ok(Self { size, elements: Vec::new() }),
        }
    }

    /// Number of vectors.
    pub fn len(&self) -> usize {
        self.elements.len() / self.size
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    /// Adds a vector, scaled to length 1; a zero vector stays zero. Its index is the number of vectors before it.
    ///
    /// # Errors
    /// [`Error::Shape`] for a vector of another size, [`Error::Value`] for one that is not finite.
    pub fn push(&mut self, vector: &[f32]) -> Result<()> {
        let row = self.len();
        self.push_named(vector, || format!("vector {row}"))
    }

    /// Adds the embeddings of texts in their order, as by [`push`](Self::push).
    ///
    /// # Errors
    /// The errors of [`SentenceEncoder::encode`]; [`Error::Shape`] for embeddings of another size, [`Error::Value`] for
    /// one that is not finite. The vectors that were added before the error stay.
    pub fn embed(&mut self, texts: &[&str], encoder: &SentenceEncoder, options: &EncodeOptions) -> Result<()> {
        // Reserve once: growing by doubling would need up to twice the memory. Where that fails, it grows.
        let _ = self.elements.try_reserve_exact(texts.len().saturating_mul(self.size));
        let size = CHUNK.next_multiple_of(options.batch_size.max(1));
        for (index, chunk) in texts.chunks(size).enumerate() {
            let on_progress = |done: usize, _: usize| {
                if let Some(on_progress) = options.on_progress {
                    on_progress(index * size + done, texts.len());
                }
            };
            let options = EncodeOptions { on_progress: Some(&on_progress), ..*options };
            let embeddings = encoder.encode(chunk, &options)?.to_dtype(DType::F32)?.to_device(&Device::Cpu)?;
            for (text, vector) in chunk.iter().zip(embeddings.to_vec2::<f32>()?) {
                self.push_named(&vector, || format!("the embedding of `{text}`"))?;
            }
        }
        Ok(())
    }

    /// [`push`](Self::push), whose errors name the vector by `what`.
    fn push_named(&mut self, vector: &[f32], what: impl Fn() -> String) -> Result<()> {
        let unit = self.unit(vector, what)?;
        self.elements.extend(unit.into_iter().map(f16::from_f32));
        Ok(())
    }

    /// Adds the vectors of `other` after these.
    ///
    /// # Errors
    /// [`Error::Value`] for vectors of another size.
    pub fn append(&mut self, other: Self) -> Result<()> {
        ensure!(other.size == self.size, Error::value("the size of the vectors", other.size, self.size.to_string()));
        self.elements.extend(other.elements);
        Ok(())
    }

    /// The `top_k` vectors nearest to `query`, best first; the score is the cosine similarity. Vectors with equal
    /// scores are in the order of their indices.
    ///
    /// # Errors
    /// [`Error::Shape`] for a query of another size, [`Error::Value`] for one that is not finite.
    pub fn search(&self, query: &[f32], top_k: usize) -> Result<Vec<Ranked>> {
        let query = self.unit(query, || "the embedding of the query".to_string())?;
        // A vector rounded to f16 may be slightly longer than 1.
        let ranked = |(index, score): (usize, f32)| Ranked { index, score: score.clamp(-1.0, 1.0) };
        let mut ranked: Vec<Ranked> = scores(&self.elements, &query).into_iter().enumerate().map(ranked).collect();
        let by = |a: &Ranked, b: &Ranked| b.score.total_cmp(&a.score).then(a.index.cmp(&b.index));
        if top_k < ranked.len() {
            // The rest is only partitioned, not sorted.
            ranked.select_nth_unstable_by(top_k, by);
            ranked.truncate(top_k);
        }
        ranked.sort_unstable_by(by);
        Ok(ranked)
    }

    /// `vector` scaled to length 1; a zero vector stays zero.
    fn unit(&self, vector: &[f32], what: impl Fn() -> String) -> Result<Vec<f32>> {
        ensure!(vector.len() == self.size, Error::shape(what(), &[vector.len()], format!("({})", self.size)));
        let length = vector.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        ensure!(length.is_finite(), Error::value(what(), "not finite", "finite numbers"));
        Ok(vector.iter().map(|x| (f64::from(*x) / length.max(f64::MIN_POSITIVE)) as f32).collect())
    }
}

/// Number of rows per parallel task.
const BLOCK: usize = 512;

/// The dot product of each row of `vectors` `(n, query.len())` with `query`, in f32.
fn scores(vectors: &[f16], query: &[f32]) -> Vec<f32> {
    let size = query.len();
    let block = |rows: &[f16]| {
        let mut wide = vec![0.0; size];
        let score = |row: &[f16]| {
            row.convert_to_f32_slice(&mut wide);
            dot(&wide, query)
        };
        rows.chunks_exact(size).map(score).collect::<Vec<_>>()
    };
    vectors.par_chunks(size * BLOCK).flat_map_iter(block).collect()
}

/// A dot product in sixteen partial sums, which the compiler vectorizes and which round less than a single sum.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<16>(), b.as_chunks::<16>());
    let mut sums = [0.0; 16];
    for (a, b) in a.iter().zip(b) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}
