//! Ragged batches through padding: right for every layer, slower than the other ways.

use candle_core::Tensor;

use crate::attention::{AttentionInputs, AttentionOptions, MultiHeadAttention};
use crate::error::Result;
use crate::mask::AttentionMask;

impl MultiHeadAttention {
    /// Self-attention within each sequence of `xs` `(tokens, query_size)` → `(tokens, output_size)`. Differentiable.
    pub(super) fn attend_ragged_padded(&self, xs: &Tensor, lengths: &[usize], mask: &AttentionMask) -> Result<Tensor> {
        let (tokens, width) = xs.dims2()?;
        if tokens == 0 {
            return Ok(Tensor::zeros((0, self.config.resolved_output_size()), xs.dtype(), xs.device())?);
        }
        let (b, s) = (lengths.len(), lengths.iter().copied().max().unwrap_or(0));
        // The token at each padded place; padding is one more token, of zeros.
        let mut to_padded = Vec::with_capacity(b * s);
        let mut to_ragged = Vec::with_capacity(tokens);
        for (sequence, &length) in lengths.iter().enumerate() {
            let start = to_ragged.len();
            to_padded.extend((0..s).map(|i| if i < length { (start + i) as u32 } else { tokens as u32 }));
            to_ragged.extend((0..length).map(|i| (sequence * s + i) as u32));
        }
        let zero = Tensor::zeros((1, width), xs.dtype(), xs.device())?;
        let index = |places: Vec<u32>| Tensor::new(places, xs.device());
        let padded = Tensor::cat(&[xs, &zero], 0)?.index_select(&index(to_padded)?, 0)?.reshape((b, s, width))?;
        let mask = mask.clone().and(AttentionMask::padding(lengths));
        let inputs = AttentionInputs::self_attention(&padded, mask);
        let output = self.attend_with(&inputs, &AttentionOptions::default())?.output;
        Ok(output.reshape((b * s, self.config.resolved_output_size()))?.index_select(&index(to_ragged)?, 0)?)
    }
}
