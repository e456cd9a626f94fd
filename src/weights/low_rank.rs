//! A low-rank change of a weight, as it is computed beside the weight.

use std::ops::Range;

use candle_core::Tensor;

/// A change `scale · B A` of some rows of a weight `(out, in)` ([Hu 2021](https://arxiv.org/abs/2106.09685)), which is
/// left beside the weight rather than added to it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LowRankChange {
    /// `A`, `(r, in)`.
    pub a: Tensor,
    /// `B`, one row for each of `rows`: `(rows, r)`.
    pub b: Tensor,
    /// The factor.
    pub scale: f64,
    /// The outputs of the weight that it changes.
    pub rows: Range<usize>,
    /// Whether the weight is stored `(in, out)`.
    pub transposed: bool,
}

impl LowRankChange {
    /// The change `scale · b a` of these rows of a weight that is stored `(out, in)`.
    pub fn new(a: Tensor, b: Tensor, scale: f64, rows: Range<usize>) -> Self {
        Self { a, b, scale, rows, transposed: false }
    }
}
