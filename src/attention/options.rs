//! Inputs and options of one call.

use std::borrow::Cow;
use std::sync::{Mutex, PoisonError};

use candle_core::Tensor;

use crate::attention::cache::{CrossCache, KeyValues, KvCache};
use crate::config::AttentionConfig;
use crate::error::{Error, Result};
use crate::mask::{AttentionMask, CallMask};
use crate::ragged::Buffers;
use crate::sdpa::Backend;
use crate::setters;
use crate::tensor::{check_float, same_device};

/// The tokens of one call, borrowed, and its mask, borrowed or owned.
///
/// - a padded batch: [`new`](Self::new), [`self_attention`](Self::self_attention),
///   [`cross_attention`](Self::cross_attention)
/// - sequences of unequal length without padding: [`ragged`](Self::ragged)
/// - the next tokens of sequences in a [`KvCache`]: [`with_cache`](Self::with_cache),
///   [`with_cache_lengths`](Self::with_cache_lengths)
/// - queries over a memory in a [`CrossCache`]: [`cross_cached`](Self::cross_cached)
/// - queries over the [`KeyValues`] of another layer: [`shared`](Self::shared)
///
/// ```
/// use candle_attention::{
///     AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, KvCache, MultiHeadAttention,
/// };
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
///
/// let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu);
/// let layer = MultiHeadAttention::new(&AttentionConfig::new(8, 2).with_mask(AttentionMask::causal()), vb)?;
/// let (options, mut cache) = (AttentionOptions::default(), KvCache::growing());
///
/// let xs = Tensor::randn(0f32, 1., (2, 5, 8), &Device::Cpu)?;
/// let padded = AttentionInputs::self_attention(&xs, AttentionMask::padding(&[5, 3]));
/// assert_eq!(layer.attend_with(&padded, &options)?.output.dims(), [2, 5, 8]);
///
/// let xs = Tensor::randn(0f32, 1., (8, 8), &Device::Cpu)?; // the same without padding
/// let ragged = AttentionInputs::ragged(&xs, &[5, 3], AttentionMask::full());
/// assert_eq!(layer.attend_with(&ragged, &options)?.output.dims(), [8, 8]);
///
/// for _ in 0..3 {
///     let next = Tensor::randn(0f32, 1., (2, 1, 8), &Device::Cpu)?;
///     let inputs = AttentionInputs::self_attention(&next, AttentionMask::full()).with_cache(&mut cache);
///     assert_eq!(layer.attend_with(&inputs, &options)?.output.dims(), [2, 1, 8]);
/// }
/// assert_eq!(cache.lengths(), [3, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct AttentionInputs<'a> {
    pub(super) query: &'a Tensor,
    pub(super) key: &'a Tensor,
    pub(super) value: &'a Tensor,
    pub(super) mask: Cow<'a, AttentionMask>,
    pub(super) tokens: Tokens<'a>,
    /// Locked for the length of a call: inputs are shared by calls, which threads may make at the same time.
    pub(super) cache: Option<Mutex<&'a mut KvCache>>,
    /// The new tokens of each sequence in the cache, if some of them are padding.
    pub(super) new_lengths: Option<&'a [usize]>,
    pub(super) buffers: Option<&'a Buffers>,
    /// The position vectors that are added to the inputs of queries and of keys.
    pub(super) vectors: [Option<&'a Tensor>; 2],
}

