//! Attention on the CPU by the crate's own fused kernel.

use candle_attention_kernels as kernels;
use candle_attention_kernels::{AttentionProblem, Batch, Element, HeadsView, Isa, Team};
use candle_core::{DType, Device, Tensor, WithDType};

use crate::error::Result;
use crate::mask::{AttnShape, LoweredMask};
use crate::sdpa::cpu_backward::FusedAttention;
use crate::sdpa::plan::{first_reason, not_by_scores};
use crate::sdpa::{Call, DeviceKind, SdpaOptions};
use crate::tensor::{Memory, Slice, for_cpu_element, last_dim_contiguous, with_f32_slice};

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
    let prepared = Prepared::new(offsets, call, options)?;
    if call.tracks_gradient || options.dropout > 0.0 {
        return FusedAttention::attend(prepared, qkv, options);
    }
    for_cpu_element!(call.dtype, T => run::<T>(qkv, &prepared))
}

fn run<T: Element + WithDType>(qkv: [&Tensor; 3], prepared: &Prepared) -> Result<Tensor> {
    let mut output = Vec::new();
    prepared.with_problem(qkv, [], |attention: &AttentionProblem<T>, []| {
        Team::with(attention.multiply_adds(), |team| kernels::attend(Isa::detect()?, team, attention, &mut output))
    })?;
    let (b, tokens, h, _) = qkv[0].dims4()?;
    Ok(Tensor::from_vec(output, (b, tokens, h, prepared.call.d_v), &Device::Cpu)?)
}

/// What the kernel reads of a call beside queries, keys and values.
pub(super) struct Prepared {
    pub call: Call,
    mask: LoweredMask,
    sinks: Option<Vec<f32>>,
    /// Those of a ragged batch.
    offsets: Option<Vec<usize>>,
    scale: f32,
    softcap: Option<f32>,
    appended: usize,
}

impl Prepared {
    fn new(offsets: Option<&[usize]>, call: &Call, options: &SdpaOptions) -> Result<Self> {
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
        let AttnShape { b, h, s_q, s_kv } = self.call.shape;
        let (q, k, v) = (last_dim_contiguous(q)?, last_dim_contiguous(k)?, last_dim_contiguous(v)?);
        let others = others.iter().map(|other| other.contiguous()).collect::<candle_core::Result<Vec<_>>>()?;
        let ([q, k, v], mask) = ([&q, &k, &v].map(Memory::new), self.mask.memory());
        let others: Vec<_> = others.iter().map(|other| (Memory::new(other), other.elem_count())).collect();
        let (q, k, v, mask) = (q.lock::<T>()?, k.lock::<T>()?, v.lock::<T>()?, mask.lock()?);
        let others = others.iter().map(|(other, size)| Ok((other.lock::<T>()?, *size))).collect::<Result<Vec<_>>>()?;
        let attention = AttentionProblem {
            q: heads(&q),
            k: heads(&k),
            v: heads(&v),
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
            mask: mask.kernel_mask(),
            bf16: T::DTYPE == DType::BF16,
        };
        let result = run(&attention, std::array::from_fn(|i| &others[i].0.data()[..others[i].1]))?;
        self.mask.check_functions()?;
        Ok(result)
    }
}

/// The heads of a tensor `(b, s, h, d)`.
fn heads<'a, T: WithDType>(tensor: &'a Slice<T>) -> HeadsView<'a, T> {
    let [b, s, h, _] = tensor.strides::<4>();
    HeadsView { data: tensor.data(), strides: [b, s, h] }
}
