//! A validated attention call: the sizes and properties from which a plan is made.

use candle_core::{DType, Device, Tensor};

use crate::ensure;
use crate::error::{Error, Result};
use crate::kernels::cuda::Gpu;
use crate::mask::AttnShape;
use crate::sdpa::options::SdpaOptions;
use crate::tensor::{check_shape, element_count, same_device, same_dtype_and_device};

/// The kind of device that tensors are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeviceKind {
    Cpu,
    Cuda(Gpu),
    Metal,
}

impl DeviceKind {
    pub(crate) fn from_device(device: &Device) -> Self {
        match device {
            Device::Cpu => Self::Cpu,
            Device::Cuda(device) => Self::Cuda(gpu(device)),
            Device::Metal(_) => Self::Metal,
        }
    }
}

#[cfg(feature = "cuda")]
fn gpu(device: &candle_core::CudaDevice) -> Gpu {
    // If the properties cannot be queried, the oldest GPU is assumed.
    crate::kernels::cuda::gpu(device).unwrap_or_default()
}

#[cfg(not(feature = "cuda"))]
fn gpu(_: &candle_core::CudaDevice) -> Gpu {
    Gpu::default()
}

/// Sizes and properties of an attention call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub shape: AttnShape,
    pub h_kv: usize,
    pub d: usize,
    pub d_v: usize,
    pub dtype: DType,
    pub device: DeviceKind,
    /// The numbers of embeddings by distance or place that queries and that keys are compared with, or of biases. These
    /// terms are added to the mask once queries and keys are projected.
    pub distance_embeddings: [usize; 2],
    pub tracks_gradient: bool,
}

impl Call {
    /// Checks q `(b, s_q, h, d)`, k `(b, s_kv, h_kv, d)`, v `(b, s_kv, h_kv, d_v)` and the options against each other.
    pub(crate) fn new(q: &Tensor, k: &Tensor, v: &Tensor, options: &SdpaOptions) -> Result<Self> {
        let (b, s_q, h, d) = dims4("q", q, "(b, s_q, h, d)")?;
        let (_, keys, h_kv, _) = dims4("k", k, "(b, s_kv, h_kv, d)")?;
        let (.., d_v) = dims4("v", v, "(b, s_kv, h_kv, d_v)")?;
        check_shape("k", k, &[b, keys, h_kv, d])?;
        check_shape("v", v, &[b, keys, h_kv, d_v])?;
        // Views have any size without memory; a copy of one, the output or the scores must be possible at all.
        for (name, tensor) in [("q", q), ("k", k), ("v", v)] {
            element_count(name, tensor.dims())?;
        }
        element_count("the output of attention", &[b, s_q, h, d_v])?;
        if d == 0 || d_v == 0 {
            let (name, tensor) = if d == 0 { ("q", q) } else { ("v", v) };
            return Err(Error::shape(name, tensor.dims(), "a head dimension of at least 1"));
        }
        if h_kv == 0 || !h.is_multiple_of(h_kv) {
            let expected = format!("a number of key-value heads that divides {h}, the number of query heads");
            return Err(Error::shape("k", k.dims(), expected));
        }
        let s_kv = keys.checked_sub(options.appended_keys).ok_or_else(|| {
            Error::shape("k", k.dims(), format!("at least {} keys, the appended ones", options.appended_keys))
        })?;
        if !matches!(q.dtype(), DType::F16 | DType::BF16 | DType::F32 | DType::F64) {
            return Err(Error::dtype("q", q.dtype(), "f16, bf16, f32 or f64"));
        }
        same_dtype_and_device("k", k, q)?;
        same_dtype_and_device("v", v, q)?;
        if let Some(w) = options.additive {
            check_shape("the additive scoring vector", w, &[h, d])?;
        }
        if let Some(sinks) = options.sinks {
            ensure!(sinks.dims() == [h], Error::shape("sinks", sinks.dims(), format!("[{h}], the heads of q")));
            same_device("sinks", sinks, q)?;
        }
        options.validate()?;
        let shape = AttnShape { b, h, s_q, s_kv };
        options.mask.check(shape)?;
        let tracked = [q, k, v].into_iter().chain(options.additive).chain(options.sinks).any(Tensor::track_op);
        Ok(Self {
            shape,
            h_kv,
            d,
            d_v,
            dtype: q.dtype(),
            device: DeviceKind::from_device(q.device()),
            distance_embeddings: options.mask.distance_embeddings(),
            tracks_gradient: tracked || options.mask.tracks_gradient(),
        })
    }
}

fn dims4(name: &str, tensor: &Tensor, expected: &str) -> Result<(usize, usize, usize, usize)> {
    tensor.dims4().map_err(|_| Error::shape(name, tensor.dims(), expected))
}
