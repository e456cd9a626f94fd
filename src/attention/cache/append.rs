//! Adding a chunk to a key-value cache.

use std::sync::{Arc, Weak};

use candle_core::Tensor;

use super::kv_cache::{CacheKind, KvCache, Sequence};
use super::layer_id::LayerId;
use super::new_tokens::{MAX_CAPACITY, NewTokens, TokenShape, check_memory};
use crate::ensure;
use crate::error::{Error, Result};
use crate::mask::AttentionMask;
use crate::tensor::same_device;

/// Tokens of the first allocation.
const INITIAL_CAPACITY: usize = 64;

/// Tokens that a rotating cache can take before it copies those of its window to the front.
fn slack(window: usize) -> usize {
    window.max(INITIAL_CAPACITY)
}

/// Whether a chunk of `s` tokens, of which `new` are not padding, begins and ends at the same key in every sequence.
fn aligned(retained: &[usize], new: &[usize], s: usize) -> bool {
    retained.iter().all(|tokens| *tokens == retained[0]) && new.iter().all(|tokens| *tokens == s)
}

/// A cache as it was, which does not own its buffers.
pub(in crate::attention) struct Snapshot {
    cache: KvCache,
    owners: Weak<()>,
}

impl KvCache {
    /// The cache of now, to [go back](Self::restore) to after an error. It is no clone: calls write in place.
    pub(in crate::attention) fn snapshot(&self) -> Snapshot {
        Snapshot { cache: Self { owners: Arc::default(), ..self.clone() }, owners: Arc::downgrade(&self.owners) }
    }

    /// Goes back to a snapshot.
    pub(in crate::attention) fn restore(&mut self, Snapshot { cache, owners }: Snapshot) {
        // Without an owner, neither this cache nor a clone has the buffers any more.
        *self = Self { owners: owners.upgrade().unwrap_or_default(), ..cache };
    }

    /// Whether a gradient flows into the cached tokens.
    pub(in crate::attention) fn tracks_gradient(&self) -> bool {
        self.retained_len() > 0 && self.buffers.iter().flatten().any(Tensor::track_op)
    }

    /// The window of a rotating or streaming cache.
    pub(super) fn window(&self) -> Option<usize> {
        match self.kind {
            CacheKind::Rotating(window) | CacheKind::Streaming(window) => Some(window),
            _ => None,
        }
    }

    /// Checks that a rotating cache keeps what `mask` lets a query see.
    pub(in crate::attention) fn check_window(&self, mask: &AttentionMask) -> Result<()> {
        if self.window().is_some() && mask.counts_tokens() {
            let expected =
                "one without chunks and functions, which count from the first token, or a cache of all tokens";
            return Err(Error::value("the mask of a call with a cache that drops tokens", mask, expected));
        }
        let CacheKind::Rotating(window) = self.kind else { return Ok(()) };
        if mask.narrowest_window().left.is_some_and(|left| left < window) {
            return Ok(());
        }
        let expected = format!(
            "one with a window of at most {window} tokens, which the cache keeps; `KvCache::streaming` cuts any mask to \
             its window"
        );
        Err(Error::value("the mask of a call with a rotating cache", mask, expected))
    }

    /// Checks that the keys in the cache were made by `layer`.
    pub(in crate::attention) fn check_layer(&self, layer: Option<LayerId>) -> Result<()> {
        let what = "the key-value cache";
        match layer {
            _ if self.retained_len() == 0 || layer == self.layer => Ok(()),
            None => {
                Err(Error::value(what, "one with keys of a layer", "one that `append` alone has filled, or a new one"))
            }
            Some(layer) => {
                let expected = "one that this layer has filled with its present weights: each layer has a cache of its \
                                own, and `reset` empties one";
                layer.check(self.layer, what, expected)
            }
        }
    }

    /// Checks that tokens are like those in the cache, if there are sequences in it.
    pub(super) fn check_alike(&self, what: &str, shape: TokenShape, like: &Tensor) -> Result<()> {
        let Some(buffers) = self.buffers.as_ref().filter(|_| !self.sequences.is_empty()) else { return Ok(()) };
        let kept = TokenShape::from_tokens(buffers)?;
        same_device(what, like, &buffers[0])?;
        ensure!(kept == shape, Error::value(what, shape.describe(), format!("as in the cache, {}", kept.describe())));
        Ok(())
    }

