//! Adding a chunk to a key-value cache.

use candle_core::{DType, Device, Tensor};

use super::keys;
use super::kv_cache::{CacheKind, KvCache, Row};
use crate::error::{Error, Result};
use crate::mask::AttentionMask;
use crate::position::ExplicitPositions;
use crate::tensor::check_tensor_memory;

/// The keys and values that a chunk attends to.
pub(super) struct CachedKeys {
    pub keys: Tensor,
    pub values: Tensor,
    /// The key at which the chunk starts, and the number of keys, per sequence; `None` if the chunk ends at the last key
    /// in every sequence.
    pub unequal: Option<[Vec<usize>; 2]>,
}

/// What the cached tensors of a layer are, apart from the number of tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct TokenShape {
    pub b: usize,
    pub h_kv: usize,
    pub d: usize,
    pub d_v: usize,
    pub dtype: DType,
}

impl TokenShape {
    fn of([keys, values]: [&Tensor; 2]) -> Result<Self> {
        let (b, _, h_kv, d) = keys.dims4()?;
        Ok(Self { b, h_kv, d, d_v: values.dim(3)?, dtype: keys.dtype() })
    }

    fn describe(&self) -> String {
        let Self { b, h_kv, d, d_v, dtype } = self;
        let dtype = dtype.as_str();
        format!("a batch of {b} with {h_kv} key-value heads, keys of {d} and values of {d_v} elements, in {dtype}")
    }
}

/// Tokens of the first allocation.
const INITIAL_CAPACITY: usize = 64;

/// Most tokens per sequence of a fixed cache: as many keys as the kernels count. It refuses a capacity that was read from
/// a damaged configuration before memory is requested for it. The longest published contexts have 10 million tokens.
pub(super) const MAX_CAPACITY: usize = 1 << 30;

/// Tokens that a rotating cache can take before it copies those of its window to the front.
fn slack(window: usize) -> usize {
    window.max(INITIAL_CAPACITY)
}

/// Checks that there is memory for `columns` tokens.
fn check_memory(of: &TokenShape, columns: usize, device: &Device) -> Result<()> {
    let what = format!("the capacity of a cache for {}", of.describe());
    check_tensor_memory(&what, columns, &[of.b, of.h_kv, of.d.saturating_add(of.d_v), columns], of.dtype, device)
}

/// Whether a chunk of `s` tokens, of which `new` are not padding, begins and ends at the same key in every sequence.
fn aligned(held: &[usize], new: &[usize], s: usize) -> bool {
    held.iter().all(|tokens| *tokens == held[0]) && new.iter().all(|tokens| *tokens == s)
}

/// Where the chunk starts and ends in each sequence, unless it is [`aligned`].
pub(super) fn unequal(held: Vec<usize>, new: &[usize], s: usize) -> Option<[Vec<usize>; 2]> {
    let totals = held.iter().zip(new).map(|(held, new)| held + new).collect();
    (!aligned(&held, new, s)).then_some([held, totals])
}

impl KvCache {
    /// Whether a gradient flows into the cached tokens.
    pub(super) fn tracks_gradient(&self) -> bool {
        self.held() > 0 && self.buffers.iter().flatten().any(Tensor::track_op)
    }

    /// The window of a rotating cache.
    pub(super) fn window(&self) -> Option<usize> {
        match self.kind {
            CacheKind::Rotating(window) => Some(window),
            _ => None,
        }
    }

    /// The mask of a call on the keys of a chunk: `mask` within the window of the cache, and within each sequence, if
    /// they are [`unequal`](CachedKeys::unequal).
    pub(super) fn mask(&self, mask: &AttentionMask, unequal: Option<&[Vec<usize>; 2]>) -> AttentionMask {
        let mut mask = mask.clone();
        if let Some(window) = self.window() {
            mask = mask.and(AttentionMask::window(Some(window - 1), None));
        }
        match unequal {
            Some([starts, lengths]) => {
                let starts = starts.iter().map(|&start| start as i64).collect();
                mask.and(AttentionMask::lengths(lengths)).with_query_starts(starts)
            }
            None => mask,
        }
    }

