//! Scaled dot-product attention over tensors: the single door through which every attention of the crate goes.
//!
//! [`attend`] checks its arguments, makes a [`Plan`], and calls the backend that the plan chose.

mod cpu;
mod cuda;
mod eager;
mod flash;
mod metal;
mod plan;

use candle_core::{DType, Device, Tensor};

use crate::error::{Error, Result};
use crate::kernels::cuda::Gpu;
use crate::mask::AttentionMask;
use crate::mask::AttnShape;
use crate::tensor::same_dtype_and_device;
pub use plan::{Backend, Plan, Rejected};

/// What [`attend`] is to compute.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SdpaOptions<'a> {
    /// Factor on the scores; `None` is `d^-0.5` for dot products and 1 for additive scoring.
    pub scale: Option<f64>,
    /// Which keys a query may see. Its shapes do not count `appended_keys`.
    pub mask: &'a AttentionMask,
    /// That many keys at the end of `k` and `v` are outside the mask: every query sees them.
    pub appended_keys: usize,
    /// Scores become `softcap · tanh(score / softcap)` before they are masked
    /// ([Gemma 2](https://arxiv.org/abs/2408.00118)); positive.
    pub softcap: Option<f64>,
    /// `(h)`: a score for each head that takes part in the softmax and has no value, so that weights sum to less than 1
    /// ([Xiao 2023](https://arxiv.org/abs/2309.17453), as in gpt-oss).
    pub sinks: Option<&'a Tensor>,
    /// Additive scoring with this vector a head, `(h, d)`; `None` is the dot product.
    pub additive: Option<&'a Tensor>,
    /// Share of the weights to drop, in `[0, 1)`; 0 when not training.
    pub dropout: f64,
    /// Whether to return the weights.
    pub return_attention_weights: bool,
    /// Use this backend or fail; `None` chooses.
    pub backend: Option<Backend>,
}

impl<'a> SdpaOptions<'a> {
    /// Defaults: dot product, default scale, no dropout, no weights, any backend.
    pub fn new(mask: &'a AttentionMask) -> Self {
        Self {
            scale: None,
            mask,
            appended_keys: 0,
            softcap: None,
            sinks: None,
            additive: None,
            dropout: 0.0,
            return_attention_weights: false,
            backend: None,
        }
    }

    /// The factor on products of heads of `d` numbers.
    fn scale_of_products(&self, d: usize) -> f64 {
        self.scale.unwrap_or_else(|| (d as f64).powf(-0.5))
    }

    /// Checks the numbers.
    fn validate(&self) -> Result<()> {
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(Error::value("dropout", self.dropout, "a number in [0, 1)"));
        }
        if let Some(cap) = self.softcap.filter(|cap| !(cap.is_finite() && *cap > 0.0)) {
            return Err(Error::value("softcap", cap, "a positive number"));
        }
        match self.scale.filter(|scale| !scale.is_finite()) {
            Some(scale) => Err(Error::value("scale", scale, "a finite number")),
            None => Ok(()),
        }
    }
}

/// What attention gives back.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AttentionOutput {
    /// [`attend_bshd`]: `(b, s_q, h, d_v)`. [`MultiHeadAttention`](crate::MultiHeadAttention): `(b, s_q, output_size)`.
    pub output: Tensor,
    /// Output of the softmax before dropout, `(b, h, s_q, s_kv)`, if it was requested. A fully masked row is all zeros.
    pub attention_weights: Option<Tensor>,
}

/// The kind of device that tensors are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeviceKind {
    Cpu,
    Cuda(Gpu),
    Metal,
}

impl DeviceKind {
    pub(crate) fn of(device: &Device) -> Self {
        match device {
            Device::Cpu => Self::Cpu,
            Device::Cuda(device) => Self::Cuda(gpu(device)),
            Device::Metal(_) => Self::Metal,
        }
    }
}

#[cfg(feature = "cuda")]
fn gpu(device: &candle_core::CudaDevice) -> Gpu {
    // A device that does not say is as old as can be.
    crate::kernels::cuda::gpu(device).unwrap_or_default()
}

#[cfg(not(feature = "cuda"))]
fn gpu(_: &candle_core::CudaDevice) -> Gpu {
    Gpu::default()
}

