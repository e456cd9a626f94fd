//! What happens to queries and keys between projection and attention: limits, norms, rotations; and the biases of scores
//! that positions make.

use std::borrow::Cow;

use candle_core::{D, DType, Tensor};

use super::{AttentionInputs, MultiHeadAttention};
use crate::checkpoint::NormWeights;
use crate::config::{NormKind, NormOver, QkNorm};
use crate::error::Result;
use crate::mask::AttentionMask;
use crate::position::{Position, RelativeBuckets, Rotary};

impl MultiHeadAttention {
    /// Whether queries, keys and values go into attention as they are projected.
    pub(super) fn is_untransformed(&self) -> bool {
        self.qk_norm.is_none() && self.config.clip_qkv.is_none() && !matches!(self.config.position, Position::Rotary(_))
    }

    /// Queries, keys and values by head, `(b, s, h, d)`, as attention compares them. `starts`: the position of the first
    /// token, of all rows or of each.
    pub(super) fn transform(&self, [q, k, v]: [Tensor; 3], starts: &[usize]) -> Result<[Tensor; 3]> {
        let (q, k, v) =
            (self.normalised(&self.limited(q)?, 0)?, self.normalised(&self.limited(k)?, 1)?, self.limited(v)?);
        let Position::Rotary(rotary) = &self.config.position else { return Ok([q, k, v]) };
        let (s_q, s_kv) = (q.dim(1)?, k.dim(1)?);
        // As for masks, the last query stands at the last key.
        let starts_q: Vec<usize> = starts.iter().map(|start| start + s_kv.saturating_sub(s_q)).collect();
        let angles_q = self.angles(rotary, &starts_q, &q)?;
        let angles_k = if s_q == s_kv { angles_q.clone() } else { self.angles(rotary, starts, &k)? };
        Ok([rotary.rotate(&q, &angles_q)?, rotary.rotate(&k, &angles_k)?, v])
    }

    /// [`transform`](Self::transform) of queries alone, the first of which stands at position 0.
    pub(super) fn transform_queries(&self, q: Tensor) -> Result<Tensor> {
        let q = self.normalised(&self.limited(q)?, 0)?;
        match &self.config.position {
            Position::Rotary(rotary) => rotary.rotate(&q, &self.angles(rotary, &[0], &q)?),
            _ => Ok(q),
        }
    }

    fn angles(&self, rotary: &Rotary, starts: &[usize], xs: &Tensor) -> Result<[Tensor; 2]> {
        let s = xs.dim(1)?;
        let rows: Vec<Vec<usize>> = starts.iter().map(|&start| (start..start + s).collect()).collect();
        rotary.angles(&rows, self.config.head_dim(), xs.dtype(), xs.device())
    }

    fn limited(&self, xs: Tensor) -> Result<Tensor> {
        Ok(match self.config.clip_qkv {
            Some(limit) => xs.clamp(-limit, limit)?,
            None => xs,
        })
    }

    /// `which`: 0 for queries, 1 for keys.
    fn normalised(&self, xs: &Tensor, which: usize) -> Result<Tensor> {
        match (&self.config.qk_norm, &self.qk_norm) {
            (Some(norm), Some(weights)) => normalise(xs, norm, &weights[which]),
            _ => Ok(xs.clone()),
        }
    }

    /// The mask of a call over `s_kv` keys with what positions add to the scores. `starts`: the key at which query 0 of
    /// each row stands, if the last query does not stand at the last key.
    pub(super) fn positioned<'a>(
        &self,
        inputs: &AttentionInputs<'a>,
        s_kv: usize,
        starts: Option<&[usize]>,
    ) -> Result<Cow<'a, AttentionMask>> {
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
                let s_q = inputs.query.dim(1)?;
                let end = [s_kv as i64 - s_q as i64];
                let starts = starts.map_or_else(|| end.to_vec(), |starts| starts.iter().map(|&s| s as i64).collect());
                let bias = relative_bias(relative, table, &starts, s_q, s_kv)?;
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

/// `(rows, h, s_q, s_kv)` of a table `(num_buckets, h)`. `starts`: the key at which query 0 stands.
pub(super) fn relative_bias(
    relative: &RelativeBuckets,
    table: &Tensor,
    starts: &[i64],
    s_q: usize,
    s_kv: usize,
) -> Result<Tensor> {
    let positions = starts.iter().flat_map(|start| (0..s_q as i64).map(move |i| start + i));
    let ahead = positions.flat_map(|position| (0..s_kv as i64).map(move |j| j - position));
    let buckets: Vec<u32> = ahead.map(|ahead| relative.bucket(ahead) as u32).collect();
    let rows = table.index_select(&Tensor::new(buckets, table.device())?, 0)?; // (rows · s_q · s_kv, h)
    Ok(rows.reshape((starts.len(), s_q, s_kv, table.dim(1)?))?.permute((0, 3, 1, 2))?.contiguous()?)
}
