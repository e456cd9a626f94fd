//! Pooling: the hidden states of a text as one vector.

use std::ops::Range;

use candle_attention::ensure;
use candle_attention::tensor::compute_dtype;
use candle_attention::{Error, Result};
use candle_core::{D, DType, Tensor};

/// How the hidden states of a text's tokens become one vector; the names are those of sentence-transformers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PoolingMode {
    /// The first token that counts.
    Cls,
    /// The maximum of each feature.
    Max,
    /// The mean over tokens.
    Mean,
    /// The sum over tokens divided by the square root of their number.
    #[serde(rename = "mean_sqrt_len_tokens", alias = "mean_sqrt_len")]
    MeanSqrtLen,
    /// The mean weighted by position, 1 for the first token.
    #[serde(rename = "weightedmean")]
    WeightedMean,
    /// The last token that counts.
    #[serde(rename = "lasttoken")]
    LastToken,
}

/// One or more pooling modes; the vectors of several are concatenated in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pooling {
    modes: Vec<PoolingMode>,
}

impl Pooling {
    /// Pooling by these modes.
    ///
    /// # Errors
    /// If `modes` is empty.
    pub fn new(modes: Vec<PoolingMode>) -> Result<Self> {
        ensure!(!modes.is_empty(), Error::config("pooling_mode", "[]", "at least one mode"));
        Ok(Self { modes })
    }

    /// Output dimension for hidden size `width`.
    pub fn output_size(&self, width: usize) -> usize {
        self.modes.len() * width
    }

    /// tokens `(b, s, d)`, mask `(b, s)` with 1 = counts → `(b, modes · d)`, in f32 (f64 for f64).
    ///
    /// # Errors
    /// If the shapes do not fit each other.
    pub fn forward(&self, tokens: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (b, s, _) = tokens.dims3().map_err(|_| Error::shape("tokens", tokens.dims(), "(b, s, d)"))?;
        ensure!(mask.dims() == [b, s], Error::shape("mask", mask.dims(), format!("{:?}", [b, s])));
        let wide = compute_dtype(tokens.dtype());
        let (tokens, mask) = (tokens.to_dtype(wide)?, mask.to_dtype(wide)?);
        let pooled = self.modes.iter().map(|mode| mode.pool(&tokens, &mask)).collect::<Result<Vec<_>>>()?;
        Ok(Tensor::cat(&pooled, D::Minus1)?)
    }
}

/// Pooling of texts whose first `excluded` tokens do not count.
#[derive(Clone, Copy)]
pub(crate) struct TextPooling<'a> {
    pub pooling: &'a Pooling,
    pub excluded: usize,
}

impl TextPooling<'_> {
    /// Texts on the CPU: the rows of their tokens `(tokens, d)`, those of text `i` from `offsets[i]` to
    /// `offsets[i + 1]` → `(texts, modes · d)`.
    pub fn pool_sequences(self, tokens: &[f32], d: usize, offsets: &[usize], output: &mut [f32]) {
        let Self { pooling, excluded } = self;
        for (ends, output) in offsets.windows(2).zip(output.chunks_exact_mut(pooling.output_size(d).max(1))) {
            let length = ends[1] - ends[0];
            pooling.pool_rows(&tokens[ends[0] * d..ends[1] * d], d, excluded.min(length)..length, output);
        }
    }
}

impl Pooling {
    /// One text on the CPU: the rows of its tokens `(s, d)`, of which those in `counted` count → `(modes · d)`.
    fn pool_rows(&self, tokens: &[f32], d: usize, counted: Range<usize>, output: &mut [f32]) {
        for (mode, output) in self.modes.iter().zip(output.chunks_exact_mut(d.max(1))) {
            mode.pool_rows(tokens, counted.clone(), output);
        }
    }
}

/// Prevents a division by zero for a text whose tokens are all excluded, as in sentence-transformers.
const SMALLEST: f64 = 1e-9;

