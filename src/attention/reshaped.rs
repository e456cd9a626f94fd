//! Attention over something else than the tokens of a call: between channels, or of queries that are pooled.
//!
//! Queries, keys and values are made as in every layer, and brought into the shape of a usual call before attention. So
//! every backend runs it, with gradients.

use candle_core::{D, Tensor};

use crate::attention::MultiHeadAttention;
use crate::attention::tokens::{CallTokens, Counted};
use crate::error::{Error, Result};
use crate::mask::{AttentionMask, AttnShape};
use crate::sdpa::Call;

impl MultiHeadAttention {
    /// Checks that a call has whole sequences, and patches that can be pooled.
    pub(super) fn check_whole(&self, tokens: &dyn CallTokens, counted: &Counted, mask: &AttentionMask) -> Result<()> {
        let is_plain = counted.stored.is_none() && counted.new_tokens.is_none() && tokens.ragged().is_none();
        if !mask.is_full() || !is_plain || counted.s_q != counted.s_kv {
            let what = "a call of a layer with attention between channels or of pooled queries";
            return Err(Error::value(what, "a mask, a cache, a ragged batch or a memory", "whole sequences"));
        }
        let (s, side) = (counted.s_q, counted.s_q.isqrt());
        match self.config.query_pool {
            Some(block) if side * side != s || !side.is_multiple_of(block) => {
                let expected = format!("a square whose side {block} divides");
                Err(Error::value("the number of patches", s, expected))
            }
            _ => Ok(()),
        }
    }

    /// The sizes of the call of attention, from those of the tokens.
    pub(super) fn reshaped_sizes(&self, sizes: Call) -> Call {
        let (AttnShape { s_q, .. }, d) = (sizes.shape, sizes.d);
        match self.config.query_pool {
            Some(block) => Call { shape: AttnShape { s_q: s_q / (block * block), ..sizes.shape }, ..sizes },
            // Without tokens there is nothing to compare.
            None if s_q == 0 => sizes,
            None => Call { shape: AttnShape { s_q: d, s_kv: d, ..sizes.shape }, d: s_q, d_v: s_q, ..sizes },
        }
    }

    /// Queries, keys and values `(b, s, heads, d)` as attention takes them. Differentiable.
    pub(super) fn reshaped(&self, [q, k, v]: [Tensor; 3]) -> Result<[Tensor; 3]> {
        let (b, s, h, d) = q.dims4()?;
        if let Some(block) = self.config.query_pool {
            let side = s.isqrt() / block;
            if b * side * h == 0 {
                return Ok([q.narrow(1, 0, side * side)?, k, v]);
            }
            // (b, rows, block, columns, block, h · d) -> (b, rows · columns, h, d)
            let blocks = q.reshape(vec![b, side, block, side, block, h * d])?;
            return Ok([blocks.max(4)?.max(2)?.reshape((b, side * side, h, d))?, k, v]);
        }
        if s == 0 {
            return Ok([q, k, v]);
        }
        let by_channel = |xs: Tensor| xs.transpose(1, D::Minus1)?.contiguous(); // (b, s, h, d) -> (b, d, h, s)
        Ok([by_channel(q)?, by_channel(k)?, by_channel(v)?])
    }

    /// What attention returns, `(b, queries, h, d)`. Differentiable.
    pub(super) fn reshaped_back(&self, output: Tensor) -> Result<Tensor> {
        if self.config.query_pool.is_some() || output.elem_count() == 0 {
            return Ok(output);
        }
        Ok(output.transpose(1, D::Minus1)?.contiguous()?)
    }
}
