//! Copies of queries, keys and values in the order in which the kernel reads them.

use super::element::Element;

/// `(b, s, h, d)` numbers in memory: strides of `b`, `s` and `h`; those of one head lie together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heads<'a, T> {
    pub data: &'a [T],
    pub strides: [usize; 3],
}

impl<T> Heads<'_, T> {
    /// Token `s` after token `start` of row `b`.
    #[inline(always)]
    fn row(&self, (b, start): (usize, usize), s: usize, h: usize, d: usize) -> &[T] {
        let start = b * self.strides[0] + (start + s) * self.strides[1] + h * self.strides[2];
        &self.data[start..start + d]
    }
}

/// Keys `0 .. keys` of one head as panels of `width` keys: in a panel, the first number of each key, then the second.
/// Keys that fill up the last panel are zero.
#[inline(always)]
pub(super) fn keys<T: Element>(
    k: &Heads<T>,
    (row_start, h): ((usize, usize), usize),
    (keys, d, width): (usize, usize, usize),
    row: &mut [f32],
    to: &mut [f32],
) {
    for (panel, to) in to.chunks_exact_mut(width * d).enumerate() {
        for lane in 0..width {
            let key = panel * width + lane;
            if key < keys {
                T::widen(k.row(row_start, key, h, d), row);
            } else {
                row.fill(0.0);
            }
            for (column, x) in to.chunks_exact_mut(width).zip(&*row) {
                column[lane] = *x;
            }
        }
    }
}

/// Values `0 .. keys` of one head, each filled up with zeros to `width`.
#[inline(always)]
pub(super) fn values<T: Element>(
    v: &Heads<T>,
    (row_start, h): ((usize, usize), usize),
    (keys, d, width): (usize, usize, usize),
    to: &mut [f32],
) {
    for (key, to) in to.chunks_exact_mut(width).take(keys).enumerate() {
        let (numbers, rest) = to.split_at_mut(d);
        T::widen(v.row(row_start, key, h, d), numbers);
        rest.fill(0.0);
    }
}

/// Queries `from .. from + rows` of one head, scaled; rows that fill up the last tile are zero.
#[inline(always)]
pub(super) fn queries<T: Element>(
    q: &Heads<T>,
    (row_start, h): ((usize, usize), usize),
    (from, rows, d): (usize, usize, usize),
    scale: f32,
    to: &mut [f32],
) {
    for (i, to) in to.chunks_exact_mut(d).enumerate() {
        if i < rows {
            T::widen(q.row(row_start, from + i, h, d), to);
            to.iter_mut().for_each(|x| *x *= scale);
        } else {
            to.fill(0.0);
        }
    }
}
