//! FlashAttention 2 ([Dao 2023](https://arxiv.org/abs/2307.08691)) by candle-flash-attn, limited to the calls it
//! supports.

use candle_core::{DType, Tensor};

use crate::error::Result;
use crate::kernels::cpu::MaskStructure;
use crate::kernels::cuda::Gpu;
use crate::mask::{AttentionMask, AttnShape};
use crate::sdpa::unsupported::{first_reason, no_fused_kernel};
use crate::sdpa::{Call, DeviceKind, SdpaOptions, cuda};

/// Why it cannot run a call; `None` if it can.
pub(super) fn unsupported_reason(call: &Call, options: &SdpaOptions) -> Option<String> {
    let DeviceKind::Cuda(gpu) = call.device else {
        return Some("the tensors are not on an NVIDIA GPU".to_string());
    };
    let built = [(cfg!(not(feature = "flash-attn")), "the crate was built without its feature `flash-attn`")];
    first_reason(built).or_else(|| no_fused_kernel(call, options)).or_else(|| limits(call, options, gpu))
}

/// Why it cannot run a call that other fused kernels can.
fn limits(call: &Call, options: &SdpaOptions, gpu: Gpu) -> Option<String> {
    let AttnShape { b, h, s_q, s_kv } = call.shape;
    let half = matches!(call.dtype, DType::F16 | DType::BF16);
    let reason = first_reason([
        (!half, "it supports f16 and bf16 only"),
        (gpu.capability < 80, "the GPU is older than compute capability 8.0"),
        (call.d != call.d_v, "the head dimension of values differs from that of keys"),
        (!call.d.is_multiple_of(8), "the head dimension is not a multiple of 8"),
        (call.d > 512, "the head dimension is larger than 512"),
        (options.sinks.is_some(), "it does not support sinks"),
        (options.appended_keys > 0, "it does not support appended keys, which are outside the mask"),
        (
            options.backend.is_none() && cuda::splits(call, options) > 1,
            "too few queries to occupy the GPU: it does not split the keys of a query over several blocks",
        ),
        (b > 65_535 || h > 65_535, "a grid has at most 65535 sequences and 65535 heads"),
    ]);
    reason.or_else(|| {
        let Some(sliding) = sliding(&options.mask) else {
            return Some("it supports causal masks, windows and distances only".to_string());
        };
        let signed = sliding.distances.iter().any(|distances| !distances.symmetric);
        let bounded = sliding.left.is_some() || sliding.right.is_some();
        first_reason([
            (signed && sliding.right != Some(0), "it uses the absolute distance for keys after a query"),
            (bounded && s_q > s_kv, "the first queries come before the first key"),
        ])
    })
}

/// The mask as one window and one set of slopes; `None` if it is anything else.
fn sliding(mask: &AttentionMask) -> Option<MaskStructure> {
    let structure = mask.structure()?;
    let fits = structure.lengths.is_empty() && structure.starts.is_none() && structure.distances.len() <= 1;
    fits.then_some(structure)
}

/// Bytes of temporary memory: the kernel always writes the log-sum-exp of every row.
pub(super) fn scratch_bytes(call: &Call) -> usize {
    let AttnShape { b, h, s_q, .. } = call.shape;
    [b, h, s_q].into_iter().fold(size_of::<f32>(), usize::saturating_mul)
}

/// Runs a call; arguments as for [`fused`](crate::sdpa::fused).
#[cfg(feature = "flash-attn")]
pub(super) fn attend(
    qkv: [&Tensor; 3],
    offsets: Option<&[usize]>,
    call: &Call,
    options: &SdpaOptions,
) -> Result<Tensor> {
    use candle_flash_attn::{flash_attn_alibi_windowed_softcap, flash_attn_varlen_alibi_windowed_softcap};

    let device = qkv[0].device();
    let [q, k, v] = [vector_aligned(qkv[0])?, vector_aligned(qkv[1])?, vector_aligned(qkv[2])?];
    let sliding = sliding(&options.mask).unwrap_or_default();
    let slopes = sliding.distances.first().map(|distances| Tensor::new(&distances.slopes[..], device)).transpose()?;
    let (slopes, left, right) = (slopes.as_ref(), sliding.left, sliding.right);
    let scale = options.dot_product_scale(call.d) as f32;
    let softcap = options.softcap.unwrap_or(0.0) as f32;
    let Some(offsets) = offsets else {
        return Ok(flash_attn_alibi_windowed_softcap(&q, &k, &v, slopes, scale, left, right, softcap)?);
    };
    let offsets = Tensor::new(offsets.iter().map(|start| *start as u32).collect::<Vec<_>>(), device)?;
    let longest = call.shape.s_q;
    let [q, k, v] = [q.squeeze(0)?, k.squeeze(0)?, v.squeeze(0)?];
    let output = flash_attn_varlen_alibi_windowed_softcap(
        &q, &k, &v, slopes, &offsets, &offsets, longest, longest, scale, left, right, softcap,
    )?;
    Ok(output.unsqueeze(0)?)
}

