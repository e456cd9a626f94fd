//! Similarity of embeddings, by the function that a model's folder names.

use std::fmt;
use std::str::FromStr;

use candle_attention::ensure;
use candle_attention::tensor::compute_dtype;
use candle_attention::{Error, Result};
use candle_attention_kernels::{check_allocation, element_count};
use candle_core::Tensor;

use crate::model::pooling::l2_normalize;

/// How similar two embeddings are: the larger, the more. The names and formulas are those of sentence-transformers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum SimilarityFunction {
    /// The cosine of the angle between them.
    #[default]
    Cosine,
    /// Their dot product.
    Dot,
    /// Minus their Euclidean distance.
    Euclidean,
    /// Minus the sum of the absolute differences of their features.
    Manhattan,
}

impl SimilarityFunction {
    const ALL: [(&'static str, Self); 4] =
        [("cosine", Self::Cosine), ("dot", Self::Dot), ("euclidean", Self::Euclidean), ("manhattan", Self::Manhattan)];

    /// Each embedding of `a` with each of `b`: `(n, d)` and `(m, d)` → `(n, m)`, in f32 (f64 if `a` is).
    ///
    /// # Errors
    /// If the shapes do not fit each other, or the result does not fit into memory.
    pub fn similarity(self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let (a, b) = matrices(a, b)?;
        let (n, m) = (a.dim(0)?, b.dim(0)?);
        let bytes = element_count("the similarities", &[n, m, a.dtype().size_in_bytes()])?;
        if a.device().is_cpu() {
            check_allocation::<u8>("the similarities", bytes)?;
        }
        match self {
            Self::Cosine => Ok(l2_normalize(&a)?.matmul(&l2_normalize(&b)?.t()?)?),
            Self::Dot => Ok(a.matmul(&b.t()?)?),
            Self::Euclidean | Self::Manhattan => {
                // Row by row: a tensor `(n, m, d)` may not fit into memory.
                let row = |i: usize| self.negative_lengths(&b.broadcast_sub(&a.narrow(0, i, 1)?)?);
                match n {
                    0 => Ok(Tensor::zeros((0, m), a.dtype(), a.device())?),
                    n => Ok(Tensor::stack(&(0..n).map(row).collect::<Result<Vec<_>>>()?, 0)?),
                }
            }
        }
    }

    /// Each embedding of `a` with the one of `b` in the same row: twice `(n, d)` → `(n)`, in f32 (f64 if `a` is).
    ///
    /// # Errors
    /// If the shapes differ.
    pub fn similarity_pairwise(self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        ensure!(a.dims() == b.dims(), Error::shape("the second embeddings", b.dims(), format!("{:?}", a.dims())));
        let (a, b) = matrices(a, b)?;
        match self {
            Self::Cosine => Ok((l2_normalize(&a)? * l2_normalize(&b)?)?.sum(1)?),
            Self::Dot => Ok((a * b)?.sum(1)?),
            Self::Euclidean | Self::Manhattan => self.negative_lengths(&(a - b)?),
        }
    }

    /// Minus the length of each row.
    fn negative_lengths(self, differences: &Tensor) -> Result<Tensor> {
        Ok(match self {
            Self::Manhattan => differences.abs()?.sum(1)?.neg()?,
            _ => differences.sqr()?.sum(1)?.sqrt()?.neg()?,
        })
    }
}

/// Both in one dtype, `(n, d)` and `(m, d)`.
fn matrices(a: &Tensor, b: &Tensor) -> Result<(Tensor, Tensor)> {
    let (_, d) = a.dims2().map_err(|_| Error::shape("the first embeddings", a.dims(), "(n, d)"))?;
    match b.dims2() {
        Ok((_, other)) if other == d => {}
        _ => return Err(Error::shape("the second embeddings", b.dims(), format!("(m, {d})"))),
    }
    let dtype = compute_dtype(a.dtype());
    Ok((a.to_dtype(dtype)?, b.to_dtype(dtype)?))
}

/// From the names of sentence-transformers: `cosine`, `dot`, `euclidean`, `manhattan`.
impl FromStr for SimilarityFunction {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|(known, _)| *known == name);
        found.map(|(_, function)| function).ok_or_else(|| {
            Error::value(
                "the similarity function",
                name,
                format!("one of {}", Self::ALL.map(|(known, _)| known).join(", ")),
            )
        })
    }
}

impl fmt::Display for SimilarityFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Self::ALL.into_iter().find(|(_, function)| function == self);
        f.write_str(named.map_or("", |(name, _)| name))
    }
}
