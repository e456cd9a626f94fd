//! Key-value caches for incremental decoding and cross-attention.

use candle_core::{DType, Tensor};

use crate::error::{Error, Result};

/// Cached keys and values of a layer's earlier tokens: a sequence can run in chunks of any size with the result of one
/// call.
///
/// A cache belongs to one layer and one batch. It is filled by
/// [`MultiHeadAttention::attend_cached`](crate::MultiHeadAttention::attend_cached).
///
/// ```
/// use candle_attention::{AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, KvCache, MultiHeadAttention};
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
///
/// let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu);
/// let layer = MultiHeadAttention::new(&AttentionConfig::new(8, 2), vb)?;
/// let xs = Tensor::randn(0f32, 1., (1, 5, 8), &Device::Cpu)?;
/// let (mask, options) = (AttentionMask::causal(), AttentionOptions::default());
/// let mut cache = KvCache::growing();
/// for token in 0..5 {
///     let xs = xs.narrow(1, token, 1)?;
///     let inputs = AttentionInputs::self_attention(&xs, &mask);
///     assert_eq!(layer.attend_cached(&inputs, &mut cache, &options)?.output.dims(), [1, 1, 8]);
/// }
/// assert_eq!(cache.len(), 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct KvCache {
    kind: CacheKind,
    /// Keys and values, `(b, capacity, h_kv, d)` each, of which the first `held` tokens are filled.
    buffers: Option<[Tensor; 2]>,
    held: usize,
    /// Tokens seen, including those that a rotating cache dropped.
    seen: usize,
    /// Tokens of each sequence, if they differ.
    rows: Option<Vec<usize>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CacheKind {
    Growing,
    Fixed(usize),
    Rotating(usize),
    Cross,
}

/// The keys and values that a chunk attends to.
pub(crate) struct CachedKeys {
    pub keys: Tensor,
    pub values: Tensor,
    /// The key at which the chunk starts, per sequence; `None` if the chunk ends at the last key in every sequence.
    pub starts: Option<Vec<usize>>,
    /// Keys of each sequence, if they differ.
    pub lengths: Option<Vec<usize>>,
}

impl KvCache {
    /// A cache of all tokens, whose memory doubles when it is full.
    pub fn growing() -> Self {
        Self::new(CacheKind::Growing)
    }

    /// A cache of up to `capacity` tokens, allocated once; more tokens are an error.
    pub fn fixed(capacity: usize) -> Self {
        Self::new(CacheKind::Fixed(capacity))
    }

    /// A cache of the last `window` tokens, for layers with a sliding window. A query attends to itself and to the
    /// `window - 1` tokens before it, whatever the mask, so that the result does not depend on the size of the chunks.
    /// A window of 0 is an error at the first call.
    pub fn rotating(window: usize) -> Self {
        Self::new(CacheKind::Rotating(window))
    }

    /// A cache for cross-attention: keys and values are projected at the first call and used by all others, which have
    /// to pass the same memory.
    pub fn cross() -> Self {
        Self::new(CacheKind::Cross)
    }

    fn new(kind: CacheKind) -> Self {
        Self { kind, buffers: None, held: 0, seen: 0, rows: None }
    }

    /// Tokens seen so far in the longest sequence, including those that a rotating cache dropped.
    pub fn len(&self) -> usize {
        self.seen
    }

    /// Whether no token was seen yet.
    pub fn is_empty(&self) -> bool {
        self.seen == 0
    }

    /// Tokens seen so far in each of the `b` sequences of the batch.
    pub fn lengths(&self, b: usize) -> Vec<usize> {
        self.rows.clone().unwrap_or_else(|| vec![self.seen; b])
    }

    /// Removes all tokens. The memory stays allocated, except for cross-attention.
    pub fn reset(&mut self) {
        (self.held, self.seen, self.rows) = (0, 0, None);
        if self.kind == CacheKind::Cross {
            self.buffers = None;
        }
    }

