//! Layer normalization.

use candle_core::{Module, Tensor};
use candle_nn::{LayerNormConfig, VarBuilder};

use crate::checkpoint::WeightSource;
use crate::config::NormKind;
use crate::error::Result;
use crate::norm::any_norm::Norm;

/// Layer normalization over the last dimension: `(x - mean) / sqrt(var + eps) · weight + bias`
/// ([Ba 2016](https://arxiv.org/abs/1607.06450)), as `torch.nn.LayerNorm`.
///
/// Differentiable, unlike the `forward` of candle's layer norm. The mean is subtracted before the squares are summed,
/// and half types are computed in f32 and rounded once. The parameters may have any floating dtype.
///
/// # Shapes
/// `(…, size)` → `(…, size)`, in the dtype of the input.
///
/// # Errors
/// `forward` fails if the input is not floating, has another last dimension or is on another device than the
/// parameters.
#[derive(Debug, Clone)]
pub struct LayerNorm(Norm);

/// A layer norm over `size` numbers, trainable if `vb` is backed by a `VarMap`: `weight` (ones) and `bias` (zeros),
/// both `(size)`. Takes what [`candle_nn::layer_norm()`] takes: a number is `eps`; without `affine` there is no bias,
/// and without `remove_mean` the mean is not subtracted.
///
/// # Errors
/// If `vb` holds parameters of another shape, or lacks them and cannot make new ones; if `eps` is negative or not
/// finite.
pub fn layer_norm(size: usize, config: impl Into<LayerNormConfig>, vb: VarBuilder) -> Result<LayerNorm> {
    let LayerNormConfig { eps, remove_mean, affine } = config.into();
    let kind = if remove_mean { NormKind::Layer } else { NormKind::Rms };
    Ok(LayerNorm(Norm::init(kind, affine, size, eps, &vb)?))
}

/// [`layer_norm`] without a bias.
///
/// # Errors
/// The errors of [`layer_norm`].
pub fn layer_norm_no_bias(size: usize, eps: f64, vb: VarBuilder) -> Result<LayerNorm> {
    Ok(LayerNorm(Norm::init(NormKind::Layer, false, size, eps, &vb)?))
}

impl LayerNorm {
    /// The layer norm of `weight` and `bias`, both `(size)`.
    ///
    /// # Errors
    /// If they are not floating vectors of the same length on one device, or `eps` is negative or not finite.
    pub fn new(weight: Tensor, bias: Tensor, eps: f64) -> Result<Self> {
        Ok(Self(Norm::new(NormKind::Layer, weight, Some(bias), eps)?))
    }

    /// The layer norm of `weight` `(size)`, without a bias.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub fn new_no_bias(weight: Tensor, eps: f64) -> Result<Self> {
        Ok(Self(Norm::new(NormKind::Layer, weight, None, eps)?))
    }

    /// Reads `weight` and `bias`, or `gamma` and `beta` as early checkpoints call them.
    ///
    /// # Errors
    /// If one is missing or not of length `size`; if `eps` is negative or not finite.
    pub fn load(size: usize, eps: f64, source: impl WeightSource) -> Result<Self> {
        Ok(Self(Norm::load(NormKind::Layer, true, size, eps, &source)?))
    }

    /// Reads `weight`, or `gamma`, of a norm without a bias.
    ///
    /// # Errors
    /// The errors of [`load`](Self::load).
    pub fn load_no_bias(size: usize, eps: f64, source: impl WeightSource) -> Result<Self> {
        Ok(Self(Norm::load(NormKind::Layer, false, size, eps, &source)?))
    }

    /// The factors `(size)`.
    pub fn weight(&self) -> &Tensor {
        self.0.weight()
    }

    /// What is added in the end, `(size)`.
    pub fn bias(&self) -> Option<&Tensor> {
        self.0.bias()
    }

    /// What is added to the variance.
    pub fn eps(&self) -> f64 {
        self.0.eps()
    }

    /// The norm as it is now, for inference: a copy of its parameters that tracks no gradient, so that the fused kernel
    /// runs. It is a snapshot and does not follow variables that are set later, as
    /// [`MultiHeadAttention::frozen`](crate::MultiHeadAttention::frozen).
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn frozen(&self) -> Result<Self> {
        Ok(Self(self.0.frozen()?))
    }
}

impl Module for LayerNorm {
    fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
        Ok(self.0.forward(xs)?)
    }
}