/// How the tokens of a call are stored.
#[derive(Debug, Clone, Copy)]
pub(super) enum Tokens<'a> {
    /// `(b, s, width)`.
    Padded,
    /// Sequences of these lengths one after another, `(tokens, width)`.
    Ragged(&'a [usize]),
    /// The queries are `(b, s_q, width)`, keys and values are projected already.
    Memory(&'a CrossCache),
    /// The queries are `(b, s_q, width)`, keys and values are those of another layer.
    Shared(&'a KeyValues),
}

impl<'a> AttentionInputs<'a> {
    /// Every token of `query` `(b, s_q, query_size)` attends to the tokens of `key` `(b, s_kv, key_size)` and `value`
    /// `(b, s_kv, value_size)`.
    ///
    /// `mask` hides keys besides the mask of the configuration, which
    /// [`with_mask`](crate::MultiHeadAttention::with_mask) replaces.
    pub fn new(query: &'a Tensor, key: &'a Tensor, value: &'a Tensor, mask: impl Into<CallMask<'a>>) -> Self {
        let (mask, tokens) = (mask.into().0, Tokens::Padded);
        Self { query, key, value, mask, tokens, cache: None, new_lengths: None, buffers: None, vectors: [None; 2] }
    }

    /// Self-attention: every token of `xs` `(b, s, query_size)` attends to the tokens of its sequence.
    pub fn self_attention(xs: &'a Tensor, mask: impl Into<CallMask<'a>>) -> Self {
        Self::new(xs, xs, xs, mask)
    }

    /// Cross-attention: every token of `xs` attends to the tokens of `memory`.
    pub fn cross_attention(xs: &'a Tensor, memory: &'a Tensor, mask: impl Into<CallMask<'a>>) -> Self {
        Self::new(xs, memory, memory, mask)
    }

    /// Self-attention within each sequence of a ragged batch: `xs` `(tokens, query_size)` holds the sequences one after
    /// another, `lengths` the number of tokens of each. The output is `(tokens, output_size)`.
    ///
    /// The result is that of padding the sequences, masking the padding and removing it again, but a fused kernel
    /// spends nothing on padding. Without one, for gradients and on Apple GPUs, sequences of like length are padded
    /// together: padding is at most a quarter of what is computed. On the CPU the result of a sequence has the same
    /// bits alone and in any batch.
    ///
    /// `mask` is `full`, `causal` or a `window`, each within a sequence.
    ///
    /// Dropout and a head mask `(h)` or `(sequences, h)` mean what they mean in a padded batch. Returned attention
    /// weights are those of the padded batch, `(sequences, h, s, s)` with `s` tokens in the longest sequence: rows and
    /// columns of padding are 0. Positions are `(tokens)`, or `(3, tokens)` for M-RoPE. With one of these options the
    /// batch is padded; a forced fused backend alone runs it without padding.
    pub fn ragged(xs: &'a Tensor, lengths: &'a [usize], mask: impl Into<CallMask<'a>>) -> Self {
        Self { tokens: Tokens::Ragged(lengths), ..Self::self_attention(xs, mask) }
    }

    /// Cross-attention of `queries` `(b, s_q, query_size)` to a memory whose keys and values are projected already
    /// ([`MultiHeadAttention::cross_cache`](crate::MultiHeadAttention::cross_cache)). `mask` has one column per token
    /// of the memory.
    pub fn cross_cached(queries: &'a Tensor, memory: &'a CrossCache, mask: impl Into<CallMask<'a>>) -> Self {
        Self { tokens: Tokens::Memory(memory), ..Self::self_attention(queries, mask) }
    }

    /// Self-attention of a layer with the keys and values of another one: every token of `xs` `(b, s, query_size)`
    /// attends to `key_values`, which the other layer returned for the same tokens
    /// ([`MultiHeadAttention::attend_sharing`](crate::MultiHeadAttention::attend_sharing)), with and without a cache.
    /// `xs` may be the last of these tokens alone. Positions are those of that call, unless the layer
    /// [requires](crate::CallInput::Positions) those of its queries. `mask` has one column per key.
    pub fn shared(xs: &'a Tensor, key_values: &'a KeyValues, mask: impl Into<CallMask<'a>>) -> Self {
        Self { tokens: Tokens::Shared(key_values), ..Self::self_attention(xs, mask) }
    }

    /// These inputs as the next tokens of the sequences in `cache`: a call adds their keys and values to the cache, and
    /// they attend to all keys in it. [`plan`](crate::MultiHeadAttention::plan) leaves the cache as it is, and so does
    /// a call that fails.
    ///
    /// Positions continue from the end of the cache, or are those of [`AttentionOptions::with_positions`]. The mask
    /// covers all keys: causal masks and windows as usual, [`keep`](AttentionMask::keep) and similar masks with one
    /// column per kept token and per new one ([`KvCache::mask_columns`]).
    pub fn with_cache<'b>(&self, cache: &'b mut KvCache) -> AttentionInputs<'b>
    where
        'a: 'b,
    {
        let Self { query, key, value, ref mask, tokens, new_lengths, buffers, vectors, .. } = *self;
        let (mask, cache) = (mask.clone(), Some(Mutex::new(cache)));
        AttentionInputs { query, key, value, mask, tokens, cache, new_lengths, buffers, vectors }
    }

    /// [`with_cache`](Self::with_cache) for sequences of unequal length: the new tokens are padded on the right, and
    /// sequence `i` has `lengths[i]` of them, or none. Each sequence continues at its own end. Nothing is projected for
    /// padding, whose output is undefined.
    pub fn with_cache_lengths<'b>(&self, cache: &'b mut KvCache, lengths: &'b [usize]) -> AttentionInputs<'b>
    where
        'a: 'b,
    {
        AttentionInputs { new_lengths: Some(lengths), ..self.with_cache(cache) }
    }

    /// These inputs with vectors that are added to the inputs of queries and keys, and not to those of values: `query`
    /// `(b or 1, s_q, query_size)` and `key` `(b or 1, s_kv, key_size)`; of a ragged batch `(tokens, size)`. `None`
    /// adds nothing. Gradients flow into them.
    ///
    /// The object queries and position embeddings of DETR and of detectors made from it
    /// ([`CallInput::PositionVectors`](crate::CallInput::PositionVectors)). With a cache they are those of the new
    /// tokens; over a memory in a [`CrossCache`], whose keys include theirs, there are those of the queries alone.
    ///
    /// ```
    /// use candle_attention::{AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, CallInput};
    /// use candle_attention::MultiHeadAttention;
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_nn::{VarBuilder, VarMap};
    ///
    /// let config = AttentionConfig::new(8, 2).with_requires(&[CallInput::PositionVectors]);
    /// let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu);
    /// let layer = MultiHeadAttention::new(&config, vb)?;
    /// let random = |dims: [usize; 3]| Tensor::randn(0f32, 1., &dims, &Device::Cpu);
    /// let (xs, memory) = (random([2, 5, 8])?, random([2, 9, 8])?);
    /// let (object_queries, places) = (random([1, 5, 8])?, random([1, 9, 8])?);
    ///
    /// let inputs = AttentionInputs::cross_attention(&xs, &memory, AttentionMask::full());
    /// let options = AttentionOptions::default();
    /// assert!(layer.attend_with(&inputs, &options).is_err());
    /// let inputs = inputs.with_position_vectors(&object_queries, &places);
    /// assert_eq!(layer.attend_with(&inputs, &options)?.output.dims(), [2, 5, 8]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_position_vectors(
        mut self,
        query: impl Into<Option<&'a Tensor>>,
        key: impl Into<Option<&'a Tensor>>,
    ) -> Self {
        self.vectors = [query.into(), key.into()];
        self
    }

    /// Whether these are the whole sequences of one tensor, which attend to themselves without a mask.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self.tokens, Tokens::Padded)
            && self.cache.is_none()
            && self.mask.is_full()
            && self.vectors.iter().all(Option::is_none)
            && self.key.id() == self.query.id()
            && self.value.id() == self.query.id()
    }

    /// Whether a gradient is asked for of a tensor, of stored keys and values or of the mask.
    pub(super) fn tracks_gradient(&self) -> bool {
        let vectors = self.vectors.into_iter().flatten();
        let stored = match self.tokens {
            Tokens::Padded | Tokens::Ragged(_) => false,
            Tokens::Memory(memory) => memory.tracks_gradient(),
            Tokens::Shared(key_values) => key_values.tracks_gradient(),
        };
        let is_cached =
            |cache: &Mutex<&mut KvCache>| cache.lock().unwrap_or_else(PoisonError::into_inner).tracks_gradient();
        [self.query, self.key, self.value].into_iter().chain(vectors).any(Tensor::track_op)
            || stored
            || self.cache.as_ref().is_some_and(is_cached)
            || self.mask.tracks_gradient()
    }

    /// These inputs with what the layers of a model share while they run one ragged batch.
    #[must_use]
    pub fn with_buffers(mut self, buffers: &'a Buffers) -> Self {
        self.buffers = Some(buffers);
        self
    }
}

