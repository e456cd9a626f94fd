use candle_core::{D, DType, Module, Tensor};

use crate::checkpoint::WeightSource;
use crate::error::{Error, Result};
use crate::kernels::cpu::{Isa, add_norm};
use crate::ops::Unbiased;
use crate::tensor::broadcast_rows;
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

    /// The sum of both, and it normalised.
    pub(crate) fn of_sum(&self, xs: &Tensor, add: Unbiased) -> Result<(Tensor, Tensor)> {
        if let Some((Some(sum), ys)) = self.in_one_step(xs, Some(&add), true)? {
            return Ok((sum, ys));
        }
        let sum = (xs + add.whole()?)?;
        let ys = self.forward(&sum)?;
        Ok((sum, ys))
    }

    /// The sum of both normalised.
    pub(crate) fn forward_sum(&self, xs: &Tensor, add: Unbiased) -> Result<Tensor> {
        match self.in_one_step(xs, Some(&add), false)? {
            Some((_, ys)) => Ok(ys),
            None => Ok(self.forward(&(xs + add.whole()?)?)?),
        }
    }

    /// As GPUs do it, if they do; with the sum, if it is wanted.
    fn in_one_step(
        &self,
        xs: &Tensor,
        add: Option<&Unbiased>,
        keep_sum: bool,
    ) -> Result<Option<(Option<Tensor>, Tensor)>> {
        let (add, add_bias) = (add.map(|add| &add.ys), add.and_then(|add| add.bias.as_ref()));
        let fits = xs.dims().last() == self.weight.dims().first() && add.is_none_or(|add| add.dims() == xs.dims());
        if !fits || !crate::ops::Norm::takes(xs, &self.weight, [Some(&self.bias), add, add_bias]) {
            return Ok(None);
        }
        let rows = |xs: &Tensor| xs.reshape((1, (), 1, self.weight.dims()[0]));
        let add = add.map(rows).transpose()?;
        let step = crate::ops::Norm {
            xs: &rows(xs)?,
            add: add.as_ref(),
            add_bias,
            weight: &self.weight,
            bias: Some(&self.bias),
            eps: self.eps,
            rms: false,
            offset: 0.0,
            keep_sum,
        };
        let Some((sum, ys)) = step.run()? else { return Ok(None) };
        Ok(Some((sum.map(|sum| sum.reshape(xs.shape())).transpose()?, ys.reshape(xs.shape())?)))
    }

    /// Normalises rows of numbers, or their sum with `add`, in place.
    pub(crate) fn add_rows(&self, isa: Isa, xs: &mut [f32], add: Option<&[f32]>) -> Result<()> {
        with_f32_slice(&self.weight, |weight| {
            with_f32_slice(&self.bias, |bias| add_norm(isa, xs, add, weight, bias, self.eps as f32))
        })?
    }
}

impl Module for LayerNorm {
    fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
        if xs.dims().last() != self.weight.dims().first() {
            return Err(
                Error::shape("the input of layer norm", xs.dims(), format!("(…, {})", self.weight.dims()[0])).into()
            );
        }
        // candle's kernels for NVIDIA GPUs cannot sum over nothing.
        if xs.elem_count() == 0 {
            return Ok(xs.clone());
        }
        if let Some((_, ys)) = self.in_one_step(xs, None, false)? {
            return Ok(ys);
        }
        let dtype = xs.dtype();
        let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let xs = xs.to_dtype(wide)?;
        let centred = xs.broadcast_sub(&xs.mean_keepdim(D::Minus1)?)?;
        let variance = centred.sqr()?.mean_keepdim(D::Minus1)?;
        let ys = centred.broadcast_div(&(variance + self.eps)?.sqrt()?)?;
        let (weight, bias) =
            (broadcast_rows(&self.weight.to_dtype(wide)?, &ys)?, broadcast_rows(&self.bias.to_dtype(wide)?, &ys)?);
        let ys = ys.broadcast_mul(&weight)?.broadcast_add(&bias)?;
        ys.to_dtype(dtype)
    }
}
