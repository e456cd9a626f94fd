//! Batches `(b, s, width)` on the CPU as ragged ones: padding is removed before attention and added after it.

use candle_core::{Device, Tensor, WithDType};

use crate::attention::{AttentionInputs, MultiHeadAttention};
use crate::error::Result;
use crate::for_cpu_element;
use crate::kernels::Activation;
use crate::kernels::cpu::{Element, Team};
use crate::mask::AttentionMask;
use crate::position::ragged::offsets;
use crate::sdpa::{Call, SdpaOptions, runs_on_cpu_kernel};
use crate::tensor::{check_allocation, element_count, with_slice};

impl MultiHeadAttention {
    /// Whether [`attend_unpadded`](Self::attend_unpadded) can run a call whose mask is padding.
    pub(in crate::attention) fn supports_unpadding(
        &self,
        inputs: &AttentionInputs,
        call: &Call,
        options: &SdpaOptions,
    ) -> bool {
        let [q, k, v] = [inputs.query, inputs.key, inputs.value].map(Tensor::id);
        q == k && q == v && self.supports_cpu_ragged() && runs_on_cpu_kernel(call, options)
    }

    /// Self-attention over a batch without padding `xs` `(b, s, query_size)` → `(b, s, output_size)`, causal or within a
    /// window.
    pub(in crate::attention) fn attend_whole(&self, xs: &Tensor, mask: &AttentionMask) -> Result<Tensor> {
        let ((b, s, width), size) = (xs.dims3()?, self.config.resolved_output_size());
        let elements = element_count("xs", &[b, s, width])?;
        if b * s == 0 {
            return Ok(Tensor::zeros((b, s, size), xs.dtype(), xs.device())?);
        }
        if !xs.is_contiguous() {
            check_allocation::<f64>("a copy of xs", elements)?;
        }
        let output = self.attend_ragged(&xs.reshape((b * s, width))?, &vec![s; b], mask)?;
        Ok(output.reshape((b, s, size))?)
    }

    /// Self-attention over a padded batch `xs` `(b, s, query_size)` → `(b, s, output_size)` under
    /// [`AttentionMask::padding`] and `band`, computed for the real tokens only.
    pub(in crate::attention) fn attend_unpadded(
        &self,
        xs: &Tensor,
        lengths: &[usize],
        band: &AttentionMask,
    ) -> Result<Tensor> {
        for_cpu_element!(xs.dtype(), T => self.attend_unpadded_elements::<T>(xs, lengths, band))
    }

    fn attend_unpadded_elements<T: Element + WithDType>(
        &self,
        xs: &Tensor,
        lengths: &[usize],
        band: &AttentionMask,
    ) -> Result<Tensor> {
        let (b, s, width) = xs.dims3()?;
        let offsets = offsets(lengths);
        let tokens = offsets[lengths.len()];
        let mut ragged = Vec::with_capacity(tokens * width);
        with_slice(xs, |xs: &[T]| {
            for (xs, &length) in xs.chunks_exact((s * width).max(1)).zip(lengths) {
                ragged.extend_from_slice(&xs[..length * width]);
            }
        })?;
        let ys = self.attend_ragged_rows(&ragged, &offsets, band)?;
        // A fully masked query gives zeros before the output projection, and so its bias after it.
        let width = self.config.resolved_output_size();
        let mut masked = Vec::<T>::new();
        let packed = self.o_proj.packed()?;
        packed.multiply(Team::ALONE, &vec![0f32; packed.in_features()], 1, Activation::Identity, &mut masked)?;
        let mut output = Vec::with_capacity(b * s * width);
        for (&length, &start) in lengths.iter().zip(&offsets) {
            output.extend_from_slice(&ys[start * width..][..length * width]);
            (length..s).for_each(|_| output.extend_from_slice(&masked));
        }
        Ok(Tensor::from_vec(output, (b, s, width), &Device::Cpu)?)
    }
}
