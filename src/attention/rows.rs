//! Self-attention in the buffers of the CPU kernel, for ragged batches and for padded ones without their padding.
//!
//! There are no tensors between the steps, and nothing is computed for padding. One thread computes a group of whole
//! sequences at a time: the projection, attention and the output projection, so that each step finds what the one
//! before has written in the cache. A team of threads computes one step after the other for all sequences, and shares
//! the work of each.

use std::ops::Range;

use candle_attention_kernels as kernels;
use candle_attention_kernels::{Activation, AttentionProblem, Batch, Element, HeadsView, Isa, Mask, ScratchPool, Team};
use candle_core::{Device, Tensor, WithDType};
use half::bf16;

use crate::attention::{AttentionInputs, AttentionOptions, MultiHeadAttention};
use crate::error::{Error, Result};
use crate::mask::{AttentionMask, AttnShape, LoweredMask};
use crate::ragged::{BatchCache, Buffers, RaggedBatch, check_offsets, groups, lengths, offsets, share_sequences};
use crate::tensor::{check_allocation, element_count, for_cpu_element, with_f32_slice, with_slice, zeros};

/// Bytes of queries, keys, values and context that one thread computes at a time. They stay in or near the L2 cache,
/// which has 1 to 2 MB a core; with fewer the weights are read more often.
const GROUP_BYTES: usize = 1 << 21;

impl MultiHeadAttention {
    /// Whether [`attend_rows`](Self::attend_rows) supports the layer: its weights are fixed and on the CPU, in a dtype
    /// of the kernels, and nothing happens between projection and kernel but [steps](crate::Steps), and after it but a
    /// norm and a gate.
    pub fn supports_rows(&self) -> bool {
        self.routes.rows && !self.tracks_gradient() && self.qkv.can_pack() && self.o_proj.can_pack()
    }

    /// Whether a call is self-attention of whole sequences, and the layer and the options ask for nothing else,
    /// so that [`attend_plain`](Self::attend_plain) runs it.
    pub(super) fn is_plain(&self, inputs: &AttentionInputs, options: &AttentionOptions) -> bool {
        let config = &self.config;
        self.mechanisms.is_empty()
            && config.position.is_none()
            && config.mask.is_full()
            && config.num_attention_heads > 0
            && options.is_default()
            && inputs.is_plain()
            && !inputs.query.track_op()
            && self.supports_rows()
    }

    /// Self-attention of the whole sequences `xs` `(b, s, query_size)` → `(b, s, output_size)`.
    pub(super) fn attend_plain(&self, xs: &Tensor) -> Result<Tensor> {
        let config = &self.config;
        self.check_input("query", xs, config.resolved_query_size())?;
        let (b, s, _) = xs.dims3()?;
        let context = [b, s, config.num_attention_heads, config.resolved_value_head_dim()];
        element_count("the output of attention", &context)?;
        self.attend_sequences(xs, None, &config.mask)
    }

    /// Whether anything happens between the heads and the output projection.
    pub(super) fn has_context_stage(&self) -> bool {
        self.mechanisms.iter().any(|mechanism| mechanism.has_context_stage())
    }

    /// Applies the mechanisms to the context `(tokens, h · d_v)`, in place; `projected` `(tokens, width)` has the
    /// queries, keys, values and gates of each token.
    fn context_in_place(&self, team: Team, context: &mut [f32], projected: &[f32]) -> Result<()> {
        self.mechanisms.iter().try_for_each(|each| each.context_in_place(self, team, context, projected))
    }

    /// `mask` for the kernel, with the biases of positions.
    fn lowered(&self, mask: &AttentionMask, shape: AttnShape, cache: &BatchCache) -> Result<LoweredMask> {
        if self.config.position.is_none() {
            return mask.lower(shape, &Device::Cpu);
        }
        let bias = self.position_bias(shape, None, None, &Device::Cpu, Some(cache))?;
        let mask = bias.into_iter().fold(mask.clone(), AttentionMask::and);
        let mut mask = mask.lower(shape, &Device::Cpu)?;
        if let Some(embeddings) = self.distance_embeddings(shape.s_q, shape.s_kv)? {
            embeddings.lower(self.config.resolved_scale(), &mut mask)?;
        }
        Ok(mask)
    }

    /// Multiply-adds of [`attend_rows`](Self::attend_rows), for
    /// [`share_sequences`](crate::ragged::share_sequences).
    ///
    /// # Errors
    /// The weights cannot be packed.
    pub fn rows_multiply_adds(&self, offsets: &[usize]) -> Result<usize> {
        let tokens = offsets.last().copied().unwrap_or(0);
        let products =
            self.qkv.packed()?.multiply_adds(tokens).saturating_add(self.o_proj.packed()?.multiply_adds(tokens));
        let pairs = lengths(offsets).map(|s| s.saturating_mul(s)).fold(0, usize::saturating_add);
        let per_pair = self.config.resolved_head_dim() + self.config.resolved_value_head_dim();
        Ok(products.saturating_add(pairs.saturating_mul(self.config.num_attention_heads * per_pair)))
    }

