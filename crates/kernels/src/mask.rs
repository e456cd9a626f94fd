//! The mask as the attention kernel reads it: rules over positions, and tensors as strided slices.
//!
//! Lengths, windows and distances stay rules ([`MaskStructure`]), because a rule costs no memory and gives the kernel
//! the range of keys that a query can see before it computes a score: hidden key blocks are skipped. Learned biases by
//! distance are read from memory that is linear in the length. Only masks without such a rule are read per pair of
//! query and key. The kernel owns these types; whoever calls it fills them.

use std::ops::Range;

use super::distance_bias::{DistanceEmbeddings, DistanceTable};
use super::error::{Error, Result};
use super::strided::check_view;

/// A tensor that broadcasts to `(b, h, s_q, s_kv)`: a dimension of size 1 has stride 0.
#[derive(Debug, Clone, Copy)]
pub struct Broadcast<'a, T> {
    /// The memory of the tensor.
    pub data: &'a [T],
    /// From one element of each dimension to the next.
    pub strides: [usize; 4],
}

impl<T: Copy> Broadcast<'_, T> {
    #[inline(always)]
    fn get(&self, b: usize, h: usize, i: usize, j: usize) -> T {
        let [sb, sh, si, sj] = self.strides;
        self.data[b * sb + h * sh + i * si + j * sj]
    }
}

/// The number of visible keys, counted from the first key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lengths {
    /// `[b]`: the keys of each sequence.
    PerSequence(Vec<usize>),
    /// `[b][i]`: the keys that query `i` of sequence `b` sees.
    PerQuery(Vec<Vec<usize>>),
    /// `[b]`: the tokens of each sequence, as queries and as keys. The queries after them see no key.
    Padding(Vec<usize>),
}

impl Lengths {
    /// The number of keys that query `i` of sequence `b` sees.
    pub fn visible(&self, b: usize, i: usize) -> usize {
        match self {
            Self::PerSequence(lengths) => lengths[b],
            Self::PerQuery(lengths) => lengths[b][i],
            Self::Padding(lengths) if i < lengths[b] => lengths[b],
            Self::Padding(_) => 0,
        }
    }
}

/// A linear bias on the scores, `-slopes[h] · distance`. The distance of a key after the query is negative, or, if
/// `symmetric`, positive too.
#[derive(Debug, Clone, PartialEq)]
pub struct Distances {
    /// `[h]`.
    pub slopes: Vec<f32>,
    /// Whether the distance counts without its sign.
    pub symmetric: bool,
}

/// The rules of a mask that need no tensor. A key is visible if every rule allows it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MaskStructure {
    /// Limits by the length of sequences.
    pub lengths: Vec<Lengths>,
    /// Biases by distance.
    pub distances: Vec<Distances>,
    /// `[b]`: the position of query 0 among the keys. `None` aligns the last query with the last key: `s_kv - s_q`.
    pub starts: Option<Vec<i64>>,
    /// The number of visible keys before a query's own position; `None` is no limit.
    pub left: Option<usize>,
    /// The number of visible keys after a query's own position; `None` is no limit.
    pub right: Option<usize>,
}

impl MaskStructure {
    /// Limits the window to at most `left` keys before and `right` keys after a query's position.
    pub fn narrow_window(&mut self, left: Option<usize>, right: Option<usize>) {
        let narrower = |a: Option<usize>, b: Option<usize>| a.into_iter().chain(b).min();
        (self.left, self.right) = (narrower(self.left, left), narrower(self.right, right));
    }
}

/// The mask of one attention call. A key is visible if the structure and every tensor allow it.
#[derive(Debug, Clone, Default)]
pub struct Mask<'a> {
    /// What needs no tensor.
    pub structure: MaskStructure,
    /// The segment ids of queries `(b, s_q)` and keys `(b, s_kv)`: a query sees the keys with its own id.
    pub segments: Vec<[Broadcast<'a, i64>; 2]>,
    /// Nonzero = visible.
    pub keep: Vec<Broadcast<'a, u8>>,
    /// Added to the scores; a value at or below the lowest finite f32 hides the key.
    pub bias: Vec<Broadcast<'a, f32>>,
    /// Added to the scores by distance.
    pub tables: Vec<DistanceTable<'a>>,
    /// Products with queries and keys, added to the scores by distance.
    pub embeddings: Option<DistanceEmbeddings<'a>>,
}

impl From<MaskStructure> for Mask<'_> {
    fn from(structure: MaskStructure) -> Self {
        Self { structure, ..Self::default() }
    }
}

