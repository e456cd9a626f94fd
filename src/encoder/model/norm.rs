use candle_core::{Module, Tensor};

use crate::checkpoint::WeightSource;
use crate::error::{Error, Result};
use crate::kernels::cpu::{Isa, residual_layer_norm};
use crate::ops::{Norm, PendingBias};
use crate::tensor::with_f32_slice;

/// Layer normalisation over the last dimension: `(x - mean) / sqrt(var + eps) · weight + bias`
/// ([Ba 2016](https://arxiv.org/abs/1607.06450)).
///
/// candle's own takes a fused path that cuts the gradient without a word, and takes the variance as a difference of two
/// large sums. This one is differentiable throughout, subtracts the mean first, and computes half types in f32.
#[derive(Debug, Clone)]
pub struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
    eps: f64,
}

impl LayerNorm {
    /// The layer of `weight` and `bias`, both `(size)`.
    ///
    /// # Errors
    /// If they are not vectors of the same length.
    pub fn new(weight: Tensor, bias: Tensor, eps: f64) -> Result<Self> {
        if weight.rank() != 1 {
            return Err(Error::shape("layer norm weight", weight.dims(), "(size)"));
        }
        if bias.dims() != weight.dims() {
            return Err(Error::shape("layer norm bias", bias.dims(), format!("{:?}", weight.dims())));
        }
        Ok(Self { weight, bias, eps })
    }

    /// Reads `weight` and `bias`, or `gamma` and `beta` as early checkpoints call them.
    ///
    /// # Errors
    /// If one is missing or not of length `size`.
    pub fn load<S: WeightSource>(size: usize, eps: f64, source: &S) -> Result<Self> {
        let read = |name, early| source.get(if source.contains(early) { early } else { name }, &[size]);
        Self::new(read("weight", "gamma")?, read("bias", "beta")?, eps)
    }

    /// Reads `weight`; nothing is added (ModernBERT).
    pub(crate) fn load_without_bias<S: WeightSource>(size: usize, eps: f64, source: &S) -> Result<Self> {
        let weight = source.get("weight", &[size])?;
        let zeros = Tensor::zeros(size, weight.dtype(), weight.device())?;
        Self::new(weight, zeros, eps)
    }

    /// The sum of both, and the normalized sum.
    pub(crate) fn of_sum(&self, xs: &Tensor, add: PendingBias) -> Result<(Tensor, Tensor)> {
        let (sum, ys) = self.normalize(xs, Some(&add), true)?;
        Ok((sum.expect("`keep_sum` was set"), ys))
    }

    /// The normalized sum of both.
    pub(crate) fn forward_sum(&self, xs: &Tensor, add: PendingBias) -> Result<Tensor> {
        Ok(self.normalize(xs, Some(&add), false)?.1)
    }

    /// The sum of `xs` and `add`, if `keep_sum`, and the normalized sum.
    fn normalize(&self, xs: &Tensor, add: Option<&PendingBias>, keep_sum: bool) -> Result<(Option<Tensor>, Tensor)> {
        if xs.dims().last() != self.weight.dims().first() {
            let expected = format!("(…, {})", self.weight.dims()[0]);
            return Err(Error::shape("the input of layer norm", xs.dims(), expected));
        }
        let norm = Norm {
            xs,
            add: add.map(|add| &add.ys),
            add_bias: add.and_then(|add| add.bias.as_ref()),
            weight: &self.weight,
            bias: Some(&self.bias),
            eps: self.eps,
            rms: false,
            offset: 0.0,
            keep_sum,
        };
        norm.forward()
    }

    /// Normalises rows of numbers, or their sum with `add`, in place.
    pub(crate) fn add_rows(&self, isa: Isa, xs: &mut [f32], add: Option<&[f32]>) -> Result<()> {
        with_f32_slice(&self.weight, |weight| {
            with_f32_slice(&self.bias, |bias| residual_layer_norm(isa, xs, add, weight, bias, self.eps as f32))
        })?
    }
}

impl Module for LayerNorm {
    fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
        Ok(self.normalize(xs, None, false)?.1)
    }
}
