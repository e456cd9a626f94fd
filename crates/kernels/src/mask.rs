//! The mask as the attention kernel reads it: rules over positions, and tensors as strided slices.
//!
//! Lengths, windows and distances stay rules ([`MaskStructure`]), because a rule costs no memory and gives the kernel
//! the range of keys that a query can see before it computes a score: hidden key blocks are skipped. Learned biases by
//! distance are read from memory that is linear in the length. Only masks without such a rule are read per pair of
//! query and key. The kernel owns these types; whoever calls it fills them.
//!
//! A distance is counted from the query to the key: positive if the key comes after the query. A call with `s_q`
//! queries and `s_kv` keys has `s_q + s_kv - 1` distances, so the memory of both descriptions is linear in its length.
//! A row of scores, one query with consecutive keys, meets consecutive distances: its biases are a slice of a
//! [`DistanceTable`].

use std::ops::Range;

use super::error::{Error, Result};

/// Keys per key block, a multiple of every tile's panel. The scores of a tile and the packed keys and values of a block
/// stay in the L1 and L2 cache.
pub const KEY_BLOCK: usize = 192;

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

    /// The keys that lengths and windows let query `i` of sequence `b` see.
    pub fn range(&self, b: usize, i: usize, s_q: usize, s_kv: usize) -> Range<usize> {
        let Self { lengths, left, right, .. } = self;
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
        let start = self.starts.as_ref().map_or(s_kv as i64 - s_q as i64, |starts| starts[b]);
        start + i as i64
    }
}

/// The mask of one attention call. A key is visible if the structure and every tensor allow it.
#[derive(Debug, Clone, Default)]
pub struct Mask<'a> {
    /// Limits that need no tensor.
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
    /// Added to the scores by the row and the column of a key in a grid.
    pub grids: Vec<GridBias<'a>>,
    /// A function of query and key that hides keys.
    pub rules: Vec<&'a dyn PairRule>,
    /// Functions that the scaled and capped scores go through, before anything is added to them.
    pub score_rules: Vec<&'a dyn ScoreRule>,
}

/// A rule over pairs of a query and a key, which the kernel asks tile by tile.
pub trait PairRule: std::fmt::Debug + Sync {
    /// Which of the keys `block · KEY_BLOCK ..` of a block query `i` of head `h` in sequence `b` sees.
    fn seen(&self, place: (usize, usize, usize), block: usize) -> Seen;

    /// Sets the scores of that query with hidden keys to -inf; the first score is that of key `from`.
    fn hide(&self, place: (usize, usize, usize), from: usize, scores: &mut [f32]);
}

/// A function of scores, which the kernel calls tile by tile.
pub trait ScoreRule: std::fmt::Debug + Sync {
    /// Replaces the scores of query `i` of head `h` in sequence `b` by what the function makes of them; the first score
    /// is that with key `from`, and -inf hides a key.
    fn apply(&self, place: (usize, usize, usize), from: usize, scores: &mut [f32]);

    /// Replaces the scores by the derivatives of the function at them.
    fn differentiate(&self, place: (usize, usize, usize), from: usize, scores: &mut [f32]);
}