impl Mask<'_> {
    /// Checks that every rule and tensor covers a call of these `dims` `[b, h, s_q, s_kv]` with heads of `d` values.
    pub(super) fn check(&self, dims: [usize; 4], d: usize) -> Result<()> {
        let [sequences, h, s_q, s_kv] = dims;
        let MaskStructure { lengths, distances, starts, .. } = &self.structure;
        let count = |name: &str, found: usize, expected: usize| match found == expected {
            true => Ok(()),
            false => Err(Error::value(format!("the number of {name}"), found, expected.to_string())),
        };
        for lengths in lengths {
            match lengths {
                Lengths::PerSequence(lengths) | Lengths::Padding(lengths) => {
                    count("lengths", lengths.len(), sequences)?
                }
                Lengths::PerQuery(lengths) => {
                    count("rows of lengths", lengths.len(), sequences)?;
                    lengths.iter().try_for_each(|row| count("lengths in a row", row.len(), s_q))?;
                }
            }
        }
        distances.iter().try_for_each(|distances| count("slopes", distances.slopes.len(), h))?;
        starts.iter().try_for_each(|starts| count("starts", starts.len(), sequences))?;
        if s_q > 0 && s_kv > 0 {
            let default = [s_kv as i64 - s_q as i64];
            let starts = starts.as_deref().unwrap_or(&default);
            let last = starts.iter().max().map_or(0, |start| start.saturating_add_unsigned(s_q as u64 - 1));
            let first = starts.iter().min().copied().unwrap_or(0);
            let distances = last.saturating_neg()..(s_kv as i64).saturating_sub(first);
            self.tables.iter().try_for_each(|table| table.check(h, distances.clone()))?;
            self.embeddings.iter().try_for_each(|embeddings| embeddings.check([h, d], distances.clone()))?;
        }
        let segments = self.segments.iter().flatten();
        segments.enumerate().try_for_each(|(i, ids)| {
            let [b, _, s_q, s_kv] = dims;
            let dims = if i % 2 == 0 { [b, 1, s_q, 1] } else { [b, 1, 1, s_kv] };
            check_view("segments", &dims, &ids.strides, 1, ids.data.len())
        })?;
        self.keep.iter().try_for_each(|keep| check_view("keep mask", &dims, &keep.strides, 1, keep.data.len()))?;
        self.bias.iter().try_for_each(|bias| check_view("additive mask", &dims, &bias.strides, 1, bias.data.len()))
    }

    /// Whether query `i` of head `h` in sequence `b` sees the key `j`.
    pub(super) fn sees(&self, (b, h, i): (usize, usize, usize), j: usize, [s_q, s_kv]: [usize; 2]) -> bool {
        if j >= s_kv {
            return true; // an appended key
        }
        let mut score = [0.0];
        self.apply(&mut score, (b, h, i), self.position(b, i, s_q, s_kv), j);
        self.range(b, i, s_q, s_kv).contains(&j) && score[0] != f32::NEG_INFINITY
    }

    /// The keys that lengths and windows let query `i` of sequence `b` see.
    pub(super) fn range(&self, b: usize, i: usize, s_q: usize, s_kv: usize) -> Range<usize> {
        let MaskStructure { lengths, left, right, .. } = &self.structure;
        let mut end = lengths.iter().fold(s_kv, |end, lengths| end.min(lengths.visible(b, i)));
        // Counted from `s_q` keys before the first one, so that it is never negative.
        let position = (self.position(b, i, s_q, s_kv) + s_q as i64).max(0) as usize;
        if let Some(right) = *right {
            end = end.min(position.saturating_add(right).saturating_add(1).saturating_sub(s_q));
        }
        let start = left.map_or(0, |left| position.saturating_sub(left).saturating_sub(s_q));
        start..end.max(start)
    }

    /// The position of query `i` of sequence `b` among the keys.
    pub(super) fn position(&self, b: usize, i: usize, s_q: usize, s_kv: usize) -> i64 {
        let start = self.structure.starts.as_ref().map_or(s_kv as i64 - s_q as i64, |starts| starts[b]);
        start + i as i64
    }

    /// Whether scores inside the [`range`](Self::range) change too.
    pub(super) fn changes_scores(&self) -> bool {
        let by_distance = !(self.structure.distances.is_empty() && self.tables.is_empty());
        by_distance || self.reads_tensors()
    }

    fn reads_tensors(&self) -> bool {
        !(self.segments.is_empty() && self.keep.is_empty() && self.bias.is_empty())
    }

    /// Applies distances and tensors to the scores of query `i`, which stands at the key `position`, with the keys
    /// `from ..`.
    #[inline(always)]
    pub(super) fn apply(&self, scores: &mut [f32], (b, h, i): (usize, usize, usize), position: i64, from: usize) {
        for table in &self.tables {
            table.add(scores, h, position, from);
        }
        let tables_only = self.tables.len() == 1 && self.structure.distances.is_empty() && !self.reads_tensors();
        if !tables_only {
            self.apply_others(scores, (b, h, i), position, from);
        }
    }

    /// [`apply`](Self::apply) but for the tables.
    fn apply_others(&self, scores: &mut [f32], (b, h, i): (usize, usize, usize), position: i64, from: usize) {
        for Distances { slopes, symmetric } in &self.structure.distances {
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
        // What one bias hides stays hidden, whatever a later one has added: -inf + inf would be NaN.
        for bias in self.bias.split_last().map_or(&[][..], |(_, earlier)| earlier) {
            for (score, j) in scores.iter_mut().zip(from..) {
                if bias.get(b, h, i, j) <= f32::MIN {
                    *score = f32::NEG_INFINITY;
                }
            }
        }
        for table in &self.tables {
            table.hide(scores, h, position, from);
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
