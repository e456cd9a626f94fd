//! A projection and a low-rank change that is computed beside it: for weights that cannot take the change, because they
//! are quantized, or shared by several changes.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Tensor};

use crate::error::{Error, Result};
use crate::ops::dense::accumulate_dtype;
use crate::ops::linear::Linear;
use crate::ops::projection::Projection;
use crate::ops::quantization::Quantization;
use crate::tensor::{MapTensors, ShareWeights, check_float, same_device};
use crate::weights::LinearWeights;

/// `base(xs) + scale · b(a(xs))`.
#[derive(Clone)]
pub(super) struct LowRank {
    base: Linear,
    /// `(r, in)`.
    a: Linear,
    /// `(out, r)`, or with more rows, of which `rows` are those of the outputs.
    b: Linear,
    /// Which rows of `b` are those of the outputs, `(out)` u32, if they are variables in another order.
    rows: Option<Tensor>,
    scale: f64,
}

impl LowRank {
    /// Checks shapes and devices of `a` `(r, in)` and `b` `(out, r)`; of `b` with more rows, `rows` are those of the
    /// outputs.
    pub(super) fn new(base: Linear, a: &Tensor, b: &Tensor, scale: f64, rows: Option<Vec<u32>>) -> Result<Self> {
        let rank = a.dims().first().copied().unwrap_or(0);
        let rows = rows.map(|rows| Tensor::new(rows, b.device())).transpose()?;
        // Rows of variables are selected in each call, so that they follow them.
        let (b, rows) = match rows {
            Some(rows) if !b.track_op() => (&b.index_select(&rows, 0)?, None),
            rows => (b, rows),
        };
        let outputs = if rows.is_some() { b.dim(0)? } else { base.out_features() };
        let side = |name: &str, tensor: &Tensor, out: usize, input: usize| {
            check_float(name, tensor)?;
            same_device(name, tensor, base.like())?;
            let dtype = if base.like().dtype() == DType::F64 { DType::F64 } else { DType::F32 };
            let linear = Linear::new(name, LinearWeights::new(tensor.to_dtype(dtype)?, None), out, input)?;
            // Another dtype is a copy, which would not follow a variable.
            if tensor.track_op() && tensor.dtype() != dtype {
                Err(Error::dtype(name, tensor.dtype(), format!("{} for a variable", dtype.as_str())))
            } else {
                Ok(linear)
            }
        };
        let (a, b) = (
            side("A of a low-rank change", a, rank, base.in_features())?,
            side("B of a low-rank change", b, outputs, rank)?,
        );
        Ok(Self { base, a, b, rows, scale })
    }

    /// `b` with the rows of the outputs.
    fn selected(&self) -> Result<Linear> {
        let Some(rows) = &self.rows else { return Ok(self.b.clone()) };
        let b = self.b.weights()?.weight.index_select(rows, 0)?;
        Linear::new("B of a low-rank change", LinearWeights::new(b, None), rows.dim(0)?, self.b.in_features())
    }
}

impl Projection for LowRank {
    fn forward(&self, xs: &Tensor, dtype: DType) -> Result<Tensor> {
        let wide = self.a.like().dtype();
        let inner = (self.a.forward_in_dtype(xs, wide)? * self.scale)?; // (b, s, r)
        let change = self.selected()?.forward_in_dtype(&inner, wide)?;
        let ys = self.base.forward_in_dtype(xs, accumulate_dtype(self.base.like()))?;
        Ok((ys.to_dtype(wide)? + change)?.to_dtype(dtype)?)
    }

    fn like(&self) -> &Tensor {
        self.base.like()
    }

    fn tracks_gradient(&self) -> bool {
        [&self.base, &self.a, &self.b].into_iter().any(Linear::tracks_gradient)
    }

    fn has_bias(&self) -> bool {
        self.base.has_bias()
    }

    fn weights(&self) -> Result<LinearWeights> {
        let LinearWeights { weight, bias } = self.base.weights()?;
        let (a, b) = (self.a.weights()?.weight, self.selected()?.weights()?.weight);
        let change = (b.matmul(&a)? * self.scale)?; // (out, in)
        Ok(LinearWeights::new((weight.to_dtype(change.dtype())? + change)?.to_dtype(weight.dtype())?, bias))
    }

    fn changing(&self) -> Result<Vec<Tensor>> {
        let mut all = self.base.changing()?;
        all.extend([self.a.weights()?.weight, self.b.weights()?.weight]);
        Ok(all)
    }

    fn outputs(&self, outputs: Range<usize>) -> Result<Arc<dyn Projection>> {
        let (rows, b) = match &self.rows {
            Some(rows) => (Some(rows.narrow(0, outputs.start, outputs.len())?), self.b.clone()),
            None => (None, self.b.outputs(outputs.clone())?),
        };
        Ok(Arc::new(Self { base: self.base.outputs(outputs)?, b, rows, ..self.clone() }))
    }

    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Option<Arc<dyn Projection>>> {
        let base = self.base.map_tensors(f)?;
        let (a, b) = (self.a.map_tensors(f)?, self.b.map_tensors(f)?);
        Ok(Some(Arc::new(Self { base, a, b, ..self.clone() })))
    }

    fn share_weights(&self, other: &Linear) -> Result<Option<Arc<dyn Projection>>> {
        let mut shared = self.clone();
        shared.base.share_weights(other)?;
        Ok(Some(Arc::new(shared)))
    }

    fn to_packed(&self) -> Result<Option<Arc<dyn Projection>>> {
        let mut packed = self.clone();
        [&mut packed.base, &mut packed.a, &mut packed.b].into_iter().try_for_each(Linear::pack)?;
        Ok(Some(Arc::new(packed)))
    }

    fn to_quantized(&self, format: Quantization) -> Result<Option<Arc<dyn Projection>>> {
        let mut quantized = self.clone();
        quantized.base.quantize(format)?;
        Ok(Some(Arc::new(quantized)))
    }

    fn to_exact(&self) -> Option<Arc<dyn Projection>> {
        let mut exact = self.clone();
        exact.base.set_exact();
        Some(Arc::new(exact))
    }

    fn quantization(&self) -> Option<Quantization> {
        self.base.quantization()
    }
}
