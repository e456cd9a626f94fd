//! The key-value cache of one layer: its kinds, the tokens in it, and changes of them.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Tensor};

use super::layer_id::LayerId;
use super::new_tokens::{NewTokens, TokenShape, check_memory};
use crate::ensure;
use crate::error::{Error, Result};
use crate::tensor::{check_tensor_memory, same_dtype_and_device, select, wide};

/// Cached keys and values of a layer's earlier tokens, for sequences that run in chunks of any size.
///
/// A cache belongs to one layer and one batch. It is filled by
/// [`MultiHeadAttention::step`](crate::MultiHeadAttention::step), by calls over inputs
/// [with this cache](crate::AttentionInputs::with_cache), or with keys and values of one's own by
/// [`append`](Self::append). As long as it holds a token, another layer is an error, and so is this layer after its
/// weights have changed: keys of old weights are not those that the new ones would give. Clones and frozen copies of
/// the layer are the same layer. Variables that keys and values are made with are compared with a copy of those of the
/// call before; a [frozen](crate::MultiHeadAttention::frozen) copy of the layer needs no comparison.
///
/// # Result
/// Chunks of a causal layer give the result of one call over all tokens. In f32 the bits are the same on the CPU, for a
/// layer whose weights are not variables. A cache holds keys and values in the dtype of the layer. Single calls keep
/// them in f32 where the layer is f16, or bf16 on a processor without bf16 instructions; there the results differ by
/// the rounding of keys, values and queries to the layer's dtype, which is what PyTorch does in every call. All
/// chunkings of a sequence have the same bits, except with [latent attention](crate::LatentAttention), where chunks of
/// a few tokens run in another form and agree to rounding.
///
/// # Positions that depend on the length
/// With [`RotaryScaling::LongRope`](crate::position::RotaryScaling) and `Dynamic` the rotation of *all* keys changes
/// when the sequence becomes longer than the original maximum. Cached keys were rotated for the shorter sequence. Such
/// a call is [`Error::CachedRotation`] and leaves the cache as it was: [`reset`](Self::reset) it and run all tokens
/// again, in one call. LongRoPE changes once, and the cache continues from there. Dynamic scaling changes with every
/// token beyond the original maximum, so that every such call runs all tokens.
///
/// # Memory
/// `2 · b · tokens · num_key_value_heads · head_dim` elements of the layer's dtype, or of a byte
/// [in int8](Self::with_int8); with
/// [latent attention](crate::LatentAttention) `b · tokens · (kv_lora_rank + qk_rope_head_dim)`, because the cache holds
/// the latents and not the keys and values that are made of them. A growing cache allocates up to twice as much, a
/// rotating one up to twice its window. Calls that track a gradient concatenate tokens instead of writing them in
/// place.
///
/// ```
/// use candle_attention::{
///     AttentionConfig, AttentionMask, KvCache, MultiHeadAttention,
/// };
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
///
/// let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu);
/// let layer = MultiHeadAttention::new(&AttentionConfig::new(8, 2).with_mask(AttentionMask::causal()), vb)?;
/// let xs = Tensor::randn(0f32, 1., (1, 5, 8), &Device::Cpu)?;
/// let mut cache = KvCache::growing();
/// for token in 0..5 {
///     assert_eq!(layer.step(&xs.narrow(1, token, 1)?, &mut cache)?.dims(), [1, 1, 8]);
/// }
/// assert_eq!(cache.len(), 5);
/// // Speculative decoding: the last two tokens were rejected.
/// cache.truncate(3)?;
/// // Beam search: both beams continue the only sequence.
/// cache.select_sequences(&[0, 0])?;
/// assert_eq!(cache.lengths(), [3, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Clones
/// A clone shares the memory of the tokens until one of both gets another token or has some moved: that one copies them
/// then. [`try_clone`](Self::try_clone) copies at once.
#[derive(Clone)]
pub struct KvCache {
    pub(super) kind: CacheKind,
    /// Whether tokens are held as heads in int8.
    pub(super) int8: bool,
    /// Keys and values, or only the latents that both are made of, `(b, columns, h_kv, d)` each. Sequence `i` has its
    /// kept tokens in the columns `first .. first + sequences[i].retained`.
    pub(super) buffers: Option<Vec<Tensor>>,
    /// The column of the first kept token: 0 but in a rotating or streaming cache.
    pub(super) first: usize,
    /// One per sequence; empty before the first call.
    pub(super) sequences: Vec<Sequence>,
    /// Whether a call tracked a gradient: its graph may hold the buffers, so nothing is written into them any more.
    pub(super) in_graph: bool,
    /// The layer that made the keys, while there are some; `None` for those of `append`.
    pub(super) layer: Option<LayerId>,
    /// Held by all clones that share the buffers.
    pub(super) owners: Arc<()>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CacheKind {
    Growing,
    Fixed(usize),
    Rotating(usize),
    Streaming(usize),
}

/// The cached tokens of one sequence.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::attention) struct Sequence {
    /// Tokens kept.
    pub retained: usize,
    /// Tokens that a rotating cache dropped, all before those that it keeps.
    pub dropped: usize,
    /// Where each kept token stands; `None` as long as positions are 0, 1, 2, ….
    pub positions: Option<Vec<usize>>,
    /// The position behind all dropped tokens.
    pub behind_dropped: usize,
    /// The length of the sequence for which the kept keys are rotated.
    pub rotated_for: usize,
}

