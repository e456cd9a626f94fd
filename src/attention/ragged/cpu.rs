//! Self-attention over rows of unequal length that lie one after the other, without padding.

use candle_core::{Device, Tensor, WithDType};
use half::bf16;

use crate::attention::{AttentionInputs, AttentionOptions, MultiHeadAttention};
use crate::error::{Error, Result};
use crate::kernels::Activation;
use crate::kernels::cpu as kernels;
use crate::kernels::cpu::{AttentionProblem, Batch, Element, HeadsView, Isa};
use crate::mask::AttentionMask;
use crate::ops::PendingBias;
use crate::position::RaggedSupport;
use crate::position::ragged::{BatchCache, RaggedBatch, offsets};
use crate::sdpa::{Call, SdpaOptions, runs_on_cpu_kernel};
use crate::tensor::{for_cpu_element, with_slice};

impl MultiHeadAttention {
    /// Self-attention within each row of a ragged batch: `xs` `(tokens, query_size)` is the rows one after the other,
    /// `lengths` says how many tokens each has → `(tokens, output_size)`. The same numbers as padding the rows, masking
    /// the padding and taking it off again, but where a fused kernel runs nothing is spent on padding, and on the CPU a
    /// row's result is bitwise the same alone and in any batch.
    ///
    /// `mask` may be `full`, `causal` or a `window`, each within a row.
    ///
    /// # Errors
    /// If `xs` does not fit, the lengths do not add up to its tokens, or the mask is of another kind.
    pub fn attend_ragged(&self, xs: &Tensor, lengths: &[usize], mask: &AttentionMask) -> candle_core::Result<Tensor> {
        Ok(self.ragged(xs, lengths, mask, &BatchCache::default())?.apply()?)
    }

    /// [`attend_ragged`](Self::attend_ragged) with what the layers of a model share, the last bias left to the next step
    /// where a GPU adds it there.
    pub(crate) fn ragged(
        &self,
        xs: &Tensor,
        lengths: &[usize],
        mask: &AttentionMask,
        cache: &BatchCache,
    ) -> Result<PendingBias> {
        let size = self.config.query_size();
        let (tokens, _) = xs
            .dims2()
            .ok()
            .filter(|(_, width)| *width == size)
            .ok_or_else(|| Error::shape("xs", xs.dims(), format!("(tokens, {size})")))?;
        let starts = offsets(lengths);
        if starts[lengths.len()] != tokens {
            return Err(Error::value(
                "the sum of lengths",
                starts[lengths.len()],
                format!("{tokens}, the tokens of xs"),
            ));
        }
        if !mask.is_band() {
            return Err(Error::value("the mask of a ragged batch", mask, "full, causal or a window"));
        }
        crate::tensor::same_dtype_and_device("xs", xs, self.qkv.weight())?;
        if self.config.num_attention_heads == 0 {
            return Ok(self.without_heads(&xs.unsqueeze(0)?)?.output.squeeze(0)?.into());
        }
        if xs.track_op() || !self.runs_on_rows() {
            return match self.ragged_of_tensors(xs, &starts, mask, cache)? {
                Some(output) => Ok(output),
                None => Ok(self.padded_ragged(xs, lengths, mask)?.into()),
            };
        }
        let output = for_cpu_element!(xs.dtype(), T => self.ragged_of::<T>(xs, &starts, mask));
        Ok(output?.into())
    }

    fn ragged_of<T: Element + WithDType>(&self, xs: &Tensor, starts: &[usize], mask: &AttentionMask) -> Result<Tensor> {
        let mut output = Vec::<T>::new();
        with_slice(xs, |xs: &[T]| self.attend_rows(xs, starts, mask, &mut Buffers::default(), &mut output))??;
        Ok(Tensor::from_vec(output, (xs.dim(0)?, self.config.output_size()), &Device::Cpu)?)
    }