/// Which keys of a block a query sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Seen {
    /// No key.
    None,
    /// Some keys and not others.
    Some,
    /// All keys.
    All,
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
        let count = |name: &str, found: usize, expected: usize| {
            let error = || Error::value(format!("the number of {name}"), found, expected.to_string());
            (found == expected).then_some(()).ok_or_else(error)
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
            self.tables.iter().try_for_each(|table| table.check(dims, distances.clone()))?;
            self.grids.iter().try_for_each(|grid| grid.check(dims))?;
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
        self.score_rules.iter().for_each(|rule| rule.apply((b, h, i), j, &mut score));
        self.apply(&mut score, (b, h, i), self.structure.position(b, i, s_q, s_kv), j);
        self.structure.range(b, i, s_q, s_kv).contains(&j) && score[0] != f32::NEG_INFINITY
    }

    /// The keys from the first to the last that any of these queries sees by lengths and windows, and all appended
    /// keys.
    pub(super) fn seen_keys(
        &self,
        b: usize,
        queries: Range<usize>,
        [s_q, s_kv]: [usize; 2],
        appended: usize,
    ) -> Range<usize> {
        let ranges = queries.map(|i| self.structure.range(b, i, s_q, s_kv)).filter(|range| !range.is_empty());
        let seen = ranges.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end));
        match (seen, appended) {
            (seen, 0) => seen.unwrap_or(0..0),
            (seen, appended) => seen.map_or(s_kv, |seen| seen.start)..s_kv + appended,
        }
    }

    /// Whether scores inside the [`range`](MaskStructure::range) change too, by more than rules over pairs.
    pub(super) fn changes_scores(&self) -> bool {
        let by_distance = !(self.structure.distances.is_empty() && self.tables.is_empty());
        by_distance || self.reads_tensors() || !self.score_rules.is_empty()
    }

    fn reads_tensors(&self) -> bool {
        !(self.segments.is_empty() && self.keep.is_empty() && self.bias.is_empty() && self.grids.is_empty())
    }

    /// Applies distances and tensors to the scores of query `i`, which stands at the key `position`, with the keys
    /// `from ..`.
    #[inline(always)]
    pub(super) fn apply(&self, scores: &mut [f32], (b, h, i): (usize, usize, usize), position: i64, from: usize) {
        for table in &self.tables {
            table.add(scores, (b, h, i), position, from);
        }
        let plain = self.structure.distances.is_empty() && !self.reads_tensors() && self.rules.is_empty();
        let tables_only = self.tables.len() == 1 && plain;
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
        for grid in &self.grids {
            grid.add(scores, (b, h, i), from);
        }
        for bias in &self.bias {
            for (score, j) in scores.iter_mut().zip(from..) {
                let bias = bias.get(b, h, i, j);
                *score = if bias <= f32::MIN { f32::NEG_INFINITY } else { *score + bias };
            }
        }
        // A key that one bias hides stays hidden, whatever a later one has added: -inf + inf would be NaN.
        for bias in self.bias.split_last().map_or(&[][..], |(_, earlier)| earlier) {
            hide(scores, from, |j| bias.get(b, h, i, j) <= f32::MIN);
        }
        for table in &self.tables {
            table.hide(scores, h, position, from);
        }
        for keep in &self.keep {
            hide(scores, from, |j| keep.get(b, h, i, j) == 0);
        }
        for [queries, keys] in &self.segments {
            let own = queries.get(b, 0, i, 0);
            hide(scores, from, |j| keys.get(b, 0, 0, j) != own);
        }
        for rule in &self.rules {
            let blocks = from / KEY_BLOCK..(from + scores.len()).div_ceil(KEY_BLOCK);
            let mut seen = blocks.map(|block| rule.seen((b, h, i), block));
            if seen.any(|seen| seen != Seen::All) {
                rule.hide((b, h, i), from, scores);
            }
        }
    }
}

/// Sets the scores of the keys that are hidden to -inf; the first score is that of key `from`.
fn hide(scores: &mut [f32], from: usize, is_hidden: impl Fn(usize) -> bool) {
    for (score, j) in scores.iter_mut().zip(from..) {
        if is_hidden(j) {
            *score = f32::NEG_INFINITY;
        }
    }
}

/// The most embeddings of distances. An instruction set may index a vector of products by 32 bits.
const MAX_EMBEDDINGS: usize = 1 << 24;

/// A bias per head and distance (T5), perhaps times a factor of the query (WavLM). A value at or below the lowest
/// finite f32 hides the key.
#[derive(Debug, Clone, Copy)]
pub struct DistanceTable<'a> {
    /// `(h, distances)`.
    pub values: &'a [f32],
    /// The distance of column 0.
    pub first: i64,
    /// The number of columns.
    pub distances: usize,
    /// `(b, h, s_q, 1)`: a factor for each query.
    pub factors: Option<Broadcast<'a, f32>>,
}

