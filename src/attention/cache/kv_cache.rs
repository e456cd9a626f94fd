//! The key-value cache of one layer: its kinds, the tokens in it, and changes of them.

use std::fmt;
use std::ops::Range;

use candle_core::{DType, Tensor};

use crate::error::{Error, Result};
use crate::tensor::{check_tensor_memory, select};

/// Cached keys and values of a layer's earlier tokens, for sequences that run in chunks of any size.
///
/// A cache belongs to one layer and one batch. It is filled by calls over inputs
/// [with this cache](crate::AttentionInputs::with_cache).
///
/// # Result
/// Chunks give the result of one call over all tokens. In f32 the bits are the same on the CPU, for a layer whose
/// weights are not variables. A cache holds keys and values in the dtype of the layer. Single calls keep them in f32
/// where the layer is f16, or bf16 on a processor without bf16 instructions; there the results differ by the rounding
/// of keys, values and queries to the layer's dtype, which is what PyTorch does in every call. All chunkings of a
/// sequence have the same bits.
///
/// # Positions that depend on the length
/// With [`RotaryScaling::LongRope`](crate::position::RotaryScaling) and `Dynamic` the rotation of *all* keys changes
/// when the sequence becomes longer than the original maximum. Cached keys were rotated for the shorter sequence. Such
/// a call is [`Error::CachedRotation`] and leaves the cache as it was: [`reset`](Self::reset) it and run all tokens
/// again, in one call. LongRoPE changes once, and the cache continues from there. Dynamic scaling changes with every
/// token beyond the original maximum, so that every such call runs all tokens.
///
/// # Memory
/// `2 · b · tokens · num_key_value_heads · head_dim` elements of the layer's dtype. A growing cache allocates up to
/// twice as much, a rotating one up to twice its window. Calls that track a gradient concatenate tokens instead of
/// writing them in place.
///
/// ```
/// use candle_attention::{
///     AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, KvCache, MultiHeadAttention,
/// };
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
///     let inputs = AttentionInputs::self_attention(&xs, &mask).with_cache(&mut cache);
///     assert_eq!(layer.attend_with(&inputs, &options)?.output.dims(), [1, 1, 8]);
/// }
/// assert_eq!(cache.len(), 5);
/// // Speculative decoding: the last two tokens were rejected.
/// cache.truncate(3)?;
/// // Beam search: both beams continue the only sequence.
/// cache.select_sequences(&[0, 0])?;
/// assert_eq!(cache.lengths(), [3, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct KvCache {
    pub(super) kind: CacheKind,
    /// Keys and values, `(b, columns, h_kv, d)` each. Sequence `i` has its kept tokens in the columns
    /// `first .. first + sequences[i].retained`.
    pub(super) buffers: Option<[Tensor; 2]>,
    /// 0 but in a rotating cache.
    pub(super) first: usize,
    /// One per sequence; empty before the first call.
    pub(super) sequences: Vec<Sequence>,
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
pub(in crate::attention) struct Sequence {
    /// Tokens kept.
    pub retained: usize,
    /// Tokens that a rotating cache dropped, all before those that it keeps.
    pub dropped: usize,
    /// For each token seen, one more than the largest position so far; `None` as long as positions are 0, 1, 2, ….
    pub ends: Option<Vec<usize>>,
    /// The length of the sequence for which the kept keys are rotated.
    pub rotated_for: usize,
}

impl Sequence {
    pub(super) fn seen(&self) -> usize {
        self.dropped + self.retained
    }

    /// Takes note of the positions of `new` more tokens, before they are counted as kept. `position` is `None` for
    /// tokens that follow each other.
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
    pub(in crate::attention) fn next_position(&self) -> usize {
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
        Self { kind, buffers: None, first: 0, sequences: Vec::new(), in_graph: false }
    }

    /// Tokens seen so far in the longest sequence, including those that a rotating cache dropped.
    pub fn len(&self) -> usize {
        self.sequences.iter().map(Sequence::seen).max().unwrap_or(0)
    }

    /// Whether no token was seen yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tokens seen so far in each sequence of the batch; empty before the first call.
    pub fn lengths(&self) -> Vec<usize> {
        self.sequences.iter().map(Sequence::seen).collect()
    }

    /// Tokens kept in the longest sequence: [`len`](Self::len), but at most the window of a rotating cache.
    pub fn retained_len(&self) -> usize {
        self.sequences.iter().map(|sequence| sequence.retained).max().unwrap_or(0)
    }

