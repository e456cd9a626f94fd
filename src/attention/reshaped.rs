//! Attention over something else than the heads and tokens of a call: between channels, of queries that are pooled, or
//! of pairs of heads of which one is subtracted.
//!
//! Queries, keys and values are made as in every layer, and brought into the shape of a usual call before attention. So
//! every backend runs it, with gradients.

use candle_core::{D, Tensor};

use crate::attention::MultiHeadAttention;
use crate::attention::tokens::{CallTokens, Counted};
use crate::config::Differential;
use crate::error::{Error, Result};
use crate::mask::{AttentionMask, AttnShape};
use crate::ops::concat_last;
use crate::sdpa::Call;
use crate::tensor::{compute_dtype, wide};
use crate::weights::LAMBDAS;

impl MultiHeadAttention {
    /// Checks that a call has whole sequences, and patches that can be pooled.
    pub(super) fn check_whole(&self, tokens: &dyn CallTokens, counted: &Counted, mask: &AttentionMask) -> Result<()> {
        if self.config.differential.is_some() {
            return Ok(()); // Its heads see what those of other layers see.
        }
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
        if self.config.differential.is_some() {
            return Call { d_v: 2 * sizes.d_v, ..sizes };
        }
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
        if self.config.differential.is_some() {
            let [k, v] = wide([k, v], q.dtype())?;
            let pairs = v.dim(2)? / 2;
            let pair = concat_last(&v.narrow(2, 0, pairs)?, &v.narrow(2, pairs, pairs)?)?; // (b, s_kv, pairs, 2 d_v)
            return Ok([q, k, Tensor::cat(&[&pair, &pair], 2)?]);
        }
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
        if let Some(differential) = self.config.differential {
            return self.differences(&output, differential);
        }
        if self.config.query_pool.is_some() || output.elem_count() == 0 {
            return Ok(output);
        }
        Ok(output.transpose(1, D::Minus1)?.contiguous()?)
    }

    /// The normalized differences of the pairs among the heads of `output` `(b, s, h, 2 d_v)`: `(b, s, h, d_v)`.
    fn differences(&self, output: &Tensor, Differential { lambda_init, eps }: Differential) -> Result<Tensor> {
        let (b, s, h, width) = output.dims4()?;
        let dtype = compute_dtype(output.dtype());
        let vector = |i: usize| Ok::<_, Error>(self.parameters.require(LAMBDAS[i])?.to_dtype(dtype)?);
        let exp_of_product = |i: usize| Ok::<_, Error>((vector(i)? * vector(i + 1)?)?.sum_all()?.exp()?);
        let lambda = ((exp_of_product(0)? - exp_of_product(2)?)? + lambda_init)?;
        let heads = |start: usize| output.narrow(2, start, h / 2)?.to_dtype(dtype);
        let difference = (heads(0)? - heads(h / 2)?.broadcast_mul(&lambda)?)?;
        let root = (difference.sqr()?.mean_keepdim(D::Minus1)? + eps)?.sqrt()?;
        let normed = (difference.broadcast_div(&root)? * (1.0 - lambda_init))?;
        Ok(normed.reshape((b, s, h, width / 2))?.to_dtype(output.dtype())?)
    }
}
