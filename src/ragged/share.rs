//! How the threads of the CPU share a ragged batch.
//!
//! If there are sequences for all threads, each thread takes chunks of whole sequences and computes everything for one
//! before the next: the activations of a chunk stay in its cache, and no thread waits for another. Otherwise all
//! threads are a team for the whole batch, and share the work of each step.

use std::ops::Range;

use candle_attention_kernels::Team;
use rayon::prelude::*;

use super::{check_offsets, lengths};
use crate::error::{Error, Result};

/// Values of the hidden states that one thread takes at a time: 1 MB in f32, half of the L2 cache of a core.
const CHUNK_VALUES: usize = 1 << 18;

/// Chunks for each thread, at least. With fewer, a thread that begins the last one late keeps all others waiting.
const CHUNKS_PER_THREAD: usize = 2;
/// The fewest tokens of a chunk, if there are sequences for a larger one: each chunk reads all weights.
const MIN_CHUNK_TOKENS: usize = 128;

/// Runs a ragged batch on all threads: calls `run` with a team of threads, a range of sequences, and their part of
/// `output`, until all sequences are done.
///
/// `offsets` are those of [`offsets`](super::offsets). The parts of `output` follow each other, and `part` returns the
/// size of one. A range has at most 1 MB of hidden states of `width` values per token, unless a single sequence has
/// more. The number of threads depends on `multiply_adds`, the work of the whole batch.
///
/// # Errors
/// Offsets that do not begin at 0, or that fall; an output that is shorter than the parts; the first error of a chunk.
pub fn share_sequences<O: Send>(
    offsets: &[usize],
    width: usize,
    multiply_adds: usize,
    output: &mut [O],
    part: impl Fn(&Range<usize>) -> usize,
    run: impl Fn(Team, Range<usize>, &mut [O]) -> Result<()> + Sync,
) -> Result<()> {
    check_offsets(offsets)?;
    if offsets.last().is_none_or(|tokens| *tokens == 0) {
        return Ok(());
    }
    let (threads, limit) = (rayon::current_num_threads(), CHUNK_VALUES / width.max(1));
    if let Some(chunks) = chunks(offsets, limit, threads) {
        let mut rest = output;
        let mut parts = Vec::with_capacity(chunks.len());
        for sequences in chunks {
            let size = part(&sequences);
            let (own, after) = rest.split_at_mut_checked(size).ok_or_else(|| {
                Error::value(
                    "the output of a ragged batch",
                    "shorter",
                    format!("{size} more elements for {sequences:?}"),
                )
            })?;
            rest = after;
            parts.push((sequences, own));
        }
        let run = |(sequences, part)| run(Team::ALONE, sequences, part);
        return match threads {
            1 => parts.into_iter().try_for_each(run),
            _ => parts.into_par_iter().with_max_len(1).try_for_each(run),
        };
    }
    Team::with(multiply_adds, |team| run(team, 0..offsets.len() - 1, output))
}

/// Chunks of sequences for all `threads`, or `None` if these share the work better within each step.
fn chunks(offsets: &[usize], limit: usize, threads: usize) -> Option<Vec<Range<usize>>> {
    let tokens = *offsets.last()?;
    let share = tokens.div_ceil(threads);
    if threads == 1 {
        return Some(groups(offsets, limit).collect());
    }
    let wanted = (share / CHUNKS_PER_THREAD).clamp(MIN_CHUNK_TOKENS, limit.max(MIN_CHUNK_TOKENS));
    let chunks: Vec<_> = groups(offsets, wanted.min(share)).collect();
    // A sequence that is longer than the share of a thread would keep the others waiting.
    let longest = lengths(offsets).max()?;
    (chunks.len() >= threads && longest <= share).then_some(chunks)
}

/// Groups of whole sequences, as many as have at most `limit` tokens together, and at least one.
pub(crate) fn groups(offsets: &[usize], limit: usize) -> impl Iterator<Item = Range<usize>> {
    let sequences = offsets.len().saturating_sub(1);
    let mut first = 0;
    std::iter::from_fn(move || {
        let start = first;
        if start >= sequences {
            return None;
        }
        first += 1;
        while first < sequences && offsets[first + 1] - offsets[start] <= limit {
            first += 1;
        }
        Some(start..first)
    })
}
