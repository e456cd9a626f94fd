//! The key-value cache of one layer: its kinds, and what it tells about its tokens.

use std::fmt;
use std::ops::Range;

use candle_core::Tensor;

use crate::error::{Error, Result};

/// Cached keys and values of a layer's earlier tokens, for sequences that run in chunks of any size.
///
/// A cache belongs to one layer and one batch. It is filled by
/// [`MultiHeadAttention::attend_cached`](crate::MultiHeadAttention::attend_cached).
///
/// # Result
/// Chunks give the result of one call over all tokens. In f32 the bits are the same on the CPU, for a layer whose weights
/// are not variables. A cache holds keys and values in the dtype of the layer. Single calls keep them in f32 where the
/// layer is f16, or bf16 on a processor without bf16 instructions; there the results differ by the rounding of keys,
/// values and queries to the layer's dtype, which is what PyTorch does in every call. All chunkings of a sequence have
/// the same bits.
///
/// # Positions that depend on the length
/// With [`RotaryScaling::LongRope`](crate::position::RotaryScaling) and `Dynamic` the rotation of *all* keys changes
/// when the sequence becomes longer than the original maximum. Cached keys were rotated for the shorter sequence. Such
/// a call is [`Error::CachedRotation`] and leaves the cache as it was: [`reset`](Self::reset) it and run all tokens
/// again, in one call. LongRoPE changes once, and the cache continues from there. Dynamic scaling changes with every
/// token beyond the original maximum, so that every such call runs all tokens.
///
/// # Memory
/// `2 · b · tokens · num_key_value_heads · head_dim` elements of the layer's dtype. A growing cache allocates up to twice
/// as much, a rotating one up to twice its window. Calls that track a gradient concatenate tokens instead of writing
/// them in place.
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
/// // Speculative decoding: the last two tokens were rejected.
/// cache.truncate(3)?;
/// // Beam search: both beams continue the only sequence.
/// cache.select_rows(&[0, 0])?;
/// assert_eq!(cache.lengths(), [3, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct KvCache {
    pub(super) kind: CacheKind,
    /// Keys and values, `(b, columns, h_kv, d)` each. Sequence `i` has its kept tokens in the columns
    /// `first .. first + rows[i].held`.
    pub(super) buffers: Option<[Tensor; 2]>,
    /// 0 but in a rotating cache.
    pub(super) first: usize,
    /// One per sequence; empty before the first call.
    pub(super) rows: Vec<Row>,
    /// Whether a call tracked a gradient: its graph may hold the buffers, which nothing is written into any more.
    pub(super) in_graph: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CacheKind {
    Growing,
    Fixed(usize),
    Rotating(usize),
}

/// What is cached of one sequence.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Row {
    /// Tokens kept.
    pub held: usize,
    /// Tokens that a rotating cache dropped, all before those that it keeps.
    pub dropped: usize,
    /// For each token seen, one more than the largest position so far; `None` as long as positions are 0, 1, 2, ….
    pub ends: Option<Vec<usize>>,
    /// The length of the sequence for which the kept keys are rotated.
    pub rotated_for: usize,
}

impl Row {
    pub(super) fn seen(&self) -> usize {
        self.dropped + self.held
    }

    /// Takes note of the positions of `new` more tokens, before they are counted as held. `position` is `None` for tokens
    /// that follow each other.
    pub(super) fn add(&mut self, new: usize, position: impl Fn(usize) -> Option<usize>) {
        let (seen, mut end) = (self.seen(), self.next_position());
        for token in 0..new {
            let next = position(token).map_or(end + 1, |position| end.max(position.saturating_add(1)));
            if self.ends.is_none() && next != seen + token + 1 {
                self.ends = Some((1..=seen + token).collect());
            }
            self.ends.iter_mut().for_each(|ends| ends.push(next));
            end = next;
        }
    }

    /// The position of the next token.
    pub(super) fn next_position(&self) -> usize {
        self.ends.as_ref().map_or_else(|| self.seen(), |ends| ends.last().copied().unwrap_or(0))
    }
}

impl KvCache {
    /// A cache of all tokens, whose memory doubles when it is full.
    pub fn growing() -> Self {
        Self::new(CacheKind::Growing)
    }

