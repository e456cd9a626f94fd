//! The operations of a block on hidden states, independent of how they are stored.

use candle_attention::norm::Norm;
use candle_attention::ops::Linear;
use candle_attention::{AttentionMask, MultiHeadAttention, Result};
use candle_core::Tensor;

use crate::model::embedding_gate::EmbeddingGate;
use crate::model::feed_forward::FeedForward;
use crate::model::short_convolution::ShortConvolution;

/// Hidden states on their way through the blocks of an encoder, and the operations of a block on them.
///
/// A stream holds the hidden states and the input of the next sub-layer: either the hidden states themselves or their
/// norm. A sub-layer (attention or feed-forward) reads that input and returns a *branch*, which is then added to the
/// hidden states.
pub(crate) trait Stream {
    /// The output of a sub-layer before it is added to the hidden states.
    type Branch;

    /// Sets the input of the next sub-layer to `norm(hidden)`, or to the hidden states themselves without a norm.
    fn set_input(&mut self, norm: Option<&Norm>) -> Result<()>;

    /// Self-attention of layer `index` over the input, under the layer's own `mask` and that of the batch.
    fn attend(&mut self, index: usize, attention: &MultiHeadAttention, mask: &AttentionMask) -> Result<Self::Branch>;

    /// A short convolution over the input.
    fn convolve(&mut self, convolution: &ShortConvolution) -> Result<Self::Branch>;

    /// The feed-forward part of a layer over the input.
    fn feed_forward(&mut self, feed_forward: &FeedForward) -> Result<Self::Branch>;

    /// Keeps the hidden states as they are now, the embeddings of the tokens.
    fn keep_embeddings(&mut self) -> Result<()>;

    /// The third part of a layer over the hidden states and the embeddings that were kept.
    fn gate_by_embeddings(&mut self, gate: &EmbeddingGate) -> Result<Self::Branch>;

    /// Multiplies the hidden states by a number, `(1)`.
    fn scale(&mut self, factor: &Tensor) -> Result<()>;

    /// `norm(branch)`.
    fn normalize_branch(&mut self, branch: Self::Branch, norm: &Norm) -> Result<Self::Branch>;

    /// `norm(hidden + branch)`, as a branch.
    fn normalize_sum(&mut self, branch: Self::Branch, norm: &Norm) -> Result<Self::Branch>;

    /// Replaces the hidden states by `output(hidden + branch)` and sets the next input to `input(hidden)` of those. A
    /// norm that is `None` is left out.
    fn add(&mut self, branch: Self::Branch, output: Option<&Norm>, input: Option<&Norm>) -> Result<()>;

    /// Replaces the hidden states by `norm(hidden)`.
    fn normalize(&mut self, norm: &Norm) -> Result<()>;

    /// Applies dropout to the hidden states when training.
    fn drop_out(&mut self) -> Result<()>;

    /// Replaces the hidden states by their projection.
    fn project(&mut self, projection: &Linear) -> Result<()>;
}
