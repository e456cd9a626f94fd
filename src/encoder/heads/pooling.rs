//! Pooling: the hidden states of a text as one vector.

use candle_core::{D, Tensor};

use crate::error::{Error, Result};
use crate::tensor::compute_dtype;

/// How the hidden states of a text's tokens become one vector; the names are those of sentence-transformers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PoolingMode {
    /// The first token.
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
    /// The last token.
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
        if modes.is_empty() {
            return Err(Error::config("pooling_mode", "[]", "at least one mode"));
        }
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
        if mask.dims() != [b, s] {
            return Err(Error::shape("mask", mask.dims(), format!("{:?}", [b, s])));
        }
        let wide = compute_dtype(tokens.dtype());
        let (tokens, mask) = (tokens.to_dtype(wide)?, mask.to_dtype(wide)?);
        let pooled = self.modes.iter().map(|mode| mode.pool(&tokens, &mask)).collect::<Result<Vec<_>>>()?;
        Ok(Tensor::cat(&pooled, D::Minus1)?)
    }
}

/// Prevents a division by zero for a text whose tokens are all excluded, as in sentence-transformers.
const SMALLEST: f64 = 1e-9;

impl PoolingMode {
    /// tokens `(b, s, d)`, mask `(b, s)`, both of one floating dtype → `(b, d)`.
    fn pool(self, tokens: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (_, s, _) = tokens.dims3()?;
        let positions = || Tensor::arange(0u32, s as u32, tokens.device())?.to_dtype(mask.dtype());
        Ok(match self {
            Self::Cls => tokens.narrow(1, 0, 1)?.squeeze(1)?,
            Self::Max => {
                let hidden = mask.eq(0f64)?.unsqueeze(2)?.broadcast_as(tokens.shape())?;
                hidden.where_cond(&(tokens.zeros_like()? - 1e9)?, tokens)?.max(1)?
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

/// `Σ_s weights · tokens`: `(b, s, d)` and `(b, s)` → `(b, d)`.
fn weighted_sum(tokens: &Tensor, weights: &Tensor) -> Result<Tensor> {
    Ok(tokens.broadcast_mul(&weights.unsqueeze(2)?)?.sum(1)?)
}

/// Divides each row of `(b, d)` by its length, or by 1e-12 if that is larger (`torch.nn.functional.normalize`).
pub(crate) fn l2_normalize(xs: &Tensor) -> Result<Tensor> {
    Ok(xs.broadcast_div(&xs.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?.maximum(1e-12)?)?)
}
