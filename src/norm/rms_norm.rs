//! RMS normalization.

use candle_core::{Module, Tensor};
use candle_nn::VarBuilder;

use crate::checkpoint::WeightSource;
use crate::config::NormKind;
use crate::error::Result;
use crate::norm::any_norm::Norm;

/// RMS normalization over the last dimension: `x / sqrt(mean(x²) + eps) · weight`
/// ([Zhang 2019](https://arxiv.org/abs/1910.07467)), as `torch.nn.RMSNorm`; with an offset `· (1 + weight)`, as Gemma.
///
/// Differentiable, unlike the `forward` of candle's RMS norm. Half types are computed in f32 and rounded once, after
/// the weight. The weight may have any floating dtype.
///
/// # Shapes
/// `(…, size)` → `(…, size)`, in the dtype of the input.
///
/// # Errors
/// `forward` fails if the input is not floating, has another last dimension or is on another device than the weight.
#[derive(Debug, Clone)]
pub struct RmsNorm(Norm);

/// An RMS norm over `size` numbers, trainable if `vb` is backed by a `VarMap`: `weight` `(size)`, at first ones.
///
/// # Errors
/// If `vb` holds a weight of another shape, or lacks it and cannot make a new one; if `eps` is negative or not finite.
pub fn rms_norm(size: usize, eps: f64, vb: VarBuilder) -> Result<RmsNorm> {
    Ok(RmsNorm(Norm::init(NormKind::Rms, false, size, eps, &vb)?))
}

/// [`rms_norm`] whose factor is `1 + weight`, as in Gemma; a new weight is zeros.
///
/// # Errors
/// The errors of [`rms_norm`].
pub fn rms_norm_offset(size: usize, eps: f64, vb: VarBuilder) -> Result<RmsNorm> {
    Ok(RmsNorm(Norm::init(NormKind::RmsOffset, false, size, eps, &vb)?))
}

impl RmsNorm {
    /// The RMS norm of `weight` `(size)`.
    ///
    /// # Errors
    /// If the weight is no floating vector, or `eps` is negative or not finite.
    pub fn new(weight: Tensor, eps: f64) -> Result<Self> {
        Ok(Self(Norm::new(NormKind::Rms, weight, None, eps)?))
    }

    /// The RMS norm with the factor `1 + weight`, `(size)`, as in Gemma.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub fn new_offset(weight: Tensor, eps: f64) -> Result<Self> {
        Ok(Self(Norm::new(NormKind::RmsOffset, weight, None, eps)?))
    }

    /// Reads `weight`.
    ///
    /// # Errors
    /// If it is missing or not of length `size`; if `eps` is negative or not finite.
    pub fn load(size: usize, eps: f64, source: impl WeightSource) -> Result<Self> {
        Ok(Self(Norm::load(NormKind::Rms, false, size, eps, &source)?))
    }

    /// [`load`](Self::load) with the factor `1 + weight`, as in Gemma.
    ///
    /// # Errors
    /// The errors of [`load`](Self::load).
    pub fn load_offset(size: usize, eps: f64, source: impl WeightSource) -> Result<Self> {
        Ok(Self(Norm::load(NormKind::RmsOffset, false, size, eps, &source)?))
    }

    /// The weight `(size)`, without the offset.
    pub fn weight(&self) -> &Tensor {
        self.0.weight()
    }

    /// What is added to the mean square.
    pub fn eps(&self) -> f64 {
        self.0.eps()
    }

    /// The norm as it is now, for inference: a copy of its weight that tracks no gradient, so that the fused kernel
    /// runs. It is a snapshot and does not follow variables that are set later, as
    /// [`MultiHeadAttention::frozen`](crate::MultiHeadAttention::frozen).
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn frozen(&self) -> Result<Self> {
        Ok(Self(self.0.frozen()?))
    }
}

impl Module for RmsNorm {
    fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
        Ok(self.0.forward(xs)?)
    }
}
