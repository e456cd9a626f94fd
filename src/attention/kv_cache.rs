use candle_core::{DType, Tensor};

use crate::error::{Error, Result};

/// The keys and values of a layer's earlier tokens, so that a sequence can be run in chunks of any sizes with the result
/// that it has in one.
///
/// One cache belongs to one layer and one batch. [`MultiHeadAttention::attend_cached`](crate::MultiHeadAttention::attend_cached)
/// fills it.
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
    kind: Kind,
    /// `(b, room, h_kv, d)` each, of which the first `held` are filled.
    buffers: Option<[Tensor; 2]>,
    held: usize,
    /// Tokens seen, those dropped included.
    seen: usize,
    /// Tokens of each row, where they differ.
    rows: Option<Vec<usize>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Growing,
    Fixed(usize),
    Rotating(usize),
    Cross,
}

/// What a chunk attends to.
pub(crate) struct Held {
    pub keys: Tensor,
    pub values: Tensor,
    /// Where the chunk's first token stands among the keys, a row; `None`: it ends at the last key in every row.
    pub starts: Option<Vec<usize>>,
    /// The keys of each row, where they differ.
    pub lengths: Option<Vec<usize>>,
}

impl KvCache {
    /// Holds every token; its memory doubles when it is full.
    pub fn growing() -> Self {
        Self::new(Kind::Growing)
    }

    /// Holds up to `capacity` tokens in memory that is taken once; more are an error.
    pub fn fixed(capacity: usize) -> Self {
        Self::new(Kind::Fixed(capacity))
    }

    /// Holds the last `window` tokens, for layers with a sliding window: a query sees itself and the `window - 1` tokens
    /// before it, whatever the mask, so that the result does not depend on the chunks. A window of 0, in which a query
    /// would not see itself, is an error at the first call.
    pub fn rotating(window: usize) -> Self {
        Self::new(Kind::Rotating(window))
    }

    /// Holds the keys and values of a memory, for cross-attention: made at the first call, used by all others, which must
    /// come with the same memory.
    pub fn cross() -> Self {
        Self::new(Kind::Cross)
    }

    fn new(kind: Kind) -> Self {
        Self { kind, buffers: None, held: 0, seen: 0, rows: None }
    }

    /// Tokens seen so far, in the longest row; those that a rotating cache dropped count.
    pub fn len(&self) -> usize {
        self.seen
    }

    /// Whether nothing was seen yet.
    pub fn is_empty(&self) -> bool {
        self.seen == 0
    }

    /// Tokens seen so far in each row of a batch of `b`.
    pub fn lengths(&self, b: usize) -> Vec<usize> {
        self.rows.clone().unwrap_or_else(|| vec![self.seen; b])
    }

    /// Forgets everything; memory is kept.
    pub fn reset(&mut self) {
        (self.held, self.seen, self.rows) = (0, 0, None);
        if self.kind == Kind::Cross {
            self.buffers = None;
        }
    }

    /// A copy that is filled for itself, as beam search needs it.
    ///
    /// # Errors
    /// If the device has no memory for it.
    pub fn copy(&self) -> Result<Self> {
        let copy = |[k, v]: &[Tensor; 2]| Ok::<_, Error>([k.copy()?, v.copy()?]);
        let buffers = self.buffers.as_ref().map(copy).transpose()?;
        Ok(Self { buffers, rows: self.rows.clone(), ..*self })
    }

    /// The keys that a chunk of `s` tokens will attend to.
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

