//! A convolution of the values along the sequence, which with the values is added to the output (SAN-M): how the tokens
//! around a token, and itself, come into its output whatever it attends to.

use candle_core::{DType, Tensor};

use crate::attention::MultiHeadAttention;
use crate::attention::call::OpenCall;
use crate::attention::tokens::Counted;
use crate::error::{Error, Result};
use crate::ops::{PendingBias, accumulate_dtype};
use crate::weights::VALUE_CONVOLUTION;

impl MultiHeadAttention {
    /// Checks that a call has the values of all its tokens, one for each query.
    pub(super) fn check_convolved(&self, counted: &Counted) -> Result<()> {
        let is_plain = counted.stored.is_none() && counted.new_tokens.is_none() && counted.s_q == counted.s_kv;
        let what = "a call of a layer with a convolution of its values";
        match self.config.value_convolution.filter(|_| !is_plain) {
            None => Ok(()),
            Some(_) => Err(Error::value(what, "a cache or a memory", "self-attention of whole sequences")),
        }
    }
}

impl OpenCall<'_> {
    /// `output` `(b, s, h · d_v)` with the values `v` `(b, s, h, d_v)` and their convolution. Differentiable.
    pub(super) fn with_convolved_values(&self, output: PendingBias, v: &Tensor) -> Result<PendingBias> {
        let Some(weight) = self.layer.parameters.get(VALUE_CONVOLUTION).filter(|_| v.elem_count() > 0) else {
            return Ok(output);
        };
        let wide = accumulate_dtype(self.layer.qkv.like());
        let values = self.visible(&v.to_dtype(wide)?.flatten_from(2)?)?; // (b, s, h · d_v)
        let (s, neighbors) = (values.dim(1)?, weight.dim(2)?);
        let before = (neighbors - 1) / 2;
        let padded = values.pad_with_zeros(1, before, neighbors - 1 - before)?;
        let weight = weight.to_dtype(wide)?.squeeze(1)?.t()?.contiguous()?; // (neighbors, h · d_v)
        let mut sum = values;
        for i in 0..neighbors {
            sum = (sum + padded.narrow(1, i, s)?.broadcast_mul(&weight.get(i)?)?)?;
        }
        output.map(|ys| ys.to_dtype(wide)? + sum)?.map(|ys| ys.to_dtype(self.xs[0].dtype()))
    }

    /// Values `(b, s, ·)` with zeros for the keys that no query sees.
    fn visible(&self, values: &Tensor) -> Result<Tensor> {
        let mask = self.sdpa.mask.dense(self.sizes.shape, 0, DType::F32, values.device())?;
        let Some(keep) = mask.keep else { return Ok(values.clone()) };
        let is_seen = keep.max(1)?.max(1)?.unsqueeze(2)?.broadcast_as(values.shape())?; // of (b, h, s_q, s_kv)
        Ok(is_seen.where_cond(values, &values.zeros_like()?)?)
    }
}
