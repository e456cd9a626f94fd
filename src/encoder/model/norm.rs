//! Norms of hidden states, over tensors and over f32 rows.

use candle_core::{Module, Tensor};

use crate::checkpoint::WeightSource;
use crate::config::NormKind;
use crate::error::{Error, Result};
use crate::kernels::cpu::{Isa, residual_norm};
use crate::ops;
use crate::ops::PendingBias;
use crate::tensor::{MapTensors, with_f32_slice};

/// A norm of any kind over the last dimension.
#[derive(Debug, Clone)]
pub(crate) struct Norm {
    /// `(size)`.
    weight: Tensor,
    /// `(size)`; zeros where the norm has none.
    bias: Tensor,
    eps: f64,
    kind: NormKind,
}

impl Norm {
    /// Reads `weight`, and `bias` for a layer norm that has one. Early checkpoints call these `gamma` and `beta`.
    pub fn load<S: WeightSource>(kind: NormKind, bias: bool, size: usize, eps: f64, source: &S) -> Result<Self> {
        if kind == NormKind::Layer && bias {
            let read = |name, early| source.get(if source.contains(early) { early } else { name }, &[size]);
            return Ok(Self { weight: read("weight", "gamma")?, bias: read("bias", "beta")?, eps, kind });
        }
        let weight = source.get("weight", &[size])?;
        let bias = Tensor::zeros(size, weight.dtype(), weight.device())?;
        Ok(Self { weight, bias, eps, kind })
    }

    /// `norm(xs)`.
    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        Ok(self.call(xs, None, false)?.1)
    }

    /// `norm(xs + branch)`.
    pub fn forward_sum(&self, xs: &Tensor, branch: PendingBias) -> Result<Tensor> {
        Ok(self.call(xs, Some(&branch), false)?.1)
    }

    /// `xs + branch` and `norm(xs + branch)`.
    pub fn sum_and_forward(&self, xs: &Tensor, branch: PendingBias) -> Result<(Tensor, Tensor)> {
        let (sum, ys) = self.call(xs, Some(&branch), true)?;
        Ok((sum.expect("`keep_sum` was set"), ys))
    }

    fn call(&self, xs: &Tensor, branch: Option<&PendingBias>, keep_sum: bool) -> Result<(Option<Tensor>, Tensor)> {
        if xs.dims().last() != self.weight.dims().first() {
            let expected = format!("(…, {})", self.weight.dims()[0]);
            return Err(Error::shape("the input of layer norm", xs.dims(), expected));
        }
        let norm = ops::Norm {
            xs,
            add: branch.map(|branch| &branch.ys),
            add_bias: branch.and_then(|branch| branch.bias.as_ref()),
            weight: &self.weight,
            bias: Some(&self.bias),
            eps: self.eps,
            rms: self.rms(),
            offset: self.offset(),
            keep_sum,
        };
        norm.forward()
    }

    /// Replaces the rows `xs` by `norm(xs + residual)`.
    pub fn forward_rows(&self, isa: Isa, xs: &mut [f32], residual: Option<&[f32]>) -> Result<()> {
        let (eps, rms, offset) = (self.eps as f32, self.rms(), self.offset());
        with_f32_slice(&self.weight, |weight| {
            with_f32_slice(&self.bias, |bias| {
                if offset == 0.0 {
                    residual_norm(isa, xs, residual, weight, bias, eps, rms);
                } else {
                    let weight: Vec<f32> = weight.iter().map(|weight| weight + offset).collect();
                    residual_norm(isa, xs, residual, &weight, bias, eps, rms);
                }
            })
        })?
    }

    fn rms(&self) -> bool {
        self.kind != NormKind::Layer
    }

    /// What is added to the weight.
    fn offset(&self) -> f32 {
        if self.kind == NormKind::RmsOffset { 1.0 } else { 0.0 }
    }
}

impl MapTensors for Norm {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(Self { weight: f(&self.weight)?, bias: f(&self.bias)?, ..*self })
    }
}

/// Layer normalization over the last dimension: `(x - mean) / sqrt(var + eps) · weight + bias`
/// ([Ba 2016](https://arxiv.org/abs/1607.06450)).
///
/// candle's own layer norm has a fused path that drops the gradient without an error, and computes the variance as the
/// difference of two large sums. This one is differentiable throughout, subtracts the mean first, and computes half types
/// in f32.
///
/// # Shapes
/// `(…, size)` → `(…, size)`, in the dtype of the input.
#[derive(Debug, Clone)]
pub struct LayerNorm(Norm);

impl LayerNorm {
    /// The layer norm of `weight` and `bias`, both `(size)`.
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
        Ok(Self(Norm { weight, bias, eps, kind: NormKind::Layer }))
    }

    /// Reads `weight` and `bias`, or `gamma` and `beta` as early checkpoints call them.
    ///
    /// # Errors
    /// If one is missing or not of length `size`.
    pub fn load<S: WeightSource>(size: usize, eps: f64, source: S) -> Result<Self> {
        Ok(Self(Norm::load(NormKind::Layer, true, size, eps, &source)?))
    }
}

impl Module for LayerNorm {
    fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
        Ok(self.0.forward(xs)?)
    }
}
