//! Scaled dot-product attention over tensors, the one entry point of all attention in the crate.
//!
//! Every call takes the same three steps: it is validated, a backend is chosen from its sizes and properties, and that
//! backend runs it. Because there is one entry point, arguments are checked once and mean the same on every backend: a
//! kernel never sees a shape, dtype or mask that it would have to reject itself. Because the choice comes before the
//! computation, it can be inspected, tested and forced: [`plan_for`] returns it with the reason against each other
//! backend. The alternative, a chain of kernels that each try a call and fall back, was rejected: which one ran
//! would be visible only in the run time.

mod backend;
mod call;
mod candle;
mod cpu;
mod cpu_backward;
mod cpu_call;
mod cuda;
mod eager;
mod flash;
mod hidden_values;
mod metal;
#[cfg(test)]
mod new_mask_kind_tests;
mod non_finite;
mod options;
mod plan;
mod reasons;
mod score_functions;

use candle_core::Tensor;

pub use backend::Backend;
pub(crate) use call::{Call, DeviceKind};
pub use candle::{SdpaMask, flash_attn, flash_attn_varlen, flash_attn_varlen_windowed, flash_attn_windowed, sdpa};
pub use options::{AttentionOutput, SdpaOptions};
pub use plan::{Plan, Rejected};

use crate::error::{Error, Result};
use crate::mask::AttnShape;
use crate::tensor::{check_allocation, element_count, is_int8, wide};

/// Softmax attention of every query over the keys it may see: `softmax(q kᵀ · scale + mask) v` per head.
///
/// # Shapes
/// `q` `(b, s_q, h, d)`, `k` `(b, s_kv, h_kv, d)`, `v` `(b, s_kv, h_kv, d_v)` → `(b, s_q, h, d_v)`. Tokens come before
/// heads, as a projection writes them and unlike `candle_nn::ops::sdpa`. `h_kv` divides `h`; query head `i` reads
/// key-value head `i / (h / h_kv)` ([Ainslie 2023](https://arxiv.org/abs/2305.13245)).
/// # DTypes
/// f16, bf16, f32, f64, the same for all three. Scores and softmax are f64 for f64 and f32 for the others; the output
/// has the dtype of `q`. Where the processor has instructions for bf16, the CPU kernel rounds the attention weights to
/// bf16 before it multiplies them with bf16 values, as PyTorch does; so do tensor cores, also for f16.
/// # Masks
/// See [`AttentionMask`](crate::AttentionMask). A fully masked row gives zeros.
/// # Backends
/// [`Backend::Cpu`] for f16, bf16 and f32 on the CPU, in memory that grows with `s_kv`, not `s_q · s_kv`; the result of
/// a sequence is bitwise independent of the rest of the batch. It has dropout and gradients of `q`, `k` and `v`, which
/// are computed in f32. [`Backend`] lists what GPUs run. Other gradients, returned attention weights, additive scoring
/// and f64, and on GPUs all gradients and dropout: [`Backend::Eager`], on any device. [`plan_for`] returns the choice
/// and the reasons.
/// # Errors
/// A shape or dtype that does not fit, a forced backend that cannot run the call, and a call on the CPU that needs more
/// memory than can be allocated (views such as `broadcast_as` have any shape).
/// # Threads
/// Another thread may write to the memory of a tensor (`slice_set`, `Var::set`) during a call: the call then computes
/// with the old, the new, or some old and some new elements, and both go on.
/// # Example
/// Attention on projections of one's own, here without an output projection, as in `BertSelfAttention`:
/// ```
/// use candle_attention::AttentionMask;
/// use candle_attention::sdpa::{SdpaOptions, attend_bshd};
/// use candle_core::{DType, Device, Module, Tensor};
/// use candle_nn::{VarBuilder, VarMap, linear};
///
/// let (hidden, heads) = (8, 2);
/// let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu);
/// let xs = Tensor::randn(0f32, 1., (1, 5, hidden), &Device::Cpu)?;
/// let shape = (1, 5, heads, hidden / heads);
/// let project = |name: &str| linear(hidden, hidden, vb.pp(name))?.forward(&xs)?.reshape(shape);
/// let options = SdpaOptions::new(AttentionMask::lengths(&[4]));
/// let context = attend_bshd(&project("query")?, &project("key")?, &project("value")?, &options)?.output;
/// assert_eq!(context.dims(), [1, 5, heads, hidden / heads]);
/// let context = context.reshape((1, 5, hidden))?;
/// # let _ = context;
/// # Ok::<(), candle_attention::Error>(())
/// ```
pub fn attend_bshd(q: &Tensor, k: &Tensor, v: &Tensor, options: &SdpaOptions) -> Result<AttentionOutput> {
    let call = Call::new(q, k, v, options)?;
    attend_call(Plan::choose(&call, options)?, [q, k, v], None, &call, options)
}