    /// Checks a chunk of `s` tokens, of which `lengths` are not padding, and returns the new tokens of each sequence.
    pub(super) fn check_chunk(
        &self,
        of: TokenShape,
        device: &Device,
        s: usize,
        lengths: Option<&[usize]>,
    ) -> Result<Vec<usize>> {
        let b = of.b;
        if self.window() == Some(0) {
            return Err(Error::value("the window of a rotating cache", 0, "at least 1"));
        }
        let new = lengths.map_or_else(|| vec![s; b], <[usize]>::to_vec);
        if new.len() != b {
            return Err(Error::value("the number of lengths", new.len(), format!("{b}, the batch size")));
        }
        if let Some(length) = new.iter().find(|length| **length > s) {
            return Err(Error::value("a chunk's length", length, format!("at most {s}, its tokens")));
        }
        if let Some([keys, values]) = self.buffers.as_ref().filter(|_| !self.rows.is_empty()) {
            let held = TokenShape::of([keys, values])?;
            if !keys.device().same_device(device) {
                let [found, expected] = [device, keys.device()].map(|device| format!("{:?}", device.location()));
                return Err(Error::Device { tensor: "a call with a cache".to_string(), found, expected });
            }
            if held != of {
                let expected = format!("as in the cache, {}", held.describe());
                return Err(Error::value("a call with a cache", of.describe(), expected));
            }
        }
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
    pub(super) fn rows_of(&self, b: usize) -> Vec<Row> {
        if self.rows.is_empty() { vec![Row::default(); b] } else { self.rows.clone() }
    }

    /// Adds keys and values `(b, s, h_kv, d)`, of which the first `new` of each sequence are not padding. `rotated`: the
    /// length of each sequence for which the keys are rotated; `positions`: where the tokens stand, if the call says it;
    /// `tracked`: whether the call tracks a gradient, of the keys or of anything else.
    pub(super) fn append(
        &mut self,
        [k, v]: [Tensor; 2],
        new: &[usize],
        rotated: &[usize],
        positions: Option<&ExplicitPositions>,
        tracked: bool,
    ) -> Result<CachedKeys> {
        let mut rows = self.rows_of(new.len());
        let held: Vec<usize> = rows.iter().map(|row| row.held).collect();
        let totals: Vec<usize> = held.iter().zip(new).map(|(held, new)| held + new).collect();
        let window = self.window();
        let kept: Vec<usize> = totals.iter().map(|&total| total.min(window.unwrap_or(total))).collect();
        let longest = held.iter().copied().max().unwrap_or(0);
        let cached = self.buffers.as_ref().filter(|_| longest > 0);
        // For a gradient tokens are concatenated instead of written in place, which a graph does not notice.
        let tracked = tracked || [&k, &v].into_iter().chain(cached.into_iter().flatten()).any(Tensor::track_op);
        self.in_graph |= tracked;
        let s = k.dim(1)?;
        let fits = window.is_none_or(|window| aligned(&held, new, s) && s <= slack(window));
        let [keys, values] = if fits && !tracked {
            self.write([&k, &v], &held, new)?
        } else {
            let join = |i: usize, chunk: &Tensor| {
                let old = cached.map(|buffers| buffers[i].narrow(1, self.first, longest)).transpose()?;
                keys::join(old.as_ref(), chunk, &held, new)
            };
            let all = [join(0, &k)?, join(1, &v)?];
            self.buffers = Some([keys::last(&all[0], &totals, &kept)?, keys::last(&all[1], &totals, &kept)?]);
            self.first = 0;
            all
        };
        if fits && !tracked {
            // All sequences of a rotating cache drop as many tokens here, those of another one none.
            self.first += totals.first().zip(kept.first()).map_or(0, |(total, kept)| total - kept);
        }
        for (i, row) in rows.iter_mut().enumerate() {
            row.add(new[i], |token| positions.map(|positions| positions.largest(i, token)));
            row.dropped += totals[i] - kept[i];
            row.held = kept[i];
            // Without a new token the cached keys stay as they are, also behind a `truncate`.
            if new[i] > 0 {
                row.rotated_for = rotated[i];
            }
        }
        self.rows = rows;
        let unequal = unequal(held, new, s);
        Ok(CachedKeys { keys, values, unequal })
    }

    /// Writes the chunk behind the tokens that the sequences hold, and returns all tokens.
    fn write(&mut self, chunk: [&Tensor; 2], held: &[usize], new: &[usize]) -> Result<[Tensor; 2]> {
        let columns = held.iter().zip(new).map(|(held, new)| held + new).max().unwrap_or(0);
        let buffers = self.reserve(chunk, columns)?;
        let s = chunk[0].dim(1)?;
        for (to, from) in buffers.iter().zip(chunk) {
            let from = from.contiguous()?;
            if aligned(held, new, s) {
                // Without sequences there are no columns either.
                if let Some(held) = held.first().filter(|_| s > 0) {
                    to.slice_set(&from, 1, self.first + held)?;
                }
                continue;
            }
            for (row, (&held, &new)) in held.iter().zip(new).enumerate().filter(|(_, (_, new))| **new > 0) {
                let from = from.narrow(0, row, 1)?.narrow(1, 0, new)?;
                to.narrow(0, row, 1)?.slice_set(&from, 1, self.first + held)?;
            }
        }
        let [keys, values] = buffers;
        Ok([keys.narrow(1, self.first, columns)?, values.narrow(1, self.first, columns)?])
    }

    /// Buffers with room for `tokens` tokens like those of the chunk from the first one on, with what is cached.
    fn reserve(&mut self, chunk: [&Tensor; 2], tokens: usize) -> Result<[Tensor; 2]> {
        let of = TokenShape::of(chunk)?;
        let usable = |[keys, values]: &[Tensor; 2]| {
            // After a reset they may be those of another batch or device.
            let alike = matches!(TokenShape::of([keys, values]), Ok(old) if old == of);
            alike && keys.device().same_device(chunk[0].device()) && !self.in_graph
        };
        let held = self.held();
        let columns = self.buffers.as_ref().filter(|buffers| usable(buffers)).map_or(0, |[keys, _]| keys.dims()[1]);
        if held == 0 {
            self.first = 0;
        }
        let buffers = match &self.buffers {
            Some(buffers) if columns >= self.first + tokens && columns > 0 => buffers.clone(),
            old => {
                let columns = match self.kind {
                    CacheKind::Fixed(capacity) => capacity,
                    CacheKind::Rotating(window) => {
                        let largest = window.saturating_add(slack(window));
                        tokens.saturating_mul(2).max(INITIAL_CAPACITY).min(largest)
                    }
                    CacheKind::Growing => tokens.max(columns.saturating_mul(2)).max(INITIAL_CAPACITY),
                };
                check_memory(&of, columns, chunk[0].device())?;
                let larger = |i: usize| {
                    let (b, _, h, d) = chunk[i].dims4()?;
                    let new = Tensor::zeros((b, columns, h, d), chunk[i].dtype(), chunk[i].device())?;
                    if let Some(old) = old.as_ref().filter(|_| held > 0) {
                        new.slice_set(&old[i].narrow(1, self.first, held)?.contiguous()?, 1, 0)?;
                    }
                    Ok::<_, Error>(new)
                };
                let larger = [larger(0)?, larger(1)?];
                self.first = 0;
                larger
            }
        };
        self.buffers = Some(buffers.clone());
        self.in_graph = false;
        Ok(buffers)
    }
}
