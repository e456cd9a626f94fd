//! The attention problem: one call of the kernel, with its operands as views of memory.

use super::mask::Mask;

/// One call of the attention kernel.
///
/// Shapes: `q` `(b, s_q, h, d)`, `k` `(b, keys, h_kv, d)`, `v` `(b, keys, h_kv, d_v)` with `keys = s_kv + appended`. In
/// a ragged batch `b` is 1, and the tokens of all sequences follow each other.
#[derive(Debug)]
pub(crate) struct AttentionProblem<'a, T> {
    pub q: HeadsView<'a, T>,
    pub k: HeadsView<'a, T>,
    pub v: HeadsView<'a, T>,
    pub batch: Batch<'a>,
    /// Keys after the `s_kv` keys that the mask covers. Every query sees them.
    pub appended: usize,
    pub h: usize,
    pub h_kv: usize,
    pub d: usize,
    pub d_v: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// Scores become `softcap · tanh(score / softcap)` before they are masked.
    pub softcap: Option<f32>,
    /// One score per head that takes part in the softmax but has no value.
    pub sinks: Option<&'a [f32]>,
    pub mask: Mask<'a>,
    /// Whether the products may round their operands to bf16 where there are instructions for it. Sums stay f32.
    pub bf16: bool,
}

impl<T> AttentionProblem<'_, T> {
    /// Multiply-adds of the whole call without a mask.
    pub(super) fn multiply_adds(&self) -> usize {
        let keys = |b: usize| self.batch.s_kv(b) + self.appended;
        let pairs: usize = (0..self.batch.sequences()).map(|b| self.batch.s_q(b) * keys(b)).sum();
        pairs * self.h * (self.d + self.d_v)
    }
}

/// Queries, keys or values `(b, s, h, d)` in memory, with the strides of `b`, `s` and `h`. The `d` values of a head are
/// contiguous.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadsView<'a, T> {
    pub data: &'a [T],
    pub strides: [usize; 3],
}

impl<T> HeadsView<'_, T> {
    /// The `d` values of head `h` of token `start + s` in batch row `b`.
    #[inline(always)]
    pub(super) fn head(&self, (b, start): (usize, usize), s: usize, h: usize, d: usize) -> &[T] {
        let start = b * self.strides[0] + (start + s) * self.strides[1] + h * self.strides[2];
        &self.data[start..start + d]
    }
}

/// The sequences of a call and their lengths.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Batch<'a> {
    /// `b` sequences of one length.
    Padded { b: usize, s_q: usize, s_kv: usize },
    /// Self-attention over a ragged batch: sequence `i` is the tokens `offsets[i] .. offsets[i + 1]`.
    Ragged { offsets: &'a [usize] },
}

impl Batch<'_> {
    /// The number of sequences.
    pub(in crate::kernels) fn sequences(&self) -> usize {
        match self {
            Self::Padded { b, .. } => *b,
            Self::Ragged { offsets } => offsets.len().saturating_sub(1),
        }
    }

    /// The number of queries of sequence `b`.
    pub(in crate::kernels) fn s_q(&self, b: usize) -> usize {
        match self {
            Self::Padded { s_q, .. } => *s_q,
            Self::Ragged { offsets } => offsets[b + 1] - offsets[b],
        }
    }

    /// The number of keys of sequence `b` that the mask covers.
    pub(in crate::kernels) fn s_kv(&self, b: usize) -> usize {
        match self {
            Self::Padded { s_kv, .. } => *s_kv,
            Self::Ragged { .. } => self.s_q(b),
        }
    }

    /// Where sequence `b` starts in a [`HeadsView`]: the batch row, and the token in it.
    pub(super) fn start(&self, b: usize) -> (usize, usize) {
        match self {
            Self::Padded { .. } => (b, 0),
            Self::Ragged { offsets } => (0, offsets[b]),
        }
    }

    /// The number of queries of all sequences before `b`.
    pub(super) fn queries_before(&self, b: usize) -> usize {
        match self {
            Self::Padded { s_q, .. } => b * s_q,
            Self::Ragged { offsets } => offsets[b],
        }
    }

    /// The number of queries of all sequences.
    pub(in crate::kernels) fn queries(&self) -> usize {
        self.queries_before(self.sequences())
    }
}
