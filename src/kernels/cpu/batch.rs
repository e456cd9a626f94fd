//! The rows of an attention call.

/// The rows of a call and how long they are.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Batch<'a> {
    /// `b` rows of one length each.
    Padded { b: usize, s_q: usize, s_kv: usize },
    /// Self-attention over rows that lie one after the other: row `i` is the tokens `starts[i] .. starts[i + 1]`.
    Ragged { starts: &'a [usize] },
}

impl Batch<'_> {
    pub(in crate::kernels) fn rows(&self) -> usize {
        match self {
            Self::Padded { b, .. } => *b,
            Self::Ragged { starts } => starts.len().saturating_sub(1),
        }
    }

    pub(in crate::kernels) fn s_q(&self, b: usize) -> usize {
        match self {
            Self::Padded { s_q, .. } => *s_q,
            Self::Ragged { starts } => starts[b + 1] - starts[b],
        }
    }

    /// Keys under the mask.
    pub(in crate::kernels) fn s_kv(&self, b: usize) -> usize {
        match self {
            Self::Padded { s_kv, .. } => *s_kv,
            Self::Ragged { .. } => self.s_q(b),
        }
    }

    /// The row and the token in it where a row starts, for a tensor whose first two dimensions are these.
    pub(in crate::kernels) fn start(&self, b: usize) -> (usize, usize) {
        match self {
            Self::Padded { .. } => (b, 0),
            Self::Ragged { starts } => (0, starts[b]),
        }
    }

    /// Queries before row `b`.
    pub(in crate::kernels) fn queries_before(&self, b: usize) -> usize {
        match self {
            Self::Padded { s_q, .. } => b * s_q,
            Self::Ragged { starts } => starts[b],
        }
    }

    pub(in crate::kernels) fn queries(&self) -> usize {
        self.queries_before(self.rows())
    }
}
