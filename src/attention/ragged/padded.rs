//! Ragged batches through padding: right for every layer, slower than the other ways.

use candle_core::{DType, Tensor};

use crate::attention::ragged::buckets::{Bucket, buckets, padded_places};
use crate::attention::{AttentionInputs, AttentionOptions, MultiHeadAttention};
use crate::error::{Error, Result};
use crate::mask::AttentionMask;
use crate::position::ragged::offsets;
use crate::sdpa::AttentionOutput;
use crate::tensor::check_tensor_memory;

impl MultiHeadAttention {
    /// Self-attention within each sequence of `xs` `(tokens, query_size)` → `(tokens, output_size)`. Differentiable.
    ///
    /// Sequences of like length are padded together; with options that belong to a padded batch, all of them.
    pub(super) fn attend_ragged_padded(
        &self,
        xs: &Tensor,
        lengths: &[usize],
        mask: &AttentionMask,
        options: &AttentionOptions,
    ) -> Result<AttentionOutput> {
        let (tokens, width) = xs.dims2()?;
        let size = self.config.resolved_output_size();
        if tokens == 0 {
            let zeros = |dims: &[usize]| Tensor::zeros(dims, xs.dtype(), xs.device());
            let weights = [lengths.len(), self.config.num_attention_heads, 0, 0];
            let attention_weights = options.return_attention_weights.then(|| zeros(&weights)).transpose()?;
            return Ok(AttentionOutput { output: zeros(&[0, size])?, attention_weights });
        }
        let buckets = match options.need_padding(self.config.dropout) {
            true => vec![Bucket::of_all(lengths)],
            false => buckets(lengths),
        };
        // Many empty sequences beside a long one are a small ragged batch and may be a large padded one.
        let padded = buckets.iter().fold(0usize, |sum, bucket| sum.saturating_add(bucket.padded_tokens()));
        if u32::try_from(padded).is_err() {
            let longest = lengths.iter().max().copied().unwrap_or(0);
            let found = format!("{} sequences of up to {longest} tokens", lengths.len());
            return Err(Error::value("a ragged batch that has to be padded", found, "less than 2^32 padded tokens"));
        }
        check_tensor_memory("the number of tokens to pad", tokens, &[tokens + 1, width], xs.dtype(), xs.device())?;
        // Padding is one more token, of zeros.
        let zero = Tensor::zeros((1, width), xs.dtype(), xs.device())?;
        let with_zero = Tensor::cat(&[xs, &zero], 0)?;
        let starts = offsets(lengths);
        let (mut outputs, mut attention_weights) = (Vec::with_capacity(buckets.len()), None);
        for bucket in &buckets {
            let attended = self.attend_bucket(&with_zero, bucket, &starts, mask, options)?;
            outputs.push(attended.output.reshape((bucket.padded_tokens(), size))?);
            attention_weights = attended.attention_weights;
        }
        let places = Tensor::new(padded_places(&buckets, lengths), xs.device())?;
        Ok(AttentionOutput { output: Tensor::cat(&outputs, 0)?.index_select(&places, 0)?, attention_weights })
    }

    /// Whether a padded batch needs [`AttentionMask::padding`]. Where nobody looks at padding as queries,
    /// [`AttentionMask::lengths`] hides it as keys in a mask that is smaller by a factor of `s`.
    pub fn rotates_for_length(&self) -> bool {
        self.config.position.scheme().rotates_for_length()
    }

    /// Self-attention within each sequence of a bucket: `xs` `(tokens + 1, query_size)` → `(b, s, output_size)`. `starts` is
    /// where each sequence of the batch begins, and the number of tokens.
    fn attend_bucket(
        &self,
        xs: &Tensor,
        bucket: &Bucket,
        starts: &[usize],
        mask: &AttentionMask,
        options: &AttentionOptions,
    ) -> Result<AttentionOutput> {
        let (tokens, width) = (xs.dim(0)? - 1, xs.dim(1)?);
        let (b, s) = (bucket.sequences.len(), bucket.longest);
        check_tensor_memory("the number of sequences to pad", b, &[b, s, width], xs.dtype(), xs.device())?;
        let length = |sequence: usize| starts[sequence + 1] - starts[sequence];
        // The token at each padded place.
        let mut to_padded = Vec::with_capacity(b * s);
        for &sequence in &bucket.sequences {
            let (start, length) = (starts[sequence], length(sequence));
            to_padded.extend((0..s).map(|i| if i < length { (start + i) as u32 } else { tokens as u32 }));
        }
        let to_padded = Tensor::new(to_padded, xs.device())?;
        let padded = xs.index_select(&to_padded, 0)?.reshape((b, s, width))?;
        let positions = match options.positions {
            Some(positions) => Some(padded_positions(positions, tokens, &to_padded)?.reshape(((), b, s))?),
            None => None,
        };
        let options = AttentionOptions { positions: positions.as_ref(), ..*options };
        let of_bucket: Vec<usize> = bucket.sequences.iter().map(|&sequence| length(sequence)).collect();
        // Padding as queries is removed above, and shows in the weights alone.
        let padding = match options.return_attention_weights || self.rotates_for_length() {
            true => AttentionMask::padding(&of_bucket),
            false => AttentionMask::lengths(&of_bucket),
        };
        self.attend_with(&AttentionInputs::self_attention(&padded, mask.clone().and(padding)), &options)
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