/// How one call runs. The default is inference with any backend and without attention weights.
///
/// ```
/// use candle_attention::{AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, MultiHeadAttention};
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
///
/// let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu);
/// let layer = MultiHeadAttention::new(&AttentionConfig::new(8, 2), vb)?;
/// let xs = Tensor::randn(0f32, 1., (1, 3, 8), &Device::Cpu)?; // (b, s, hidden_size)
///
/// let inputs = AttentionInputs::self_attention(&xs, AttentionMask::causal());
/// let head_mask = Tensor::new(&[1f32, 0.], &Device::Cpu)?; // head 1 is switched off
/// let options = AttentionOptions::default()
///     .with_return_attention_weights(true)
///     .with_head_mask(&head_mask);
/// let attended = layer.attend_with(&inputs, &options)?;
/// let weights = attended.attention_weights.unwrap(); // (b, h, s_q, s_kv)
/// assert_eq!(weights.dims(), [1, 2, 3, 3]);
/// // The first query sees the first key alone.
/// let first_query = weights.narrow(2, 0, 1)?.flatten_all()?.to_vec1::<f32>()?;
/// assert_eq!(first_query, [1., 0., 0., 1., 0., 0.]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct AttentionOptions<'a> {
    /// Whether dropout is applied (training), and weights in few bits are multiplied exactly; default false.
    pub train: bool,
    /// Makes dropout reproducible: the same seed drops the same attention weights in calls of one shape, on every
    /// device. Layers that share a seed drop the same weights, and so do steps of training: give each its own. `None`,
    /// the default, drops others in each call.
    pub dropout_seed: Option<u64>,
    /// Whether the attention weights are returned, as they are before dropout; default false.
    pub return_attention_weights: bool,
    /// The backend to use or to fail with; `None`, the default, chooses one.
    pub backend: Option<Backend>,
    /// Rows and columns of patches, for a layer with [`Rotary2d`](crate::position::Rotary2d) positions. `None`, the
    /// default, takes the grid of the layer, or a square.
    pub grid: Option<[usize; 2]>,
    /// Where the tokens stand, in place of 0, 1, 2, … or of the positions after those in a cache: integers `(s_kv)`,
    /// `(b, s_kv)` or, for M-RoPE, `(3, b, s_kv)` with the temporal position, height and width of each token. Dimension
    /// `b` may be 1. The queries are the last of these tokens. Default none.
    ///
    /// For packed rows, for a sequence that continues elsewhere, and for images in text. Only the rotation of queries
    /// and keys follows these positions: causal masks and windows go by the order of the tokens, and packed rows are
    /// kept apart by [`AttentionMask::segments`]. A layer without positions ignores them, and a scheme that is not
    /// rotary refuses them. Without them, the next call with a cache continues after the largest position so far.
    pub positions: Option<&'a Tensor>,
    /// Cosines and sines `(b or 1, s_kv, pairs)` of the angles by which the first `2 · pairs` elements of each head are
    /// rotated, for a layer with [`GivenRotation`](crate::position::GivenRotation) positions. The queries are the last
    /// of these tokens; with a cache they are the new ones. Gradients flow into them. Default none.
    pub cos_sin: Option<[&'a Tensor; 2]>,
    /// Numbers `(b, h, s_q, s_kv)`, each dimension of its size or 1, that are added to the scores, as a model computes
    /// them from its page or image. A layer that [scales them](crate::CallInput::ScoreBias) does so here. Gradients
    /// flow into it. Default none.
    pub score_bias: Option<&'a Tensor>,
    /// The type of each key, in any integer dtype: `(b, s_kv)`, where `b` may be 1. The queries are the last of these
    /// tokens. For a layer that compares segments ([`segments`](crate::position::RelativeSinusoids::segments)), which
    /// without them adds nothing for segments. Default none.
    #[doc(alias = "token_type_ids")]
    pub token_types: Option<&'a Tensor>,
    /// Tokens that every query sees, and whose own queries see every token by other projections: `(b, s)` in any
    /// integer dtype, nonzero = global, where `b` may be 1, for a layer with
    /// [`global_tokens`](crate::AttentionConfig::global_tokens). The mask of the call hides them as it does others.
    /// Default none.
    pub global_tokens: Option<&'a Tensor>,
    /// Factors on the output of each head before the output projection: `(h)`, or `(b, h)` per sequence, in any
    /// floating-point dtype. 0 disables a head. Differentiable. Returned attention weights do not include it.
    pub head_mask: Option<&'a Tensor>,
}

