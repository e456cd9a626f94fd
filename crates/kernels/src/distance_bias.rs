//! Biases by the distance between a query and a key, as the attention kernel reads them: nothing per pair of the two.
//!
//! A distance is counted from the query to the key: positive if the key comes after the query. A call with `s_q`
//! queries and `s_kv` keys has `s_q + s_kv - 1` distances, so the memory of both descriptions is linear in its length.
//! A row of scores, one query with consecutive keys, meets consecutive distances: its biases are a slice of a
//! [`DistanceTable`].

use std::ops::Range;

use super::error::{Error, Result};

/// The most embeddings of distances. An instruction set may index a vector of products by 32 bits.
const MAX_EMBEDDINGS: usize = 1 << 24;

/// A bias per head and distance (T5). A value at or below the lowest finite f32 hides the key.
#[derive(Debug, Clone, Copy)]
pub struct DistanceTable<'a> {
    /// `(h, distances)`.
    pub values: &'a [f32],
    /// The distance of column 0.
    pub first: i64,
    /// The number of columns.
    pub distances: usize,
}

impl DistanceTable<'_> {
    /// Checks that there is a bias for each of `h` heads and the distances of a call.
    pub(super) fn check(&self, h: usize, needed: Range<i64>) -> Result<()> {
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

    /// Adds the biases of the keys from `key` on to their scores with a query of head `h` at `position`.
    #[inline(always)]
    pub(super) fn add(&self, scores: &mut [f32], h: usize, position: i64, key: usize) {
        let biases = self.row(h, position, key, scores.len());
        for (score, bias) in scores.iter_mut().zip(biases) {
            *score = if *bias <= f32::MIN { f32::NEG_INFINITY } else { *score + bias };
        }
    }

    /// Hides again what the table hides, whatever was added to the scores since.
    pub(super) fn hide(&self, scores: &mut [f32], h: usize, position: i64, key: usize) {
        let biases = self.row(h, position, key, scores.len());
        for (score, _) in scores.iter_mut().zip(biases).filter(|(_, bias)| **bias <= f32::MIN) {
            *score = f32::NEG_INFINITY;
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
        match [self.c2p, self.p2c].into_iter().flatten().find(|values| Some(values.len()) != size) {
            Some(values) => {
                let expected = format!("{count} embeddings of {h} heads of {d}");
                Err(Error::shape("the embeddings of distances", &[values.len()], expected))
            }
            None => Ok(()),
        }
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
