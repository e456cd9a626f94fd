//! Attention on the CPU by the crate's own fused kernel.

use candle_attention_kernels as kernels;
use candle_attention_kernels::{AttentionProblem, Element, Int8Heads, Isa, Team};
use candle_core::{DType, Device, Tensor, WithDType};

use crate::error::Result;
use crate::sdpa::cpu_backward::FusedAttention;
use crate::sdpa::cpu_call::CpuCall;
use crate::sdpa::reasons::{first_reason, not_by_scores};
use crate::sdpa::{Call, DeviceKind, SdpaOptions};
use crate::tensor::{for_cpu_element, is_int8};

/// Why the kernel cannot run a call; `None` if it can.
pub(super) fn unsupported_reason(call: &Call, options: &SdpaOptions) -> Option<String> {
    let elsewhere = (call.device != DeviceKind::Cpu, "the tensors are not on the CPU");
    let learns = options.mask.tracks_gradient();
    let sinks = options.sinks.is_some_and(Tensor::track_op);
    let by_distance = call.tracks_gradient && call.distance_embeddings != [0; 2];
    let backward = [
        (
            learns && options.mask.learned_biases().is_none(),
            "a gradient of the mask is tracked, and its backward pass has only that of biases by distance",
        ),
        (sinks, "a gradient of the sinks is tracked, and its backward pass has none"),
        (by_distance, "a gradient is tracked, and its backward pass has no embeddings of distances"),
    ];
    first_reason([elsewhere]).or_else(|| not_by_scores(call, options)).or_else(|| first_reason(backward))
}

/// The instruction set that the kernel uses for a call.
pub(super) fn instructions(call: &Call) -> Result<&'static str> {
    // An instruction set that was requested but is missing is an error; another one is not used in its place.
    let isa = Isa::detect()?;
    Ok(if call.dtype == DType::BF16 && !call.tracks_gradient { isa.name() } else { isa.f32_name() })
}

/// Bytes of temporary memory of all threads.
pub(super) fn scratch_bytes(call: &Call, options: &SdpaOptions) -> usize {
    let keys = call.shape.s_kv.saturating_add(options.appended_keys);
    let heads = call.shape.b.saturating_mul(call.h_kv);
    let bytes = |tasks: usize, floats: usize| {
        rayon::current_num_threads().min(tasks).saturating_mul(floats.saturating_mul(size_of::<f32>()))
    };
    let forward = kernels::scratch_floats(keys, call.d, call.d_v).saturating_add(kernels::distance_floats(
        call.distance_embeddings,
        keys,
        call.d,
    ));
    let forward = bytes(heads.saturating_mul(call.shape.s_q.div_ceil(128)), forward);
    if call.tracks_gradient {
        forward.max(bytes(heads, kernels::backward_floats(keys, call.d, call.d_v)))
    } else {
        forward
    }
}

/// Runs a call; arguments as for [`fused`](crate::sdpa::fused).
pub(super) fn attend(
    qkv: [&Tensor; 3],
    offsets: Option<&[usize]>,
    call: &Call,
    options: &SdpaOptions,
) -> Result<Tensor> {
    let prepared = CpuCall::new(offsets, call, options)?;
    if call.tracks_gradient || options.dropout > 0.0 {
        return FusedAttention::attend(prepared, qkv, options);
    }
    if is_int8(qkv[1]) {
        return run_int8(qkv, &prepared);
    }
    for_cpu_element!(call.dtype, T => run::<T>(qkv, &prepared))
}

fn run<T: Element + WithDType>(qkv: [&Tensor; 3], prepared: &CpuCall) -> Result<Tensor> {
    let mut output = Vec::new();
    prepared.with_problem(qkv, [], |attention: &AttentionProblem<T>, []| {
        Team::with(attention.multiply_adds(), |team| kernels::attend(Isa::detect()?, team, attention, &mut output))
    })?;
    output_tensor(output, qkv[0], prepared)
}

/// [`run`] over keys and values in int8.
fn run_int8(qkv: [&Tensor; 3], prepared: &CpuCall) -> Result<Tensor> {
    let mut output = Vec::<f32>::new();
    prepared.with_int8_problem(qkv, |attention: &AttentionProblem<f32, Int8Heads>| {
        Team::with(attention.multiply_adds(), |team| kernels::attend(Isa::detect()?, team, attention, &mut output))
    })?;
    output_tensor(output, qkv[0], prepared)
}

fn output_tensor<T: WithDType>(output: Vec<T>, q: &Tensor, prepared: &CpuCall) -> Result<Tensor> {
    let (b, tokens, h, _) = q.dims4()?;
    Ok(Tensor::from_vec(output, (b, tokens, h, prepared.call.d_v), &Device::Cpu)?)
}
