//! The arguments of the CPU kernel, made before the tensors of a call are locked.

use candle_attention_kernels as kernels;
use candle_attention_kernels::{AttentionProblem, Batch, Element, HeadsView, Int8Heads, Mask};
use candle_core::{DType, Device, Tensor, WithDType};

use crate::error::Result;
use crate::mask::{AttnShape, LoweredMask};
use crate::sdpa::{Call, SdpaOptions};
use crate::tensor::{Memory, Slice, last_dim_contiguous, with_f32_slice};

/// The arguments of the kernel beside queries, keys and values.
pub(super) struct CpuCall {
    pub call: Call,
    mask: LoweredMask,
    sinks: Option<Vec<f32>>,
    /// The offsets of a ragged batch.
    offsets: Option<Vec<usize>>,
    scale: f32,
    softcap: Option<f32>,
    appended: usize,
}

impl CpuCall {
    pub fn new(offsets: Option<&[usize]>, call: &Call, options: &SdpaOptions) -> Result<Self> {
        Ok(Self {
            call: *call,
            mask: options.mask.lower(call.shape, &Device::Cpu)?,
            sinks: options.sinks.map(|sinks| with_f32_slice(sinks, <[f32]>::to_vec)).transpose()?,
            offsets: offsets.map(<[usize]>::to_vec),
            scale: options.dot_product_scale(call.d) as f32,
            softcap: options.softcap.map(|cap| cap as f32),
            appended: options.appended_keys,
        })
    }

    /// Calls `run` with the problem of these queries, keys and values, and with the elements of others.
    pub(super) fn with_problem<T: Element + WithDType, R, const N: usize>(
        &self,
        [q, k, v]: [&Tensor; 3],
        others: [&Tensor; N],
        run: impl FnOnce(&AttentionProblem<T>, [&[T]; N]) -> kernels::Result<R>,
    ) -> Result<R> {
        let (q, k, v) = (last_dim_contiguous(q)?, last_dim_contiguous(k)?, last_dim_contiguous(v)?);
        let others = others.iter().map(|other| other.contiguous()).collect::<candle_core::Result<Vec<_>>>()?;
        let ([q, k, v], mask) = ([&q, &k, &v].map(Memory::new), self.mask.memory());
        let others: Vec<_> = others.iter().map(|other| (Memory::new(other), other.elem_count())).collect();
        let (q, k, v, mask) = (q.lock::<T>()?, k.lock::<T>()?, v.lock::<T>()?, mask.lock()?);
        let others = others.iter().map(|(other, size)| Ok((other.lock::<T>()?, *size))).collect::<Result<Vec<_>>>()?;
        let key_values = [heads(&k), heads(&v)];
        let attention = self.problem(heads(&q), key_values, mask.kernel_mask(), T::DTYPE == DType::BF16);
        let result = run(&attention, std::array::from_fn(|i| &others[i].0.data()[..others[i].1]))?;
        self.mask.check_functions()?;
        Ok(result)
    }

    /// Calls `run` with the problem of these queries, and of keys and values in int8.
    pub(super) fn with_int8_problem<R>(
        &self,
        [q, k, v]: [&Tensor; 3],
        run: impl FnOnce(&AttentionProblem<f32, Int8Heads>) -> kernels::Result<R>,
    ) -> Result<R> {
        let (q, k, v) = (last_dim_contiguous(q)?, last_dim_contiguous(k)?, last_dim_contiguous(v)?);
        let ([q, k, v], mask) = ([&q, &k, &v].map(Memory::new), self.mask.memory());
        let (q, k, v, mask) = (q.lock::<f32>()?, k.lock::<u8>()?, v.lock::<u8>()?, mask.lock()?);
        let key_values = [&k, &v].map(|tensor| Int8Heads(heads(tensor)));
        let result = run(&self.problem(heads(&q), key_values, mask.kernel_mask(), false))?;
        self.mask.check_functions()?;
        Ok(result)
    }

    fn problem<'a, T, K>(
        &'a self,
        q: HeadsView<'a, T>,
        [k, v]: [K; 2],
        mask: Mask<'a>,
        bf16: bool,
    ) -> AttentionProblem<'a, T, K> {
        let AttnShape { b, h, s_q, s_kv } = self.call.shape;
        AttentionProblem {
            q,
            k,
            v,
            batch: match &self.offsets {
                Some(offsets) => Batch::Ragged { offsets },
                None => Batch::Padded { b, s_q, s_kv },
            },
            appended: self.appended,
            h,
            h_kv: self.call.h_kv,
            d: self.call.d,
            d_v: self.call.d_v,
            scale: self.scale,
            softcap: self.softcap,
            sinks: self.sinks.as_deref(),
            mask,
            bf16,
        }
    }
}

/// The heads of a tensor `(b, s, h, d)`.
fn heads<'a, T: WithDType>(tensor: &'a Slice<T>) -> HeadsView<'a, T> {
    let [b, s, h, _] = tensor.strides::<4>();
    HeadsView { data: tensor.data(), strides: [b, s, h] }
}
