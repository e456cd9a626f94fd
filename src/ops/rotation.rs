//! Fused rotary embedding.

use candle_core::Tensor;

use super::{on_cuda, takes, together};
use crate::error::Result;

/// Numbers `(b, s, h, d)`, of which the first `2 · pairs` of each head are turned by angles whose cosines and sines are
/// `(b or 1, s, 1, pairs)`. `interleaved`: whether number `2 i` is turned with `2 i + 1`, or `i` with `i + pairs`.
pub(crate) fn rotate(xs: &Tensor, [cos, sin]: [&Tensor; 2], interleaved: bool) -> Result<Option<Tensor>> {
    if !takes(xs, &[Some(cos), Some(sin)]) {
        return Ok(None);
    }
    on_cuda::rotate(&together(xs)?, [&cos.contiguous()?, &sin.contiguous()?], interleaved).map(Some)
}
