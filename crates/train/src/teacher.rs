//! A sentence encoder to learn from, its embeddings of the texts, and the projection to the student's dimension.

use std::collections::HashMap;
use std::path::Path;

use candle_attention::checkpoint::Checkpoint;
use candle_attention::io::{create_folder, is_present, write_tensors};
use candle_attention::{ComputeType, Error, Result};
use candle_attention_text::{EncodeOptions, Fingerprint, SentenceEncoder};
use candle_core::{DType, Device, Tensor};

use crate::student::unit;

/// Number of texts that are encoded between two calls of the progress function.
const TEXTS: usize = 256;
/// Number of embeddings whose products are summed at once.
const CHUNK: usize = 4096;
/// Name of the tensor in the file of the embeddings.
const EMBEDDINGS: &str = "embeddings";
/// Iterations of [`basis`]; more of them change no digit of an f32.
const ROUNDS: usize = 40;

/// A sentence encoder to learn from.
#[derive(Debug)]
pub struct Teacher {
    encoder: SentenceEncoder,
    pub(super) key: String,
}

impl Teacher {
    /// Loads a sentence encoder from a folder, as [`SentenceEncoder::from_folder`] does. In bf16 it encodes faster, and
    /// its vectors differ in the third digit.
    ///
    /// # Errors
    /// The errors of [`SentenceEncoder::from_folder`].
    pub fn open(folder: impl AsRef<Path>, compute_type: impl Into<ComputeType>) -> Result<Self> {
        let compute_type = compute_type.into();
        let encoder = SentenceEncoder::from_folder(&folder, compute_type, &Device::Cpu)?;
        let content = candle_attention_text::fingerprint(&folder)?;
        let key = [content.as_bytes(), compute_type.to_string().as_bytes()].into_iter().collect::<Fingerprint>().hex();
        Ok(Self { encoder, key })
    }

    /// One unit vector per text, `(texts, embedding_size)` in f32.
    ///
    /// # Errors
    /// The errors of [`SentenceEncoder::encode`].
    pub fn encode(&self, texts: &[String]) -> Result<Tensor> {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        unit(&self.encoder.encode(&texts, &EncodeOptions::default().with_batch_size(64))?.to_dtype(DType::F32)?)
    }

    /// Dimension of the embeddings.
    pub(super) fn embedding_size(&self) -> usize {
        self.encoder.embedding_size()
    }

    /// The vectors of [`encode`](Self::encode) rounded to f16, kept in a file in `folder` that is named by `key`, a
    /// fingerprint of the texts and this teacher.
    pub(super) fn encode_once(
        &self,
        texts: &[String],
        folder: &Path,
        key: &str,
        on_progress: Option<&dyn Fn(usize, usize)>,
    ) -> Result<Tensor> {
        let path = folder.join(format!("teacher-{key}.safetensors"));
        if is_present(&path)? {
            let embeddings = Checkpoint::open(&path)?.tensor(EMBEDDINGS, &Device::Cpu)?;
            if embeddings.dims() != [texts.len(), self.embedding_size()] {
                return Err(Error::file(&path, "its embeddings are of other texts; remove the file"));
            }
            return Ok(embeddings);
        }
        let mut parts = Vec::with_capacity(texts.len().div_ceil(TEXTS));
        for (i, part) in texts.chunks(TEXTS).enumerate() {
            parts.push(self.encode(part)?.to_dtype(DType::F16)?);
            if let Some(on_progress) = on_progress {
                on_progress(i * TEXTS + part.len(), texts.len());
            }
        }
        let embeddings = Tensor::cat(&parts, 0)?;
        create_folder(folder)?;
        write_tensors(&path, [(EMBEDDINGS, embeddings.clone())], HashMap::new())?;
        Ok(embeddings)
    }
}

/// An orthonormal basis `(d, width)` in f32 of the directions in which vectors `(n, d)` keep most of their inner
/// products: the leading eigenvectors of the second moments, found by orthogonal iteration (Golub and Van Loan, Matrix
/// Computations, 8.2.4). `width` is at most `d`.
pub(super) fn basis(embeddings: &Tensor, width: usize) -> Result<Tensor> {
    let (n, d) = embeddings.dims2()?;
    let mut moments = Tensor::zeros((d, d), DType::F32, &Device::Cpu)?;
    for start in (0..n).step_by(CHUNK) {
        let rows = embeddings.narrow(0, start, CHUNK.min(n - start))?.to_dtype(DType::F32)?;
        moments = (moments + rows.t()?.matmul(&rows)?)?;
    }
    let moments = moments.to_dtype(DType::F64)?;
    // Any start works that is not orthogonal to an eigenvector.
    let start = |i: usize| ((i * i + 7 * i) % 101) as f64 - 50.0;
    let mut columns = Tensor::from_iter((0..width * d).map(start), &Device::Cpu)?.reshape((width, d))?.to_vec2()?;
    (0..width.min(d)).for_each(|i| columns[i][i] += 500.0);
    for _ in 0..ROUNDS {
        columns = Tensor::new(orthonormal(columns), &Device::Cpu)?.matmul(&moments)?.to_vec2()?;
    }
    Ok(Tensor::new(orthonormal(columns), &Device::Cpu)?.t()?.to_dtype(DType::F32)?.contiguous()?)
}

/// Orthonormalizes vectors by Gram and Schmidt's method. A vector that depends linearly on the ones before it becomes
/// 0.
fn orthonormal(mut vectors: Vec<Vec<f64>>) -> Vec<Vec<f64>> {
    for i in 0..vectors.len() {
        let (before, rest) = vectors.split_at_mut(i);
        let vector = &mut rest[0];
        let size = dot(vector, vector).sqrt();
        // Two passes are enough for full accuracy (Giraud 2005).
        for other in before.iter().chain(&*before) {
            let along = dot(vector, other);
            vector.iter_mut().zip(other).for_each(|(x, y)| *x -= along * y);
        }
        let left = dot(vector, vector).sqrt();
        let factor = if left > 1e-10 * size { 1.0 / left } else { 0.0 };
        vector.iter_mut().for_each(|x| *x *= factor);
    }
    vectors
}

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
