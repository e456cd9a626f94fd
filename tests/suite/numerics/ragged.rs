//! Ragged batches: offsets, buckets of like length, and sequences shared between threads.

use std::ops::Range;
use std::sync::Mutex;

use candle_attention::ragged::{Bucket, Buffers, offsets, share_sequences};
use candle_attention::{AttentionConfig, AttentionMask};
use candle_attention_kernels::Team;
use candle_core::{DType, Device, Tensor};

use crate::common::{Random, attend_ragged, numbers, random_layer, says};

/// Sizes and offsets are those of a caller: nothing is computed, and nothing read outside of a slice, if they do not
/// fit.
#[test]
fn rows_and_offsets_that_do_not_fit_are_errors() {
    let config = AttentionConfig::new(8, 2).with_query_size(6).with_key_size(6).with_value_size(6).with_output_size(10);
    let layer = random_layer(&config, 0.5, &mut Random::new(8));
    assert!(layer.supports_rows());
    let xs: Vec<f32> = (0..36).map(|i| (i % 7) as f32 - 3.0).collect();
    let attend = |xs: &[f32], offsets: &[usize], size: usize| {
        let (mask, mut output) = (AttentionMask::full(), vec![7f32; size]);
        let attended = layer.attend_rows(Team::ALONE, xs, offsets, &mask, &Buffers::default(), &mut output);
        assert!(attended.is_ok() || output == vec![7.0; size], "an error leaves the output as it is");
        attended.map(|()| output)
    };
    let got = attend(&xs[..30], &[0, 2, 2, 5], 50).unwrap();
    let tensor = Tensor::from_slice(&xs[..30], (5, 6), &Device::Cpu).unwrap();
    let want = attend_ragged(&layer, &tensor, &[2, 0, 3], &AttentionMask::full()).unwrap();
    assert_eq!((want.dtype(), numbers(&want)), (DType::F32, got.iter().map(|x| f64::from(*x)).collect()));
    assert_eq!((attend(&[], &[0, 0], 0).unwrap(), attend(&[], &[], 0).unwrap()), (vec![], vec![]));

    for offsets in [&[1, 5][..], &[5], &[0, 3, 2, 5], &[0, usize::MAX, 5]] {
        says(attend(&xs[..30], offsets, 50), &["the offsets of a ragged batch is", "expected 0, then never less"]);
    }
    for size in [0, 29, 31, 36] {
        says(attend(&xs[..size], &[0, 5], 50), &[&format!("xs has shape [{size}]"), "5 tokens of 6 elements"]);
    }
    for size in [0, 49, 51, 30] {
        says(attend(&xs[..30], &[0, 5], size), &[&format!("output has shape [{size}]"), "5 tokens of 10 elements"]);
    }
    // 6 times this number of tokens wraps around to 30.
    let tokens = (1usize << 63) + 5;
    says(attend(&xs[..30], &[0, tokens], 50), &["xs has shape [30]", "tokens of 6 elements"]);
}

#[test]
fn lengths_that_overflow_match_no_number_of_tokens() {
    assert_eq!(offsets(&[3, 0, 2]), [0, 3, 3, 5]);
    assert_eq!(offsets(&[usize::MAX, 2]), [0, usize::MAX, usize::MAX]);
}

/// The ranges of sequences that so many threads take, sorted, where a token is `width` values.
fn ranges(offsets: &[usize], width: usize, threads: usize) -> Vec<Range<usize>> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let (mut output, seen) = (vec![0; 2 * offsets.last().unwrap_or(&0)], Mutex::new(Vec::new()));
    let size = |sequences: &Range<usize>| 2 * (offsets[sequences.end] - offsets[sequences.start]);
    let run = |_: Team, sequences: Range<usize>, part: &mut [i32]| {
        assert_eq!(part.len(), size(&sequences));
        part.iter_mut().for_each(|x| *x += 1);
        seen.lock().unwrap().push(sequences);
        Ok(())
    };
    pool.install(|| share_sequences(offsets, width, 0, &mut output, size, run)).unwrap();
    assert!(output.iter().all(|x| *x == 1));
    let mut seen = seen.into_inner().unwrap();
    seen.sort_by_key(|sequences| sequences.start);
    seen
}

#[test]
fn groups_are_whole_sequences_up_to_the_limit() {
    // Five tokens of 50,000 values are 1 MB.
    assert_eq!(ranges(&[0, 3, 3, 5, 20, 22], 50_000, 1), [0..3, 3..4, 4..5]);
    assert_eq!(ranges(&[0, 3, 3, 5], 0, 1), std::slice::from_ref(&(0..3)));
    assert!(ranges(&[0], 50_000, 1).is_empty() && ranges(&[], 50_000, 1).is_empty());
}