/// The sizes and properties of a call from which a plan is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub shape: AttnShape,
    pub h_kv: usize,
    pub d: usize,
    pub d_v: usize,
    pub dtype: DType,
    pub device: DeviceKind,
    pub tracks_gradient: bool,
}

/// Softmax attention of every query over the keys it may see: `softmax(q kᵀ · scale + mask) v` for each head.
///
/// # Shapes
/// `q` `(b, s_q, h, d)`, `k` `(b, s_kv, h_kv, d)`, `v` `(b, s_kv, h_kv, d_v)` → `(b, s_q, h, d_v)`. Tokens come before
/// heads, as a projection writes them. `h_kv` divides `h`; query head `i` reads key head `i / (h / h_kv)`
/// ([Ainslie 2023](https://arxiv.org/abs/2305.13245)).
/// # DTypes
/// f16, bf16, f32, f64, the same for all three. Scores and softmax are f64 for f64 and f32 for the others; the output
/// has the dtype of `q`. Where the processor has instructions for bf16, the CPU kernel rounds the weights to bf16 before
/// it multiplies them with bf16 values, as PyTorch does; so do tensor cores, in f16 too.
/// # Masks
/// See [`AttentionMask`]. A fully masked row gives zeros.
/// # Backends
/// [`Backend::Cpu`] for f16, bf16 and f32 on the CPU, in memory that grows with `s_kv`, not `s_q · s_kv`; a row's result
/// does not depend on what else is in the batch, to the bit. [`Backend`] has what GPUs run. Gradients, returned weights,
/// dropout, additive scoring and f64: [`Backend::Eager`], on any device. [`plan_for`] tells which, and why.
/// # Errors
/// A shape or dtype that does not fit, named; a forced backend that cannot run the call.
pub fn attend_bshd(q: &Tensor, k: &Tensor, v: &Tensor, options: &SdpaOptions) -> candle_core::Result<AttentionOutput> {
    let call = call(q, k, v, options)?;
    let plan = Plan::new(&call, options)?;
    if call.shape.s_q == 0 || call.shape.s_kv + options.appended_keys == 0 || call.shape.b == 0 {
        return Ok(empty_output(q, &call, options)?);
    }
    match plan.backend {
        Backend::Eager => Ok(eager::attend(q, k, v, &call, options)?),
        backend => {
            Ok(AttentionOutput { output: fused(backend, [q, k, v], None, &call, options)?, attention_weights: None })
        }
    }
}

/// The attention of q `(b, s_q, h, d)`, k and v to `(b, s_q, h, d_v)` by a backend that its plan allows. In a ragged batch
/// `b` is 1 and `rows` says where the rows start and the last one ends; `call` then has their number and the length of the
/// longest.
pub(crate) fn fused(
    backend: Backend,
    qkv: [&Tensor; 3],
    rows: Option<&[usize]>,
    call: &Call,
    options: &SdpaOptions,
) -> Result<Tensor> {
    match (backend, rows) {
        (Backend::Cpu, _) => cpu::attend(qkv, rows, call, options),
        (Backend::FlashAttn, _) => flash::attend(qkv, rows, call, options),
        (Backend::Cuda, _) => cuda::attend(qkv, rows, call, options),
        (Backend::Metal, None) => metal::attend(qkv, call, options),
        (Backend::Metal, Some(_)) | (Backend::Eager, _) => {
            let reason = "it is not fused, or not for ragged rows".to_string();
            Err(Error::Backend { backend: backend.to_string(), reason })
        }
    }
}

/// The backend that runs ragged rows without padding, `None` if none does. `call` is as for [`fused`].
pub(crate) fn ragged_backend(call: &Call, options: &SdpaOptions) -> Result<Option<Backend>> {
    options.mask.check(call.shape)?;
    let backend = Plan::new(call, options)?.backend;
    Ok(match backend {
        Backend::Cpu | Backend::FlashAttn | Backend::Cuda => Some(backend),
        Backend::Eager | Backend::Metal => None,
    })
}

/// Whether a call with these options runs on the CPU's kernel.
pub(crate) fn runs_on_cpu_kernel(call: &Call, options: &SdpaOptions) -> bool {
    matches!(options.backend, None | Some(Backend::Cpu)) && cpu::unsupported_reason(call, options).is_none()
}

