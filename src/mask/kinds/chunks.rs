//! Attention inside chunks of a sequence (Llama 4).

use std::ops::Range;

use candle_core::{DType, Device};

use crate::error::{Error, Result};
use crate::mask::dense::DenseMask;
use crate::mask::shape::AttnShape;
use crate::mask::term::{MaskCall, MaskTerm};

/// The keys of a query's own chunk are visible; chunks have this many tokens, from the first token of the sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chunks(pub usize);

impl Chunks {
    /// The keys among `s_kv` that a query at `position` sees.
    fn visible(self, position: i64, s_kv: usize) -> Range<usize> {
        let Ok(position) = usize::try_from(position) else { return 0..0 };
        let start = position - position % self.0;
        start.min(s_kv)..start.saturating_add(self.0).min(s_kv)
    }
}

impl MaskTerm for Chunks {
    fn check(&self, _: AttnShape) -> Result<()> {
        match self.0 {
            0 => Err(Error::value("the size of the chunks of a mask", 0, "at least 1")),
            _ => Ok(()),
        }
    }

    fn dense(&self, call: &MaskCall, _: DType, device: &Device) -> Result<DenseMask> {
        let (AttnShape { s_q, s_kv, .. }, starts) = (call.shape, &call.starts);
        // One chunk hides nothing.
        if s_kv <= self.0 {
            return Ok(DenseMask::default());
        }
        DenseMask::ranges([starts.len(), s_q, s_kv], device, |b, i| self.visible(starts[b] + i as i64, s_kv))
    }

    fn dense_dims(&self, call: &MaskCall) -> [usize; 4] {
        [call.starts.len(), 1, call.shape.s_q, call.shape.s_kv]
    }

    fn depends_on_position(&self) -> bool {
        true
    }

    fn adds_to_scores(&self) -> bool {
        false
    }

    fn counts_tokens(&self) -> bool {
        true
    }

    fn is_rule(&self) -> bool {
        true
    }

    fn describe(&self) -> String {
        format!("chunks of {}", self.0)
    }
}
