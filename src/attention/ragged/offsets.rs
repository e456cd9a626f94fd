//! Offsets of the rows of a ragged batch.

/// The lengths of rows that start there, the last of them ending at the last of these.
pub(crate) fn lengths(starts: &[usize]) -> impl Iterator<Item = usize> + Clone {
    starts.windows(2).map(|ends| ends[1] - ends[0])
}

/// Where each row starts, and where the last one ends. Lengths too large to add up end at `usize::MAX`, which is the
/// number of tokens of nothing: a sum that wrapped around could pass for a right one.
pub(crate) fn starts(lengths: &[usize]) -> Vec<usize> {
    let mut starts = vec![0];
    starts.extend(lengths.iter().scan(0usize, |end, length| {
        *end = end.saturating_add(*length);
        Some(*end)
    }));
    starts
}