    /// A cache of up to `capacity` tokens per sequence, allocated once, at the first call; more tokens are
    /// [`Error::CacheFull`]. A capacity of more than 2^30 tokens, or of more than fit into memory, is an error of that
    /// call.
    pub fn fixed(capacity: usize) -> Self {
        Self::new(CacheKind::Fixed(capacity))
    }

    /// A cache of the last `window` tokens, for layers with a sliding window. A query attends to itself and to the
    /// `window - 1` tokens before it, whatever the mask, so that the result does not depend on the size of the chunks.
    /// A window of 0 is an error at the first call.
    ///
    /// A call attends to the kept tokens and the new ones; a mask that is a tensor has
    /// [`mask_columns`](Self::mask_columns) columns, and [`select_columns`](Self::select_columns) cuts them from a mask
    /// over all tokens. [`causal`](crate::AttentionMask::causal) and windows need no change.
    pub fn rotating(window: usize) -> Self {
        Self::new(CacheKind::Rotating(window))
    }

    fn new(kind: CacheKind) -> Self {
        Self { kind, buffers: None, first: 0, rows: Vec::new(), in_graph: false }
    }

    /// Tokens seen so far in the longest sequence, including those that a rotating cache dropped.
    pub fn len(&self) -> usize {
        self.rows.iter().map(Row::seen).max().unwrap_or(0)
    }

    /// Whether no token was seen yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tokens seen so far in each sequence of the batch; empty before the first call.
    pub fn lengths(&self) -> Vec<usize> {
        self.rows.iter().map(Row::seen).collect()
    }

    /// Tokens kept in the longest sequence: [`len`](Self::len), but at most the window of a rotating cache.
    pub fn held(&self) -> usize {
        self.rows.iter().map(|row| row.held).max().unwrap_or(0)
    }

    /// The tokens of sequence `row` that are kept, counted from the first one that it has seen; `None` if there is no
    /// such sequence. The first columns of the mask of the next call are these tokens, the following are new ones.
    pub fn held_tokens(&self, row: usize) -> Option<Range<usize>> {
        self.rows.get(row).map(|row| row.dropped..row.seen())
    }

    /// The most tokens per sequence that the cache keeps: the capacity of a fixed cache, the window of a rotating one;
    /// `None` for a growing one.
    pub fn capacity(&self) -> Option<usize> {
        match self.kind {
            CacheKind::Growing => None,
            CacheKind::Fixed(tokens) | CacheKind::Rotating(tokens) => Some(tokens),
        }
    }

    /// The number of keys that the next call attends to, which is the number of columns of its mask. `new` is the number
    /// of new tokens: one for the whole batch, or one per sequence.
    ///
    /// It is the largest sum of kept and new tokens of a sequence. Without a rotating cache and with sequences of one
    /// length it is [`len`](Self::len) and the new tokens.
    pub fn mask_columns(&self, new: &[usize]) -> usize {
        let sequences = self.rows.len().max(new.len());
        let held = |i: usize| self.rows.get(i).map_or(0, |row| row.held);
        let added = |i: usize| new.get(if new.len() == 1 { 0 } else { i }).copied().unwrap_or(0);
        (0..sequences).map(|i| held(i).saturating_add(added(i))).max().unwrap_or(0)
    }

    /// Removes all tokens. The memory stays allocated, and the next call may have another batch.
    pub fn reset(&mut self) {
        self.rows.clear();
    }

    /// The same tokens in the same memory, to return to if a call fails.
    pub(super) fn snapshot(&self) -> Self {
        Self { buffers: self.buffers.clone(), rows: self.rows.clone(), ..*self }
    }

    /// An independent copy with buffers of its own.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn try_clone(&self) -> Result<Self> {
        let copy = |[k, v]: &[Tensor; 2]| Ok::<_, Error>([k.copy()?, v.copy()?]);
        let buffers = self.buffers.as_ref().map(copy).transpose()?;
        Ok(Self { buffers, ..self.snapshot() })
    }
}

/// One line, whatever the number of sequences and tokens.
impl fmt::Debug for KvCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvCache")
            .field("kind", &self.kind)
            .field("sequences", &self.rows.len())
            .field("len", &self.len())
            .field("held", &self.held())
            .field("dtype", &self.buffers.as_ref().map(|[keys, _]| keys.dtype()))
            .finish_non_exhaustive()
    }
}