    /// The tokens of sequence `sequence` that are kept, counted from the first one that it has seen; `None` if there is
    /// no such sequence. The first columns of the mask of the next call are these tokens, the following are new ones.
    pub fn retained_range(&self, sequence: usize) -> Option<Range<usize>> {
        self.sequences.get(sequence).map(|sequence| sequence.dropped..sequence.seen())
    }

    /// The most tokens per sequence that the cache keeps: the capacity of a fixed cache, the window of a rotating one;
    /// `None` for a growing one.
    pub fn capacity(&self) -> Option<usize> {
        match self.kind {
            CacheKind::Growing => None,
            CacheKind::Fixed(tokens) | CacheKind::Rotating(tokens) => Some(tokens),
        }
    }

    /// The number of keys that the next call attends to, which is the number of columns of its mask. `new` is the
    /// number of new tokens: one for the whole batch, or one per sequence.
    ///
    /// It is the largest sum of kept and new tokens of a sequence. Without a rotating cache and with sequences of one
    /// length it is [`len`](Self::len) and the new tokens.
    pub fn mask_columns(&self, new: &[usize]) -> usize {
        let sequences = self.sequences.len().max(new.len());
        let retained = |i: usize| self.sequences.get(i).map_or(0, |sequence| sequence.retained);
        let added = |i: usize| new.get(if new.len() == 1 { 0 } else { i }).copied().unwrap_or(0);
        (0..sequences).map(|i| retained(i).saturating_add(added(i))).max().unwrap_or(0)
    }

    /// Keeps the first `len` tokens of each sequence and forgets those after them, as speculative decoding needs it. A
    /// sequence of fewer tokens stays as it is. Nothing is copied.
    ///
    /// A rotating cache has only the tokens of the last window. Until it drops one, it can be truncated to any length.
    /// Afterwards the tokens that the next query sees still have to be there, which leaves at most one token to remove.
    ///
    /// # Errors
    /// A rotating cache has dropped tokens that a sequence of `len` tokens sees. The cache is unchanged then.
    pub fn truncate(&mut self, len: usize) -> Result<()> {
        let lengths: Vec<usize> = self.sequences.iter().map(|sequence| sequence.seen().min(len)).collect();
        self.truncate_sequences(&lengths)
    }

    /// [`truncate`](Self::truncate) with a length for each sequence.
    ///
    /// # Errors
    /// The errors of [`truncate`](Self::truncate), another number of lengths than sequences, or a length of more tokens
    /// than the sequence has. The cache is unchanged then.
    pub fn truncate_sequences(&mut self, lengths: &[usize]) -> Result<()> {
        if lengths.len() != self.sequences.len() {
            let expected = format!("{}, the sequences in the cache", self.sequences.len());
            return Err(Error::value("the number of lengths", lengths.len(), expected));
        }
        for (i, (sequence, &len)) in self.sequences.iter().zip(lengths).enumerate() {
            let Sequence { dropped, .. } = *sequence;
            if len > sequence.seen() {
                let expected = format!("at most {}, the tokens of the sequence", sequence.seen());
                return Err(Error::value(format!("lengths[{i}]"), len, expected));
            }
            if let CacheKind::Rotating(window) = self.kind
                && dropped > 0
                && len < dropped.saturating_add(window - 1)
            {
                let least = dropped.saturating_add(window - 1);
                let expected = format!("at least {least}: the cache has dropped the first {dropped} tokens");
                return Err(Error::value(format!("the length of sequence {i} in a rotating cache"), len, expected));
            }
        }
        for (sequence, &len) in self.sequences.iter_mut().zip(lengths) {
            sequence.retained = len - sequence.dropped;
            sequence.ends.iter_mut().for_each(|ends| ends.truncate(len));
        }
        Ok(())
    }

