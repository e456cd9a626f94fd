//! Buckets: sequences of like length, which are padded together where no kernel takes a ragged batch.
//!
//! A bucket is filled from the longest sequence to the shorter ones. Its mean length falls with each sequence, so that
//! the first one with which padding would be more than a quarter ends the bucket: no shorter one could be in it either.
//! Every sequence of at least three quarters of the longest fits, so that sequences of up to `n` tokens need at most
//! `1 + log(n) / log(4/3)` buckets, 22 for 512 tokens. Rounding lengths up, to share shapes between batches, was
//! rejected: the kernels take any length, and candle's allocator rounds sizes up itself.

use std::cmp::Reverse;

/// Padding is at most one of so many tokens that are computed.
const PADDING: usize = 4;

/// Sequences that are padded to the longest of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// Indices of the sequences.
    pub sequences: Vec<usize>,
    /// Tokens of the longest one.
    pub longest: usize,
}

impl Bucket {
    /// The buckets of all sequences that have tokens.
    pub fn group_like_lengths(lengths: &[usize]) -> Vec<Self> {
        let mut order: Vec<usize> = (0..lengths.len()).filter(|&i| lengths[i] > 0).collect();
        order.sort_by_key(|&i| Reverse(lengths[i]));
        let descending: Vec<usize> = order.iter().map(|&i| lengths[i]).collect();
        let (mut buckets, mut start) = (Vec::new(), 0);
        while start < order.len() {
            let end = start + Self::size(&descending[start..]);
            buckets.push(Self { sequences: order[start..end].to_vec(), longest: descending[start] });
            start = end;
        }
        buckets
    }

    /// All sequences in one bucket, however much padding that is.
    pub fn group_all(lengths: &[usize]) -> Self {
        Self { sequences: (0..lengths.len()).collect(), longest: lengths.iter().copied().max().unwrap_or(0) }
    }

    /// How many of the sequences, whose `lengths` descend, are in one bucket: as many as padding of a quarter of the
    /// padded tokens allows, and at least one if there is any.
    pub fn size(lengths: &[usize]) -> usize {
        let longest = lengths.first().copied().unwrap_or(0);
        let padding = lengths.iter().scan(0usize, |sum, &length| {
            *sum = sum.saturating_add(longest - length);
            Some(*sum)
        });
        (1..).zip(padding).take_while(|(count, padding)| *padding <= longest.saturating_mul(*count) / PADDING).count()
    }

    /// Tokens with padding. The product saturates.
    pub fn padded_tokens(&self) -> usize {
        self.sequences.len().saturating_mul(self.longest)
    }

    /// Where the tokens of a ragged batch are, in its order, among the padded tokens of `buckets` one after another.
    pub fn places(buckets: &[Self], lengths: &[usize]) -> Vec<u32> {
        let (mut starts, mut end) = (vec![0; lengths.len()], 0);
        for bucket in buckets {
            for &sequence in &bucket.sequences {
                starts[sequence] = end;
                end += bucket.longest;
            }
        }
        let tokens = starts.iter().zip(lengths);
        tokens.flat_map(|(&start, &length)| (start..start + length).map(|place| place as u32)).collect()
    }
}