impl Sequence {
    pub(super) fn seen(&self) -> usize {
        self.dropped + self.retained
    }

    /// Counts `new` more tokens at their positions. `position` is `None` for tokens that follow each other.
    pub(super) fn add(&mut self, new: usize, position: impl Fn(usize) -> Option<usize>) {
        let (seen, mut next) = (self.seen(), self.next_position());
        for token in 0..new {
            let position = position(token).unwrap_or(next);
            if self.positions.is_none() && position != seen + token {
                self.positions = Some((self.dropped..seen + token).collect());
            }
            self.positions.iter_mut().for_each(|positions| positions.push(position));
            next = next.max(position.saturating_add(1));
        }
        self.retained += new;
    }

    /// Drops all but the last `kept` tokens.
    pub(super) fn keep_last(&mut self, kept: usize) {
        let count = self.retained - kept;
        let dropped = self.positions.as_mut().map(|positions| positions.drain(..count).max());
        self.dropped += count;
        self.retained = kept;
        self.behind_dropped = match dropped {
            None => self.dropped,
            Some(largest) => largest.map_or(0, |last| last.saturating_add(1)).max(self.behind_dropped),
        };
    }

    /// The position of the next token.
    pub(in crate::attention) fn next_position(&self) -> usize {
        let end = |positions: &Vec<usize>| positions.iter().max().map_or(0, |last| last.saturating_add(1));
        self.positions.as_ref().map_or_else(|| self.seen(), |positions| end(positions).max(self.behind_dropped))
    }

