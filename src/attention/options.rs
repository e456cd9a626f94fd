use candle_core::Tensor;

use crate::macros::setters;
use crate::mask::AttentionMask;
use crate::sdpa::Backend;

/// The tensors of one call.
#[derive(Debug, Clone, Copy)]
pub struct AttentionInputs<'a> {
    /// `(b, s_q, query_size)`.
    pub query: &'a Tensor,
    /// `(b, s_kv, key_size)`.
    pub key: &'a Tensor,
    /// `(b, s_kv, value_size)`.
    pub value: &'a Tensor,
    /// Which keys a query may see.
    pub mask: &'a AttentionMask,
}

impl<'a> AttentionInputs<'a> {
    /// Every token of `xs` attends to the tokens of `xs`.
    pub fn self_attention(xs: &'a Tensor, mask: &'a AttentionMask) -> Self {
        Self { query: xs, key: xs, value: xs, mask }
    }

    /// Every token of `xs` attends to the tokens of `memory`.
    pub fn cross_attention(xs: &'a Tensor, memory: &'a Tensor, mask: &'a AttentionMask) -> Self {
        Self { query: xs, key: memory, value: memory, mask }
    }
}

/// How one call is to run. The default: inference, no weights, any backend.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct AttentionOptions<'a> {
    /// Training: dropout is applied.
    pub train: bool,
    /// Return the attention weights, as they are before dropout.
    pub return_attention_weights: bool,
    /// Use this backend or fail; `None` chooses.
    pub backend: Option<Backend>,
    /// Rows and columns of patches, for a layer with [`Rotary2d`](crate::position::Rotary2d) positions; `None` is the layer's
    /// own, or a square.
    pub grid: Option<[usize; 2]>,
    /// What each head's result is multiplied by before the output projection, `(h)` or, for each row, `(b, h)`, in any
    /// floating dtype: 0 leaves a head out. Differentiable. Returned weights do not show it.
    pub head_mask: Option<&'a Tensor>,
}

impl<'a> AttentionOptions<'a> {
    setters! {
        /// Sets whether dropout is applied.
        with_train, train: bool = train;
        /// Sets whether the weights are returned.
        with_return_attention_weights, return_attention_weights: bool = return_attention_weights;
        /// Forces a backend.
        with_backend, backend: Backend = Some(backend);
        /// Sets the rows and columns of patches.
        with_grid, grid: [usize; 2] = Some(grid);
        /// Sets what each head's result is multiplied by.
        with_head_mask, head_mask: &'a Tensor = Some(head_mask);
    }
}
