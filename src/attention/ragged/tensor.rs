//! Self-attention over rows of unequal length without padding, by operations on tensors: on GPUs, and on the CPU for
//! layers with more between projection and attention than the pass over plain numbers knows.

use std::borrow::Cow;

use candle_core::Tensor;

use crate::attention::ragged::lengths;
use crate::attention::ragged::shared_positions::SharedPositions;
use crate::attention::transform::Places;
use crate::attention::{AttentionInputs, AttentionOptions, MultiHeadAttention};
use crate::error::Result;
use crate::mask::AttentionMask;
use crate::ops::PendingBias;
use crate::position::Position;
use crate::sdpa::{fused, ragged_backend};

impl MultiHeadAttention {
    /// `xs` `(tokens, query_size)`, row `i` being the tokens `starts[i] .. starts[i + 1]` → `(tokens, output_size)`.
    /// `None` if padding is needed: for gradients, where no fused kernel runs, with positions that are of a whole batch.
    pub(crate) fn ragged_of_tensors(
        &self,
        xs: &Tensor,
        starts: &[usize],
        mask: &AttentionMask,
        shared: &SharedPositions,
    ) -> Result<Option<PendingBias>> {
        let appended = self.bias_kv.is_some() || self.config.add_zero_attn;
        if xs.dim(0)? == 0 || appended || self.config.position.is_of_whole() {
            return Ok(None);
        }
        let longest = lengths(starts).max().unwrap_or(0);
        let xs = xs.unsqueeze(0)?;
        let inputs = AttentionInputs::self_attention(&xs, mask);
        let mask = match (&self.config.position, &self.relative_bias) {
            (Position::RelativeBuckets(relative), Some(table)) => {
                let bias = shared.bias(relative, table, longest)?;
                Cow::Owned(mask.clone().and(AttentionMask::additive(&bias)?))
            }
            _ => self.positioned(&inputs, longest, longest, None)?,
        };
        let inputs = AttentionInputs { mask: &mask, ..inputs };
        let options = self.sdpa_options(&inputs, &AttentionOptions::default());
        let mut call = self.call(&inputs, &options, longest)?;
        (call.shape.b, call.shape.s_q) = (starts.len() - 1, longest);
        let Some(backend) = ragged_backend(&call, &options)? else { return Ok(None) };
        let places = Places { rows: Some((starts, shared)), ..Places::default() };
        let [q, k, v] = self.project(&inputs, call.dtype, places)?;
        let context = fused(backend, [&q, &k, &v], Some(starts), &call, &options)?;
        let (_, tokens, h, d_v) = context.dims4()?;
        let context = context.reshape((1, tokens, h * d_v))?;
        let output = match context.dtype() == xs.dtype() {
            true => self.o_proj.forward_pending_bias(&context)?,
            false => self.o_proj.forward(&context, xs.dtype())?.into(),
        };
        output.map(|ys| ys.squeeze(0)).map(Some)
    }
}