    /// Self-attention within each sequence of a ragged batch, from rows to rows: `xs` `(tokens, query_size)`, where
    /// sequence `i` has the tokens `offsets[i] .. offsets[i + 1]`, to `output` `(tokens, output_size)`. `mask` is full,
    /// causal or a window, besides the mask of the configuration.
    ///
    /// For models that run all layers over a part of a batch before the next part ([`ragged`](crate::ragged)). Call it
    /// only if the layer [supports it](Self::supports_rows).
    ///
    /// # Errors
    /// The sizes do not fit, or there is not enough memory.
    pub fn attend_rows<A: Element, O: Element>(
        &self,
        team: Team,
        xs: &[A],
        offsets: &[usize],
        mask: &AttentionMask,
        buffers: &Buffers,
        output: &mut [O],
    ) -> Result<()> {
        let tokens = offsets.last().copied().unwrap_or(0);
        check_offsets(offsets)?;
        lengths(offsets).try_for_each(|keys| self.check_key_count(keys))?;
        let sizes = [
            ("xs", xs.len(), self.config.resolved_query_size()),
            ("output", output.len(), self.config.resolved_output_size()),
        ];
        for (name, found, width) in sizes {
            if tokens.checked_mul(width) != Some(found) {
                return Err(Error::shape(name, &[found], format!("{tokens} tokens of {width} elements")));
            }
        }
        self.rows_under(team, xs, offsets, &self.with_own_mask(mask), buffers, output)
    }

    /// Self-attention of `xs` without padding: `(tokens, query_size)` → `(tokens, output_size)`, sequences of these
    /// `lengths` one after another; or `(b, s, query_size)` → `(b, s, output_size)`, where
    /// tokens after the length of a sequence are padding. `mask` includes that of the configuration.
    pub(super) fn attend_sequences(
        &self,
        xs: &Tensor,
        lengths: Option<Vec<usize>>,
        mask: &AttentionMask,
    ) -> Result<Tensor> {
        for_cpu_element!(xs.dtype(), T => self.attend_sequences_of::<T>(xs, lengths, mask))
    }

    fn attend_sequences_of<T: Element + WithDType>(
        &self,
        xs: &Tensor,
        lengths: Option<Vec<usize>>,
        mask: &AttentionMask,
    ) -> Result<Tensor> {
        let mut dims = xs.dims().to_vec();
        let (elements, s) = (element_count("xs", &dims)?, dims[dims.len() - 2]);
        let (width, size) = (self.config.resolved_query_size(), self.config.resolved_output_size());
        *dims.last_mut().expect("2 or 3 dimensions") = size;
        if elements == 0 {
            return Ok(Tensor::zeros(dims, xs.dtype(), xs.device())?);
        }
        if !xs.is_contiguous() {
            check_allocation::<f64>("a copy of xs", elements)?;
        }
        let xs = &xs.contiguous()?;
        let lengths = lengths.unwrap_or_else(|| vec![s; dims[0]]);
        // Packed before `xs` is locked: packing locks the weights.
        self.qkv.packed()?;
        let packed = self.o_proj.packed()?;
        let offsets = offsets(&lengths);
        if dims.len() == 2 || lengths.iter().all(|length| *length == s) {
            let output = with_slice(xs, |xs: &[T]| self.rows_on_all_threads(xs, &offsets, mask))??;
            return Ok(Tensor::from_vec(output, dims, &Device::Cpu)?);
        }
        let mut real = Vec::with_capacity(offsets[lengths.len()] * width);
        with_slice(xs, |xs: &[T]| {
            for (xs, &length) in xs.chunks_exact((s * width).max(1)).zip(&lengths) {
                real.extend_from_slice(&xs[..length * width]);
            }
        })?;
        let ys = self.rows_on_all_threads(&real, &offsets, mask)?;
        // A fully masked query gives zeros before the output projection, and so its bias after it. A norm of zeros is
        // its bias, and whatever gate multiplies it, zeros stay zeros.
        let (mut context, mut masked) = (vec![0f32; packed.in_features()], Vec::<T>::new());
        self.context_in_place(Team::ALONE, &mut context, &[])?;
        packed.multiply(Team::ALONE, &context, 1, Activation::Identity, &mut masked)?;
        let mut output = Vec::with_capacity(lengths.len() * s * size);
        for (&length, &start) in lengths.iter().zip(&offsets) {
            output.extend_from_slice(&ys[start * size..][..length * size]);
            (length..s).for_each(|_| output.extend_from_slice(&masked));
        }
        Ok(Tensor::from_vec(output, dims, &Device::Cpu)?)
    }

