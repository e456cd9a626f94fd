//! Causal masks and sliding windows.

use std::ops::Range;

use candle_core::{DType, Device};

use crate::error::Result;
use crate::mask::dense::DenseMask;
use crate::mask::lowered::TermStructure;
use crate::mask::shape::AttnShape;
use crate::mask::term::{MaskCall, MaskTerm};

/// The keys near a query's own position are visible: at most `left` before and `right` after it; `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub left: Option<usize>,
    pub right: Option<usize>,
}

impl Window {
    /// The keys up to a query's own position.
    pub(crate) const CAUSAL: Self = Self { left: None, right: Some(0) };

    /// The keys among `s_kv` that a query at `position` sees.
    pub(crate) fn visible(self, position: i64, s_kv: usize) -> Range<usize> {
        let inside = |key: i64| key.clamp(0, s_kv as i64) as usize;
        let start = self.left.map_or(0, |left| inside(position.saturating_sub_unsigned(left as u64)));
        let end =
            self.right.map_or(s_kv, |right| inside(position.saturating_add_unsigned(right as u64).saturating_add(1)));
        start..end
    }

    /// Whether a call has a query that does not see all keys.
    fn hides_any(self, MaskCall { shape, starts, .. }: &MaskCall) -> bool {
        let last = shape.s_q.saturating_sub(1) as i64;
        let all = |position: i64| self.visible(position, shape.s_kv) == (0..shape.s_kv);
        // The first query sees the fewest keys after itself, the last one the fewest before.
        starts.iter().any(|&start| !(all(start) && all(start + last)))
    }
}

impl MaskTerm for Window {
    fn dense(&self, call: &MaskCall, _: DType, device: &Device) -> Result<DenseMask> {
        // A decoder's single query at the last key needs no mask.
        if !self.hides_any(call) {
            return Ok(DenseMask::default());
        }
        let (AttnShape { s_q, s_kv, .. }, starts) = (call.shape, &call.starts);
        DenseMask::ranges([starts.len(), s_q, s_kv], device, |b, i| self.visible(starts[b] + i as i64, s_kv))
    }

    fn dense_dims(&self, call: &MaskCall) -> [usize; 4] {
        [call.starts.len(), 1, call.shape.s_q, call.shape.s_kv]
    }

    fn structure(&self) -> Option<TermStructure<'_>> {
        Some(TermStructure::Window(*self))
    }

    fn describe(&self) -> String {
        if *self == Self::CAUSAL {
            return "causal".to_string();
        }
        format!("window({:?}, {:?})", self.left, self.right)
    }
}
