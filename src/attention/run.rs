//! Running a prepared call.

use candle_core::Tensor;

use crate::attention::MultiHeadAttention;
use crate::attention::cache::KvCache;
use crate::attention::call::{PreparedCall, Route};
use crate::attention::options::{AttentionInputs, AttentionOptions, Tokens};
use crate::error::Result;
use crate::ops::PendingBias;
use crate::ragged::offsets;
use crate::sdpa;
use crate::sdpa::AttentionOutput;

impl MultiHeadAttention {
    /// The output of a call, whose last bias may be left to the next operation, and the attention weights, if the options
    /// ask for them.
    pub(super) fn attended(
        &self,
        inputs: &AttentionInputs,
        options: &AttentionOptions,
    ) -> Result<(PendingBias, Option<Tensor>)> {
        self.check(inputs, options)?;
        if self.config.num_attention_heads == 0 {
            return Ok((self.without_heads(inputs.query)?.into(), None));
        }
        let mut cache = inputs.lock_cache();
        let prepared = self.prepare(inputs, options, cache.as_deref().map(|cache| &**cache))?;
        match cache.as_deref_mut() {
            Some(cache) => cache.or_unchanged(|cache| self.run(inputs, options, prepared, Some(cache))),
            None => self.run(inputs, options, prepared, None),
        }
    }

    fn run(
        &self,
        inputs: &AttentionInputs,
        options: &AttentionOptions,
        mut prepared: PreparedCall,
        cache: Option<&mut KvCache>,
    ) -> Result<(PendingBias, Option<Tensor>)> {
        let ragged = if let Tokens::Ragged(lengths) = inputs.tokens { Some(lengths) } else { None };
        let backend = match prepared.route {
            Route::Rows { lengths, mask } => {
                return Ok((self.attend_sequences(inputs.query, &lengths, &mask)?.into(), None));
            }
            Route::Buckets => {
                let lengths = ragged.unwrap_or(&[]);
                let padded = self.attend_buckets(inputs.query, lengths, &inputs.mask, options)?;
                return Ok((padded.output.into(), padded.attention_weights));
            }
            Route::Tensors(backend) => backend,
        };
        let dtype = prepared.call.dtype;
        let [q, k, v] = self.transformed(inputs, &mut prepared, dtype, options, cache)?;
        let offsets = ragged.map(offsets);
        let attended = sdpa::attend_call(backend, [&q, &k, &v], offsets.as_deref(), &prepared.call, &prepared.options)?;
        let (output, attention_weights) = self.finish(attended, inputs, options)?;
        let output = if ragged.is_some() { output.map(|ys| ys.squeeze(0))? } else { output };
        Ok((output, attention_weights))
    }

    /// Applies the head mask and the output projection to the result of `sdpa`.
    pub(super) fn finish(
        &self,
        attended: AttentionOutput,
        inputs: &AttentionInputs,
        options: &AttentionOptions,
    ) -> Result<(PendingBias, Option<Tensor>)> {
        let (b, s_q, h, d_v) = attended.output.dims4()?;
        let dtype = inputs.query.dtype();
        let by_head = match options.head_mask {
            Some(mask) => {
                let sequences = if mask.rank() == 2 { b } else { 1 };
                let mask = mask.to_dtype(attended.output.dtype())?.reshape((sequences, 1, h, 1))?;
                attended.output.broadcast_mul(&mask)?
            }
            None => attended.output,
        };
        let context = by_head.reshape((b, s_q, h * d_v))?;
        let output = if context.dtype() == dtype {
            self.o_proj.forward_pending_bias(&context)?
        } else {
            self.o_proj.forward(&context, dtype)?.into()
        };
        let attention_weights = attended.attention_weights.map(|weights| weights.to_dtype(dtype)).transpose()?;
        Ok((output, attention_weights))
    }

    /// The output of a layer without heads: the bias of the output projection for each query.
    pub(super) fn without_heads(&self, query: &Tensor) -> Result<Tensor> {
        let mut shape = query.dims().to_vec();
        shape.pop();
        shape.push(self.config.resolved_output_size());
        Ok(match self.o_proj.bias()? {
            Some(bias) => bias.broadcast_as(shape)?,
            None => Tensor::zeros(shape, query.dtype(), query.device())?,
        })
    }
}
