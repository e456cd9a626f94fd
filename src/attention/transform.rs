//! What happens to queries and keys between projection and attention: limits, norms, rotations; and the biases of scores
//! that positions make.

use std::borrow::Cow;

use candle_core::{D, DType, Tensor};

use super::{AttentionInputs, MultiHeadAttention};
use crate::checkpoint::NormWeights;
use crate::config::{NormKind, NormOver, QkNorm};
use crate::error::Result;
use crate::mask::AttentionMask;
use crate::position::{Position, RelativeBuckets};

impl MultiHeadAttention {
    /// Whether queries, keys and values go into attention as they are projected.
    pub(super) fn is_untransformed(&self) -> bool {
        self.qk_norm.is_none() && self.config.clip_qkv.is_none() && !matches!(self.config.position, Position::Rotary(_))
    }

    /// Queries, keys and values by head, `(b, s, h, d)`, as attention compares them. The first query and key stand at the
    /// positions `starts`.
    pub(super) fn transform(&self, [q, k, v]: [Tensor; 3], starts: [usize; 2]) -> Result<[Tensor; 3]> {
        let [q, k, v] = match self.config.clip_qkv {
            Some(limit) => [q.clamp(-limit, limit)?, k.clamp(-limit, limit)?, v.clamp(-limit, limit)?],
            None => [q, k, v],
        };
        let [q, k] = match (&self.config.qk_norm, &self.qk_norm) {
            (Some(norm), Some([of_q, of_k])) => [normalise(&q, norm, of_q)?, normalise(&k, norm, of_k)?],
            _ => [q, k],
        };
        let Position::Rotary(rotary) = &self.config.position else { return Ok([q, k, v]) };
        let positions = |t: &Tensor, start: usize| Ok::<_, candle_core::Error>((start..start + t.dim(1)?).collect());
        let (of_q, of_k): (Vec<usize>, Vec<usize>) = (positions(&q, starts[0])?, positions(&k, starts[1])?);
        let angles = |positions: Vec<usize>| rotary.angles(&[positions], self.config.head_dim(), q.dtype(), q.device());
        let angles_q = angles(of_q.clone())?;
        let angles_k = if of_q == of_k { angles_q.clone() } else { angles(of_k)? };
        Ok([rotary.rotate(&q, &angles_q)?, rotary.rotate(&k, &angles_k)?, v])
    }

    /// The mask of a call with what positions add to the scores.
    pub(super) fn positioned<'a>(&self, inputs: &AttentionInputs<'a>, s_kv: usize) -> Result<Cow<'a, AttentionMask>> {
        Ok(match (&self.config.position, &self.relative_bias) {
            (Position::Alibi(alibi), _) if alibi.falcon => {
                let heads = self.config.num_attention_heads;
                let biases = alibi.falcon_biases(heads, s_kv);
                let biases = Tensor::from_vec(biases, (1, heads, 1, s_kv), inputs.query.device())?;
                Cow::Owned(inputs.mask.clone().and(AttentionMask::additive(&(biases * self.config.scale())?)?))
            }
            (Position::Alibi(alibi), _) => {
                let slopes = alibi.of_heads(self.config.num_attention_heads);
                Cow::Owned(inputs.mask.clone().and(AttentionMask::distances(slopes, alibi.symmetric)))
            }
            (Position::RelativeBuckets(relative), Some(table)) => {
                let bias = relative_bias(relative, table, inputs.query.dim(1)?, s_kv)?;
                Cow::Owned(inputs.mask.clone().and(AttentionMask::additive(&bias)?))
            }
            _ => Cow::Borrowed(inputs.mask),
        })
    }
}

/// xs `(b, s, h, d)`.
fn normalise(xs: &Tensor, norm: &QkNorm, weights: &NormWeights) -> Result<Tensor> {
    let (b, s, h, d) = xs.dims4()?;
    let dtype = xs.dtype();
    let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let xs = xs.to_dtype(wide)?;
    let xs = match norm.over {
        NormOver::Head => xs,
        NormOver::AllHeads => xs.reshape((b, s, 1, h * d))?,
    };
    let xs = match norm.kind {
        NormKind::Layer => xs.broadcast_sub(&xs.mean_keepdim(D::Minus1)?)?,
        NormKind::Rms | NormKind::RmsOffset => xs,
    };
    let square = (xs.sqr()?.mean_keepdim(D::Minus1)? + norm.eps)?;
    let ys = xs.broadcast_div(&square.sqrt()?)?;
    let weight = weights.weight.to_dtype(wide)?;
    let weight = if norm.kind == NormKind::RmsOffset { (weight + 1.0)? } else { weight };
    let ys = ys.broadcast_mul(&weight)?;
    let ys = match &weights.bias {
        Some(bias) => ys.broadcast_add(&bias.to_dtype(wide)?)?,
        None => ys,
    };
    Ok(ys.reshape((b, s, h, d))?.to_dtype(dtype)?)
}

/// `(1, h, s_q, s_kv)` of a table `(num_buckets, h)`; the last query stands at the last key.
fn relative_bias(relative: &RelativeBuckets, table: &Tensor, s_q: usize, s_kv: usize) -> Result<Tensor> {
    let offset = s_kv as i64 - s_q as i64;
    let ahead = (0..s_q as i64).flat_map(|i| (0..s_kv as i64).map(move |j| j - i - offset));
    let buckets: Vec<u32> = ahead.map(|ahead| relative.bucket(ahead) as u32).collect();
    let rows = table.index_select(&Tensor::new(buckets, table.device())?, 0)?; // (s_q · s_kv, h)
    Ok(rows.reshape((1, s_q, s_kv, table.dim(1)?))?.permute((0, 3, 1, 2))?.contiguous()?)
}