    /// The key at which a chunk of `s` tokens starts, and the number of keys that it attends to, per sequence, unless
    /// it begins and ends at the same key in every sequence. The first `new` tokens of each sequence are not padding.
    pub(in crate::attention) fn unequal(&self, new: &[usize], s: usize) -> Option<[Vec<usize>; 2]> {
        let retained: Vec<usize> = self.sequences_of(new.len()).iter().map(|sequence| sequence.retained).collect();
        // A sequence without new tokens attends to nothing.
        let totals =
            retained.iter().zip(new).map(|(retained, &new)| if new > 0 { retained + new } else { 0 }).collect();
        (!aligned(&retained, new, s)).then_some([retained, totals])
    }

    /// The mask of a call on the keys of a chunk: `mask` within the window of the cache, and within each sequence, if
    /// they are [`unequal`](Self::unequal).
    pub(in crate::attention) fn mask(
        &self,
        mask: &AttentionMask,
        b: usize,
        unequal: Option<&[Vec<usize>; 2]>,
    ) -> AttentionMask {
        let mut mask = mask.clone();
        if let Some(window) = self.window() {
            mask = mask.and(AttentionMask::window(Some(window - 1), None));
        }
        match unequal {
            Some([starts, lengths]) => {
                let starts = starts.iter().map(|&start| start as i64).collect();
                mask.and(AttentionMask::lengths(lengths)).with_query_starts(starts)
            }
            None if mask.counts_tokens() => mask.with_query_starts(vec![self.retained_len() as i64; b]),
            None => mask,
        }
    }

    /// Checks a chunk of `s` tokens, of which `lengths` are not padding, and returns the new tokens of each sequence.
    pub(in crate::attention) fn check_chunk(
        &self,
        shape: TokenShape,
        like: &Tensor,
        s: usize,
        lengths: Option<&[usize]>,
    ) -> Result<Vec<usize>> {
        let b = shape.b;
        ensure!(self.window() != Some(0), Error::value("the window of a rotating cache", 0, "at least 1"));
        let new = lengths.map_or_else(|| vec![s; b], <[usize]>::to_vec);
        ensure!(new.len() == b, Error::value("the number of lengths", new.len(), format!("{b}, the batch size")));
        if let Some(length) = new.iter().find(|length| **length > s) {
            return Err(Error::value("a chunk's length", length, format!("at most {s}, its tokens")));
        }
        self.check_device(like.device())?;
        self.check_alike("a call with a cache", shape, like)?;
        let tokens = self.mask_columns(&new);
        match self.kind {
            CacheKind::Fixed(capacity) if capacity > MAX_CAPACITY => {
                let expected = format!("at most {MAX_CAPACITY}, the largest");
                Err(Error::value("the capacity of a fixed cache", capacity, expected))
            }
            CacheKind::Fixed(capacity) if tokens > capacity => Err(Error::CacheFull { capacity, tokens }),
            _ => Ok(new),
        }
    }

    /// The sequences of a batch of `b`, new ones if there are none yet.
    pub(in crate::attention) fn sequences_of(&self, b: usize) -> Vec<Sequence> {
        if self.sequences.is_empty() { vec![Sequence::default(); b] } else { self.sequences.clone() }
    }

