//! A mask as the attention kernel reads it: structure where there is some, strides where there is a tensor.

use std::ops::Range;

/// A tensor that broadcasts to `(b, h, s_q, s_kv)`: a dimension of size 1 has stride 0.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Broadcast<'a, T> {
    pub data: &'a [T],
    pub strides: [usize; 4],
}

impl<T: Copy> Broadcast<'_, T> {
    #[inline(always)]
    fn get(&self, b: usize, h: usize, i: usize, j: usize) -> T {
        let [sb, sh, si, sj] = self.strides;
        self.data[b * sb + h * sh + i * si + j * sj]
    }
}

/// How many keys there are, from the first.
#[derive(Debug, Clone)]
pub(crate) enum Lengths {
    /// For each row of the batch.
    Rows(Vec<usize>),
    /// For each row and query.
    Queries(Vec<Vec<usize>>),
    /// For each row; queries after it see nothing.
    Padding(Vec<usize>),
}

/// `-slope · distance` for each head; keys after the query have a negative distance unless it is symmetric.
#[derive(Debug, Clone)]
pub(crate) struct Distances {
    pub slopes: Vec<f32>,
    pub symmetric: bool,
}

/// Which keys a query sees. Everything has to let a key be seen.
#[derive(Debug, Clone, Default)]
pub(crate) struct Mask<'a> {
    pub lengths: Vec<Lengths>,
    pub distances: Vec<Distances>,
    /// The key at which query 0 of each row stands; `None`: the last query stands at the last key.
    pub starts: Option<Vec<i64>>,
    /// Keys before and after a query's own position, which for query `i` is `i + s_kv - s_q`.
    pub left: Option<usize>,
    pub right: Option<usize>,
    /// Segment numbers of queries and keys, each `(b, s)`.
    pub segments: Vec<[Broadcast<'a, i64>; 2]>,
    /// Nonzero = seen.
    pub keep: Vec<Broadcast<'a, u8>>,
    /// Added to the scores; at or below the lowest finite f32 = hidden.
    pub bias: Vec<Broadcast<'a, f32>>,
}

impl Mask<'_> {
    /// The keys that lengths, causal masks and windows let query `i` of row `b` see.
    pub(super) fn range(&self, b: usize, i: usize, s_q: usize, s_kv: usize) -> Range<usize> {
        let mut end = s_kv;
        for lengths in &self.lengths {
            end = end.min(match lengths {
                Lengths::Rows(rows) => rows[b],
                Lengths::Queries(rows) => rows[b][i],
                Lengths::Padding(rows) => {
                    if i < rows[b] {
                        rows[b]
                    } else {
                        0
                    }
                }
            });
        }
        // Counted from `s_q` before the first key, so that it is never negative.
        let position = (self.position(b, i, s_q, s_kv) + s_q as i64).max(0) as usize;
        if let Some(right) = self.right {
            end = end.min(position.saturating_add(right).saturating_add(1).saturating_sub(s_q));
        }
        let start = self.left.map_or(0, |left| position.saturating_sub(left).saturating_sub(s_q));
        start..end.max(start)
    }

    /// The key at which query `i` of row `b` stands.
    pub(super) fn position(&self, b: usize, i: usize, s_q: usize, s_kv: usize) -> i64 {
        let start = self.starts.as_ref().map_or(s_kv as i64 - s_q as i64, |starts| starts[b]);
        start + i as i64
    }

    /// Whether anything but the range has a say.
    pub(super) fn has_tensors(&self) -> bool {
        !(self.segments.is_empty() && self.keep.is_empty() && self.bias.is_empty() && self.distances.is_empty())
    }

    /// Applies the tensors and distances to the scores of query `i`, which stands at the key `position`, with keys
    /// `from ..`.
    pub(super) fn apply(&self, scores: &mut [f32], (b, h, i): (usize, usize, usize), position: i64, from: usize) {
        for Distances { slopes, symmetric } in &self.distances {
            for (score, j) in scores.iter_mut().zip(from as i64..) {
                let distance = (position - j) as f32;
                *score -= slopes[h] * if *symmetric { distance.abs() } else { distance };
            }
        }
        for bias in &self.bias {
            for (score, j) in scores.iter_mut().zip(from..) {
                let bias = bias.get(b, h, i, j);
                *score = if bias <= f32::MIN { f32::NEG_INFINITY } else { *score + bias };
            }
        }
        for keep in &self.keep {
            for (score, j) in scores.iter_mut().zip(from..) {
                if keep.get(b, h, i, j) == 0 {
                    *score = f32::NEG_INFINITY;
                }
            }
        }
        for [queries, keys] in &self.segments {
            let own = queries.get(b, 0, i, 0);
            for (score, j) in scores.iter_mut().zip(from..) {
                if keys.get(b, 0, 0, j) != own {
                    *score = f32::NEG_INFINITY;
                }
            }
        }
    }
}