    /// Whether [`attend_rows`](Self::attend_rows) can run.
    pub(crate) fn runs_on_rows(&self) -> bool {
        let plain = self.score.is_none() && self.bias_kv.is_none() && !self.config.add_zero_attn;
        let plain = plain && self.qk_norm.is_none() && self.config.clip_qkv.is_none();
        let plain = plain && self.config.softcap.is_none() && self.sinks.is_none();
        let plain = plain && self.config.position.scheme().ragged_support() == RaggedSupport::CpuBuffers;
        let fixed = !self.position.tracks_gradient();
        plain && fixed && self.qkv.can_pack() && self.o_proj.can_pack()
    }

    /// Self-attention within rows on plain numbers: `xs` `(tokens, query_size)`, row `i` being the tokens
    /// `starts[i] .. starts[i + 1]`; `output` becomes `(tokens, output_size)`. Call only if
    /// [`runs_on_rows`](Self::runs_on_rows).
    pub(crate) fn attend_rows<A: Element, O: Element>(
        &self,
        xs: &[A],
        starts: &[usize],
        mask: &AttentionMask,
        buffers: &mut Buffers,
        output: &mut Vec<O>,
    ) -> Result<()> {
        if self.config.num_attention_heads == 0 {
            // A product of nothing: the bias.
            let tokens = starts.last().copied().unwrap_or(0);
            self.o_proj.packed()?.multiply::<f32, O>(&[], tokens, Activation::Identity, output);
            return Ok(());
        }
        let Buffers { f32, bf16, cache } = buffers;
        let batch = RaggedBatch { offsets: starts, cache };
        let position = &self.config.position;
        if position.scheme().rotates() {
            let heads = self.config.num_attention_heads + self.config.num_key_value_heads();
            let rotate = |qkv: &mut [f32]| position.scheme().rotate_in_place(qkv, heads, self.config.head_dim(), batch);
            return self.attend_rows_by(xs, batch, mask, rotate, f32, output);
        }
        // Elements that would be rounded before their next product anyway are not kept in f32.
        if self.qkv.rounds_to_bf16()? {
            self.attend_rows_by(xs, batch, mask, |_| Ok(()), bf16, output)
        } else {
            self.attend_rows_by(xs, batch, mask, |_| Ok(()), f32, output)
        }
    }

    /// `rotate` turns the queries and keys of `(tokens, q k v)` in place.
    fn attend_rows_by<A: Element, T: Element, O: Element>(
        &self,
        xs: &[A],
        batch: RaggedBatch,
        mask: &AttentionMask,
        rotate: impl FnOnce(&mut [T]) -> Result<()>,
        Inner { qkv, context }: &mut Inner<T>,
        output: &mut Vec<O>,
    ) -> Result<()> {
        let tokens = batch.offsets.last().copied().unwrap_or(0);
        let (h, h_kv) = (self.config.num_attention_heads, self.config.num_key_value_heads());
        let (d, d_v) = (self.config.head_dim(), self.config.value_head_dim());
        let weights = self.qkv.packed()?;
        let width = weights.out_features(); // h · d + h_kv · d + h_kv · d_v
        weights.multiply(xs, tokens, Activation::Identity, qkv);
        rotate(qkv)?;

        let from =
            |start: usize, size: usize| HeadsView { data: &qkv[start.min(qkv.len())..], strides: [0, width, size] };
        let longest = batch.longest();
        let bias = self.position_bias(longest, longest, None, &Device::Cpu, Some(batch.cache))?;
        let mask = bias.into_iter().fold(mask.clone(), AttentionMask::and);
        let mask = mask.lower(&Device::Cpu)?;
        let mask = mask.slices()?;
        let attention = AttentionProblem {
            q: from(0, d),
            k: from(h * d, d),
            v: from((h + h_kv) * d, d_v),
            batch: Batch::Ragged { offsets: batch.offsets },
            appended: 0,
            h,
            h_kv,
            d,
            d_v,
            scale: self.config.scale() as f32,
            softcap: None,
            sinks: None,
            mask: mask.kernel_mask(),
            bf16: weights.rounds_to_bf16(),
        };
        kernels::attend(Isa::detect()?, &attention, context);
        self.o_proj.packed()?.multiply(context, tokens, Activation::Identity, output);
        Ok(())
    }

