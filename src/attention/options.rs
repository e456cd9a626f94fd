//! Inputs and options of one call.

use std::borrow::Cow;

use candle_core::Tensor;

use crate::mask::AttentionMask;
use crate::sdpa::Backend;
use crate::setters;

/// The tensors of one call, borrowed, and its mask, borrowed or owned.
///
/// ```
/// use candle_attention::{AttentionInputs, AttentionMask};
/// # let xs = candle_core::Tensor::zeros((1, 5, 8), candle_core::DType::F32, &candle_core::Device::Cpu)?;
/// let inputs = AttentionInputs::self_attention(&xs, AttentionMask::causal());
/// let mask = AttentionMask::lengths(&[3]);
/// let memory = AttentionInputs::cross_attention(&xs, &xs, &mask);
/// # let _ = (inputs, memory);
/// # Ok::<(), candle_attention::Error>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AttentionInputs<'a> {
    /// Input of the query projection, `(b, s_q, query_size)`.
    pub query: &'a Tensor,
    /// Input of the key projection, `(b, s_kv, key_size)`.
    pub key: &'a Tensor,
    /// Input of the value projection, `(b, s_kv, value_size)`.
    pub value: &'a Tensor,
    /// The keys that each query attends to, besides the mask of the configuration.
    pub mask: Cow<'a, AttentionMask>,
}

impl<'a> AttentionInputs<'a> {
    /// Every token of `query` attends to the tokens of `key` and `value`.
    pub fn new(query: &'a Tensor, key: &'a Tensor, value: &'a Tensor, mask: impl Into<Cow<'a, AttentionMask>>) -> Self {
        Self { query, key, value, mask: mask.into() }
    }

    /// Self-attention: every token of `xs` attends to the tokens of its sequence.
    pub fn self_attention(xs: &'a Tensor, mask: impl Into<Cow<'a, AttentionMask>>) -> Self {
        Self::new(xs, xs, xs, mask)
    }

    /// Cross-attention: every token of `xs` attends to the tokens of `memory`.
    pub fn cross_attention(xs: &'a Tensor, memory: &'a Tensor, mask: impl Into<Cow<'a, AttentionMask>>) -> Self {
        Self::new(xs, memory, memory, mask)
    }

    /// The same tensors under another mask.
    pub(super) fn under(&self, mask: impl Into<Cow<'a, AttentionMask>>) -> Self {
        Self { mask: mask.into(), ..*self }
    }
}

/// How one call runs. The default is inference with any backend and without attention weights.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct AttentionOptions<'a> {
    /// Whether dropout is applied (training); default false.
    pub train: bool,
    /// Makes dropout reproducible: the same seed drops the same attention weights in calls of one shape, on every device.
    /// Layers that share a seed drop the same weights, and so do steps of training: give each its own. `None`, the
    /// default, drops others in each call.
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
    /// For packed rows, for a sequence that continues elsewhere, and for images in text. Only the rotation of queries and
    /// keys follows these positions: causal masks and windows go by the order of the tokens, and packed rows are kept
    /// apart by [`AttentionMask::segments`]. A layer without positions ignores them, and a scheme that is not rotary
    /// refuses them. Without them, the next call with a cache continues after the largest position so far.
    pub positions: Option<&'a Tensor>,
    /// Factors on the output of each head before the output projection: `(h)`, or `(b, h)` per sequence, in any
    /// floating-point dtype. 0 disables a head. Differentiable. Returned attention weights do not include it.
    pub head_mask: Option<&'a Tensor>,
}

impl<'a> AttentionOptions<'a> {
    /// Whether a ragged batch has to be padded for these options, with dropout `p` in training.
    pub(super) fn need_padding(&self, p: f64) -> bool {
        let dropped = self.train && p > 0.0;
        let needed = dropped || self.return_attention_weights || self.head_mask.is_some();
        needed || self.positions.is_some() || self.grid.is_some()
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
        /// Sets the factors on the output of each head.
        with_head_mask, head_mask: &'a Tensor = Some(head_mask);
    }
}
