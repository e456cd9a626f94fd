//! Ragged self-attention in the buffers of the CPU kernel: no tensors and no allocation between the steps.

use half::bf16;

use crate::attention::MultiHeadAttention;
use crate::error::Result;
use crate::kernels::Activation;
use crate::kernels::cpu as kernels;
use crate::kernels::cpu::{AttentionProblem, Batch, Element, HeadsView, Isa};
use crate::mask::{AttentionMask, AttnShape};
use crate::position::ragged::{BatchCache, RaggedBatch};
use candle_core::Device;

/// Buffers that calls reuse.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    f32: ElementBuffers<f32>,
    bf16: ElementBuffers<bf16>,
    cache: BatchCache,
}

#[derive(Debug, Default)]
struct ElementBuffers<T> {
    /// `(tokens, (h + h_kv) · d + h_kv · d_v)`.
    qkv: Vec<T>,
    /// `(tokens, h · d_v)`.
    context: Vec<T>,
}

impl MultiHeadAttention {
    /// Whether [`attend_ragged_cpu`](Self::attend_ragged_cpu) supports the layer: its weights are fixed and on the CPU,
    /// and nothing happens between projection and kernel but a rotation.
    pub(crate) fn supports_cpu_ragged(&self) -> bool {
        let config = &self.config;
        self.score.is_none()
            && self.bias_kv.is_none()
            && !config.add_zero_attn
            && self.qk_norm.is_none()
            && config.clip_qkv.is_none()
            && config.softcap.is_none()
            && self.sinks.is_none()
            && config.position.scheme().ragged_support().on_cpu_buffers()
            && !self.position.tracks_gradient()
            && self.qkv.can_pack()
            && self.o_proj.can_pack()
    }

    /// Self-attention within each sequence of a ragged batch: `xs` `(tokens, query_size)`, where sequence `i` has the
    /// tokens `offsets[i] .. offsets[i + 1]`; `output` becomes `(tokens, output_size)`. Call only if
    /// [`supports_cpu_ragged`](Self::supports_cpu_ragged).
    pub(crate) fn attend_ragged_cpu<A: Element, O: Element>(
        &self,
        xs: &[A],
        offsets: &[usize],
        mask: &AttentionMask,
        buffers: &mut Buffers,
        output: &mut Vec<O>,
    ) -> Result<()> {
        let config = &self.config;
        if config.num_attention_heads == 0 {
            // The product of an empty context: the bias.
            let tokens = offsets.last().copied().unwrap_or(0);
            return self.o_proj.packed()?.multiply::<f32, O>(&[], tokens, Activation::Identity, output);
        }
        let Buffers { f32, bf16, cache } = buffers;
        let batch = RaggedBatch { offsets, cache };
        let scheme = config.position.scheme();
        if scheme.rotates() {
            let heads = config.num_attention_heads + config.resolved_num_key_value_heads();
            let rotate = |qkv: &mut [f32]| scheme.rotate_in_place(qkv, heads, config.resolved_head_dim(), batch);
            return self.attend_elements(xs, batch, mask, rotate, f32, output);
        }
        // Elements that would be rounded before their next product anyway are not kept in f32.
        if self.qkv.rounds_to_bf16()? {
            self.attend_elements(xs, batch, mask, |_| Ok(()), bf16, output)
        } else {
            self.attend_elements(xs, batch, mask, |_| Ok(()), f32, output)
        }
    }

    /// [`attend_ragged_cpu`](Self::attend_ragged_cpu) with queries, keys and values as elements of type `T`. `rotate`
    /// applies positions to the queries and keys of `(tokens, q k v)` in place.
    fn attend_elements<A: Element, T: Element, O: Element>(
        &self,
        xs: &[A],
        batch: RaggedBatch,
        mask: &AttentionMask,
        rotate: impl FnOnce(&mut [T]) -> Result<()>,
        ElementBuffers { qkv, context }: &mut ElementBuffers<T>,
        output: &mut Vec<O>,
    ) -> Result<()> {
        let tokens = batch.offsets.last().copied().unwrap_or(0);
        let (h, h_kv) = (self.config.num_attention_heads, self.config.resolved_num_key_value_heads());
        let (d, d_v) = (self.config.resolved_head_dim(), self.config.resolved_value_head_dim());
        let weights = self.qkv.packed()?;
        let width = weights.out_features(); // h · d + h_kv · d + h_kv · d_v
        weights.multiply(xs, tokens, Activation::Identity, qkv)?;
        rotate(qkv)?;

        let from =
            |start: usize, size: usize| HeadsView { data: &qkv[start.min(qkv.len())..], strides: [0, width, size] };
        let longest = batch.longest();
        let bias = self.position_bias(longest, longest, None, &Device::Cpu, Some(batch.cache))?;
        let mask = bias.into_iter().fold(self.with_own_mask(mask).into_owned(), AttentionMask::and);
        let shape = AttnShape { b: batch.offsets.len().saturating_sub(1), h, s_q: longest, s_kv: longest };
        let mut mask = mask.lower(shape, &Device::Cpu)?;
        mask.embeddings = self.distance_embeddings(longest, longest)?;
        let mask = mask.memory().lock()?;
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
            scale: self.config.resolved_scale() as f32,
            softcap: None,
            sinks: None,
            mask: mask.kernel_mask(),
            bf16: weights.rounds_to_bf16(),
        };
        kernels::attend(Isa::detect()?, &attention, context)?;
        self.o_proj.packed()?.multiply(context, tokens, Activation::Identity, output)
    }
}