    /// The dtype of what is held.
    pub(crate) fn dtype(&self) -> Option<DType> {
        self.buffers.as_ref().filter(|_| self.held > 0).map(|[keys, _]| keys.dtype())
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// The keys and values of cross-attention, if they were made.
    pub(crate) fn memory(&self) -> Option<&[Tensor; 2]> {
        self.buffers.as_ref()
    }

    /// Keeps the keys and values of cross-attention.
    pub(crate) fn keep_memory(&mut self, made: [Tensor; 2]) {
        self.held = made[0].dims()[1];
        self.seen = self.held;
        self.buffers = Some(made);
    }

    /// Adds the keys and values of a chunk, `(b, s, h_kv, d)`; `lengths`: the tokens of each row that are none of padding.
    pub(crate) fn append(&mut self, k: Tensor, v: Tensor, lengths: Option<&[usize]>) -> Result<Held> {
        let (b, s, ..) = k.dims4()?;
        self.check(&k, lengths)?;
        let uneven = self.rows.is_some() || lengths.is_some_and(|lengths| lengths.iter().any(|&n| n != s));
        // What is held may carry a gradient though the chunk does not.
        let held = self.buffers.iter().flatten().any(Tensor::track_op) && self.held > 0;
        let tracked = k.track_op() || v.track_op() || held;
        if uneven && tracked {
            let expected = "inference: a cache of rows of unequal length is written in place";
            return Err(Error::value("a cached key", "one that tracks a gradient", expected));
        }
        if uneven {
            return self.append_rows(&k, &v, &lengths.map_or_else(|| vec![s; b], <[usize]>::to_vec));
        }
        match self.kind {
            Kind::Rotating(window) => return self.join(&k, &v, window),
            // Joined, not written in place: the gradient goes through.
            _ if tracked => {
                self.check_room(self.held + s)?;
                return self.join(&k, &v, usize::MAX);
            }
            _ => {}
        }
        self.make_room(&k, &v, self.held + s)?;
        let [keys, values] = self.filled()?;
        if s > 0 {
            keys.slice_set(&k.contiguous()?, 1, self.held)?;
            values.slice_set(&v.contiguous()?, 1, self.held)?;
        }
        self.held += s;
        self.seen += s;
        Ok(Held {
            keys: keys.narrow(1, 0, self.held)?,
            values: values.narrow(1, 0, self.held)?,
            starts: None,
            lengths: None,
        })
    }

    /// Each row's tokens follow its own.
    fn append_rows(&mut self, k: &Tensor, v: &Tensor, lengths: &[usize]) -> Result<Held> {
        if matches!(self.kind, Kind::Rotating(_)) {
            return Err(Error::value("a rotating cache's rows", "rows of unequal length", "rows of one length"));
        }
        let (k, v) = (k.contiguous()?, v.contiguous()?);
        let starts = self.lengths(lengths.len());
        let ends: Vec<usize> = starts.iter().zip(lengths).map(|(start, length)| start + length).collect();
        let longest = ends.iter().copied().max().unwrap_or(0);
        self.make_room(&k, &v, longest)?;
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
        Ok(Held { keys, values, starts: Some(starts), lengths: Some(ends) })
    }

    /// Joins a chunk to what is held, and holds the last `window` tokens of both.
    fn join(&mut self, k: &Tensor, v: &Tensor, window: usize) -> Result<Held> {
        let [keys, values] = match &self.buffers {
            Some([keys, values]) if self.held > 0 => {
                let join = |old: &Tensor, new: &Tensor| Tensor::cat(&[&old.narrow(1, 0, self.held)?, new], 1);
                [join(keys, k)?, join(values, v)?]
            }
            _ => [k.clone(), v.clone()],
        };
        let all = keys.dim(1)?;
        let kept = all.min(window);
        // A copy: a view would keep all of a long chunk in memory.
        let last =
            |t: &Tensor| if kept == all { Ok(t.clone()) } else { t.narrow(1, all - kept, kept)?.force_contiguous() };
        self.buffers = Some([last(&keys)?, last(&values)?]);
        self.seen += k.dim(1)?;
        self.held = kept;
        Ok(Held { keys, values, starts: None, lengths: None })
    }

    fn check_room(&self, tokens: usize) -> Result<()> {
        match self.kind {
            Kind::Fixed(capacity) if tokens > capacity => {
                let expected = format!("at most {capacity}, the capacity");
                Err(Error::value("the number of cached tokens", tokens, expected))
            }
            _ => Ok(()),
        }
    }

    fn check(&self, k: &Tensor, lengths: Option<&[usize]>) -> Result<()> {
        let (b, s, ..) = k.dims4()?;
        if self.kind == Kind::Rotating(0) {
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
            let held = format!("those of the cache's layer and batch, {:?} in {}", keys.dims(), keys.dtype().as_str());
            return Err(Error::value("a cached call", found, held));
        }
        Ok(())
    }

    /// Sees to it that there is room for `tokens`.
    fn make_room(&mut self, k: &Tensor, v: &Tensor, tokens: usize) -> Result<()> {
        self.check_room(tokens)?;
        let room = self.buffers.as_ref().map_or(0, |[keys, _]| keys.dims()[1]);
        // What was joined under a gradient is not written into.
        let tracked = self.buffers.as_ref().is_some_and(|[k, v]| k.track_op() || v.track_op());
        if room >= tokens && self.buffers.is_some() && !tracked {
            return Ok(());
        }
        const FIRST: usize = 64;
        let room = match self.kind {
            Kind::Fixed(capacity) => capacity,
            _ => tokens.max(2 * room).max(FIRST),
        };
        let larger = |like: &Tensor, old: Option<&Tensor>| {
            let (b, _, h, d) = like.dims4()?;
            let new = Tensor::zeros((b, room, h, d), like.dtype(), like.device())?;
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
