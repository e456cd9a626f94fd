//! Ragged batches: sequences stored one after another, without padding.
//!
//! Padding a batch of texts to the longest wastes half of the work or more, in every layer. A ragged batch has only
//! real tokens, and `offsets` say where each sequence starts, like FlashAttention's `cu_seqlens`. On the CPU a
//! sequence's result does not depend on the batch around it, bit for bit. There are three ways to run one: buffers of
//! the CPU kernel (`cpu`), a fused kernel over tensors (`tensor`), and padding (`padded`) for gradients and for layers
//! that no fused kernel supports. Sorting texts by length, the usual alternative, reduces padding but does not remove
//! it.

mod cpu;
mod padded;
mod tensor;
mod unpadded;

pub(crate) use cpu::Buffers;

use candle_core::{Device, Tensor, WithDType};

use crate::attention::MultiHeadAttention;
use crate::error::{Error, Result};
use crate::kernels::cpu::Element;
use crate::mask::AttentionMask;
use crate::ops::PendingBias;
use crate::position::ragged::{BatchCache, offsets};
use crate::tensor::{for_cpu_element, same_dtype_and_device, with_slice};

impl MultiHeadAttention {
    /// Self-attention within each sequence of a ragged batch: `xs` `(tokens, query_size)` holds the sequences one after
    /// another, `lengths` the number of tokens of each → `(tokens, output_size)`.
    ///
    /// The result is that of padding the sequences, masking the padding and removing it again, but a fused kernel
    /// spends nothing on padding. On the CPU the result of a sequence has the same bits alone and in any batch.
    ///
    /// `mask` may be `full`, `causal` or a `window`, each within a sequence.
    ///
    /// # Errors
    /// `xs` has the wrong shape, dtype or device, the lengths do not add up to its tokens, or the mask is of another
    /// kind.
    pub fn attend_ragged(&self, xs: &Tensor, lengths: &[usize], mask: &AttentionMask) -> Result<Tensor> {
        self.attend_ragged_pending(xs, lengths, mask, &BatchCache::default())?.apply()
    }

    /// [`attend_ragged`](Self::attend_ragged) with the cache that the layers of a model share. The bias of the output
    /// projection is left to the next operation if a GPU can add it there.
    pub(crate) fn attend_ragged_pending(
        &self,
        xs: &Tensor,
        lengths: &[usize],
        mask: &AttentionMask,
        cache: &BatchCache,
    ) -> Result<PendingBias> {
        let offsets = offsets(lengths);
        self.check_ragged(xs, offsets[lengths.len()], mask)?;
        if self.config.num_attention_heads == 0 {
            return Ok(self.without_heads(&xs.unsqueeze(0)?)?.output.squeeze(0)?.into());
        }
        if !xs.track_op() && self.supports_cpu_ragged() {
            let output = for_cpu_element!(xs.dtype(), T => self.attend_ragged_elements::<T>(xs, &offsets, mask));
            return Ok(output?.into());
        }
        match self.attend_ragged_tensors(xs, &offsets, mask, cache)? {
            Some(output) => Ok(output),
            None => Ok(self.attend_ragged_padded(xs, lengths, mask)?.into()),
        }
    }

    /// `tokens`: the sum of the lengths.
    fn check_ragged(&self, xs: &Tensor, tokens: usize, mask: &AttentionMask) -> Result<()> {
        let size = self.config.resolved_query_size();
        match xs.dims() {
            [found, width] if *width == size => {
                if *found != tokens {
                    return Err(Error::value("the sum of lengths", tokens, format!("{found}, the tokens of xs")));
                }
            }
            dims => return Err(Error::shape("xs", dims, format!("(tokens, {size})"))),
        }
        if !mask.is_windowed() {
            return Err(Error::value("the mask of a ragged batch", mask, "full, causal or a window"));
        }
        same_dtype_and_device("xs", xs, self.qkv.weight())
    }

    fn attend_ragged_elements<T: Element + WithDType>(
        &self,
        xs: &Tensor,
        offsets: &[usize],
        mask: &AttentionMask,
    ) -> Result<Tensor> {
        let mut output = Vec::<T>::new();
        with_slice(xs, |xs: &[T]| self.attend_ragged_cpu(xs, offsets, mask, &mut Buffers::default(), &mut output))??;
        Ok(Tensor::from_vec(output, (xs.dim(0)?, self.config.resolved_output_size()), &Device::Cpu)?)
    }
}
