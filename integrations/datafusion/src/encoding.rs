//! Encoding of one record batch at a time, by all threads of the encoder's pool.
//!
//! The thread of a partition that waits here does not run, nor does the one that encodes while the pool works. With more
//! batches at a time there would be more running threads than cores, and no more speed: a batch has work for all of them.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Held while a batch is encoded.
static PERMIT: Mutex<()> = Mutex::new(());
static TEXTS: AtomicU64 = AtomicU64::new(0);
static NANOSECONDS: AtomicU64 = AtomicU64::new(0);

/// What this process has encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct EncodingTotals {
    /// The number of texts, and of pairs of texts.
    pub texts: u64,
    /// The time inside the encoder.
    pub time: Duration,
}

/// What this process has encoded so far.
pub fn encoding_totals() -> EncodingTotals {
    let time = Duration::from_nanos(NANOSECONDS.load(Ordering::Relaxed));
    EncodingTotals { texts: TEXTS.load(Ordering::Relaxed), time }
}

/// Runs `encode` on `texts` texts when no other batch is encoded.
pub(crate) fn one_at_a_time<T>(texts: usize, encode: impl FnOnce() -> T) -> T {
    // A panic while the permit is held leaves nothing half-done: it guards no data.
    let _permit = PERMIT.lock().unwrap_or_else(PoisonError::into_inner);
    let started = Instant::now();
    let encoded = encode();
    NANOSECONDS.fetch_add(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
    TEXTS.fetch_add(texts as u64, Ordering::Relaxed);
    encoded
}

/// The first of `n` items that fails alone, and its error, found by halves; `None` if none of them does.
pub(crate) fn first_failing<E>(n: usize, run: &mut impl FnMut(Range<usize>) -> Result<(), E>) -> Option<(usize, E)> {
    let mut range = 0..n;
    while range.len() > 1 {
        let middle = range.start + range.len() / 2;
        range = if run(range.start..middle).is_err() { range.start..middle } else { middle..range.end };
    }
    let error = if range.is_empty() { None } else { run(range.clone()).err() };
    error.map(|error| (range.start, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_failing_item_is_found() {
        for n in 0..20 {
            for bad in 0..20 {
                let mut run = |range: Range<usize>| match range.into_iter().find(|i| *i >= bad && i % 3 == bad % 3) {
                    Some(i) => Err(i),
                    None => Ok(()),
                };
                let expected = (bad < n).then_some((bad, bad));
                assert_eq!(first_failing(n, &mut run), expected, "{bad} of {n}");
            }
        }
    }
}