impl PoolingMode {
    /// tokens `(b, s, d)`, mask `(b, s)`, both of one floating dtype → `(b, d)`.
    fn pool(self, tokens: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (b, s, d) = tokens.dims3()?;
        let positions = || Tensor::arange(0u32, s as u32, tokens.device())?.to_dtype(mask.dtype());
        Ok(match self {
            Self::Cls => {
                // The first of a text without tokens that count, as in sentence-transformers.
                let from_end = mask.broadcast_mul(&positions()?.affine(-1.0, s as f64)?)?.max_keepdim(1)?; // (b, 1)
                let first = ((from_end.affine(-1.0, s as f64)? * from_end.ne(0f64)?.to_dtype(mask.dtype())?)?)
                    .to_dtype(DType::U32)?;
                let first = first.unsqueeze(2)?.broadcast_as((b, 1, d))?.contiguous()?;
                tokens.contiguous()?.gather(&first, 1)?.squeeze(1)?
            }
            Self::Max => {
                let hidden = mask.eq(0f64)?.unsqueeze(2)?.broadcast_as(tokens.shape())?;
                let largest = hidden.where_cond(&(tokens.zeros_like()? - 1e9)?, tokens)?.max(1)?;
                // candle's maximum loses NaN, and a sum does not.
                (largest + (weighted_sum(tokens, mask)? * 0.0)?)?
            }
            Self::Mean => weighted_sum(tokens, mask)?.broadcast_div(&mask.sum_keepdim(1)?.maximum(SMALLEST)?)?,
            Self::MeanSqrtLen => {
                weighted_sum(tokens, mask)?.broadcast_div(&mask.sum_keepdim(1)?.maximum(SMALLEST)?.sqrt()?)?
            }
            Self::WeightedMean => {
                let weights = mask.broadcast_mul(&(positions()? + 1.0)?)?;
                weighted_sum(tokens, &weights)?.broadcast_div(&weights.sum_keepdim(1)?.maximum(SMALLEST)?)?
            }
            Self::LastToken => {
                let last = mask.broadcast_mul(&positions()?)?.max_keepdim(1)?; // (b, 1)
                let only = last.broadcast_eq(&positions()?.unsqueeze(0)?)?.to_dtype(mask.dtype())?;
                weighted_sum(tokens, &only)?
            }
        })
    }
}

impl PoolingMode {
    /// [`pool`](Self::pool) of one text.
    fn pool_rows(self, tokens: &[f32], counted: Range<usize>, output: &mut [f32]) {
        let row = |j: usize| &tokens[j * output.len()..][..output.len()];
        let sum = |weight: fn(usize) -> f32| {
            let mut sum = vec![0.0; output.len()];
            for j in counted.clone() {
                sum.iter_mut().zip(row(j)).for_each(|(sum, x)| *sum += weight(j) * x);
            }
            sum
        };
        let count = (counted.len() as f32).max(SMALLEST as f32);
        let pooled = match self {
            Self::Cls => row(if counted.is_empty() { 0 } else { counted.start }).to_vec(),
            Self::LastToken => row(counted.clone().last().unwrap_or(0)).to_vec(),
            Self::Max => {
                let mut largest = vec![-1e9; output.len()];
                for j in counted.clone() {
                    largest.iter_mut().zip(row(j)).for_each(|(largest, x)| {
                        *largest = if *x > *largest || x.is_nan() { *x } else { *largest };
                    });
                }
                largest
            }
            Self::Mean => divided(sum(|_| 1.0), count),
            Self::MeanSqrtLen => divided(sum(|_| 1.0), count.sqrt()),
            Self::WeightedMean => {
                let weights: f32 = counted.clone().map(|j| (j + 1) as f32).sum();
                divided(sum(|j| (j + 1) as f32), weights.max(SMALLEST as f32))
            }
        };
        output.copy_from_slice(&pooled);
    }
}

fn divided(mut xs: Vec<f32>, by: f32) -> Vec<f32> {
    xs.iter_mut().for_each(|x| *x /= by);
    xs
}

/// `Σ_s weights · tokens`: `(b, s, d)` and `(b, s)` → `(b, d)`.
fn weighted_sum(tokens: &Tensor, weights: &Tensor) -> Result<Tensor> {
    Ok(tokens.broadcast_mul(&weights.unsqueeze(2)?)?.sum(1)?)
}

/// Divides each row of `(b, d)` by its length, or by 1e-12 if that is larger (`torch.nn.functional.normalize`).
pub(crate) fn l2_normalize(xs: &Tensor) -> Result<Tensor> {
    Ok(xs.broadcast_div(&xs.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?.maximum(1e-12)?)?)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn rows_of_one_text_are_pooled_like_a_padded_batch() {
        use PoolingMode::{Cls, LastToken, Max, Mean, MeanSqrtLen, WeightedMean};
        let modes = vec![Cls, Max, Mean, MeanSqrtLen, WeightedMean, LastToken];
        let (pooling, s, d) = (Pooling::new(modes).unwrap(), 7, 5);
        let values: Vec<f32> = (0..s * d).map(|i| (i * 37 % 101) as f32 / 20.0 - 2.5).collect();
        let tokens = Tensor::from_slice(&values, (1, s, d), &Device::Cpu).unwrap();
        for counted in [0..s, 0..1, 2..s, 3..4, 4..4] {
            let mask = Tensor::from_iter((0..s).map(|j| u8::from(counted.contains(&j))), &Device::Cpu).unwrap();
            let want = pooling.forward(&tokens, &mask.unsqueeze(0).unwrap()).unwrap().squeeze(0).unwrap();
            let mut got = vec![f32::NAN; 6 * d];
            pooling.pool_rows(&values, d, counted.clone(), &mut got);
            for (got, want) in got.iter().zip(want.to_vec1::<f32>().unwrap()) {
                assert!((got - want).abs() <= 1e-6 * want.abs().max(1.0), "{counted:?}: {got}, want {want}");
            }
        }
    }
}