    /// Keeps some of the kept tokens, whose indices count from the first token seen.
    fn select(&mut self, tokens: &[usize]) {
        let position = |&token: &usize| self.positions.as_ref().map_or(token, |all| all[token - self.dropped]);
        let kept: Vec<usize> = tokens.iter().map(position).collect();
        self.retained = tokens.len();
        let follow = self.behind_dropped <= self.dropped && kept.iter().copied().eq(self.dropped..self.seen());
        self.positions = (!follow).then_some(kept);
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

    /// A cache of the last `window` tokens, for layers with a sliding window. The mask of the layer, with that of the
    /// call, has to be a [`window`](crate::AttentionMask::window) of at most this many tokens, or the call is an error:
    /// what the cache drops must be what no query sees any more. A window of 0 is an error at the first call.
    ///
    /// A call attends to the kept tokens and the new ones; a mask that is a tensor has
    /// [`mask_columns`](Self::mask_columns) columns, and [`select_columns`](Self::select_columns) cuts them from a mask
    /// over all tokens. [`causal`](crate::AttentionMask::causal) and windows need no change.
    pub fn rotating(window: usize) -> Self {
        Self::new(CacheKind::Rotating(window))
    }

    /// A [`rotating`](Self::rotating) cache for a layer without a window, which it cuts to one: a query attends to
    /// itself and to the `window - 1` tokens before it, whatever the mask. For streams without an end in bounded
    /// memory. The result is that of the layer under such a window, in chunks of any size, and
    /// not that of one call over all tokens.
    pub fn streaming(window: usize) -> Self {
        Self::new(CacheKind::Streaming(window))
    }

    fn new(kind: CacheKind) -> Self {
        let (sequences, owners) = (Vec::new(), Arc::default());
        Self { kind, int8: false, buffers: None, first: 0, sequences, in_graph: false, layer: None, owners }
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
            CacheKind::Fixed(tokens) | CacheKind::Rotating(tokens) | CacheKind::Streaming(tokens) => Some(tokens),
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
    /// Afterwards the tokens that the next query sees still have to be there, which leaves at most one token to remove,
    /// or all of them.
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
            if len > sequence.seen() {
                let expected = format!("at most {}, the tokens of the sequence", sequence.seen());
                return Err(Error::value(format!("lengths[{i}]"), len, expected));
            }
            self.check_shorter(i, len)?;
        }
        for (sequence, &len) in self.sequences.iter_mut().zip(lengths) {
            match len {
                0 => *sequence = Sequence::default(),
                _ => sequence.retained = len - sequence.dropped,
            }
            sequence.positions.iter_mut().for_each(|positions| positions.truncate(sequence.retained));
        }
        Ok(())
    }

    /// Checks that sequence `i` can be shortened to `len` tokens: what the next query sees is still there.
    fn check_shorter(&self, i: usize, len: usize) -> Result<()> {
        let dropped = self.sequences[i].dropped;
        let least = dropped.saturating_add(self.window().map_or(0, |window| window - 1));
        if dropped == 0 || len == 0 || len >= least {
            return Ok(());
        }
        let expected = format!("0 or at least {least}: the cache has dropped the first {dropped} tokens");
        Err(Error::value(format!("the length of sequence {i} in a rotating cache"), len, expected))
    }