/// The backend that [`attend`] would use for these tensors, and why no other.
///
/// # Errors
/// As [`attend`].
pub fn plan_for(q: &Tensor, k: &Tensor, v: &Tensor, options: &SdpaOptions) -> Result<Plan> {
    Plan::new(&call(q, k, v, options)?, options)
}

fn call(q: &Tensor, k: &Tensor, v: &Tensor, options: &SdpaOptions) -> Result<Call> {
    let four = |name: &str, t: &Tensor, what: &str| t.dims4().map_err(|_| Error::shape(name, t.dims(), what));
    let (b, s_q, h, d) = four("q", q, "(b, s_q, h, d)")?;
    let (_, keys, h_kv, _) = four("k", k, "(b, s_kv, h_kv, d)")?;
    let (.., d_v) = four("v", v, "(b, s_kv, h_kv, d_v)")?;
    let same = |name: &str, t: &Tensor, want: [usize; 4]| match t.dims() == want {
        true => Ok(()),
        false => Err(Error::shape(name, t.dims(), format!("{want:?}"))),
    };
    same("k", k, [b, keys, h_kv, d])?;
    same("v", v, [b, keys, h_kv, d_v])?;
    if d == 0 || d_v == 0 {
        let (name, tensor) = if d == 0 { ("q", q) } else { ("v", v) };
        return Err(Error::shape(name, tensor.dims(), "at least one number a head"));
    }
    if h_kv == 0 || !h.is_multiple_of(h_kv) {
        return Err(Error::shape("k", k.dims(), format!("a number of heads that divides {h}, that of q")));
    }
    let s_kv = keys.checked_sub(options.appended_keys).ok_or_else(|| {
        Error::shape("k", k.dims(), format!("at least {} keys, the appended ones", options.appended_keys))
    })?;
    if !matches!(q.dtype(), DType::F16 | DType::BF16 | DType::F32 | DType::F64) {
        return Err(Error::dtype("q", q.dtype(), "f16, bf16, f32 or f64"));
    }
    for (name, t) in [("k", k), ("v", v)] {
        same_dtype_and_device(name, t, q)?;
    }
    if let Some(w) = options.additive.filter(|w| w.dims() != [h, d]) {
        return Err(Error::shape("the additive scoring vector", w.dims(), format!("[{h}, {d}]")));
    }
    if let Some(sinks) = options.sinks {
        if sinks.dims() != [h] {
            return Err(Error::shape("sinks", sinks.dims(), format!("[{h}], the heads of q")));
        }
        if !sinks.device().same_device(q.device()) {
            same_dtype_and_device("sinks", &sinks.to_dtype(q.dtype())?, q)?;
        }
    }
    options.validate()?;
    let shape = AttnShape { b, h, s_q, s_kv };
    options.mask.check(shape)?;
    let tracked = [q, k, v].into_iter().chain(options.additive).chain(options.sinks).any(Tensor::track_op);
    Ok(Call {
        shape,
        h_kv,
        d,
        d_v,
        dtype: q.dtype(),
        device: DeviceKind::of(q.device()),
        tracks_gradient: tracked || options.mask.tracks_gradient(),
    })
}

/// Fused kernels follow strides between heads, tokens and rows, but want the numbers of a head side by side.
fn last_dim_contiguous(t: &Tensor) -> Result<Tensor> {
    Ok(if t.stride()[3] == 1 || t.dims()[3] == 1 { t.clone() } else { t.contiguous()? })
}

/// No key or no query at all: every row is fully masked.
fn empty_output(q: &Tensor, call: &Call, options: &SdpaOptions) -> Result<AttentionOutput> {
    let AttnShape { b, h, s_q, s_kv } = call.shape;
    let zeros = |dims: [usize; 4]| Tensor::zeros(&dims, call.dtype, q.device());
    let keys = s_kv + options.appended_keys;
    let attention_weights = options.return_attention_weights.then(|| zeros([b, h, s_q, keys])).transpose()?;
    Ok(AttentionOutput { output: zeros([b, s_q, h, call.d_v])?, attention_weights })
}