#[test]
fn chunks_are_for_all_threads_or_none() {
    let sizes = |lengths: &[usize], threads| {
        let offsets = offsets(lengths);
        let ranges = ranges(&offsets, 512, threads);
        ranges.into_iter().map(|part| offsets[part.end] - offsets[part.start]).collect::<Vec<_>>()
    };
    assert_eq!(sizes(&[128; 8], 1), [512, 512]);
    assert_eq!(sizes(&[128; 8], 2), [256; 4]);
    assert_eq!(sizes(&[128; 8], 8), [128; 8]);
    assert_eq!(sizes(&[128; 8], 16), [1024], "fewer sequences than threads");
    assert_eq!(sizes(&[2000, 10, 10], 2), [2020], "one long sequence");
    assert_eq!(sizes(&[20; 8], 2), [80, 80], "short ones");
    assert_eq!(sizes(&[16], 2), [16]);
}

#[test]
fn each_sequence_is_computed_once() {
    for threads in [1, 2, 5] {
        for lengths in [&[3, 0, 2, 7, 1][..], &[300, 300, 200, 400, 500, 0, 1], &[5], &[]] {
            let seen: Vec<usize> = ranges(&offsets(lengths), 655, threads).into_iter().flatten().collect();
            assert_eq!(seen, (0..lengths.len()).collect::<Vec<_>>());
        }
    }
}

fn padding(bucket: &Bucket, lengths: &[usize]) -> usize {
    bucket.padded_tokens() - bucket.sequences.iter().map(|&i| lengths[i]).sum::<usize>()
}

/// What holds for any lengths: the bound, each sequence once, and no bucket that could take the next sequence.
fn check(lengths: &[usize]) {
    let all = Bucket::group_like_lengths(lengths);
    for bucket in &all {
        assert!(4 * padding(bucket, lengths) <= bucket.padded_tokens(), "{lengths:?}: {bucket:?}");
        assert_eq!(bucket.longest, lengths[bucket.sequences[0]]);
    }
    for pair in all.windows(2) {
        let mut larger = pair[0].clone();
        larger.sequences.push(pair[1].sequences[0]);
        assert!(4 * padding(&larger, lengths) > larger.padded_tokens(), "{lengths:?}: {larger:?} fits");
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
    let got: Vec<_> = Bucket::places(&all, lengths).into_iter().map(|place| padded[place as usize]).collect();
    let want: Vec<_> = (0..lengths.len()).flat_map(|i| (0..lengths[i]).map(move |j| Some((i, j)))).collect();
    assert_eq!(got, want);
}

/// Mixtures of uniform lengths, powers of two, lengths that are nearly the same, and many short ones with a few
/// long.
#[test]
fn padding_is_at_most_a_quarter() {
    let mut random = Random::new(7);
    let mut below = |bound: usize| (random.uniform() * bound as f64) as usize;
    for _ in 0..300 {
        let mut lengths = Vec::new();
        for _ in 0..below(6) {
            let (kind, most) = (below(4), 1 + below(600));
            for _ in 0..below(60) {
                lengths.push(match kind {
                    0 => below(most),
                    1 => 1 << below(11),
                    2 => most + below(5),
                    _ => most.pow(u32::from(below(20) == 0)),
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
    assert_eq!(Bucket::size(&[8, 8, 8, 0, 0]), 4);
    assert_eq!(Bucket::size(&[4, 3, 2, 1]), 3);
    assert_eq!(Bucket::size(&[512, 1]), 1);
    assert_eq!(Bucket::size(&[]), 0);
    assert_eq!(Bucket::size(&[usize::MAX, 1]), 1);
}

/// A list of lengths in the place of offsets, and offsets out of order: nothing is run.
#[test]
fn offsets_that_fall_are_an_error() {
    let share = |list: &[usize], output: &mut [u8]| {
        let never = |_: Team, _: Range<usize>, _: &mut [u8]| -> candle_attention::Result<()> { panic!("called") };
        share_sequences(list, 4, 0, output, |_| 1, never)
    };
    for list in [&[40_000, 0, 20_000, 40_000][..], &[0, 20_000, 10_000, 40_000], &[3]] {
        let found = format!("{list:?}");
        says(share(list, &mut []), &["the offsets of a ragged batch is", &found, "expected 0, then never less"]);
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    let short = || {
        let run = |_: Team, _: Range<usize>, _: &mut [u8]| Ok(());
        share_sequences(&offsets(&[90_000; 8]), 64, 0, &mut [0u8; 3], |_| 2, run)
    };
    says(pool.install(short), &["the output of a ragged batch", "2 more elements"]);
}