    /// Keeps these tokens of a sequence, in increasing order, and forgets the others: the accepted path of a tree of
    /// drafts. Tokens are counted from the first one that the sequence has seen, as in
    /// [`retained_range`](Self::retained_range). Those before the first gap stay where they are, and only those behind
    /// it are moved.
    ///
    /// ```text
    /// // After a prompt of 9 tokens a tree of 6 drafts, of which a path of three was accepted.
    /// cache.select_tokens(0, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 13, 14])
    /// ```
    ///
    /// A token keeps its position, for which its key is rotated: the drafts of a tree have
    /// [positions](crate::AttentionOptions::positions) by their depth, so that those of a path follow each other. Masks
    /// go by the new order. The next token stands behind the largest position that is kept.
    ///
    /// # Errors
    /// There is no such sequence or token, tokens are not in increasing order, or a rotating cache has dropped tokens
    /// that a sequence of so many tokens sees. The cache is unchanged then.
    pub fn select_tokens(&mut self, sequence: usize, tokens: &[usize]) -> Result<()> {
        check_sequences(&[sequence], self.sequences.len())?;
        let Sequence { dropped, .. } = self.sequences[sequence];
        let range = dropped..self.sequences[sequence].seen();
        if let Some(token) = tokens.iter().find(|token| !range.contains(token)) {
            return Err(Error::value("a token to select", token, format!("one in {range:?}, which the cache keeps")));
        }
        if !tokens.is_sorted_by(|a, b| a < b) {
            let expected = "one in increasing order, each token once";
            return Err(Error::value("the list of tokens to select", format!("{tokens:?}"), expected));
        }
        self.check_shorter(sequence, dropped + tokens.len())?;
        let in_place = tokens.iter().zip(range).take_while(|(token, here)| *token == here).count();
        let moved: Vec<usize> = tokens[in_place..].iter().map(|token| self.first + token - dropped).collect();
        if let Some(buffers) = self.buffers.as_ref().filter(|_| !moved.is_empty()) {
            let shared = self.has_clones() || self.in_graph || buffers.iter().any(Tensor::track_op);
            let start = self.first + in_place;
            let written = |buffer: &Tensor| {
                let row = buffer.narrow(0, sequence, 1)?;
                let chosen = select(&row, &moved, 1)?;
                if !shared {
                    row.slice_set(&chosen, 1, start)?;
                    return Ok(buffer.clone());
                }
                let (_, _, h, d) = buffer.dims4()?;
                let there = [sequence..sequence + 1, start..start + moved.len(), 0..h, 0..d];
                Ok::<_, Error>(buffer.slice_assign(&there, &chosen)?)
            };
            self.buffers = Some(buffers.iter().map(written).collect::<Result<_>>()?);
            if shared {
                self.owners = Arc::default();
            }
        }
        self.sequences[sequence].select(tokens);
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
        if let Some(buffers) = &self.buffers {
            let each = buffers.iter().map(|t| t.dims()[1..].iter().product::<usize>()).sum();
            let (what, like) = ("the number of sequences to select", &buffers[0]);
            check_tensor_memory(what, sequences.len(), &[sequences.len(), each], like.dtype(), like.device())?;
            self.buffers = Some(buffers.iter().map(|t| select(t, sequences, 0)).collect::<Result<_>>()?);
        }
        self.sequences = sequences.iter().map(|&sequence| self.sequences[sequence].clone()).collect();
        Ok(())
    }

    /// Adds the sequences of `other` behind those of the batch: continuous batching, where a request is prefilled in a
    /// cache of its own and then joins those that are running. `other` stays as it is. The batch is copied once.
    ///
    /// # Errors
    /// `other` is of another kind or capacity, of another layer or of other weights of it, or holds other sizes,
    /// another dtype or device. The cache is unchanged then.
    pub fn append_sequences(&mut self, other: &Self) -> Result<()> {
        let what = "a cache to append";
        let [own, added] =
            [self, other].map(|cache| format!("{:?}{}", cache.kind, if cache.int8 { " in int8" } else { "" }));
        ensure!(own == added, Error::value(what, added, format!("{own}, as the cache that it is appended to")));
        let (Some(added), false) = (&other.buffers, other.sequences.is_empty()) else { return Ok(()) };
        let Some(own) = self.buffers.as_ref().filter(|_| !self.sequences.is_empty()) else {
            *self = other.try_clone()?;
            return Ok(());
        };
        let (shape, b, device) = (TokenShape::from_tokens(added)?, self.sequences.len(), added[0].device());
        self.check_alike(what, TokenShape { b, ..shape }, &added[0])?;
        let layer = if self.retained_len() > 0 { self.layer } else { other.layer };
        if other.retained_len() > 0 && other.layer != layer {
            let expected = "one that the layer of the batch has filled, with the same weights";
            return Err(Error::value(what, "one of another layer or of other weights", expected));
        }
        // candle cannot concatenate an empty tensor.
        let columns = self.retained_len().max(other.retained_len()).max(1);
        check_memory(&TokenShape { b: b.saturating_add(shape.b), ..shape }, columns, device)?;
        let widened = |cache: &Self, buffer: &Tensor| match (cache.retained_len(), buffer.dims4()?) {
            (0, (b, _, h, d)) => Tensor::zeros((b, columns, h, d), buffer.dtype(), buffer.device()),
            (retained, _) => buffer.narrow(1, cache.first, retained)?.pad_with_zeros(1, 0, columns - retained),
        };
        let joined = |(own, new): (&Tensor, &Tensor)| Tensor::cat(&[widened(self, own)?, widened(other, new)?], 0);
        self.buffers = Some(own.iter().zip(added).map(joined).collect::<candle_core::Result<_>>()?);
        (self.first, self.layer) = (0, layer);
        self.sequences.extend_from_slice(&other.sequences);
        Ok(())
    }