impl DistanceTable<'_> {
    /// Checks that there is a bias for each head and distance of a call of these `dims` `[b, h, s_q, s_kv]`.
    pub(super) fn check(&self, [b, h, s_q, _]: [usize; 4], needed: Range<i64>) -> Result<()> {
        if let Some(factors) = &self.factors {
            check_view("factors on a bias", &[b, h, s_q, 1], &factors.strides, 1, factors.data.len())?;
        }
        check_distances("a bias", self.first, self.distances, needed)?;
        if Some(self.values.len()) != h.checked_mul(self.distances) {
            let expected = format!("{h} heads by {} distances", self.distances);
            return Err(Error::shape("the table of biases by distance", &[self.values.len()], expected));
        }
        Ok(())
    }

    /// The biases of `count` keys from `key` on, for a query of head `h` at `position`.
    #[inline(always)]
    fn row(&self, h: usize, position: i64, key: usize, count: usize) -> &[f32] {
        &self.values[h * self.distances..][..self.distances][column(self.first, position, key)..][..count]
    }

    /// Adds the biases of the keys from `key` on to their scores with query `i` of head `h`, which stands at
    /// `position`.
    #[inline(always)]
    pub(super) fn add(&self, scores: &mut [f32], (b, h, i): (usize, usize, usize), position: i64, key: usize) {
        let biases = self.row(h, position, key, scores.len());
        let factor = self.factors.as_ref().map_or(1.0, |factors| factors.get(b, h, i, 0));
        for (score, bias) in scores.iter_mut().zip(biases) {
            *score = if *bias <= f32::MIN { f32::NEG_INFINITY } else { *score + bias * factor };
        }
    }

    /// Adds the gradients of the scores of the keys from `key` on, with a query at `position`, to those of the biases
    /// of their head.
    #[inline(always)]
    pub(super) fn add_gradients(&self, to: &mut [f32], position: i64, key: usize, gradients: &[f32]) {
        let to = &mut to[column(self.first, position, key)..][..gradients.len()];
        to.iter_mut().zip(gradients).for_each(|(to, gradient)| *to += gradient);
    }

    /// Hides again what the table hides, whatever was added to the scores since.
    pub(super) fn hide(&self, scores: &mut [f32], h: usize, position: i64, key: usize) {
        let biases = self.row(h, position, key, scores.len());
        hide(scores, 0, |j| biases[j] <= f32::MIN);
    }
}

/// A bias per query and row of a grid of keys, and one per query and column (SAM): key `j` stands in row `j / width`
/// and column `j % width`. Memory per query is the sum of the sides of the grid, not their product.
#[derive(Debug, Clone, Copy)]
pub struct GridBias<'a> {
    /// `(b, h, s_q, height)`.
    pub rows: Broadcast<'a, f32>,
    /// `(b, h, s_q, width)`.
    pub columns: Broadcast<'a, f32>,
    /// Rows and columns of keys.
    pub grid: [usize; 2],
}

impl GridBias<'_> {
    /// Checks that there is a bias for each row and column of the keys of a call of these `dims` `[b, h, s_q, s_kv]`.
    fn check(&self, [b, h, s_q, s_kv]: [usize; 4]) -> Result<()> {
        let [height, width] = self.grid;
        if height.checked_mul(width) != Some(s_kv) {
            let found = format!("{height} rows of {width}");
            return Err(Error::value("the grid of keys", found, format!("{s_kv} places, one for each key")));
        }
        for (name, part, size) in [("biases of rows", &self.rows, height), ("biases of columns", &self.columns, width)]
        {
            check_view(name, &[b, h, s_q, size], &part.strides, 1, part.data.len())?;
        }
        Ok(())
    }

    /// Adds the biases of the keys from `key` on to their scores with query `i` of head `h` in sequence `b`.
    fn add(&self, scores: &mut [f32], (b, h, i): (usize, usize, usize), key: usize) {
        let [_, width] = self.grid;
        let (mut row, mut column) = (key / width, key % width);
        let mut rest = scores;
        while !rest.is_empty() {
            let (scores, after) = rest.split_at_mut(rest.len().min(width - column));
            let of_row = self.rows.get(b, h, i, row);
            for (score, column) in scores.iter_mut().zip(column..) {
                *score += of_row + self.columns.get(b, h, i, column);
            }
            (row, column, rest) = (row + 1, 0, after);
        }
    }
}