    /// Adds keys and values, or latents, `(b, s, h_kv, d)` each, and returns all that the chunk attends to. `tracked`:
    /// whether the call tracks a gradient, of the keys or of anything else.
    pub(in crate::attention) fn add<const N: usize>(
        &mut self,
        chunk: [Tensor; N],
        all_new: &NewTokens,
        tracked: bool,
    ) -> Result<[Tensor; N]> {
        let NewTokens { layer, counts: new, rotated_for, explicit, .. } = all_new;
        let mut sequences = self.sequences_of(new.len());
        let retained: Vec<usize> = sequences.iter().map(|sequence| sequence.retained).collect();
        let totals: Vec<usize> = retained.iter().zip(new).map(|(retained, new)| retained + new).collect();
        let window = self.window();
        let kept: Vec<usize> = totals.iter().map(|&total| total.min(window.unwrap_or(total))).collect();
        let longest = retained.iter().copied().max().unwrap_or(0);
        let cached = self.buffers.as_ref().filter(|_| longest > 0);
        // For a gradient tokens are concatenated instead of written in place, which a graph does not notice.
        let tracked = tracked || chunk.iter().chain(cached.into_iter().flatten()).any(Tensor::track_op);
        self.check_untracked(tracked)?;
        self.in_graph |= tracked;
        let (s, chunk) = (chunk[0].dim(1)?, self.stored(chunk, all_new)?);
        // Written in place, all sequences of a rotating cache drop equally many tokens, or none.
        let alike = aligned(&retained, new, s) || totals == kept;
        let fits = window.is_none_or(|window| alike && s <= slack(window));
        let tokens = if fits && !tracked {
            self.write(&chunk, &retained, new)?
        } else {
            let join = |i: usize, chunk: &Tensor| {
                let old = cached.map(|buffers| buffers[i].narrow(1, self.first, longest)).transpose()?;
                join(old.as_ref(), chunk, &retained, new)
            };
            let all = chunk.iter().enumerate().map(|(i, chunk)| join(i, chunk)).collect::<Result<Vec<_>>>()?;
            self.buffers = Some(all.iter().map(|all| last(all, &totals, &kept)).collect::<Result<_>>()?);
            self.first = 0;
            all
        };
        if fits && !tracked {
            self.first += totals.first().zip(kept.first()).map_or(0, |(total, kept)| total - kept);
        }
        for (i, sequence) in sequences.iter_mut().enumerate() {
            sequence.add(new[i], |token| explicit.as_ref().map(|positions| positions.largest(i, token)));
            sequence.keep_last(kept[i]);
            // Without a new token the cached keys stay as they are, also behind a `truncate`.
            if new[i] > 0 {
                sequence.rotated_for = rotated_for[i];
            }
        }
        self.sequences = sequences;
        self.layer = *layer;
        let mut tokens = tokens.into_iter();
        Ok(chunk.map(|new| tokens.next().unwrap_or(new)))
    }

    /// Writes the chunk behind the tokens that the sequences hold, and returns all tokens.
    fn write(&mut self, chunk: &[Tensor], retained: &[usize], new: &[usize]) -> Result<Vec<Tensor>> {
        let columns = retained.iter().zip(new).map(|(retained, new)| retained + new).max().unwrap_or(0);
        let buffers = self.reserve(chunk, columns)?;
        let s = chunk[0].dim(1)?;
        for (to, from) in buffers.iter().zip(chunk) {
            let from = from.contiguous()?;
            if aligned(retained, new, s) {
                // Without sequences there are no columns either.
                if let Some(retained) = retained.first().filter(|_| s > 0) {
                    to.slice_set(&from, 1, self.first + retained)?;
                }
                continue;
            }
            for (sequence, (&retained, &new)) in retained.iter().zip(new).enumerate().filter(|(_, (_, new))| **new > 0)
            {
                let from = from.narrow(0, sequence, 1)?.narrow(1, 0, new)?;
                to.narrow(0, sequence, 1)?.slice_set(&from, 1, self.first + retained)?;
            }
        }
        Ok(buffers.iter().map(|tokens| tokens.narrow(1, self.first, columns)).collect::<candle_core::Result<_>>()?)
    }

    /// Buffers with room for `tokens` tokens like those of the chunk, which begin with the cached ones.
    fn reserve(&mut self, chunk: &[Tensor], tokens: usize) -> Result<Vec<Tensor>> {
        let shape = TokenShape::from_tokens(chunk)?;
        let usable = |buffers: &Vec<Tensor>| {
            // After a reset the buffers may be those of another batch or device.
            let alike = matches!(TokenShape::from_tokens(buffers), Ok(old) if old == shape);
            alike && buffers[0].device().same_device(chunk[0].device()) && !self.in_graph && !self.has_clones()
        };
        let retained = self.retained_len();
        let columns = self.buffers.as_ref().filter(|buffers| usable(buffers)).map_or(0, |buffers| buffers[0].dims()[1]);
        if retained == 0 {
            self.first = 0;
        }
        let buffers = match &self.buffers {
            Some(buffers) if columns >= self.first + tokens && columns > 0 => buffers.clone(),
            old => {
                let columns = match self.kind {
                    CacheKind::Fixed(capacity) => capacity,
                    CacheKind::Rotating(window) | CacheKind::Streaming(window) => {
                        let largest = window.saturating_add(slack(window));
                        tokens.saturating_mul(2).max(INITIAL_CAPACITY).min(largest)
                    }
                    CacheKind::Growing => tokens.max(columns.saturating_mul(2)).max(INITIAL_CAPACITY),
                };
                check_memory(&shape, columns, chunk[0].device())?;
                let larger = |i: usize| {
                    let (b, _, h, d) = chunk[i].dims4()?;
                    let new = Tensor::zeros((b, columns, h, d), chunk[i].dtype(), chunk[i].device())?;
                    if let Some(old) = old.as_ref().filter(|_| retained > 0) {
                        new.slice_set(&old[i].narrow(1, self.first, retained)?.contiguous()?, 1, 0)?;
                    }
                    Ok::<_, Error>(new)
                };
                let larger = (0..chunk.len()).map(larger).collect::<Result<Vec<_>>>()?;
                (self.first, self.owners) = (0, Arc::default());
                larger
            }
        };
        self.buffers = Some(buffers.clone());
        self.in_graph = false;
        Ok(buffers)
    }
}

