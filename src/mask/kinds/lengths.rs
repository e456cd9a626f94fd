//! Lengths: the first keys are visible, per sequence or per query, and right padding.

use std::sync::Arc;

use candle_attention_kernels::Lengths;
use candle_core::{DType, Device};

use crate::error::{Error, Result};
use crate::mask::dense::DenseMask;
use crate::mask::lowered::TermStructure;
use crate::mask::shape::AttnShape;
use crate::mask::term::{MaskCall, MaskTerm, Part};

/// The first keys are visible: so many per sequence, per query, or as right padding.
#[derive(Debug, Clone)]
pub(crate) struct KeyLengths(pub Lengths);

impl MaskTerm for KeyLengths {
    fn check(&self, shape: AttnShape) -> Result<()> {
        let AttnShape { s_q, s_kv, .. } = shape;
        let check_each = |name: &str, lengths: &[usize]| {
            lengths.iter().enumerate().try_for_each(|(i, &n)| shape.check_length(format!("{name}[{i}]"), n))
        };
        match &self.0 {
            Lengths::PerSequence(lengths) => {
                shape.check_sequences("lengths", lengths.len())?;
                check_each("lengths", lengths)
            }
            Lengths::PerQuery(lengths) => {
                shape.check_sequences("lengths per query", lengths.len())?;
                for (b, row) in lengths.iter().enumerate() {
                    if row.len() != s_q {
                        let expected = format!("{s_q}, the number of queries");
                        return Err(Error::value(format!("the number of lengths in row {b}"), row.len(), expected));
                    }
                    check_each(&format!("lengths[{b}]"), row)?;
                }
                Ok(())
            }
            Lengths::Padding(lengths) => {
                if s_q != s_kv {
                    let found = format!("one of {s_q} queries and {s_kv} keys");
                    let expected = "as many queries as keys (self-attention)";
                    return Err(Error::value("the call under a padding mask", found, expected));
                }
                shape.check_sequences("padding", lengths.len())?;
                check_each("padding", lengths)
            }
        }
    }

    fn dense(&self, call: &MaskCall, _: DType, device: &Device) -> Result<DenseMask> {
        let AttnShape { b, s_q, s_kv, .. } = call.shape;
        let queries = match &self.0 {
            // The common case of one sequence, or of sequences of one length: nothing is hidden.
            Lengths::PerSequence(lengths) | Lengths::Padding(lengths) if lengths.iter().all(|&n| n == s_kv) => {
                return Ok(DenseMask::default());
            }
            Lengths::PerSequence(_) => 1,
            Lengths::PerQuery(_) | Lengths::Padding(_) => s_q,
        };
        DenseMask::ranges([b, queries, s_kv], device, |b, i| 0..self.0.visible(b, i))
    }

    fn dense_dims(&self, call: &MaskCall) -> [usize; 4] {
        let AttnShape { b, s_q, s_kv, .. } = call.shape;
        match self.0 {
            Lengths::PerSequence(_) => [b, 1, 1, s_kv],
            Lengths::PerQuery(_) | Lengths::Padding(_) => [b, 1, s_q, s_kv],
        }
    }

    fn structure(&self) -> Option<TermStructure<'_>> {
        Some(TermStructure::Lengths(&self.0))
    }

    fn select(&self, part: &Part, _: &MaskCall) -> Result<Option<Arc<dyn MaskTerm>>> {
        let Part::Queries(queries) = part else { return Ok(Some(Arc::new(self.clone()))) };
        let lengths = match &self.0 {
            Lengths::PerSequence(_) => self.0.clone(),
            Lengths::PerQuery(lengths) => {
                Lengths::PerQuery(lengths.iter().map(|row| row[queries.clone()].to_vec()).collect())
            }
            Lengths::Padding(lengths) => {
                let visible = |b: usize| queries.clone().map(|i| self.0.visible(b, i)).collect();
                Lengths::PerQuery((0..lengths.len()).map(visible).collect())
            }
        };
        Ok(Some(Arc::new(Self(lengths))))
    }

    fn describe(&self) -> String {
        match &self.0 {
            Lengths::PerSequence(lengths) => format!("lengths({} rows)", lengths.len()),
            Lengths::PerQuery(lengths) => format!("lengths({} rows, one per query)", lengths.len()),
            Lengths::Padding(lengths) => format!("padding({} rows)", lengths.len()),
        }
    }
}