impl<'a> AttentionOptions<'a> {
    /// Whether nothing is asked for. A seed alone changes nothing.
    pub(super) fn is_default(&self) -> bool {
        let Self { train, return_attention_weights, backend, grid, positions, cos_sin, .. } = *self;
        let given = [self.score_bias, self.token_types, self.global_tokens, self.head_mask, positions];
        !train
            && !return_attention_weights
            && backend.is_none()
            && grid.is_none()
            && cos_sin.is_none()
            && given.iter().all(Option::is_none)
    }

    /// Checks that a layer of this configuration takes the options in a call of `query` with `b` sequences.
    pub(super) fn check(&self, config: &AttentionConfig, query: &Tensor, b: usize) -> Result<()> {
        if let Some([rows, columns]) = self.grid
            && !config.position.scheme().traits().uses_grid
        {
            let allowed = format!("none: the layer's positions are {}", config.position);
            return Err(Error::config("grid", format!("{rows} x {columns}"), allowed));
        }
        if self.global_tokens.is_some() && !config.global_tokens() {
            let allowed = "none: the layer has no projections for them (`AttentionConfig::global_tokens`)";
            return Err(Error::config("global_tokens", "given by the call", allowed));
        }
        if let Some(mask) = self.head_mask {
            let h = config.num_attention_heads;
            if mask.dims() != [h] && mask.dims() != [b, h] {
                return Err(Error::shape("head_mask", mask.dims(), format!("[{h}] or [{b}, {h}]")));
            }
            check_float("head_mask", mask)?;
            same_device("head_mask", mask, query)?;
        }
        Ok(())
    }

