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
    /// All sequences, however much padding that is.
    pub fn of_all(lengths: &[usize]) -> Self {
        Self { sequences: (0..lengths.len()).collect(), longest: lengths.iter().copied().max().unwrap_or(0) }
    }

    /// Tokens with padding. The product saturates.
    pub fn padded_tokens(&self) -> usize {
        self.sequences.len().saturating_mul(self.longest)
    }
}

/// How many of the sequences, whose `lengths` descend, are in one bucket: as many as padding of a quarter of the padded
/// tokens allows, and at least one if there is any.
pub fn bucket_size(lengths: &[usize]) -> usize {
    let longest = lengths.first().copied().unwrap_or(0);
    let padding = lengths.iter().scan(0usize, |sum, &length| {
        *sum = sum.saturating_add(longest - length);
        Some(*sum)
    });
    (1..).zip(padding).take_while(|(count, padding)| *padding <= longest.saturating_mul(*count) / PADDING).count()
}

/// The buckets of all sequences that have tokens.
pub fn buckets(lengths: &[usize]) -> Vec<Bucket> {
    let mut order: Vec<usize> = (0..lengths.len()).filter(|&i| lengths[i] > 0).collect();
    order.sort_by_key(|&i| Reverse(lengths[i]));
    let descending: Vec<usize> = order.iter().map(|&i| lengths[i]).collect();
    let (mut buckets, mut start) = (Vec::new(), 0);
    while start < order.len() {
        let end = start + bucket_size(&descending[start..]);
        buckets.push(Bucket { sequences: order[start..end].to_vec(), longest: descending[start] });
        start = end;
    }
    buckets
}

/// Where the tokens of a ragged batch are, in its order, among the padded tokens of `buckets` one after another.
pub fn padded_places(buckets: &[Bucket], lengths: &[usize]) -> Vec<u32> {
    let (mut starts, mut end) = (vec![0; lengths.len()], 0);
    for bucket in buckets {
        for &sequence in &bucket.sequences {
            starts[sequence] = end;
            end += bucket.longest;
        }
    }
    starts.iter().zip(lengths).flat_map(|(&start, &length)| (start..start + length).map(|place| place as u32)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::random::Random;

    fn padding(bucket: &Bucket, lengths: &[usize]) -> usize {
        bucket.padded_tokens() - bucket.sequences.iter().map(|&i| lengths[i]).sum::<usize>()
    }

    /// What holds for any lengths: the bound, each sequence once, and no bucket that could take the next sequence.
    fn check(lengths: &[usize]) {
        let all = buckets(lengths);
        for bucket in &all {
            assert!(PADDING * padding(bucket, lengths) <= bucket.padded_tokens(), "{lengths:?}: {bucket:?}");
            assert_eq!(bucket.longest, lengths[bucket.sequences[0]]);
        }
        for pair in all.windows(2) {
            let mut larger = pair[0].clone();
            larger.sequences.push(pair[1].sequences[0]);
            assert!(PADDING * padding(&larger, lengths) > larger.padded_tokens(), "{lengths:?}: {larger:?} fits");
        }
        let mut sequences: Vec<usize> = all.iter().flat_map(|bucket| bucket.sequences.clone()).collect();
        sequences.sort_unstable();
        assert_eq!(sequences, (0..lengths.len()).filter(|&i| lengths[i] > 0).collect::<Vec<_>>());
        let longest = lengths.iter().copied().max().unwrap_or(0) as f64;
        assert!(all.len() as f64 <= 1.0 + longest.max(1.0).ln() / (4.0f64 / 3.0).ln(), "{} buckets", all.len());
        // Each token comes back to its place.
        let padded = all.iter().flat_map(|bucket| {
            let tokens = |i: usize| (0..bucket.longest).map(move |j| (j < lengths[i]).then_some((i, j)));
            bucket.sequences.iter().flat_map(|&i| tokens(i)).collect::<Vec<_>>()
        });
        let padded: Vec<Option<(usize, usize)>> = padded.collect();
        let got: Vec<_> = padded_places(&all, lengths).into_iter().map(|place| padded[place as usize]).collect();
        let want: Vec<_> = (0..lengths.len()).flat_map(|i| (0..lengths[i]).map(move |j| Some((i, j)))).collect();
        assert_eq!(got, want);
    }

    /// Mixtures of uniform lengths, powers of two, lengths that are nearly the same, and many short ones with a few
    /// long.
    #[test]
    fn padding_is_at_most_a_quarter() {
        let mut random = Random(7);
        for _ in 0..300 {
            let mut lengths = Vec::new();
            for _ in 0..random.below(6) {
                let (kind, most) = (random.below(4), 1 + random.below(600));
                for _ in 0..random.below(60) {
                    lengths.push(match kind {
                        0 => random.below(most),
                        1 => 1 << random.below(11),
                        2 => most + random.below(5),
                        _ => most.pow(u32::from(random.below(20) == 0)),
                    });
                }
            }
            check(&lengths);
        }
    }

    /// Lengths at and next to the bound, one long sequence among short ones, and each length once.
    #[test]
    fn worst_lengths() {
        check(&[]);
        check(&[0, 0]);
        check(&[8, 8, 8, 0, 0]);
        check(&(1..=512).collect::<Vec<_>>());
        check(&[vec![512], vec![1; 300]].concat());
        check(&[vec![4; 299], vec![3; 300], vec![2; 300], vec![1; 301]].concat());
        // Two thirds of the longest among as many of the longest are padding of a sixth; then less fits.
        check(&[600, 400].repeat(50));
        assert_eq!(bucket_size(&[8, 8, 8, 0, 0]), 4);
        assert_eq!(bucket_size(&[4, 3, 2, 1]), 3);
        assert_eq!(bucket_size(&[512, 1]), 1);
        assert_eq!(bucket_size(&[]), 0);
        assert_eq!(bucket_size(&[usize::MAX, 1]), 1);
    }
}