    /// Makes the batch consist of these sequences, in this order: beams that continue another one, a batch without
    /// its finished sequences. A sequence may be repeated.
    ///
    /// ```text
    /// cache.select_sequences(&[0, 0, 2])  // the second beam now continues the first one
    /// cache.select_sequences(&[0, 2])     // sequence 1 is finished
    /// ```
    ///
    /// # Errors
    /// No sequence at all, or one that is not in the cache. The cache is unchanged then.
    pub fn select_sequences(&mut self, sequences: &[usize]) -> Result<()> {
        check_sequences(sequences, self.sequences.len())?;
        if sequences.iter().copied().eq(0..self.sequences.len()) {
            return Ok(());
        }
        if let Some([keys, values]) = &self.buffers {
            let [each, of_value] = [keys, values].map(|t| t.dims()[1..].iter().product::<usize>());
            let what = "the number of sequences to select";
            check_tensor_memory(
                what,
                sequences.len(),
                &[sequences.len(), each + of_value],
                keys.dtype(),
                keys.device(),
            )?;
            self.buffers = Some([select(keys, sequences, 0)?, select(values, sequences, 0)?]);
        }
        self.sequences = sequences.iter().map(|&sequence| self.sequences[sequence].clone()).collect();
        Ok(())
    }

    /// Cuts a mask over all tokens to those that the next call attends to: `(b or 1, …, tokens)`, where the last
    /// dimension counts every token that a sequence has seen and the `new` ones, → `(b, …, columns)` with
    /// [`mask_columns`](Self::mask_columns) columns. Without a rotating cache this changes nothing but the dimensions
    /// of size 1 and padding.
    ///
    /// `new` is the number of new tokens: one for the whole batch, or one per sequence. Columns after the end of a
    /// shorter sequence are 0.
    ///
    /// # Errors
    /// The mask has another batch, or another number of tokens than the longest sequence with its new ones.
    pub fn select_columns(&self, mask: &Tensor, new: &[usize]) -> Result<Tensor> {
        let added = |i: usize| new.get(if new.len() == 1 { 0 } else { i }).copied().unwrap_or(0);
        let dims = mask.dims();
        // Before the first call nothing but the mask tells the batch size.
        let sequences = match self.sequences.len().max(new.len()) {
            1 if self.sequences.is_empty() => dims.first().copied().unwrap_or(1),
            sequences => sequences,
        };
        let sequence = |i: usize| self.sequences.get(i).cloned().unwrap_or_default();
        // A sum that saturates is no tensor's size. A batch without sequences has as many columns as one with them.
        let tokens =
            (0..sequences.max(new.len())).map(|i| sequence(i).seen().saturating_add(added(i))).max().unwrap_or(0);
        let batch = matches!(dims.first(), Some(b) if *b == 1 || *b == sequences);
        if mask.rank() < 2 || !batch || dims.last() != Some(&tokens) || tokens == usize::MAX {
            return Err(Error::shape("the mask", dims, format!("({sequences} or 1, …, {tokens})")));
        }
        let columns = self.mask_columns(new);
        let last = mask.rank() - 1;
        let of = |i: usize| {
            let mask = if dims[0] == 1 { mask.clone() } else { mask.narrow(0, i, 1)? };
            let Sequence { dropped, retained, .. } = sequence(i);
            let own = mask.narrow(last, dropped, retained + added(i))?;
            Ok::<_, Error>(own.pad_with_zeros(last, 0, columns - retained - added(i))?)
        };
        let cut = (0..sequences).map(of).collect::<Result<Vec<_>>>()?;
        match cut.first() {
            Some(_) => Ok(Tensor::cat(&cut, 0)?),
            None => Ok(mask.to_dtype(DType::U8)?),
        }
    }

    /// Removes all tokens. The memory stays allocated, and the next call may have another batch.
    pub fn reset(&mut self) {
        self.sequences.clear();
    }

    /// Calls `f`. If it fails, the cache is as before: the same tokens in the same memory.
    pub(in crate::attention) fn or_unchanged<T>(&mut self, f: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let before = self.snapshot();
        let result = f(self);
        if result.is_err() {
            *self = before;
        }
        result
    }

    fn snapshot(&self) -> Self {
        Self { buffers: self.buffers.clone(), sequences: self.sequences.clone(), ..*self }
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
            .field("sequences", &self.sequences.len())
            .field("len", &self.len())
            .field("retained_len", &self.retained_len())
            .field("dtype", &self.buffers.as_ref().map(|[keys, _]| keys.dtype()))
            .finish_non_exhaustive()
    }
}

/// Checks that these are sequences of a batch of `b`.
pub(super) fn check_sequences(sequences: &[usize], b: usize) -> Result<()> {
    if sequences.is_empty() {
        return Err(Error::value("the list of sequences to select", "empty", "at least one"));
    }
    match sequences.iter().find(|sequence| **sequence >= b) {
        Some(sequence) => {
            Err(Error::value("a sequence to select", sequence, format!("less than {b}, the sequences in the cache")))
        }
        None => Ok(()),
    }
}
