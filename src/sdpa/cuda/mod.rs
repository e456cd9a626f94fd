//! Attention on NVIDIA GPUs by the crate's own fused kernels.

#[cfg(feature = "cuda")]
mod launch;

use candle_core::Tensor;

use crate::error::Result;
use crate::sdpa::unsupported::{first_reason, no_fused_kernel};
use crate::sdpa::{Call, DeviceKind, SdpaOptions};

/// Why the kernels cannot run a call; `None` if they can.
pub(super) fn unsupported_reason(call: &Call, options: &SdpaOptions) -> Option<String> {
    let elsewhere = (!matches!(call.device, DeviceKind::Cuda(_)), "the tensors are not on an NVIDIA GPU");
    let built = (cfg!(not(any(test, feature = "cuda"))), "the crate was built without its feature `cuda`");
    // Outputs of larger heads do not fit in registers.
    let large = (call.d.max(call.d_v) > 256, "the head dimension is larger than 256");
    first_reason([elsewhere, built]).or_else(|| no_fused_kernel(call, options)).or_else(|| first_reason([large]))
}

/// Bytes of temporary memory: uploaded mask arrays, and partial results if keys are split.
pub(super) fn scratch_bytes(call: &Call, options: &SdpaOptions) -> usize {
    let queries = call.shape.b.saturating_mul(call.shape.s_q);
    let partials = match splits(call, options) {
        1 => 0,
        splits => [call.shape.h, splits, call.d_v + 2].into_iter().fold(queries, usize::saturating_mul),
    };
    // Lengths and positions take at most one value per query.
    queries.saturating_add(partials).saturating_mul(size_of::<i32>())
}

/// How many blocks share the keys of a tile of queries.
#[cfg(any(test, feature = "cuda"))]
pub(super) fn splits(call: &Call, options: &SdpaOptions) -> usize {
    use crate::kernels::cuda::{Features, ProblemShape, Variant};

    let DeviceKind::Cuda(gpu) = call.device else { return 1 };
    let shape = ProblemShape {
        dtype: call.dtype,
        d: call.d,
        d_v: call.d_v,
        work_items: call.shape.b.saturating_mul(call.h_kv),
        // A layer without heads has no key-value heads either.
        query_rows: call.shape.s_q.saturating_mul(call.shape.h.checked_div(call.h_kv).unwrap_or(0)),
        keys: call.shape.s_kv.saturating_add(options.appended_keys),
        features: Features::default(),
    };
    Variant::select(shape, gpu).map_or(1, |variant| variant.splits(shape, gpu))
}

#[cfg(not(any(test, feature = "cuda")))]
pub(super) fn splits(_: &Call, _: &SdpaOptions) -> usize {
    1
}

/// Runs a call; arguments as for [`fused`](crate::sdpa::fused).
#[cfg(feature = "cuda")]
pub(super) fn attend(
    [q, k, v]: [&Tensor; 3],
    offsets: Option<&[usize]>,
    call: &Call,
    options: &SdpaOptions,
) -> Result<Tensor> {
    use candle_core::DType;

    use crate::kernels::cuda::AttentionParams;
    use crate::mask::{AttentionMask, AttnShape};
    use crate::tensor::last_dim_contiguous;

    let AttnShape { b, h, s_q, s_kv } = call.shape;
    // A mask does not apply to appended keys; without other keys there is none.
    let full = AttentionMask::full();
    let mask = if s_kv == 0 { &full } else { &*options.mask };
    let mask = mask.merge(call.shape, q.device())?;
    let [bias, keep] = [mask.bias, mask.keep].map(|mask| mask.map(|mask| within_32_bit_offsets(&mask)).transpose());
    let (bias, keep) = (bias?, keep?);
    let sinks = options.sinks.map(|sinks| sinks.to_dtype(DType::F32)?.contiguous()).transpose()?;
    let params = AttentionParams {
        b: b as i32,
        h: h as i32,
        h_kv: call.h_kv as i32,
        s_q: s_q as i32,
        s_kv: s_kv as i32,
        appended_keys: options.appended_keys as i32,
        d: call.d as i32,
        d_v: call.d_v as i32,
        window_size_left: mask.left,
        window_size_right: mask.right,
        symmetric: i32::from(mask.symmetric),
        scale: options.dot_product_scale(call.d) as f32,
        softcap: options.softcap.unwrap_or(0.0) as f32,
        ..AttentionParams::default()
    };
    let [q, k, v] = [last_dim_contiguous(q)?, last_dim_contiguous(k)?, last_dim_contiguous(v)?];
    launch::launch(launch::Arguments {
        q: &q,
        k: &k,
        v: &v,
        sinks: sinks.as_ref(),
        bias: bias.as_ref(),
        keep: keep.as_ref(),
        segments: mask.segments.as_ref(),
        slopes: mask.slopes,
        key_lengths: mask.lengths,
        padding_lengths: mask.padding,
        query_lengths: mask.query_ends,
        query_starts: mask.starts,
        offsets: offsets.map(|offsets| offsets.iter().map(|start| *start as i32).collect()),
        params,
    })
}

/// The mask, copied if a row spans more than 4 GiB: the kernels compute offsets within a row in 32 bits.
#[cfg(feature = "cuda")]
fn within_32_bit_offsets(mask: &Tensor) -> Result<Tensor> {
    let (keys, stride) = (mask.dims()[3], mask.stride()[3]);
    let fits = keys.saturating_mul(stride).saturating_mul(mask.dtype().size_in_bytes()) <= 1 << 32;
    Ok(if keys == 1 || fits { mask.clone() } else { mask.contiguous()? })
}

/// Without the feature `cuda`, [`unsupported_reason`] always has a reason.
#[cfg(not(feature = "cuda"))]
pub(super) fn attend(_: [&Tensor; 3], _: Option<&[usize]>, _: &Call, _: &SdpaOptions) -> Result<Tensor> {
    let reason = "the crate was built without its feature `cuda`".to_string();
    Err(crate::error::Error::Backend { backend: crate::sdpa::Backend::Cuda.to_string(), reason })
}