    /// Whether a gradient is asked for of a tensor.
    pub(super) fn tracks_gradient(&self) -> bool {
        let cos_sin = self.cos_sin.into_iter().flatten();
        [self.head_mask, self.score_bias].into_iter().flatten().chain(cos_sin).any(Tensor::track_op)
    }

    /// Whether a ragged batch has to be padded for these options, with dropout `p` in training.
    pub(super) fn need_padding(&self, p: f64) -> bool {
        let dropped = self.train && p > 0.0;
        let needed = dropped || self.return_attention_weights || self.head_mask.is_some();
        needed || self.positions.is_some() || self.grid.is_some() || self.token_types.is_some()
    }

    setters! {
        /// Sets whether dropout is applied.
        with_train, train: bool = train;
        /// Sets the seed of dropout; `None` drops other weights in each call.
        with_dropout_seed, dropout_seed: impl Into<Option<u64>> = dropout_seed.into();
        /// Sets whether the attention weights are returned.
        with_return_attention_weights, return_attention_weights: bool = return_attention_weights;
        /// Forces a backend, or with `None` lets the layer choose one.
        with_backend, backend: impl Into<Option<Backend>> = backend.into();
        /// Sets the rows and columns of patches.
        with_grid, grid: [usize; 2] = Some(grid);
        /// Sets where the tokens stand.
        with_positions, positions: &'a Tensor = Some(positions);
        /// Sets the cosines and sines of a rotation.
        with_cos_sin, cos_sin: [&'a Tensor; 2] = Some(cos_sin);
        /// Sets the numbers that are added to the scores.
        with_score_bias, score_bias: &'a Tensor = Some(score_bias);
        /// Sets the type of each token.
        with_token_types, token_types: &'a Tensor = Some(token_types);
        /// Sets which tokens are global.
        with_global_tokens, global_tokens: &'a Tensor = Some(global_tokens);
        /// Sets the factors on the output of each head.
        with_head_mask, head_mask: &'a Tensor = Some(head_mask);
    }
}
