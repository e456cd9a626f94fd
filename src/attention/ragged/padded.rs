//! Ragged batches through padding: right for every layer, slower than the other ways.

use candle_core::{DType, Tensor};

use crate::attention::{AttentionInputs, AttentionOptions, MultiHeadAttention};
use crate::error::{Error, Result};
use crate::mask::AttentionMask;
use crate::sdpa::AttentionOutput;
use crate::tensor::check_tensor_memory;

impl MultiHeadAttention {
    /// Self-attention within each sequence of `xs` `(tokens, query_size)` → `(tokens, output_size)`. Differentiable.
    pub(super) fn attend_ragged_padded(
        &self,
        xs: &Tensor,
        lengths: &[usize],
        mask: &AttentionMask,
        options: &AttentionOptions,
    ) -> Result<AttentionOutput> {
        let (tokens, width) = xs.dims2()?;
        let (b, s) = (lengths.len(), lengths.iter().copied().max().unwrap_or(0));
        if tokens == 0 {
            let zeros = |dims: &[usize]| Tensor::zeros(dims, xs.dtype(), xs.device());
            let weights = [b, self.config.num_attention_heads, 0, 0];
            let attention_weights = options.return_attention_weights.then(|| zeros(&weights)).transpose()?;
            return Ok(AttentionOutput { output: zeros(&[0, self.config.resolved_output_size()])?, attention_weights });
        }
        // Many empty sequences beside a long one are a small ragged batch and a large padded one.
        if u32::try_from(b.saturating_mul(s)).is_err() || u32::try_from(tokens).is_err() {
            let found = format!("{b} sequences of up to {s} tokens");
            return Err(Error::value("a ragged batch that has to be padded", found, "less than 2^32 padded tokens"));
        }
        check_tensor_memory("the number of sequences to pad", b, &[b, s, width], xs.dtype(), xs.device())?;
        // The token at each padded place; padding is one more token, of zeros.
        let mut to_padded = Vec::with_capacity(b * s);
        let mut to_ragged = Vec::with_capacity(tokens);
        for (sequence, &length) in lengths.iter().enumerate() {
            let start = to_ragged.len();
            to_padded.extend((0..s).map(|i| if i < length { (start + i) as u32 } else { tokens as u32 }));
            to_ragged.extend((0..length).map(|i| (sequence * s + i) as u32));
        }
        let to_padded = Tensor::new(to_padded, xs.device())?;
        let zero = Tensor::zeros((1, width), xs.dtype(), xs.device())?;
        let padded = Tensor::cat(&[xs, &zero], 0)?.index_select(&to_padded, 0)?.reshape((b, s, width))?;
        let positions = match options.positions {
            Some(positions) => Some(padded_positions(positions, tokens, &to_padded)?.reshape(((), b, s))?),
            None => None,
        };
        let options = AttentionOptions { positions: positions.as_ref(), ..*options };
        let mask = mask.clone().and(AttentionMask::padding(lengths));
        let attended = self.attend_with(&AttentionInputs::self_attention(&padded, mask), &options)?;
        let output = attended.output.reshape((b * s, self.config.resolved_output_size()))?;
        let output = output.index_select(&Tensor::new(to_ragged, xs.device())?, 0)?;
        Ok(AttentionOutput { output, attention_weights: attended.attention_weights })
    }
}

/// Positions `(tokens)` or `(axes, tokens)` of a ragged batch → `(axes, places)`, where padding stands at 0.
fn padded_positions(positions: &Tensor, tokens: usize, to_padded: &Tensor) -> Result<Tensor> {
    let axes = match *positions.dims() {
        [found] if found == tokens => 1,
        [axes, found] if found == tokens => axes,
        ref dims => return Err(Error::shape("positions", dims, format!("[{tokens}] or [3, {tokens}]"))),
    };
    if !positions.dtype().is_int() {
        return Err(Error::dtype("positions", positions.dtype(), "an integer dtype"));
    }
    let positions = positions.to_device(to_padded.device())?.to_dtype(DType::I64)?.reshape((axes, tokens))?;
    Ok(positions.pad_with_zeros(1, 0, 1)?.contiguous()?.index_select(to_padded, 1)?)
}
