//! What positions add to the scores.

use std::borrow::Cow;

use candle_core::Tensor;

use crate::attention::{AttentionInputs, MultiHeadAttention};
use crate::error::Result;
use crate::mask::AttentionMask;
use crate::position::{Position, RelativeBuckets};

impl MultiHeadAttention {
    /// The mask of a call of `s_q` queries over `s_kv` keys with what positions add to the scores. `starts`: the key at which query 0 of
    /// each row stands, if the last query does not stand at the last key.
    pub(crate) fn positioned<'a>(
        &self,
        inputs: &AttentionInputs<'a>,
        s_q: usize,
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
                let end = [s_kv as i64 - s_q as i64];
                let starts = starts.map_or_else(|| end.to_vec(), |starts| starts.iter().map(|&s| s as i64).collect());
                let bias = relative_bias(relative, table, &starts, s_q, s_kv)?;
                Cow::Owned(inputs.mask.clone().and(AttentionMask::additive(&bias)?))
            }
            (Position::RelativeGrid(relative), Some(table)) => {
                let bias = from_table(table, relative.rows(s_q, s_kv)?, [1, s_q, s_kv])?;
                Cow::Owned(inputs.mask.clone().and(AttentionMask::additive(&bias)?))
            }
            _ => Cow::Borrowed(inputs.mask),
        })
    }
}

/// `(rows, h, s_q, s_kv)` of a table `(num_buckets, h)`. `starts`: the key at which query 0 stands.
pub(crate) fn relative_bias(
    relative: &RelativeBuckets,
    table: &Tensor,
    starts: &[i64],
    s_q: usize,
    s_kv: usize,
) -> Result<Tensor> {
    let mut buckets = Vec::with_capacity(starts.len() * s_q * s_kv);
    for start in starts {
        // Of each distance once: a logarithm for each query and key takes longer than a GPU's whole layer.
        let last = start + s_q as i64 - 1;
        let by_distance: Vec<u32> = (-last..s_kv as i64 - start).map(|ahead| relative.bucket(ahead) as u32).collect();
        (0..s_q).for_each(|i| buckets.extend_from_slice(&by_distance[s_q - 1 - i..][..s_kv]));
    }
    from_table(table, buckets, [starts.len(), s_q, s_kv])
}

/// `(b, h, s_q, s_kv)` of a table `(_, h)` and its rows, `(b, s_q, s_kv)` of them.
fn from_table(table: &Tensor, rows: Vec<u32>, [b, s_q, s_kv]: [usize; 3]) -> Result<Tensor> {
    let biases = table.index_select(&Tensor::new(rows, table.device())?, 0)?; // (b · s_q · s_kv, h)
    Ok(biases.reshape((b, s_q, s_kv, table.dim(1)?))?.permute((0, 3, 1, 2))?.contiguous()?)
}
