//! A sentence encoder to learn from, its cached embeddings, and the projection to the student's dimension.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use safetensors::Dtype;

use crate::checkpoint::Checkpoint;
use crate::encoder::{EncodeOptions, SentenceEncoder};
use crate::error::{Error, Result};
use crate::io::{Fingerprint, create_folder, is_present, write_atomic, write_tensors};
use crate::train::student::unit;

/// Number of texts that are encoded between two calls of the progress function.
const CHUNK: usize = 4096;
/// Name of the tensor in a cache file.
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
    /// Loads a sentence encoder from a folder, as [`SentenceEncoder::from_folder`] does. In bf16 it encodes faster, and its
    /// vectors differ in the third digit.
    ///
    /// # Errors
    /// Those of [`SentenceEncoder::from_folder`].
    pub fn open(folder: impl AsRef<Path>, dtype: DType) -> Result<Self> {
        let encoder = SentenceEncoder::from_folder(&folder, dtype, &Device::Cpu)?;
        let content = crate::encoder::fingerprint(&folder)?;
        let key = [content.as_bytes(), dtype.as_str().as_bytes()].into_iter().collect::<Fingerprint>().hex();
        Ok(Self { encoder, key })
    }

    /// One unit vector per text, `(texts, embedding_size)` in f32.
    ///
    /// # Errors
    /// Those of [`SentenceEncoder::encode`].
    pub fn encode(&self, texts: &[String]) -> Result<Tensor> {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        unit(&self.encoder.encode(&texts, &EncodeOptions::default().with_batch_size(64))?.to_dtype(DType::F32)?)
    }

    /// The vectors of [`encode`](Self::encode) rounded to f16, cached in a file in `folder`.
    pub(super) fn encode_once(
        &self,
        texts: &[String],
        folder: &Path,
        on_progress: Option<&dyn Fn(usize, usize)>,
    ) -> Result<Tensor> {
        let path = self.cache_path(texts, folder);
        if is_present(&path)? {
            let kept = Checkpoint::open(&path)?;
            let entry = kept.entry(EMBEDDINGS)?;
            let shape = [texts.len(), self.encoder.embedding_size()];
            if *entry.shape != shape || entry.dtype != Dtype::F16 {
                let found = format!("has dtype {} and shape {:?}", entry.dtype, entry.shape);
                let reason = format!("`{EMBEDDINGS}` {found}, expected F16 {shape:?}; remove the file");
                return Err(Error::file(&path, reason));
            }
            return kept.tensor(EMBEDDINGS, &Device::Cpu);
        }
        let mut parts = Vec::with_capacity(texts.len().div_ceil(CHUNK));
        for (i, chunk) in texts.chunks(CHUNK).enumerate() {
            parts.push(self.encode(chunk)?.to_dtype(DType::F16)?);
            if let Some(on_progress) = on_progress {
                on_progress(i * CHUNK + chunk.len(), texts.len());
            }
        }
        let embeddings = Tensor::cat(&parts, 0)?;
        create_folder(folder)?;
        let tensors = BTreeMap::from([(EMBEDDINGS.to_string(), embeddings.clone())]);
        write_atomic(&path, |file| write_tensors(file, &path, &tensors, &HashMap::new()))?;
        Ok(embeddings)
    }

    fn cache_path(&self, texts: &[String], folder: &Path) -> PathBuf {
        let parts = texts.iter().map(|text| text.as_bytes()).chain([self.key.as_bytes()]);
        folder.join(format!("teacher-{}.safetensors", parts.collect::<Fingerprint>().hex()))
    }
}

/// An orthonormal basis `(d, width)` in f32 of the directions in which vectors `(n, d)` keep most of their inner products:
/// the leading eigenvectors of the second moments, found by orthogonal iteration (Golub and Van Loan, Matrix Computations,
/// 8.2.4).
pub(super) fn basis(embeddings: &Tensor, width: usize) -> Result<Tensor> {
    let (n, d) = embeddings.dims2()?;
    if width > d {
        return Err(Error::config("hidden_size", width, format!("at most {d}, the teacher's embedding size")));
    }
    let mut moments = Tensor::zeros((d, d), DType::F32, &Device::Cpu)?;
    for start in (0..n).step_by(CHUNK) {
        let rows = embeddings.narrow(0, start, CHUNK.min(n - start))?.to_dtype(DType::F32)?;
        moments = (moments + rows.t()?.matmul(&rows)?)?;
    }
    let moments = moments.to_dtype(DType::F64)?;
    // Any start works that is not orthogonal to an eigenvector.
    let start = |i: usize| ((i * i + 7 * i) % 101) as f64 - 50.0;
    let mut columns: Vec<f64> = (0..width * d).map(start).collect();
    (0..width.min(d)).for_each(|i| columns[i * d + i] += 500.0);
    for _ in 0..ROUNDS {
        orthonormalize(&mut columns, d);
        columns = Tensor::from_slice(&columns, (width, d), &Device::Cpu)?.matmul(&moments)?.flatten_all()?.to_vec1()?;
    }
    orthonormalize(&mut columns, d);
    Ok(Tensor::from_vec(columns, (width, d), &Device::Cpu)?.t()?.to_dtype(DType::F32)?.contiguous()?)
}

/// Orthonormalizes consecutive vectors of `d` elements by Gram and Schmidt's method. A vector that depends linearly on
/// the ones before it becomes 0.
fn orthonormalize(vectors: &mut [f64], d: usize) {
    for i in 0..vectors.len() / d {
        let (before, rest) = vectors.split_at_mut(i * d);
        let vector = &mut rest[..d];
        let size = dot(vector, vector).sqrt();
        // Two passes are enough for full accuracy (Giraud 2005).
        for _ in 0..2 {
            for other in before.chunks_exact(d) {
                let along = dot(vector, other);
                vector.iter_mut().zip(other).for_each(|(x, y)| *x -= along * y);
            }
        }
        let left = dot(vector, vector).sqrt();
        let factor = if left > 1e-10 * size { 1.0 / left } else { 0.0 };
        vector.iter_mut().for_each(|x| *x *= factor);
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
