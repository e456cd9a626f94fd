//! The part of a mask that some of a call's queries or heads need.

use candle_core::Tensor;

use crate::error::Result;
use crate::mask::check::AttnShape;
use crate::mask::{AttentionMask, Part};

impl AttentionMask {
    /// What the queries `start .. start + len` of `call` see, as a mask for a call of these alone.
    pub(crate) fn of_queries(&self, start: usize, len: usize, call: AttnShape) -> Result<Self> {
        let slice = |mask: &Tensor, dim: usize| match mask.dim(dim)? {
            1 => Ok(mask.clone()),
            _ => mask.narrow(dim, start, len),
        };
        // A 2-D mask of booleans is one of keys.
        let booleans = |mask: &Tensor| match mask.rank() {
            2 => Ok(mask.clone()),
            rank => slice(mask, rank - 2),
        };
        let mut parts = Vec::with_capacity(self.parts.len() + 1);
        for part in &self.parts {
            parts.push(match part {
                Part::Keep(mask) => Part::Keep(booleans(mask)?),
                Part::Drop(mask) => Part::Drop(booleans(mask)?),
                Part::Additive(mask) if mask.rank() < 2 => part.clone(),
                Part::Additive(mask) => Part::Additive(slice(mask, mask.rank() - 2)?),
                Part::QueryLengths(rows) => {
                    Part::QueryLengths(rows.iter().map(|row| row[start..start + len].to_vec()).collect())
                }
                Part::Padding(rows) => {
                    let seen = |&n: &usize| (start..start + len).map(|i| if i < n { n } else { 0 }).collect();
                    Part::QueryLengths(rows.iter().map(seen).collect())
                }
                Part::Segments { queries, keys } => {
                    Part::Segments { queries: queries.narrow(1, start, len)?, keys: keys.clone() }
                }
                Part::Starts(_) => continue,
                Part::Lengths(_) | Part::Causal | Part::Window { .. } | Part::Distances { .. } => part.clone(),
            });
        }
        let positioned = |part: &Part| matches!(part, Part::Causal | Part::Window { .. } | Part::Distances { .. });
        if parts.iter().any(positioned) {
            let starts = self.query_starts(call);
            let row = |b: usize| starts[if starts.len() == 1 { 0 } else { b }] + start as i64;
            parts.push(Part::Starts((0..call.b).map(row).collect()));
        }
        Ok(Self { parts })
    }

    /// The mask for a call of these heads alone.
    pub(crate) fn of_heads(&self, heads: &[usize]) -> Result<Self> {
        let select = |mask: &Tensor| match mask.rank().checked_sub(3) {
            Some(dim) if mask.dim(dim)? > 1 => crate::tensor::select(mask, heads, dim),
            _ => Ok(mask.clone()),
        };
        // A 3-D mask of booleans has no heads.
        let booleans = |mask: &Tensor| if mask.rank() == 4 { select(mask) } else { Ok(mask.clone()) };
        let part = |part: &Part| {
            Ok(match part {
                Part::Keep(mask) => Part::Keep(booleans(mask)?),
                Part::Drop(mask) => Part::Drop(booleans(mask)?),
                Part::Additive(mask) => Part::Additive(select(mask)?),
                Part::Distances { slopes, symmetric } => {
                    Part::Distances { slopes: heads.iter().map(|&h| slopes[h]).collect(), symmetric: *symmetric }
                }
                other => other.clone(),
            })
        };
        Ok(Self { parts: self.parts.iter().map(part).collect::<Result<_>>()? })
    }
}
