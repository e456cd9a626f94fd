//! Attention on the CPU by the crate's own fused kernel.

use candle_attention_kernels as kernels;
use candle_attention_kernels::{AttentionProblem, Batch, Element, HeadsView, Isa, Team};
use candle_core::{DType, Device, Tensor, WithDType};

use crate::error::Result;
use crate::mask::AttnShape;
use crate::sdpa::plan::{first_reason, no_fused_kernel};
use crate::sdpa::{Call, DeviceKind, SdpaOptions};
use crate::tensor::{Memory, Slice, for_cpu_element, last_dim_contiguous, with_f32_slice};

/// Why the kernel cannot run a call; `None` if it can.
pub(super) fn unsupported_reason(call: &Call, options: &SdpaOptions) -> Option<String> {
    let elsewhere = (call.device != DeviceKind::Cpu, "the tensors are not on the CPU");
    first_reason([elsewhere]).or_else(|| no_fused_kernel(call, options))
}

/// The instruction set that the kernel uses for a call.
pub(super) fn instructions(call: &Call) -> Result<&'static str> {
    // An instruction set that was requested but is missing is an error; another one is not used in its place.
    let isa = Isa::detect()?;
    Ok(if call.dtype == DType::BF16 { isa.name() } else { isa.f32_name() })
}

/// Bytes of temporary memory of all threads.
pub(super) fn scratch_bytes(call: &Call, options: &SdpaOptions) -> usize {
    let keys = call.shape.s_kv.saturating_add(options.appended_keys);
    let tasks = call.shape.b.saturating_mul(call.h_kv).saturating_mul(call.shape.s_q.div_ceil(128));
    let scratch = kernels::scratch_floats(keys, call.d, call.d_v)
        .saturating_add(kernels::distance_floats(call.distance_embeddings, keys, call.d))
        .saturating_mul(size_of::<f32>());
    rayon::current_num_threads().min(tasks).saturating_mul(scratch)
}

/// Runs a call; arguments as for [`fused`](crate::sdpa::fused).
pub(super) fn attend(
    qkv: [&Tensor; 3],
    offsets: Option<&[usize]>,
    call: &Call,
    options: &SdpaOptions,
) -> Result<Tensor> {
    for_cpu_element!(call.dtype, T => run::<T>(qkv, offsets, call, options))
}

fn run<T: Element + WithDType>(
    [q, k, v]: [&Tensor; 3],
    offsets: Option<&[usize]>,
    call: &Call,
    options: &SdpaOptions,
) -> Result<Tensor> {
    let AttnShape { b, h, s_q, s_kv } = call.shape;
    let (tensor_batch, tokens, ..) = q.dims4()?;
    let mask = options.mask.lower(call.shape, &Device::Cpu)?;
    let sinks = options.sinks.map(|sinks| with_f32_slice(sinks, <[f32]>::to_vec)).transpose()?;
    let (q, k, v) = (last_dim_contiguous(q)?, last_dim_contiguous(k)?, last_dim_contiguous(v)?);
    let ([q, k, v], mask) = ([&q, &k, &v].map(Memory::of), mask.memory());
    let (q, k, v, mask) = (q.lock::<T>()?, k.lock::<T>()?, v.lock::<T>()?, mask.lock()?);
    let attention = AttentionProblem {
        q: heads(&q),
        k: heads(&k),
        v: heads(&v),
        batch: offsets.map_or(Batch::Padded { b, s_q, s_kv }, |offsets| Batch::Ragged { offsets }),
        appended: options.appended_keys,
        h,
        h_kv: call.h_kv,
        d: call.d,
        d_v: call.d_v,
        scale: options.dot_product_scale(call.d) as f32,
        softcap: options.softcap.map(|cap| cap as f32),
        sinks: sinks.as_deref(),
        mask: mask.kernel_mask(),
        bf16: T::DTYPE == DType::BF16,
    };
    let mut output = Vec::new();
    Team::with(attention.multiply_adds(), |team| kernels::attend(Isa::detect()?, team, &attention, &mut output))?;
    Ok(Tensor::from_vec(output, (tensor_batch, tokens, h, call.d_v), &Device::Cpu)?)
}

/// The heads of a tensor `(b, s, h, d)`.
fn heads<'a, T: WithDType>(tensor: &'a Slice<T>) -> HeadsView<'a, T> {
    let [b, s, h, _] = tensor.strides::<4>();
    HeadsView { data: tensor.data(), strides: [b, s, h] }
}