    /// Adds keys `(b, s, h_kv, d)` and values `(b, s, h_kv, d_v)` of one's own, for attention that is composed on
    /// [`sdpa::attend_bshd`](crate::sdpa::attend_bshd): one that the layer does not have.
    /// Returns the keys and values that the `s` new queries attend to, `(b, kept + s, h_kv, ·)`. They are views of the
    /// cache, which later calls do not change unless tokens are removed; keys and values that track a gradient are
    /// concatenated instead.
    ///
    /// Keys are rotated before, for the positions `len() .. len() + s`. The mask of the call is
    /// [`causal`](crate::AttentionMask::causal), or the window of the layer, both of which are aligned with the last
    /// key. With a rotating or streaming cache it has to be a window of at most as many tokens as the cache keeps,
    /// `window(Some(tokens - 1), Some(0))`: the cache does not see the mask, and returns more keys than the first of
    /// several queries may see.
    ///
    /// ```
    /// use candle_attention::sdpa::{SdpaOptions, attend_bshd};
    /// use candle_attention::{AttentionMask, KvCache};
    /// # use candle_core::{Device, Tensor};
    /// # let random = |dims: (usize, usize, usize, usize)| Tensor::randn(0f32, 1., dims, &Device::Cpu);
    /// let mut cache = KvCache::growing();
    /// for s in [5, 1, 1] {
    ///     let (q, k, v) = (random((2, s, 4, 8))?, random((2, s, 2, 8))?, random((2, s, 2, 6))?);
    ///     let (k, v) = cache.append(&k, &v)?;
    ///     let attended = attend_bshd(&q, &k, &v, &SdpaOptions::new(AttentionMask::causal()))?;
    ///     assert_eq!(attended.output.dims(), [2, s, 4, 6]);
    /// }
    /// assert_eq!(cache.len(), 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Keys and values differ in more than `d`, or from those in the cache; the cache was filled by a layer, is full,
    /// or holds sequences of unequal length, which `causal` does not align. It is unchanged then.
    pub fn append(&mut self, keys: &Tensor, values: &Tensor) -> Result<(Tensor, Tensor)> {
        let (b, s, h_kv, _) = keys.dims4().map_err(|_| Error::shape("keys", keys.dims(), "(b, s, h_kv, d)"))?;
        if values.rank() != 4 || values.dims()[..3] != [b, s, h_kv] {
            return Err(Error::shape("values", values.dims(), format!("({b}, {s}, {h_kv}, d_v)")));
        }
        same_dtype_and_device("values", values, keys)?;
        let chunk = [keys.clone(), values.clone()];
        let counts = self.check_chunk(self.stored_shape(TokenShape::from_tokens(&chunk)?), keys, s, None)?;
        self.check_layer(None)?;
        let counted = |sequence: &Sequence| [sequence.dropped, sequence.retained];
        if self.sequences.windows(2).any(|pair| counted(&pair[0]) != counted(&pair[1])) {
            let (found, expected) = (self.lengths(), "equal ones; a layer of the crate takes unequal ones");
            return Err(Error::value("the lengths of the sequences in the cache", format!("{found:?}"), expected));
        }
        let (starts, rotated_for) = (vec![self.len(); b], vec![self.len() + s; b]);
        let new = NewTokens { layer: None, counts, unequal: None, starts, rotated_for, explicit: None };
        let before = self.snapshot();
        let all = self.add(chunk, &new, false).and_then(|all| wide(all, keys.dtype()));
        if all.is_err() {
            self.restore(before);
        }
        all.map(|[keys, values]| (keys, values))
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
        let visible = |i: usize| {
            let mask = if dims[0] == 1 { mask.clone() } else { mask.narrow(0, i, 1)? };
            let Sequence { dropped, retained, .. } = sequence(i);
            let own = mask.narrow(last, dropped, retained + added(i))?;
            Ok::<_, Error>(own.pad_with_zeros(last, 0, columns - retained - added(i))?)
        };
        let cut = (0..sequences).map(visible).collect::<Result<Vec<_>>>()?;
        match cut.first() {
            Some(_) => Ok(Tensor::cat(&cut, 0)?),
            None => Ok(mask.to_dtype(DType::U8)?),
        }
    }

