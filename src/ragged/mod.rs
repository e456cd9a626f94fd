//! Ragged batches: sequences stored one after another, without padding.
//!
//! Padding a batch of texts to the longest wastes half of the work or more, in every layer. A ragged batch has only
//! real tokens, and [`offsets`] say where each sequence starts, like FlashAttention's `cu_seqlens`.
//! [`AttentionInputs::ragged`](crate::AttentionInputs::ragged) runs one through a single layer. The rest of this module
//! is for models that run a ragged batch through many layers:
//!
//! - **On the CPU**, [`share_sequences`] divides the sequences between the threads. Each thread computes all layers for
//!   its sequences in buffers, by [`MultiHeadAttention::attend_rows`](crate::MultiHeadAttention::attend_rows) and the
//!   steps of [`ops`](crate::ops), so that activations stay in its cache. A sequence has the same bits alone and in any
//!   batch.
//! - **With a fused kernel over tensors**, as on NVIDIA GPUs, the layers share what depends on the batch alone:
//!   [`AttentionInputs::with_buffers`](crate::AttentionInputs::with_buffers).
//! - **Elsewhere**, and for gradients, sequences of like length are padded together: [`Bucket`]. Padding is at most a
//!   quarter of what is computed. Sorting texts by length, the usual alternative, reduces padding without a bound.

mod buckets;
mod share;

pub use buckets::Bucket;
pub(crate) use share::groups;
pub use share::share_sequences;

use std::any::Any;
use std::sync::{Mutex, PoisonError};

use candle_attention_kernels::ScratchPool;

use crate::error::{Error, Result};

/// Buffers that the layers of a model share while they run one ragged batch: scratch memory, and results that depend
/// only on the batch and the position scheme, such as cosines. Make one per batch.
#[derive(Default)]
pub struct Buffers {
    /// Scratch memory of the CPU kernels.
    pub scratch: ScratchPool,
    pub(crate) positions: BatchCache,
}

impl std::fmt::Debug for Buffers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buffers").finish_non_exhaustive()
    }
}

/// A ragged batch: sequence `i` has the tokens `offsets[i] .. offsets[i + 1]`, at positions 0, 1, ….
#[derive(Debug, Clone, Copy)]
pub(crate) struct RaggedBatch<'a> {
    /// Where each sequence starts and where the last one ends, like FlashAttention's `cu_seqlens`.
    pub offsets: &'a [usize],
    /// Intermediate results for this batch.
    pub cache: &'a BatchCache,
}

impl RaggedBatch<'_> {
    /// Tokens of each sequence.
    pub fn lengths(&self) -> impl Iterator<Item = usize> + Clone {
        lengths(self.offsets)
    }

    /// Tokens of the longest sequence.
    pub fn longest(&self) -> usize {
        self.lengths().max().unwrap_or(0)
    }
}

/// The number of tokens of each sequence, from its [`offsets`].
pub(crate) fn lengths(offsets: &[usize]) -> impl Iterator<Item = usize> + Clone {
    offsets.windows(2).map(|ends| ends[1] - ends[0])
}

/// Where each sequence starts and where the last one ends: `[2, 0, 3]` → `[0, 2, 2, 5]`.
///
/// The sum saturates at `usize::MAX`, which equals no number of tokens. A sum that wrapped around could equal the right
/// one.
pub fn offsets(lengths: &[usize]) -> Vec<usize> {
    let mut offsets = vec![0];
    offsets.extend(lengths.iter().scan(0usize, |end, length| {
        *end = end.saturating_add(*length);
        Some(*end)
    }));
    offsets
}

/// Checks that offsets are such as [`offsets`] makes.
pub(crate) fn check_offsets(offsets: &[usize]) -> Result<()> {
    if offsets.first().is_none_or(|first| *first == 0) && offsets.is_sorted() {
        Ok(())
    } else {
        Err(Error::value("the offsets of a ragged batch", format!("{offsets:?}"), "0, then never less"))
    }
}

/// Results that depend only on the batch and the scheme, such as cosines or bias tables: one layer computes them, the
/// others reuse them. Entries are found by type and key, so that a scheme can keep whatever it needs.
#[derive(Debug, Default)]
pub(crate) struct BatchCache {
    entries: Mutex<Vec<Box<dyn Any + Send>>>,
}

impl BatchCache {
    /// The value whose key `matches`, or that of `compute`. At most `limit` entries of these types are kept.
    pub fn get_or_compute<K: Send + 'static, V: Clone + Send + 'static>(
        &self,
        limit: usize,
        matches: impl Fn(&K) -> bool,
        compute: impl FnOnce() -> Result<(K, V)>,
    ) -> Result<V> {
        let cached = |entry: &Box<dyn Any + Send>| {
            let (key, value) = (**entry).downcast_ref::<(K, V)>()?;
            matches(key).then(|| value.clone())
        };
        let entries = || self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = entries().iter().find_map(cached) {
            return Ok(value);
        }
        let (key, value) = compute()?;
        let mut entries = entries();
        let alike = entries.iter().filter(|entry| (***entry).is::<(K, V)>()).count();
        if alike >= limit
            && let Some(oldest) = entries.iter().position(|entry| (**entry).is::<(K, V)>())
        {
            entries.remove(oldest);
        }
        entries.push(Box::new((key, value.clone())));
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_values_are_found_by_type_and_key() {
        let cache = BatchCache::default();
        let get = |key: usize, value: u8| cache.get_or_compute(2, |k: &usize| *k == key, || Ok((key, value))).unwrap();
        assert_eq!((get(1, 10), get(1, 11), get(2, 20)), (10, 10, 20));
        let other = cache.get_or_compute(2, |k: &usize| *k == 1, || Ok((1, "text"))).unwrap();
        assert_eq!(other, "text", "another type of value");
        assert_eq!(get(3, 30), 30);
        assert_eq!(get(1, 12), 12, "the oldest of three entries was removed");
    }
}