    /// An independent copy with buffers of its own, as beam search needs it.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn try_clone(&self) -> Result<Self> {
        let copy = |[k, v]: &[Tensor; 2]| Ok::<_, Error>([k.copy()?, v.copy()?]);
        let buffers = self.buffers.as_ref().map(copy).transpose()?;
        Ok(Self { buffers, rows: self.rows.clone(), ..*self })
    }

    /// The number of keys that a chunk of `s` tokens will attend to.
    pub(crate) fn keys_after(&self, s: usize, lengths: Option<&[usize]>) -> usize {
        match (&self.rows, lengths) {
            (None, lengths) if lengths.is_none_or(|lengths| lengths.iter().all(|&n| n == s)) => self.held + s,
            (rows, lengths) => {
                let b = rows.as_ref().map_or_else(|| lengths.map_or(0, <[usize]>::len), Vec::len);
                let added = |row: usize| lengths.and_then(|lengths| lengths.get(row).copied()).unwrap_or(s);
                self.lengths(b)
                    .iter()
                    .enumerate()
                    .map(|(row, start)| start.saturating_add(added(row)))
                    .max()
                    .unwrap_or(0)
            }
        }
    }

    /// The dtype of the cached tokens, if there are any.
    pub(crate) fn dtype(&self) -> Option<DType> {
        self.buffers.as_ref().filter(|_| self.held > 0).map(|[keys, _]| keys.dtype())
    }

    pub(crate) fn kind(&self) -> CacheKind {
        self.kind
    }

    /// Keys and values of cross-attention, after the first call.
    pub(crate) fn memory(&self) -> Option<&[Tensor; 2]> {
        self.buffers.as_ref()
    }

    /// Stores the keys and values of cross-attention.
    pub(crate) fn keep_memory(&mut self, made: [Tensor; 2]) {
        self.held = made[0].dims()[1];
        self.seen = self.held;
        self.buffers = Some(made);
    }

    /// Adds the keys and values of a chunk, `(b, s, h_kv, d)`. `lengths`: real (non-padding) tokens per sequence.
    pub(crate) fn append(&mut self, k: Tensor, v: Tensor, lengths: Option<&[usize]>) -> Result<CachedKeys> {
        let (b, s, ..) = k.dims4()?;
        self.check(&k, lengths)?;
        let uneven = self.rows.is_some() || lengths.is_some_and(|lengths| lengths.iter().any(|&n| n != s));
        // Cached tokens may track a gradient even if the chunk does not.
        let held = self.buffers.iter().flatten().any(Tensor::track_op) && self.held > 0;
        let tracked = k.track_op() || v.track_op() || held;
        if uneven && tracked {
            let expected = "one without: a cache of sequences of unequal length is written in place";
            return Err(Error::value("a cached key", "one that tracks a gradient", expected));
        }
        if uneven {
            return self.append_ragged(&k, &v, &lengths.map_or_else(|| vec![s; b], <[usize]>::to_vec));
        }
        match self.kind {
            CacheKind::Rotating(window) => return self.join(&k, &v, window),
            // Concatenated instead of written in place, so that gradients flow.
            _ if tracked => {
                self.check_capacity(self.held + s)?;
                return self.join(&k, &v, usize::MAX);
            }
            _ => {}
        }
        self.reserve(&k, &v, self.held + s)?;
        let [keys, values] = self.filled()?;
        if s > 0 {
            keys.slice_set(&k.contiguous()?, 1, self.held)?;
            values.slice_set(&v.contiguous()?, 1, self.held)?;
        }
        self.held += s;
        self.seen += s;
        Ok(CachedKeys {
            keys: keys.narrow(1, 0, self.held)?,
            values: values.narrow(1, 0, self.held)?,
            starts: None,
            lengths: None,
        })
    }

    /// Adds a chunk whose sequences have different lengths: each sequence continues at its own end.
    fn append_ragged(&mut self, k: &Tensor, v: &Tensor, lengths: &[usize]) -> Result<CachedKeys> {
        if matches!(self.kind, CacheKind::Rotating(_)) {
            return Err(Error::value(
                "the batch of a rotating cache",
                "sequences of unequal length",
                "sequences of one length",
            ));
        }
        let (k, v) = (k.contiguous()?, v.contiguous()?);
        let starts = self.lengths(lengths.len());
        let ends: Vec<usize> = starts.iter().zip(lengths).map(|(start, length)| start + length).collect();
        let longest = ends.iter().copied().max().unwrap_or(0);
        self.reserve(&k, &v, longest)?;
        let [keys, values] = self.filled()?;
        for (row, (&start, &length)) in starts.iter().zip(lengths).enumerate().filter(|(_, (_, length))| **length > 0) {
            for (to, from) in [(&keys, &k), (&values, &v)] {
                let from = from.narrow(0, row, 1)?.narrow(1, 0, length)?;
                to.narrow(0, row, 1)?.slice_set(&from, 1, start)?;
            }
        }
        (self.held, self.seen) = (longest, longest);
        self.rows = Some(ends.clone());
        let (keys, values) = (keys.narrow(1, 0, longest)?, values.narrow(1, 0, longest)?);
        Ok(CachedKeys { keys, values, starts: Some(starts), lengths: Some(ends) })
    }

    /// Concatenates the cached tokens and a chunk, and keeps the last `window` tokens.
    fn join(&mut self, k: &Tensor, v: &Tensor, window: usize) -> Result<CachedKeys> {
        let [keys, values] = match &self.buffers {
            Some([keys, values]) if self.held > 0 => {
                let join = |old: &Tensor, new: &Tensor| Tensor::cat(&[&old.narrow(1, 0, self.held)?, new], 1);
                [join(keys, k)?, join(values, v)?]
            }
            _ => [k.clone(), v.clone()],
        };
        let all = keys.dim(1)?;
        let kept = all.min(window);
        // A copy, because a view would keep all of a long chunk in memory.
        let last =
            |t: &Tensor| if kept == all { Ok(t.clone()) } else { t.narrow(1, all - kept, kept)?.force_contiguous() };
        self.buffers = Some([last(&keys)?, last(&values)?]);
        self.seen += k.dim(1)?;
        self.held = kept;
        Ok(CachedKeys { keys, values, starts: None, lengths: None })
    }

    fn check_capacity(&self, tokens: usize) -> Result<()> {
        match self.kind {
            CacheKind::Fixed(capacity) if tokens > capacity => Err(Error::CacheFull { tokens, capacity }),
            _ => Ok(()),
        }
    }

    fn check(&self, k: &Tensor, lengths: Option<&[usize]>) -> Result<()> {
        let (b, s, ..) = k.dims4()?;
        if self.kind == CacheKind::Rotating(0) {
            return Err(Error::value("the window of a rotating cache", 0, "at least 1"));
        }
        if let Some(lengths) = lengths {
            if lengths.len() != b {
                return Err(Error::value("the number of lengths", lengths.len(), format!("{b}, the batch size")));
            }
            if let Some(length) = lengths.iter().find(|length| **length > s) {
                return Err(Error::value("a chunk's length", length, format!("at most {s}, its tokens")));
            }
        }
        let Some([keys, _]) = &self.buffers else { return Ok(()) };
        if keys.dims()[0] != b || keys.dims()[2..] != k.dims()[2..] || keys.dtype() != k.dtype() {
            let found = format!("keys {:?} in {}", k.dims(), k.dtype().as_str());
            let held = format!("keys as in the cache, {:?} in {}", keys.dims(), keys.dtype().as_str());
            return Err(Error::value("a cached call", found, held));
        }
        Ok(())
    }

    /// Allocates buffers for at least `tokens` tokens, keeping what is cached.
    fn reserve(&mut self, k: &Tensor, v: &Tensor, tokens: usize) -> Result<()> {
        self.check_capacity(tokens)?;
        let capacity = self.buffers.as_ref().map_or(0, |[keys, _]| keys.dims()[1]);
        // Tensors that track a gradient are not written into.
        let tracked = self.buffers.as_ref().is_some_and(|[k, v]| k.track_op() || v.track_op());
        if capacity >= tokens && self.buffers.is_some() && !tracked {
            return Ok(());
        }
        /// Tokens of the first allocation.
        const INITIAL_CAPACITY: usize = 64;
        let capacity = match self.kind {
            CacheKind::Fixed(capacity) => capacity,
            _ => tokens.max(2 * capacity).max(INITIAL_CAPACITY),
        };
        let larger = |like: &Tensor, old: Option<&Tensor>| {
            let (b, _, h, d) = like.dims4()?;
            let new = Tensor::zeros((b, capacity, h, d), like.dtype(), like.device())?;
            if let Some(old) = old.filter(|_| self.held > 0) {
                new.slice_set(&old.narrow(1, 0, self.held)?.contiguous()?, 1, 0)?;
            }
            Ok::<_, Error>(new)
        };
        let old = self.buffers.as_ref();
        self.buffers = Some([larger(k, old.map(|[k, _]| k))?, larger(v, old.map(|[_, v]| v))?]);
        Ok(())
    }

    fn filled(&self) -> Result<[Tensor; 2]> {
        let missing = || Error::value("the cache", "empty", "buffers for the chunk");
        self.buffers.clone().ok_or_else(missing)
    }
}