    /// Removes all tokens. The memory stays allocated, and the next call may have another batch.
    pub fn reset(&mut self) {
        self.sequences.clear();
    }

    /// Whether a clone shares the buffers.
    pub(super) fn has_clones(&self) -> bool {
        Arc::strong_count(&self.owners) > 1
    }

    /// An independent copy with buffers of its own.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn try_clone(&self) -> Result<Self> {
        let copy = |buffers: &Vec<Tensor>| buffers.iter().map(Tensor::copy).collect::<candle_core::Result<_>>();
        let buffers = self.buffers.as_ref().map(copy).transpose()?;
        Ok(Self { buffers, owners: Arc::default(), ..self.clone() })
    }
}

/// One line, whatever the number of sequences and tokens.
impl fmt::Debug for KvCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvCache")
            .field("kind", &self.kind)
            .field("int8", &self.int8)
            .field("sequences", &self.sequences.len())
            .field("len", &self.len())
            .field("retained_len", &self.retained_len())
            .field("dtype", &self.buffers.as_ref().map(|buffers| buffers[0].dtype()))
            .finish_non_exhaustive()
    }
}

/// Checks that these are sequences of a batch of `b`.
pub(super) fn check_sequences(sequences: &[usize], b: usize) -> Result<()> {
    ensure!(!sequences.is_empty(), Error::value("the list of sequences to select", "empty", "at least one"));
    match sequences.iter().find(|sequence| **sequence >= b) {
        Some(sequence) => {
            Err(Error::value("a sequence to select", sequence, format!("less than {b}, the sequences in the cache")))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After a gap the positions of the tokens that are kept are all that a stream needs, however long it is.
    #[test]
    fn positions_of_dropped_tokens_are_not_kept() {
        let mut sequence = Sequence::default();
        let stream = |sequence: &mut Sequence, tokens: usize, position: Option<usize>| {
            for _ in 0..tokens {
                sequence.add(1, |_| position);
                sequence.keep_last(sequence.retained.min(8));
            }
        };
        stream(&mut sequence, 20, None);
        assert_eq!((sequence.seen(), sequence.next_position(), &sequence.positions), (20, 20, &None));
        sequence.select(&[12, 13, 14, 15, 16, 17, 19]);
        stream(&mut sequence, 100, None);
        assert_eq!((sequence.seen(), sequence.next_position()), (119, 120));
        assert_eq!(sequence.positions.as_deref(), Some(&[112, 113, 114, 115, 116, 117, 118, 119][..]));
        // The largest position is that of a token that is dropped.
        stream(&mut sequence, 1, Some(500));
        stream(&mut sequence, 9, Some(3));
        assert_eq!((sequence.next_position(), sequence.positions.as_deref()), (501, Some(&[3; 8][..])));
        sequence.select(&[122, 123]);
        assert_eq!((sequence.next_position(), sequence.positions.as_deref()), (501, Some(&[3; 2][..])));
    }
}
