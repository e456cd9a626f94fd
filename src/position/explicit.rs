//! Positions that a call gives its tokens.

use candle_core::{DType, Device, Tensor};

use crate::ensure;
use crate::error::{Error, Result};
use crate::tensor::{check_allocation, element_count};

/// The positions of the tokens of one call, in place of 0, 1, 2, ….
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExplicitPositions {
    /// `(axes, rows, tokens)`.
    elements: Vec<u32>,
    /// Numbers per token: 1, or one per axis of a multimodal sequence.
    pub axes: usize,
    /// The batch size, or 1 for sequences that stand alike.
    pub rows: usize,
    pub tokens: usize,
}

impl ExplicitPositions {
    /// Reads `positions` for `b` sequences of `tokens` tokens: integers `(tokens)`, `(b or 1, tokens)` or
    /// `(axes, b or 1, tokens)`.
    pub(crate) fn new(positions: &Tensor, b: usize, tokens: usize) -> Result<Self> {
        ensure!(positions.dtype().is_int(), Error::dtype("positions", positions.dtype(), "an integer dtype"));
        let (axes, rows) = match *positions.dims() {
            [s] if s == tokens => (1, 1),
            [rows, s] if s == tokens && (rows == 1 || rows == b) => (1, rows),
            [axes, rows, s] if s == tokens && (rows == 1 || rows == b) => (axes, rows),
            ref dims => {
                let expected = format!("[{tokens}], [{b}, {tokens}] or [3, {b}, {tokens}]");
                return Err(Error::shape("positions", dims, expected));
            }
        };
        check_allocation::<[i64; 2]>("positions", element_count("positions", positions.dims())?)?;
        let elements = positions.to_device(&Device::Cpu)?.to_dtype(DType::I64)?.flatten_all()?.to_vec1::<i64>()?;
        let element = |position: i64| {
            u32::try_from(position).map_err(|_| Error::value("a position", position, "a number from 0 to 2^32 - 1"))
        };
        let elements = elements.into_iter().map(element).collect::<Result<_>>()?;
        Ok(Self { elements, axes, rows, tokens })
    }

    /// The positions of `row` along `axis`. If there is one axis, it stands for all.
    pub(super) fn row(&self, axis: usize, row: usize) -> &[u32] {
        let (axis, row) = (if self.axes == 1 { 0 } else { axis }, if self.rows == 1 { 0 } else { row });
        &self.elements[(axis * self.rows + row) * self.tokens..][..self.tokens]
    }

    /// The largest position of a token along any axis.
    pub(crate) fn largest(&self, row: usize, token: usize) -> usize {
        (0..self.axes).map(|axis| self.row(axis, row)[token] as usize).max().unwrap_or(0)
    }

    /// One more than the largest position of the first `tokens` tokens of `row`.
    pub(crate) fn end(&self, row: usize, tokens: usize) -> usize {
        (0..tokens).map(|token| self.largest(row, token) + 1).max().unwrap_or(0)
    }
}
