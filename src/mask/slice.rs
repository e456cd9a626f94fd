//! Masks for some of the queries or heads of a call.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Device};

use crate::error::Result;
use crate::mask::attention_mask::AttentionMask;
use crate::mask::kinds::{Additive, Boolean, MaskDims, Polarity};
use crate::mask::shape::AttnShape;
use crate::mask::term::{MaskCall, MaskTerm, Part};

impl AttentionMask {
    /// The mask for a call with only these queries of a call of `shape`.
    pub(crate) fn select_queries(&self, queries: Range<usize>, shape: AttnShape) -> Result<Self> {
        let call = self.call(shape);
        let start = |b: usize| call.start(b) + queries.start as i64;
        let terms = self.select(&Part::Queries(queries.clone()), &call)?;
        let positioned = terms.iter().any(|term| term.depends_on_position());
        Ok(Self { terms, starts: positioned.then(|| (0..shape.b).map(start).collect()) })
    }

    /// The mask for a call with only these heads of a call of `shape`, in this order.
    pub(crate) fn select_heads(&self, heads: &[usize], shape: AttnShape) -> Result<Self> {
        let terms = self.select(&Part::Heads(heads), &self.call(shape))?;
        Ok(Self { terms, starts: self.starts.clone() })
    }

    /// Every term for a part of a call, by way of its dense form if its kind has no other.
    fn select(&self, part: &Part, call: &MaskCall) -> Result<Vec<Arc<dyn MaskTerm>>> {
        let mut terms = Vec::with_capacity(self.terms.len());
        for term in &self.terms {
            let selected = if term.is_rule() { Some(term.clone()) } else { term.select(part, call)? };
            if let Some(selected) = selected {
                terms.push(selected);
                continue;
            }
            let dense = term.dense(call, DType::F64, &Device::Cpu)?;
            if let Some(keep) = dense.keep {
                terms.extend(Boolean::new(&keep, Polarity::Keep, MaskDims::Scores)?.select(part, call)?);
            }
            if let Some(bias) = dense.bias {
                terms.extend(Additive::new(&bias, MaskDims::Scores)?.select(part, call)?);
            }
        }
        Ok(terms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_query_before_the_last_stays_causal() {
        let shape = AttnShape { b: 1, h: 1, s_q: 5, s_kv: 5 };
        let query = AttentionMask::causal().select_queries(2..3, shape).unwrap();
        let dense = query.dense(AttnShape { s_q: 1, ..shape }, 0, DType::F32, &Device::Cpu).unwrap();
        assert_eq!(dense.keep.unwrap().flatten_all().unwrap().to_vec1::<u8>().unwrap(), [1, 1, 1, 0, 0]);
    }
}
