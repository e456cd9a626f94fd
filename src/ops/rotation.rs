//! Rotary embedding by one kernel.

use candle_core::Tensor;

use super::cuda;
use super::problem::supports_fused;
use crate::error::Result;
use crate::tensor::last_dim_contiguous;

/// Rotates the first `2 · pairs` elements of each head of `xs` `(b, s, h, d)` by angles given as cosines and sines
/// `(b or 1, s, 1, pairs)`, on an NVIDIA GPU; `None` where there is no such kernel.
///
/// `interleaved` pairs element `2 i` with `2 i + 1` (GPT-J); otherwise `i` is paired with `i + pairs` (GPT-NeoX).
pub(crate) fn rotate(xs: &Tensor, [cos, sin]: [&Tensor; 2], interleaved: bool) -> Result<Option<Tensor>> {
    if !supports_fused(xs, &[Some(cos), Some(sin)]) {
        return Ok(None);
    }
    cuda::rotate(&last_dim_contiguous(xs)?, [&cos.contiguous()?, &sin.contiguous()?], interleaved).map(Some)
}
