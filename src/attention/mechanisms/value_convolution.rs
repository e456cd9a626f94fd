//! A convolution of neighboring values, which is added to the output with the values themselves (SAN-M in Fun-ASR).

use candle_core::{DType, Tensor};

use crate::attention::call::OpenCall;
use crate::attention::mechanism::Mechanism;
use crate::attention::tokens::{CallTokens, Counted};
use crate::config::AttentionConfig;
use crate::error::{Error, Result};
use crate::mask::AttentionMask;
use crate::ops::accumulate_dtype;
use crate::weights::{Parameters, VALUE_CONVOLUTION};

/// The weights of the convolution, `(h · d_v, 1, neighbors)`.
pub(super) struct ValueConvolution(Tensor);

impl ValueConvolution {
    pub(super) fn from_layer(config: &AttentionConfig, parameters: &Parameters) -> Option<Self> {
        let (_, weight) = config.value_convolution.zip(parameters.get(VALUE_CONVOLUTION))?;
        Some(Self(weight.clone()))
    }
}

impl Mechanism for ValueConvolution {
    fn check_tokens(&self, _: &dyn CallTokens, counted: &Counted, _: &AttentionMask) -> Result<()> {
        if counted.stored.is_none() && counted.new_tokens.is_none() && counted.s_q == counted.s_kv {
            return Ok(());
        }
        let call = "a call of a layer with a convolution of its values";
        Err(Error::value(call, "a cache or a memory", "self-attention of whole sequences"))
    }

    /// `output` `(b, s, h · d_v)` with the values `v` `(b, s, h, d_v)` and their convolution.
    fn add_to_output(&self, call: &OpenCall, output: Tensor, v: &Tensor) -> Result<Tensor> {
        if v.elem_count() == 0 {
            return Ok(output);
        }
        let wide = accumulate_dtype(call.layer.qkv.like());
        let values = visible(call, &v.to_dtype(wide)?.flatten_from(2)?)?; // (b, s, h · d_v)
        let (s, neighbors) = (values.dim(1)?, self.0.dim(2)?);
        let before = (neighbors - 1) / 2;
        let padded = values.pad_with_zeros(1, before, neighbors - 1 - before)?;
        let weight = self.0.to_dtype(wide)?.squeeze(1)?.t()?.contiguous()?; // (neighbors, h · d_v)
        let mut sum = values;
        for i in 0..neighbors {
            sum = (sum + padded.narrow(1, i, s)?.broadcast_mul(&weight.get(i)?)?)?;
        }
        Ok((output.to_dtype(wide)? + sum)?.to_dtype(call.xs[0].dtype())?)
    }
}

/// Values `(b, s, ·)` with zeros for the keys that no query sees.
fn visible(call: &OpenCall, values: &Tensor) -> Result<Tensor> {
    let mask = call.sdpa.mask.dense(call.sizes.shape, 0, DType::F32, values.device())?;
    let Some(keep) = mask.keep else { return Ok(values.clone()) };
    let is_seen = keep.max(1)?.max(1)?.unsqueeze(2)?.broadcast_as(values.shape())?; // of (b, h, s_q, s_kv)
    Ok(is_seen.where_cond(values, &values.zeros_like()?)?)
}