/// The first `retained` tokens of each sequence of `old` and then the first `new` tokens of `chunk`, `(b, s, h, d)`
/// each → `(b, columns, h, d)`. What follows the tokens of a sequence is arbitrary.
fn join(old: Option<&Tensor>, chunk: &Tensor, retained: &[usize], new: &[usize]) -> Result<Tensor> {
    if retained.is_empty() {
        // Without sequences there are no columns.
        return Ok(chunk.narrow(1, 0, 0)?);
    }
    let longest = retained.iter().copied().max().unwrap_or(0);
    let s = chunk.dim(1)?;
    let old = old.filter(|_| longest > 0).map(|old| old.narrow(1, 0, longest)).transpose()?;
    let all = match old {
        // candle cannot concatenate an empty tensor.
        Some(old) if s == 0 => old,
        Some(old) => Tensor::cat(&[&old, chunk], 1)?, // (b, longest + s, h, d)
        None => chunk.clone(),
    };
    if aligned(retained, new, s) {
        return Ok(all);
    }
    let columns = retained.iter().zip(new).map(|(retained, new)| retained + new).max().unwrap_or(0);
    gather(&all, columns, |sequence, column| match column.checked_sub(retained[sequence]) {
        Some(i) if i < new[sequence] => longest + i,
        Some(_) => 0,
        None => column,
    })
}

/// The last `kept` tokens of the `totals` tokens of each sequence, `(b, s, h, d)` → `(b, longest kept, h, d)`.
fn last(tokens: &Tensor, totals: &[usize], kept: &[usize]) -> Result<Tensor> {
    let (columns, s) = (kept.iter().copied().max().unwrap_or(0), tokens.dim(1)?);
    let even = totals.iter().all(|total| *total == s) && kept.iter().all(|tokens| *tokens == columns);
    match even {
        true if columns == s => Ok(tokens.clone()),
        // A copy, because a view would keep all of a long chunk in memory.
        true => Ok(tokens.narrow(1, s - columns, columns)?.force_contiguous()?),
        false => gather(tokens, columns, |sequence, i| match kept[sequence] {
            kept if i < kept => totals[sequence] - kept + i,
            _ => 0,
        }),
    }
}

/// `(b, s, h, d)` → `(b, columns, h, d)`, of which column `c` of sequence `i` is the token `index(i, c)`.
fn gather(tokens: &Tensor, columns: usize, index: impl Fn(usize, usize) -> usize) -> Result<Tensor> {
    let (b, s, h, d) = tokens.dims4()?;
    if columns == 0 {
        return Ok(tokens.narrow(1, 0, 0)?);
    }
    let places = (0..b).flat_map(|sequence| (0..columns).map(move |column| (sequence, column)));
    if u32::try_from(b.saturating_mul(s)).is_err() {
        let found = format!("{b} sequences of {s}");
        return Err(Error::value("the number of tokens in a cache of unequal sequences", found, "less than 2^32"));
    }
    let places = places.map(|(sequence, column)| (sequence * s + index(sequence, column)) as u32);
    let places = Tensor::from_iter(places, tokens.device())?;
    let flat = tokens.contiguous()?.reshape((b * s, h, d))?;
    Ok(flat.index_select(&places, 0)?.reshape((b, columns, h, d))?)
}