/// Embeddings of distances that queries (`c2p`) and keys (`p2c`) are compared with ([DeBERTa, He
/// 2021](https://arxiv.org/abs/2006.03654)): a query and a key at a distance with embedding `e` add
/// `(query · c2p[e] + key · p2c[e]) · scale` to their score.
#[derive(Debug, Clone, Copy)]
pub struct DistanceEmbeddings<'a> {
    /// `(count, h, d)`, multiplied with queries.
    pub c2p: Option<&'a [f32]>,
    /// `(count, h, d)`, multiplied with keys.
    pub p2c: Option<&'a [f32]>,
    /// The number of embeddings.
    pub count: usize,
    /// The embedding of each distance from `first` on, never rising: keys after the query have the lower ones.
    pub indices: &'a [u32],
    /// The distance of the first index.
    pub first: i64,
}

impl DistanceEmbeddings<'_> {
    /// Checks the sizes, and that each distance of a call has an embedding. The kernel relies on that.
    pub(super) fn check(&self, [h, d]: [usize; 2], needed: Range<i64>) -> Result<()> {
        let Self { count, indices, .. } = *self;
        if count > MAX_EMBEDDINGS {
            let expected = format!("at most {MAX_EMBEDDINGS}");
            return Err(Error::value("the number of embeddings of distances", count, expected));
        }
        check_distances("an embedding", self.first, indices.len(), needed)?;
        if !indices.is_sorted_by(|a, b| a >= b) || indices.first().is_some_and(|most| *most as usize >= count) {
            let expected = format!("numbers below {count} that never rise");
            let found = format!("{} other numbers", indices.len());
            return Err(Error::value("the list of embeddings of distances", found, expected));
        }
        let size = count.checked_mul(h).and_then(|size| size.checked_mul(d));
        let wrong = [self.c2p, self.p2c].into_iter().flatten().find(|values| Some(values.len()) != size);
        wrong.map_or(Ok(()), |values| {
            let expected = format!("{count} embeddings of {h} heads of {d}");
            Err(Error::shape("the embeddings of distances", &[values.len()], expected))
        })
    }

    /// The embeddings at the distances from a query at `position` to `count` keys from `key` on.
    #[inline(always)]
    pub(super) fn indices(&self, position: i64, key: usize, count: usize) -> &[u32] {
        &self.indices[self.column(position, key)..][..count]
    }

    /// The place in `indices` of the distance from a query at `position` to `key`.
    #[inline(always)]
    pub(super) fn column(&self, position: i64, key: usize) -> usize {
        column(self.first, position, key)
    }

    /// The embeddings that any of the queries at `positions` and the keys `keys`, both not empty, are compared with.
    pub(super) fn range(&self, positions: Range<i64>, keys: Range<usize>) -> Range<usize> {
        let most = self.indices[self.column(positions.end - 1, keys.start)] as usize;
        let least = self.indices[self.column(positions.start, keys.end - 1)] as usize;
        least..most + 1
    }
}

/// The place of the distance from a query at `position` to `key`, if that of distance `first` is 0.
#[inline(always)]
fn column(first: i64, position: i64, key: usize) -> usize {
    (key as i64 - position - first) as usize
}

fn check_distances(what: &str, first: i64, found: usize, needed: Range<i64>) -> Result<()> {
    let end = first.saturating_add_unsigned(found as u64);
    if needed.is_empty() || first <= needed.start && needed.end <= end {
        return Ok(());
    }
    let (found, expected) = (format!("{first} to {end}"), format!("{} to {}", needed.start, needed.end));
    Err(Error::value(format!("the range of distances with {what}"), found, expected))
}

/// Checks that the last `d` values of a view of `dims` are among the `available` ones.
pub(super) fn check_view(name: &str, dims: &[usize], strides: &[usize], d: usize, available: usize) -> Result<()> {
    if dims.contains(&0) {
        return Ok(());
    }
    let mut last = dims.iter().zip(strides).map(|(size, stride)| (size - 1).checked_mul(*stride));
    let end = last.try_fold(d, |end, last| end.checked_add(last?));
    if end.is_some_and(|end| end <= available) {
        return Ok(());
    }
    let end = end.map_or_else(|| "more than can be addressed".to_string(), |end| end.to_string());
    Err(Error::shape(name, dims, format!("a view of the {available} elements in memory, not of {end}")))
}