/// The tensor, copied unless all its rows are aligned to 16 bytes. The kernel reads 16 bytes at a time and does not
/// check.
#[cfg(feature = "flash-attn")]
fn vector_aligned(t: &Tensor) -> Result<Tensor> {
    let layout = t.layout();
    let [strides @ .., last] = layout.stride() else { return Ok(t.clone()) };
    let aligned =
        *last == 1 && layout.start_offset().is_multiple_of(8) && strides.iter().all(|stride| stride.is_multiple_of(8));
    Ok(if aligned { t.clone() } else { t.force_contiguous()? })
}

/// Without the feature `flash-attn`, [`unsupported_reason`] always has a reason.
#[cfg(not(feature = "flash-attn"))]
pub(super) fn attend(_: [&Tensor; 3], _: Option<&[usize]>, call: &Call, options: &SdpaOptions) -> Result<Tensor> {
    let reason = unsupported_reason(call, options).unwrap_or_default();
    Err(crate::error::Error::Backend { backend: crate::sdpa::Backend::FlashAttn.to_string(), reason })
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::sdpa::Backend;

    const GPU: Gpu = Gpu { capability: 80, multiprocessors: 108, shared_memory: 163 << 10 };

    fn call() -> Call {
        Call {
            shape: AttnShape { b: 2, h: 4, s_q: 16, s_kv: 16 },
            h_kv: 2,
            d: 64,
            d_v: 64,
            dtype: DType::BF16,
            device: DeviceKind::Cuda(GPU),
            tracks_gradient: false,
        }
    }

    #[test]
    fn unsupported_calls_are_rejected_with_a_reason() {
        let full = AttentionMask::full();
        let reason = |call: Call, mask: &AttentionMask| limits(&call, &SdpaOptions::new(mask), GPU).unwrap_or_default();
        assert_eq!(reason(call(), &full), "");
        assert_eq!(reason(Call { d: 72, d_v: 72, ..call() }, &full), "");
        assert!(reason(Call { dtype: DType::F32, ..call() }, &full).contains("f16 and bf16"));
        assert!(reason(Call { d_v: 32, ..call() }, &full).contains("differs from that of keys"));
        assert!(reason(Call { d: 20, d_v: 20, ..call() }, &full).contains("multiple of 8"));
        assert!(reason(Call { d: 520, d_v: 520, ..call() }, &full).contains("512"));
        let many = AttnShape { b: 70_000, ..call().shape };
        assert!(reason(Call { shape: many, ..call() }, &full).contains("65535"));
        assert!(limits(&call(), &SdpaOptions::new(&full), Gpu { capability: 75, ..GPU }).unwrap().contains("8.0"));
        let sinks = Tensor::zeros(4, DType::F32, &Device::Cpu).unwrap();
        let with = SdpaOptions { sinks: Some(&sinks), ..SdpaOptions::new(&full) };
        assert!(limits(&call(), &with, GPU).unwrap().contains("sinks"));
        let with = SdpaOptions { appended_keys: 1, ..SdpaOptions::new(&full) };
        assert!(limits(&call(), &with, GPU).unwrap().contains("outside the mask"));
        let step = AttnShape { b: 1, s_q: 1, s_kv: 4096, ..call().shape };
        assert!(reason(Call { shape: step, ..call() }, &full).contains("too few queries"));
        assert_eq!(reason(Call { shape: AttnShape { b: 64, ..step }, ..call() }, &full), "");
        let forced = SdpaOptions { backend: Some(Backend::FlashAttn), ..SdpaOptions::new(&full) };
        assert_eq!(
            limits(&Call { shape: step, ..call() }, &forced, GPU),
            None,
            "a forced backend runs even if it is slower"
        );

        let more_queries = Call { shape: AttnShape { s_q: 17, ..call().shape }, ..call() };
        assert_eq!(reason(more_queries, &full), "");
        assert!(reason(more_queries, &AttentionMask::causal()).contains("before the first key"));
        let slopes = |symmetric| AttentionMask::distances(vec![0.5; 4], symmetric);
        assert_eq!(reason(call(), &slopes(true)), "");
        assert_eq!(reason(call(), &slopes(false).and(AttentionMask::causal())), "");
        assert!(reason(call(), &slopes(false)).contains("absolute distance"));
        assert!(reason(call(), &slopes(true).and(slopes(true))).contains("causal masks"));
        for mask in [AttentionMask::lengths(&[3, 4]), AttentionMask::padding(&[3, 4])] {
            assert!(reason(call(), &mask).contains("causal masks"), "{mask}");
        }
    }

    #[test]
    fn other_devices_and_builds_without_the_feature_are_rejected() {
        let full = AttentionMask::full();
        let options = SdpaOptions::new(&full);
        let on_cpu = Call { device: DeviceKind::Cpu, ..call() };
        assert!(unsupported_reason(&on_cpu, &options).unwrap().contains("NVIDIA"));
        assert_eq!(unsupported_reason(&call(), &options).is_some(), cfg!(not(feature = "flash-attn")));
    }
}
