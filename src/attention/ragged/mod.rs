//! Ragged batches: sequences stored one after another, without padding.
//!
//! Padding a batch of texts to the longest wastes half of the work or more, in every layer. A ragged batch has only
//! real tokens, and `offsets` say where each sequence starts, like FlashAttention's `cu_seqlens`. On the CPU a
//! sequence's result does not depend on the batch around it, bit for bit. There are three ways to run one: buffers of
//! the CPU kernel (`cpu`), a fused kernel over tensors (`tensor`), and padding (`padded`) for gradients and for devices
//! and layers without such a kernel. There sequences of like length are padded together (`buckets`), so that padding is at
//! most a quarter of what is computed. Sorting texts by length, the usual alternative, reduces padding without a bound.

mod buckets;
mod cpu;
mod padded;
mod share;
mod tensor;
mod unpadded;

pub use buckets::{Bucket, bucket_size, buckets, padded_places};
pub use cpu::Buffers;
pub use share::share_sequences;

use std::ops::Range;

use candle_core::{Device, Tensor, WithDType};

use crate::attention::{AttentionOptions, MultiHeadAttention};
use crate::error::{Error, Result};
use crate::for_cpu_element;
use crate::kernels::cpu::Element;
use crate::mask::AttentionMask;
use crate::ops::PendingBias;
use crate::position::ragged::{BatchCache, offsets};
use crate::sdpa::{AttentionOutput, Backend};
use crate::tensor::{element_count, same_dtype_and_device, with_slice, zeros};

/// Values of the hidden states that one thread takes at a time: 1 MB in f32, half of the L2 cache of a core.
pub const CHUNK_VALUES: usize = 1 << 18;

impl MultiHeadAttention {
    /// Self-attention within each sequence of a ragged batch: `xs` `(tokens, query_size)` holds the sequences one after
    /// another, `lengths` the number of tokens of each → `(tokens, output_size)`.
    ///
    /// The result is that of padding the sequences, masking the padding and removing it again, but a fused kernel
    /// spends nothing on padding. Without one, for gradients and on Apple GPUs, sequences of like length are padded together:
    /// padding is at most a quarter of what is computed. On the CPU the result of a sequence has the same bits alone and in any batch.
    ///
    /// `mask` may be `full`, `causal` or a `window`, each within a sequence.
    ///
    /// # Errors
    /// `xs` has the wrong shape, dtype or device, the lengths do not add up to its tokens, the mask is of another kind, or
    /// the positions are those of image patches and the sequences have different lengths.
    pub fn attend_ragged(&self, xs: &Tensor, lengths: &[usize], mask: &AttentionMask) -> Result<Tensor> {
        self.attend_ragged_pending(xs, lengths, mask, &BatchCache::default())?.apply()
    }

    /// [`attend_ragged`](Self::attend_ragged) with [`AttentionOptions`].
    ///
    /// Dropout and a head mask `(h)` or `(sequences, h)` mean what they mean in a padded batch. Returned attention weights
    /// are those of the padded batch, `(sequences, h, s, s)` with `s` tokens in the longest sequence: rows and columns of
    /// padding are 0. Positions are `(tokens)`, or `(3, tokens)` for M-RoPE. With one of these options the batch is padded;
    /// a forced fused backend alone runs it without padding.
    ///
    /// # Errors
    /// Those of [`attend_ragged`](Self::attend_ragged) and of [`attend_with`](Self::attend_with).
    pub fn attend_ragged_with(
        &self,
        xs: &Tensor,
        lengths: &[usize],
        mask: &AttentionMask,
        options: &AttentionOptions,
    ) -> Result<AttentionOutput> {
        if options.need_padding(self.config.dropout) {
            self.check_ragged(xs, lengths, mask)?;
            return self.attend_ragged_padded(xs, lengths, mask, options);
        }
        let output = self.run_ragged(xs, lengths, mask, &BatchCache::default(), options)?.apply()?;
        Ok(AttentionOutput { output, attention_weights: None })
    }

