//! Ragged self-attention in the buffers of the CPU kernel: no tensors between the steps.
//!
//! One thread computes a group of whole sequences at a time: the projection, attention and the output projection, so that
//! each step finds what the one before has written in the cache. A team of threads computes one step after the other for
//! all sequences, and shares the work of each.

use std::ops::Range;

use candle_core::Device;
use half::bf16;

use crate::attention::MultiHeadAttention;
use crate::config::NormKind;
use crate::error::Result;
use crate::kernels::Activation;
use crate::kernels::cpu as kernels;
use crate::kernels::cpu::{AttentionProblem, Batch, Element, HeadsView, Isa, Mask, ScratchPool, Team};
use crate::mask::{AttentionMask, AttnShape};
use crate::ops::NormParameters;
use crate::position::ragged::{BatchCache, RaggedBatch};

/// What the layers of a model share in a forward pass.
#[derive(Default)]
pub struct Buffers {
    /// Memory for what a step computes and the next one reads.
    pub scratch: ScratchPool,
    cache: BatchCache,
}

/// Bytes of queries, keys, values and context that one thread computes at a time. They stay in or near the L2 cache, which
/// has 1 to 2 MB a core; with fewer the weights are read more often.
const GROUP_BYTES: usize = 1 << 21;

impl MultiHeadAttention {
    /// Whether [`attend_ragged_cpu`](Self::attend_ragged_cpu) supports the layer: its weights are fixed and on the CPU,
    /// and nothing happens between projection and kernel but norms and a rotation.
    pub fn supports_cpu_ragged(&self) -> bool {
        let config = &self.config;
        self.score.is_none()
            && self.bias_kv.is_none()
            && !config.add_zero_attn
            && self.norms_run_on_buffers()
            && config.clip_qkv.is_none()
            && config.softcap.is_none()
            && self.sinks.is_none()
            && config.position.scheme().ragged_support().on_cpu_buffers()
            && !self.position.tracks_gradient()
            && self.qkv.can_pack()
            && self.o_proj.can_pack()
    }

    /// Multiply-adds of [`attend_ragged_cpu`](Self::attend_ragged_cpu).
    pub fn ragged_multiply_adds(&self, offsets: &[usize]) -> Result<usize> {
        let tokens = offsets.last().copied().unwrap_or(0);
        let products =
            self.qkv.packed()?.multiply_adds(tokens).saturating_add(self.o_proj.packed()?.multiply_adds(tokens));
        let pairs =
            crate::position::ragged::lengths(offsets).map(|s| s.saturating_mul(s)).fold(0, usize::saturating_add);
        let per_pair = self.config.resolved_head_dim() + self.config.resolved_value_head_dim();
        Ok(products.saturating_add(pairs.saturating_mul(self.config.num_attention_heads * per_pair)))
    }

    /// Self-attention within each sequence of a ragged batch: `xs` `(tokens, query_size)`, where sequence `i` has the
    /// tokens `offsets[i] .. offsets[i + 1]`, to `output` `(tokens, output_size)`. Call only if
    /// [`supports_cpu_ragged`](Self::supports_cpu_ragged).
    pub fn attend_ragged_cpu<A: Element, O: Element>(
        &self,
        team: Team,
        xs: &[A],
        offsets: &[usize],
        mask: &AttentionMask,
        buffers: &Buffers,
        output: &mut [O],
    ) -> Result<()> {
        let config = &self.config;
        if config.num_attention_heads == 0 {
            // The product of an empty context: the bias.
            let tokens = offsets.last().copied().unwrap_or(0);
            return self.o_proj.packed()?.multiply_into::<f32, O>(team, &[], tokens, Activation::Identity, output);
        }
        let batch = RaggedBatch { offsets, cache: &buffers.cache };
        let scheme = config.position.scheme();
        if scheme.rotates() || self.qk_norm.is_some() {
            let heads = config.num_attention_heads + config.resolved_num_key_value_heads();
            let rotate = |qkv: &mut [f32], group: RaggedBatch| {
                self.normalize_in_place(team, qkv)?;
                scheme.rotate_in_place(qkv, heads, config.resolved_head_dim(), group)
            };
            return self.attend_elements(team, xs, batch, mask, rotate, &buffers.scratch, output);
        }
        // Elements that would be rounded before their next product anyway are not kept in f32.
        if self.qkv.rounds_to_bf16()? {
            self.attend_elements(team, xs, batch, mask, |_: &mut [bf16], _| Ok(()), &buffers.scratch, output)
        } else {
            self.attend_elements(team, xs, batch, mask, |_: &mut [f32], _| Ok(()), &buffers.scratch, output)
        }
    }

    /// Whether norms of queries and keys, if there are any, have one fixed weight for all heads.
    fn norms_run_on_buffers(&self) -> bool {
        let norms = || self.qk_norm.iter().flatten();
        let parameters = norms().flat_map(|norm| [Some(&norm.weight), norm.bias.as_ref()]).flatten();
        norms().all(|norm| norm.weight.rank() == 1) && parameters.into_iter().all(|tensor| !tensor.track_op())
    }

    /// Normalizes the queries and keys of `qkv` `(tokens, q k v)`.
    fn normalize_in_place(&self, team: Team, qkv: &mut [f32]) -> Result<()> {
        let (Some(norm), Some(weights)) = (&self.config.qk_norm, &self.qk_norm) else { return Ok(()) };
        let (h, h_kv) = (self.config.num_attention_heads, self.config.resolved_num_key_value_heads());
        let (d, width) = (self.config.resolved_head_dim(), self.qkv.packed()?.out_features());
        for (part, weights) in [0..h * d, h * d..(h + h_kv) * d].into_iter().zip(weights) {
            let norm = NormParameters {
                weight: &weights.weight,
                bias: weights.bias.as_ref(),
                eps: norm.eps,
                rms: norm.kind != NormKind::Layer,
                offset: if norm.kind == NormKind::RmsOffset { 1.0 } else { 0.0 },
            };
            norm.normalize_parts(Isa::detect()?, team, qkv, width, part)?;
        }
        Ok(())
    }