    fn rows_on_all_threads<T: Element>(&self, xs: &[T], offsets: &[usize], mask: &AttentionMask) -> Result<Vec<T>> {
        let (input, size) = (self.config.resolved_query_size(), self.config.resolved_output_size());
        let tokens = offsets.last().copied().unwrap_or(0);
        let mut output = zeros("the output of attention", element_count("the output", &[tokens, size])?)?;
        let work = self.rows_multiply_adds(offsets)?;
        let part = |sequences: &Range<usize>| (offsets[sequences.end] - offsets[sequences.start]) * size;
        share_sequences(offsets, input, work, &mut output, part, |team, sequences, output| {
            let ends = &offsets[sequences.start..=sequences.end];
            let starts: Vec<usize> = ends.iter().map(|start| start - ends[0]).collect();
            let xs = &xs[ends[0] * input..ends[ends.len() - 1] * input];
            self.rows_under(team, xs, &starts, mask, &Buffers::default(), output)
        })?;
        Ok(output)
    }

    /// [`attend_rows`](Self::attend_rows) under `mask`, which includes that of the configuration.
    fn rows_under<A: Element, O: Element>(
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
            let packed = self.o_proj.packed()?;
            return Ok(packed.multiply_into::<f32, O>(team, &[], tokens, Activation::Identity, output)?);
        }
        let batch = RaggedBatch { offsets, cache: &buffers.positions };
        let scheme = config.position.scheme();
        let query_bias = scheme.query_bias(&self.position)?;
        let has_steps = config.has_steps() || query_bias.is_some();
        if scheme.traits().rotates || has_steps || self.has_context_stage() {
            let query_bias = query_bias.map(|bias| with_f32_slice(bias, <[f32]>::to_vec)).transpose()?;
            let steps = |qkv: &mut [f32], group: RaggedBatch| {
                self.step_in_place(team, qkv, group)?;
                if let Some(bias) = &query_bias {
                    let tokens = qkv.chunks_exact_mut(self.qkv.packed()?.out_features());
                    tokens.for_each(|token| token.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias));
                }
                Ok(())
            };
            let gate = |projected: &[f32], context: &mut [f32]| self.context_in_place(team, context, projected);
            return self.attend_elements(team, xs, batch, mask, (steps, gate), &buffers.scratch, output);
        }
        // Keep bf16: the next product rounds to it anyway.
        if self.qkv.rounds_to_bf16()? {
            let steps = (|_: &mut [bf16], _: RaggedBatch| Ok(()), |_: &[bf16], _: &mut [bf16]| Ok(()));
            self.attend_elements(team, xs, batch, mask, steps, &buffers.scratch, output)
        } else {
            let steps = (|_: &mut [f32], _: RaggedBatch| Ok(()), |_: &[f32], _: &mut [f32]| Ok(()));
            self.attend_elements(team, xs, batch, mask, steps, &buffers.scratch, output)
        }
    }

    /// [`rows_under`](Self::rows_under) with queries, keys and values as elements of type `T`. `steps`
    /// applies norms, positions and factors to `(tokens, q k v)` in place, `gate` applies the gates of these rows and a
    /// norm to the context.
    #[allow(clippy::too_many_arguments, reason = "one call, split by element type")]
    fn attend_elements<A: Element, T: Element, O: Element>(
        &self,
        team: Team,
        xs: &[A],
        batch: RaggedBatch,
        mask: &AttentionMask,
        (steps, gate): (impl Fn(&mut [T], RaggedBatch) -> Result<()>, impl Fn(&[T], &mut [T]) -> Result<()>),
        scratch: &ScratchPool,
        output: &mut [O],
    ) -> Result<()> {
        let offsets = batch.offsets;
        let (h, d_v) = (self.config.num_attention_heads, self.config.resolved_value_head_dim());
        let [projection, output_projection] = [self.qkv.packed()?, self.o_proj.packed()?];
        let [input, width, out] =
            [projection.in_features(), projection.out_features(), output_projection.out_features()];

        let longest = batch.longest();
        let shape = AttnShape { b: offsets.len().saturating_sub(1), h, s_q: longest, s_kv: longest };
        let mask = self.lowered(mask, shape, batch.cache)?;
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
            steps(qkv, RaggedBatch { offsets: &starts, ..batch })?;

            let mut memory = scratch.take(floats::<T>(tokens.len() * h * d_v))?;
            let context = &mut bytemuck::cast_slice_mut(&mut memory)[..tokens.len() * h * d_v];
            let batch = Batch::Part { offsets, first, last };
            let problem = self.ragged_problem(qkv, width, batch, mask.kernel_mask(), projection.rounds_to_bf16());
            kernels::attend_into(Isa::detect()?, team, &problem, context)?;
            gate(qkv, context)?;
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
