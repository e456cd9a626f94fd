//! The fused kernels for NVIDIA GPUs over tensors.

use candle_core::Tensor;

use crate::error::Result;
use crate::sdpa::plan::{first_reason, no_fused_kernel};
use crate::sdpa::{Call, DeviceKind, SdpaOptions};

/// Why the kernels cannot run a call, `None` if they can.
pub(super) fn unsupported_reason(call: &Call, options: &SdpaOptions) -> Option<String> {
    let elsewhere = (!matches!(call.device, DeviceKind::Cuda(_)), "the tensors are not on an NVIDIA GPU");
    // More do not fit into registers.
    let large = (call.d.max(call.d_v) > 256, "a head has more than 256 numbers");
    let built = (cfg!(not(any(test, feature = "cuda"))), "the crate was built without its feature `cuda`");
    first_reason([elsewhere, built]).or_else(|| no_fused_kernel(call, options)).or_else(|| first_reason([large]))
}

/// What is made of masks for the kernels, and what blocks that share keys leave.
pub(super) fn scratch_bytes(call: &Call, options: &SdpaOptions) -> usize {
    let queries = call.shape.b * call.shape.s_q;
    let partials = match splits(call, options) {
        1 => 0,
        splits => queries * call.shape.h * splits * (call.d_v + 2),
    };
    // Lengths and places of rows, at most one number a query.
    size_of::<i32>() * (queries + partials)
}

/// How many blocks share the keys of a query.
#[cfg(any(test, feature = "cuda"))]
pub(super) fn splits(call: &Call, options: &SdpaOptions) -> usize {
    use crate::kernels::cuda::{Features, Shape, Variant};

    let DeviceKind::Cuda(gpu) = call.device else { return 1 };
    let shape = Shape {
        dtype: call.dtype,
        d: call.d,
        d_v: call.d_v,
        jobs: call.shape.b * call.h_kv,
        rows: call.shape.s_q * (call.shape.h / call.h_kv),
        keys: call.shape.s_kv + options.appended_keys,
        features: Features::default(),
    };
    Variant::of(shape, gpu).map_or(1, |variant| variant.splits(shape, gpu))
}

#[cfg(not(any(test, feature = "cuda")))]
pub(super) fn splits(_: &Call, _: &SdpaOptions) -> usize {
    1
}

/// See [`fused`](crate::sdpa::fused).
#[cfg(feature = "cuda")]
pub(super) fn attend(
    [q, k, v]: [&Tensor; 3],
    rows: Option<&[usize]>,
    call: &Call,
    options: &SdpaOptions,
) -> Result<Tensor> {
    use candle_core::DType;

    use super::last_dim_contiguous;
    use crate::kernels::cuda::{Launch, Params};
    use crate::mask::AttentionMask;
    use crate::mask::AttnShape;

    let AttnShape { b, h, s_q, s_kv } = call.shape;
    // Where every key is an appended one, no key is for the mask to say anything about.
    let none = AttentionMask::full();
    let mask = if s_kv == 0 { &none } else { options.mask };
    let folded = mask.folded(call.shape, q.device())?;
    let [bias, keep] = [folded.bias, folded.keep].map(|mask| mask.map(|mask| keys_within_reach(&mask)).transpose());
    let (bias, keep) = (bias?, keep?);
    let sinks = options.sinks.map(|sinks| sinks.to_dtype(DType::F32)?.contiguous()).transpose()?;
    let params = Params {
        b: b as i32,
        h: h as i32,
        h_kv: call.h_kv as i32,
        s_q: s_q as i32,
        s_kv: s_kv as i32,
        appended: options.appended_keys as i32,
        d: call.d as i32,
        d_v: call.d_v as i32,
        left: folded.left,
        right: folded.right,
        symmetric: i32::from(folded.symmetric),
        scale: options.scale_of_products(call.d) as f32,
        softcap: options.softcap.unwrap_or(0.0) as f32,
        ..Params::default()
    };
    let [q, k, v] = [last_dim_contiguous(q)?, last_dim_contiguous(k)?, last_dim_contiguous(v)?];
    let launch = Launch {
        q: &q,
        k: &k,
        v: &v,
        sinks: sinks.as_ref(),
        bias: bias.as_ref(),
        keep: keep.as_ref(),
        segments: folded.segments.as_ref(),
        slopes: folded.slopes,
        lengths: folded.lengths,
        padding: folded.padding,
        query_ends: folded.query_ends,
        starts: folded.starts,
        rows: rows.map(|rows| rows.iter().map(|start| *start as i32).collect()),
        params,
    };
    launch.run()
}

/// The kernels reach the keys of a mask's row by 32 bits.
#[cfg(feature = "cuda")]
fn keys_within_reach(mask: &Tensor) -> Result<Tensor> {
    let (keys, stride) = (mask.dims()[3], mask.stride()[3]);
    let near = keys.saturating_mul(stride).saturating_mul(mask.dtype().size_in_bytes()) <= 1 << 32;
    Ok(if keys == 1 || near { mask.clone() } else { mask.contiguous()? })
}

/// Without the feature no tensor is on an NVIDIA GPU.
#[cfg(not(feature = "cuda"))]
pub(super) fn attend(_: [&Tensor; 3], _: Option<&[usize]>, _: &Call, _: &SdpaOptions) -> Result<Tensor> {
    let reason = "the crate was built without its feature `cuda`".to_string();
    Err(crate::error::Error::Backend { backend: crate::sdpa::Backend::Cuda.to_string(), reason })
}