    /// Whether padding can be taken off before and put back after a call.
    pub(crate) fn runs_unpadded(&self, inputs: &AttentionInputs, call: &Call, options: &SdpaOptions) -> bool {
        let [q, k, v] = [inputs.query, inputs.key, inputs.value].map(Tensor::id);
        q == k && q == v && self.runs_on_rows() && runs_on_cpu_kernel(call, options)
    }

    /// Self-attention over padded rows `xs` `(b, s, query_size)` → `(b, s, output_size)`: what
    /// [`AttentionMask::padding`] says, on the tokens that are none.
    pub(crate) fn unpadded(&self, xs: &Tensor, lengths: &[usize], band: &AttentionMask) -> Result<Tensor> {
        for_cpu_element!(xs.dtype(), T => self.unpadded_of::<T>(xs, lengths, band))
    }

    fn unpadded_of<T: Element + WithDType>(
        &self,
        xs: &Tensor,
        lengths: &[usize],
        band: &AttentionMask,
    ) -> Result<Tensor> {
        let (b, s, width) = xs.dims3()?;
        let starts = offsets(lengths);
        let tokens = starts[lengths.len()];
        let mut rows = Vec::with_capacity(tokens * width);
        with_slice(xs, |xs: &[T]| {
            for (xs, &length) in xs.chunks_exact((s * width).max(1)).zip(lengths) {
                rows.extend_from_slice(&xs[..length * width]);
            }
        })?;
        let mut ys = Vec::<T>::new();
        self.attend_rows(&rows, &starts, band, &mut Buffers::default(), &mut ys)?;
        // A query that sees nothing gets zeros before the output projection, and so its bias after it.
        let width = self.config.output_size();
        let mut nothing = Vec::<T>::new();
        let packed = self.o_proj.packed()?;
        packed.multiply(&vec![0f32; packed.in_features()], 1, Activation::Identity, &mut nothing);
        let mut output = Vec::with_capacity(b * s * width);
        for (&length, &start) in lengths.iter().zip(&starts) {
            output.extend_from_slice(&ys[start * width..][..length * width]);
            (length..s).for_each(|_| output.extend_from_slice(&nothing));
        }
        Ok(Tensor::from_vec(output, (b, s, width), &Device::Cpu)?)
    }

    /// By way of padding, for whatever needs gradients or runs elsewhere.
    fn padded_ragged(&self, xs: &Tensor, lengths: &[usize], mask: &AttentionMask) -> Result<Tensor> {
        let (tokens, width) = xs.dims2()?;
        if tokens == 0 {
            return Ok(Tensor::zeros((0, self.config.output_size()), xs.dtype(), xs.device())?);
        }
        let (b, s) = (lengths.len(), lengths.iter().copied().max().unwrap_or(0));
        // Where each padded place comes from: padding from one more row, of zeros.
        let mut places = Vec::with_capacity(b * s);
        let mut back = Vec::with_capacity(tokens);
        for (row, &length) in lengths.iter().enumerate() {
            places.extend((0..s).map(|i| if i < length { (back.len() + i) as u32 } else { tokens as u32 }));
            back.extend((0..length).map(|i| (row * s + i) as u32));
        }
        let zero = Tensor::zeros((1, width), xs.dtype(), xs.device())?;
        let index = |places: Vec<u32>| Tensor::new(places, xs.device());
        let padded = Tensor::cat(&[xs, &zero], 0)?.index_select(&index(places)?, 0)?.reshape((b, s, width))?;
        let mask = mask.clone().and(AttentionMask::padding(lengths));
        let inputs = AttentionInputs::self_attention(&padded, &mask);
        let output = self.attend_with(&inputs, &AttentionOptions::default())?.output;
        Ok(output.reshape((b * s, self.config.output_size()))?.index_select(&index(back)?, 0)?)
    }
}

/// Memory that calls reuse.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    f32: Inner<f32>,
    bf16: Inner<bf16>,
    cache: BatchCache,
}

#[derive(Debug, Default)]
struct Inner<T> {
    qkv: Vec<T>,
    context: Vec<T>,
}