    /// [`attend_ragged`](Self::attend_ragged) with the cache that the layers of a model share. The bias of the output
    /// projection is left to the next operation if a GPU can add it there.
    pub fn attend_ragged_pending(
        &self,
        xs: &Tensor,
        lengths: &[usize],
        mask: &AttentionMask,
        cache: &BatchCache,
    ) -> Result<PendingBias> {
        self.run_ragged(xs, lengths, mask, cache, &AttentionOptions::default())
    }

    /// A ragged batch, on the backend of the options; they ask for nothing else.
    fn run_ragged(
        &self,
        xs: &Tensor,
        lengths: &[usize],
        mask: &AttentionMask,
        cache: &BatchCache,
        options: &AttentionOptions,
    ) -> Result<PendingBias> {
        let offsets = self.check_ragged(xs, lengths, mask)?;
        if self.config.num_attention_heads == 0 {
            return Ok(self.without_heads(&xs.unsqueeze(0)?)?.output.squeeze(0)?.into());
        }
        let on_cpu = matches!(options.backend, None | Some(Backend::Cpu));
        if on_cpu && !xs.track_op() && self.supports_cpu_ragged() {
            let output = for_cpu_element!(xs.dtype(), T => self.attend_ragged_elements::<T>(xs, &offsets, mask));
            return Ok(output?.into());
        }
        match self.attend_ragged_tensors(xs, &offsets, mask, cache, options)? {
            Some(output) => Ok(output),
            None => Ok(self.attend_ragged_padded(xs, lengths, mask, options)?.output.into()),
        }
    }

    /// Checks a ragged batch and returns where each sequence starts and the last one ends.
    pub(super) fn check_ragged(&self, xs: &Tensor, lengths: &[usize], mask: &AttentionMask) -> Result<Vec<usize>> {
        let size = self.config.resolved_query_size();
        let offsets = offsets(lengths);
        let tokens = offsets[lengths.len()];
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
        if self.config.position.scheme().counts_tokens() && lengths.iter().any(|length| *length != lengths[0]) {
            let expected = format!("equal ones for {}", self.config.position);
            return Err(Error::value("the list of lengths", format!("{lengths:?}"), expected));
        }
        same_dtype_and_device("xs", xs, self.qkv.like())?;
        Ok(offsets)
    }

    fn attend_ragged_elements<T: Element + WithDType>(
        &self,
        xs: &Tensor,
        offsets: &[usize],
        mask: &AttentionMask,
    ) -> Result<Tensor> {
        // Packed before `xs` is locked: packing locks the weights.
        self.qkv.packed()?;
        self.o_proj.packed()?;
        let output = with_slice(xs, |xs: &[T]| self.attend_ragged_rows(xs, offsets, mask))??;
        Ok(Tensor::from_vec(output, (xs.dim(0)?, self.config.resolved_output_size()), &Device::Cpu)?)
    }

    /// [`attend_ragged_cpu`](Self::attend_ragged_cpu) on all threads.
    fn attend_ragged_rows<T: Element>(&self, xs: &[T], offsets: &[usize], mask: &AttentionMask) -> Result<Vec<T>> {
        let (input, size) = (self.config.resolved_query_size(), self.config.resolved_output_size());
        let tokens = offsets.last().copied().unwrap_or(0);
        let mut output = zeros("the output of attention", element_count("the output", &[tokens, size])?)?;
        let work = self.ragged_multiply_adds(offsets)?;
        let rows = |sequences: &Range<usize>| (offsets[sequences.end] - offsets[sequences.start]) * size;
        share_sequences(offsets, CHUNK_VALUES / input.max(1), work, &mut output, rows, |team, sequences, output| {
            let part = &offsets[sequences.start..=sequences.end];
            let starts: Vec<usize> = part.iter().map(|start| start - part[0]).collect();
            let xs = &xs[part[0] * input..part[part.len() - 1] * input];
            self.attend_ragged_cpu(team, xs, &starts, mask, &Buffers::default(), output)
        })?;
        Ok(output)
    }
}