    /// [`attend_ragged_cpu`](Self::attend_ragged_cpu) with queries, keys and values as elements of type `T`. `rotate`
    /// applies norms and positions to the queries and keys of `(tokens, q k v)` in place.
    #[allow(clippy::too_many_arguments, reason = "one call, split by element type")]
    fn attend_elements<A: Element, T: Element, O: Element>(
        &self,
        team: Team,
        xs: &[A],
        batch: RaggedBatch,
        mask: &AttentionMask,
        rotate: impl Fn(&mut [T], RaggedBatch) -> Result<()>,
        scratch: &ScratchPool,
        output: &mut [O],
    ) -> Result<()> {
        let offsets = batch.offsets;
        let (h, d_v) = (self.config.num_attention_heads, self.config.resolved_value_head_dim());
        let [projection, output_projection] = [self.qkv.packed()?, self.o_proj.packed()?];
        let [input, width, out] =
            [projection.in_features(), projection.out_features(), output_projection.out_features()];

        let longest = batch.longest();
        let bias = self.position_bias(longest, longest, None, &Device::Cpu, Some(batch.cache))?;
        let mask = bias.into_iter().fold(self.with_own_mask(mask).into_owned(), AttentionMask::and);
        let shape = AttnShape { b: offsets.len().saturating_sub(1), h, s_q: longest, s_kv: longest };
        let mut mask = mask.lower(shape, &Device::Cpu)?;
        mask.embeddings = self.distance_embeddings(longest, longest)?;
        let mask = mask.memory().lock()?;

        let limit = match team.threads() {
            1 => GROUP_BYTES / ((width + h * d_v) * size_of::<T>()).max(1),
            _ => usize::MAX,
        };
        for sequences in groups(offsets, limit) {
            let (first, last) = (sequences.start, sequences.end);
            let tokens = offsets[first]..offsets[last];
            let mut memory = scratch.take(floats::<T>(tokens.len() * width))?;
            let qkv = &mut bytemuck::cast_slice_mut(&mut memory)[..tokens.len() * width];
            let xs = &xs[tokens.start * input..tokens.end * input];
            projection.multiply_into(team, xs, tokens.len(), Activation::Identity, qkv)?;
            let starts: Vec<usize> = offsets[first..=last].iter().map(|start| start - tokens.start).collect();
            rotate(qkv, RaggedBatch { offsets: &starts, ..batch })?;

            let mut memory = scratch.take(floats::<T>(tokens.len() * h * d_v))?;
            let context = &mut bytemuck::cast_slice_mut(&mut memory)[..tokens.len() * h * d_v];
            let batch = Batch::Part { offsets, first, last };
            let problem = self.ragged_problem(qkv, width, batch, mask.kernel_mask(), projection.rounds_to_bf16());
            kernels::attend_into(Isa::detect()?, team, &problem, context)?;
            let output = &mut output[tokens.start * out..tokens.end * out];
            output_projection.multiply_into(team, context, tokens.len(), Activation::Identity, output)?;
        }
        Ok(())
    }

    /// Attention over `qkv` `(tokens, width)`: queries, keys and values of a token side by side.
    fn ragged_problem<'a, T>(
        &self,
        qkv: &'a [T],
        width: usize,
        batch: Batch<'a>,
        mask: Mask<'a>,
        bf16: bool,
    ) -> AttentionProblem<'a, T> {
        let (h, h_kv) = (self.config.num_attention_heads, self.config.resolved_num_key_value_heads());
        let (d, d_v) = (self.config.resolved_head_dim(), self.config.resolved_value_head_dim());
        let from =
            |start: usize, size: usize| HeadsView { data: &qkv[start.min(qkv.len())..], strides: [0, width, size] };
        AttentionProblem {
            q: from(0, d),
            k: from(h * d, d),
            v: from((h + h_kv) * d, d_v),
            batch,
            appended: 0,
            h,
            h_kv,
            d,
            d_v,
            scale: self.config.resolved_scale() as f32,
            softcap: None,
            sinks: None,
            mask,
            bf16,
        }
    }
}

/// The size in f32 values of the memory of `count` elements.
fn floats<T>(count: usize) -> usize {
    (count * size_of::<T>()).div_ceil(size_of::<f32>())
}

/// Groups of whole sequences, as many as have at most `limit` tokens together, and at least one.
pub(crate) fn groups(offsets: &[usize], limit: usize) -> impl Iterator<Item = Range<usize>> {
    let sequences = offsets.len().saturating_sub(1);
    let mut first = 0;
    std::iter::from_fn(move || {
        let start = first;
        if start >= sequences {
            return None;
        }
        first += 1;
        while first < sequences && offsets[first + 1] - offsets[start] <= limit {
            first += 1;
        }
        Some(start..first)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_whole_sequences_up_to_the_limit() {
        let of = |offsets: &[usize], limit: usize| groups(offsets, limit).collect::<Vec<_>>();
        assert_eq!(of(&[0, 3, 3, 5, 20, 22], 5), [0..3, 3..4, 4..5]);
        assert_eq!(of(&[0, 3, 3, 5], usize::MAX).len(), 1);
        assert!(of(&[0], 5).is_empty() && of(&[], 5).is_empty());
    }
}
