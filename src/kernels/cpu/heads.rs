//! Queries, keys and values in memory.

/// `(b, s, h, d)` numbers in memory: strides of `b`, `s` and `h`; those of one head lie together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heads<'a, T> {
    pub data: &'a [T],
    pub strides: [usize; 3],
}

impl<T> Heads<'_, T> {
    /// Token `s` after token `start` of row `b`.
    #[inline(always)]
    pub(super) fn row(&self, (b, start): (usize, usize), s: usize, h: usize, d: usize) -> &[T] {
        let start = b * self.strides[0] + (start + s) * self.strides[1] + h * self.strides[2];
        &self.data[start..start + d]
    }
}
