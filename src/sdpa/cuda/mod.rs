//! Attention on NVIDIA GPUs by the crate's own fused kernels.

#[cfg(any(test, feature = "cuda"))]
mod arguments;
#[cfg(feature = "cuda")]
mod launch;

#[cfg(feature = "cuda")]
use arguments::Arguments;
use candle_core::Tensor;

use crate::error::Result;
#[cfg(any(test, feature = "cuda"))]
use crate::kernels::cuda::{Features, ProblemShape, Variant};
use crate::sdpa::reasons::{first_reason, no_fused_kernel};
use crate::sdpa::{Call, DeviceKind, SdpaOptions};

/// Whether a GPU has run the kernels: a run of `benches/gpu/run.py` is recorded in `docs/devices.md`. Until then they
/// run where a call asks for them.
pub(super) const HAVE_RUN: bool = false;

/// Why the kernels do not run a call; `None` if they can.
pub(super) fn unsupported_reason(call: &Call, options: &SdpaOptions) -> Option<String> {
    let elsewhere = (!matches!(call.device, DeviceKind::Cuda(_)), "the tensors are not on an NVIDIA GPU");
    let built = (cfg!(not(any(test, feature = "cuda"))), "the crate was built without its feature `cuda`");
    // Outputs of larger heads do not fit in registers.
    let large = (call.d.max(call.d_v) > 256, "the head dimension is larger than 256");
    let unasked = (
        !HAVE_RUN && options.backend.is_none(),
        "no GPU has run these kernels yet: a call has to ask for them, by `Backend::Cuda`",
    );
    first_reason([elsewhere, built, unasked])
        .or_else(|| no_fused_kernel(call, options))
        .or_else(|| first_reason([large]))
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

/// The problem from which a kernel variant is selected.
#[cfg(any(test, feature = "cuda"))]
fn problem_shape(call: &Call, options: &SdpaOptions, features: Features) -> ProblemShape {
    let Call { shape, h_kv, d, d_v, dtype, .. } = *call;
    ProblemShape {
        dtype,
        d,
        d_v,
        work_items: shape.b.saturating_mul(h_kv),
        // A layer without heads has no key-value heads either.
        query_rows: shape.s_q.saturating_mul(shape.h.checked_div(h_kv).unwrap_or(0)),
        keys: shape.s_kv.saturating_add(options.appended_keys),
        features,
    }
}

/// How many blocks share the keys of a tile of queries.
#[cfg(any(test, feature = "cuda"))]
pub(super) fn splits(call: &Call, options: &SdpaOptions) -> usize {
    let DeviceKind::Cuda(gpu) = call.device else { return 1 };
    let shape = problem_shape(call, options, Features::default());
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

    use crate::mask::AttentionMask;
    use crate::tensor::last_dim_contiguous;

    // A mask does not apply to appended keys; without other keys there is none.
    let full = AttentionMask::full();
    let mask = if call.shape.s_kv == 0 { &full } else { &*options.mask };
    let mut mask = mask.merge(call.shape, q.device())?;
    mask.bias = mask.bias.map(|bias| within_32_bit_offsets(&bias)).transpose()?;
    mask.keep = mask.keep.map(|keep| within_32_bit_offsets(&keep)).transpose()?;
    let sinks = options.sinks.map(|sinks| sinks.to_dtype(DType::F32)?.contiguous()).transpose()?;
    let [q, k, v] = [last_dim_contiguous(q)?, last_dim_contiguous(k)?, last_dim_contiguous(v)?];
    let sinks = sinks.as_ref();
    launch::launch(Arguments { q: &q, k: &k, v: &v, sinks, mask: &mask, offsets, call, options })
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

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;
    use crate::kernels::cuda::Gpu;
    use crate::mask::{AttentionMask, AttnShape};
    use crate::sdpa::{Backend, Plan};

    const GPU: Gpu = Gpu { capability: 90, multiprocessors: 132, shared_memory: 227 << 10 };

    /// Calls of a layer whose heads are all pruned, for `plan`, and calls of absurd sizes.
    #[test]
    fn every_call_has_a_plan_on_every_device() {
        let shapes = [
            AttnShape { b: 2, h: 0, s_q: 3, s_kv: 5 },
            AttnShape { b: 0, h: 4, s_q: 0, s_kv: 0 },
            AttnShape { b: usize::MAX, h: 4, s_q: usize::MAX, s_kv: usize::MAX },
        ];
        for (shape, device) in shapes.into_iter().flat_map(|shape| {
            [DeviceKind::Cuda(GPU), DeviceKind::Cuda(Gpu::default()), DeviceKind::Metal].map(|device| (shape, device))
        }) {
            let h_kv = shape.h.min(2);
            let call = Call {
                shape,
                h_kv,
                d: 8,
                d_v: 8,
                dtype: DType::BF16,
                device,
                distance_embeddings: [0; 2],
                tracks_gradient: false,
            };
            for mask in [AttentionMask::full(), AttentionMask::causal()] {
                let backends = [None, Some(Backend::Cuda), Some(Backend::FlashAttn), Some(Backend::Metal)];
                for options in backends.map(|backend| SdpaOptions::new(&mask).with_backend(backend)) {
                    let plan = Plan::new(&call, &options);
                    assert!(plan.is_ok() || options.backend.is_some(), "{shape:?}, {device:?}, {mask}");
                }
            }
        }
    }
}
