//! `SparseVector`: the entries of a vector that are not zero.

/// A vector of which only the entries that are not zero are kept.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize)]
#[non_exhaustive]
pub struct SparseVector {
    /// Where the entries are, ascending; of a sparse encoder, ids of tokens.
    pub indices: Vec<u32>,
    /// The entries, one for each index.
    pub values: Vec<f32>,
}

impl SparseVector {
    /// The entries of `dense` that are not zero; at most `max_active_dims` of them, the largest by their absolute
    /// value.
    pub fn from_dense(dense: &[f32], max_active_dims: Option<usize>) -> Self {
        let entries = (0..).zip(dense).filter(|(_, value)| **value != 0.0);
        Self::from_entries(entries.map(|(index, value)| (index, *value)).collect(), max_active_dims)
    }

    /// The entries `(index, value)` with ascending indices.
    pub(crate) fn from_entries(mut entries: Vec<(u32, f32)>, max_active_dims: Option<usize>) -> Self {
        if let Some(most) = max_active_dims.filter(|most| *most < entries.len()) {
            // The sort is stable: of equal values the first are kept.
            entries.sort_by(|(_, a), (_, b)| b.abs().total_cmp(&a.abs()));
            entries.truncate(most);
            entries.sort_by_key(|(index, _)| *index);
        }
        let (indices, values) = entries.into_iter().unzip();
        Self { indices, values }
    }

    /// The dot product with another vector.
    pub fn dot(&self, other: &Self) -> f32 {
        let (mut i, mut j, mut sum) = (0, 0, 0.0);
        while let (Some(a), Some(b)) = (self.indices.get(i), other.indices.get(j)) {
            if a == b {
                sum += self.values[i] * other.values[j];
            }
            (i, j) = (i + usize::from(a <= b), j + usize::from(b <= a));
        }
        sum
    }

    /// The Euclidean length.
    pub fn norm(&self) -> f32 {
        self.values.iter().map(|value| value * value).sum::<f32>().sqrt()
    }
}