/// [`attend_bshd`] for a call that is checked, on the backend that was chosen for it; `offsets` as for [`fused`]. Keys
/// and values may be heads in int8, which the CPU kernel reads as they are.
pub(crate) fn attend_call(
    backend: Backend,
    [q, k, v]: [&Tensor; 3],
    offsets: Option<&[usize]>,
    call: &Call,
    options: &SdpaOptions,
) -> Result<AttentionOutput> {
    let AttnShape { b, h, s_q, s_kv } = call.shape;
    if [b, h, s_q, s_kv.saturating_add(options.appended_keys)].contains(&0) {
        return empty_output(q, call, options);
    }
    let trains = call.tracks_gradient || options.dropout > 0.0;
    if is_int8(k) && (backend != Backend::Cpu || trains) {
        let [k, v] = wide([k.clone(), v.clone()], call.dtype)?;
        return attend_call(backend, [q, &k, &v], offsets, call, options);
    }
    match backend {
        Backend::Eager if offsets.is_none() => eager::attend(q, k, v, call, options),
        backend => {
            let output = fused(backend, [q, k, v], offsets, call, options)?;
            Ok(AttentionOutput { output, attention_weights: None })
        }
    }
}

/// Attention of q `(b, s_q, h, d)`, k and v to `(b, s_q, h, d_v)` by a fused backend that the plan allows.
///
/// A ragged batch has `offsets`, where each sequence starts and the last one ends. Its tensors have a batch size of 1,
/// while `call` counts the sequences and has the length of the longest.
fn fused(
    backend: Backend,
    qkv: [&Tensor; 3],
    offsets: Option<&[usize]>,
    call: &Call,
    options: &SdpaOptions,
) -> Result<Tensor> {
    match (backend, offsets) {
        (Backend::Cpu, _) => cpu::attend(qkv, offsets, call, options),
        (Backend::FlashAttn, _) => flash::attend(qkv, offsets, call, options),
        (Backend::Cuda, _) => cuda::attend(qkv, offsets, call, options),
        (Backend::Metal, None) => metal::attend(qkv, call, options),
        (Backend::Metal, Some(_)) | (Backend::Eager, _) => {
            let reason = "it has no fused kernel, or none for ragged batches".to_string();
            Err(Error::Backend { backend: backend.to_string(), reason })
        }
    }
}

/// The backend that runs a ragged batch without padding, `None` if none does. `call` is as for [`fused`].
pub(crate) fn ragged_backend(call: &Call, options: &SdpaOptions) -> Result<Option<Backend>> {
    let backend = Plan::choose(call, options)?;
    Ok(match backend {
        Backend::Cpu | Backend::FlashAttn | Backend::Cuda => Some(backend),
        Backend::Eager | Backend::Metal => None,
    })
}

/// Whether a call with these options runs on the CPU kernel for inference.
pub(crate) fn runs_on_cpu_kernel(call: &Call, options: &SdpaOptions) -> bool {
    let trains = call.tracks_gradient || options.dropout > 0.0;
    !trains && matches!(options.backend, None | Some(Backend::Cpu)) && cpu::unsupported_reason(call, options).is_none()
}

/// The plan of [`attend_bshd`] for these tensors: the backend it would use, and why no other.
///
/// # Errors
/// The errors of [`attend_bshd`].
pub fn plan_for(q: &Tensor, k: &Tensor, v: &Tensor, options: &SdpaOptions) -> Result<Plan> {
    Plan::new(&Call::new(q, k, v, options)?, options)
}

/// `(b, s, heads, d)` → `(b, heads, s, d)`, contiguous. `reshape` sets all strides: a single head keeps the one it has,
/// and candle's kernels for Apple GPUs take it for that of the sequences.
fn heads_first(t: &Tensor) -> candle_core::Result<Tensor> {
    let t = t.transpose(1, 2)?.contiguous()?;
    t.reshape(t.shape())
}

/// The output of a call without sequences, heads, queries or keys: no row, or rows that are fully masked, which are
/// zeros.
fn empty_output(q: &Tensor, call: &Call, options: &SdpaOptions) -> Result<AttentionOutput> {
    let AttnShape { b, h, s_q, s_kv } = call.shape;
    let zeros = |what: &str, dims: [usize; 4]| {
        let bytes = element_count(what, &dims)? * call.dtype.size_in_bytes();
        if q.device().is_cpu() {
            check_allocation::<u8>(what, bytes)?;
        }
        Ok::<_, Error>(Tensor::zeros(&dims, call.dtype, q.device())?)
    };
    let keys = s_kv + options.appended_keys;
    let attention_weights = options.return_attention_weights;
    let attention_weights = attention_weights.then(|| zeros("attention weights", [b, h, s_q, keys])).transpose()?;
    Ok(AttentionOutput { output: zeros("the output of attention", [b, s_q, h, call.d_v])?, attention_weights })
}
