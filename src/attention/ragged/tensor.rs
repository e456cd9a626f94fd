//! Ragged self-attention by operations on tensors, with a fused kernel: on GPUs, and on the CPU for layers with more
//! between projection and kernel than the buffers of `cpu` support.

use candle_core::Tensor;

use crate::attention::{AttentionInputs, AttentionOptions, MultiHeadAttention};
use crate::error::Result;
use crate::mask::AttentionMask;
use crate::ops::PendingBias;
use crate::position::TokenPositions;
use crate::position::ragged::{BatchCache, RaggedBatch};
use crate::sdpa::{fused, ragged_backend};

impl MultiHeadAttention {
    /// `xs` `(tokens, query_size)`, where sequence `i` has the tokens `offsets[i] .. offsets[i + 1]` →
    /// `(tokens, output_size)`. `None` if the batch has to be padded: for gradients, without a fused kernel, for some
    /// position schemes.
    pub(super) fn attend_ragged_tensors(
        &self,
        xs: &Tensor,
        offsets: &[usize],
        mask: &AttentionMask,
        cache: &BatchCache,
        options: &AttentionOptions,
    ) -> Result<Option<PendingBias>> {
        let appended = self.bias_kv.is_some() || self.config.add_zero_attn;
        if xs.dim(0)? == 0 || appended || !self.config.position.scheme().ragged_support().on_tensors() {
            return Ok(None);
        }
        let batch = RaggedBatch { offsets, cache };
        let longest = batch.longest();
        let xs = xs.unsqueeze(0)?;
        let inputs = AttentionInputs::self_attention(&xs, mask);
        let mask = self.mask_with_bias(&inputs, longest, longest, None, Some(cache))?;
        let inputs = inputs.under(&*mask);
        let options = self.sdpa_options(&inputs, options);
        let mut call = self.call(&inputs, &options, longest)?;
        (call.shape.b, call.shape.s_q) = (offsets.len() - 1, longest);
        let Some(backend) = ragged_backend(&call, &options)? else { return Ok(None) };
        let tokens = TokenPositions { ragged: Some(batch), ..TokenPositions::default() };
        let [q, k, v] = self.project(&inputs, call.dtype, &tokens)?;
        let context = fused(backend, [&q, &k, &v], Some(offsets), &call, &options)?;
        let (_, tokens, h, d_v) = context.dims4()?;
        let context = context.reshape((1, tokens, h * d_v))?;
        let output = if context.dtype() == xs.dtype() {
            self.o_proj.forward_pending_bias(&context)?
        } else {
            self.o_proj.forward(&context, xs.dtype())?.into()
        };
        output.map(|ys| ys.squeeze(0)).map(Some)
    }
}
