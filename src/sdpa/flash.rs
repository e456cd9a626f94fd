//! FlashAttention 2 ([Dao 2023](https://arxiv.org/abs/2307.08691)) as candle-flash-attn has it, inside what it can do.

use candle_core::{DType, Tensor};

use crate::error::Result;
use crate::kernels::cpu::MaskStructure;
use crate::kernels::cuda::Gpu;
use crate::mask::{AttentionMask, AttnShape};
use crate::sdpa::unsupported::{first_reason, no_fused_kernel};
use crate::sdpa::{Call, DeviceKind, SdpaOptions, cuda};

/// Why it cannot run a call, `None` if it can.
pub(super) fn unsupported_reason(call: &Call, options: &SdpaOptions) -> Option<String> {
    let DeviceKind::Cuda(gpu) = call.device else {
        return Some("the tensors are not on an NVIDIA GPU".to_string());
    };
    let built = [(cfg!(not(feature = "flash-attn")), "the crate was built without its feature `flash-attn`")];
    first_reason(built).or_else(|| no_fused_kernel(call, options)).or_else(|| limits(call, options, gpu))
}

/// What it cannot do, though fused kernels can.
fn limits(call: &Call, options: &SdpaOptions, gpu: Gpu) -> Option<String> {
    let AttnShape { b, h, s_q, s_kv } = call.shape;
    let half = matches!(call.dtype, DType::F16 | DType::BF16);
    let reason = first_reason([
        (!half, "it takes f16 and bf16 only"),
        (gpu.capability < 80, "the GPU is older than compute capability 8.0"),
        (call.d != call.d_v, "heads of values have another size than those of keys"),
        (!call.d.is_multiple_of(8), "the size of a head is no multiple of 8"),
        (call.d > 512, "a head has more than 512 numbers"),
        (options.sinks.is_some(), "it knows no sinks"),
        (options.appended_keys > 0, "it knows no keys outside the mask"),
        (
            options.backend.is_none() && cuda::splits(call, options) > 1,
            "it leaves most of the GPU without work: blocks do not share a query's keys",
        ),
        (b > 65_535 || h > 65_535, "more than 65535 rows or heads are no grid of a GPU"),
    ]);
    reason.or_else(|| {
        let Some(sliding) = sliding(options.mask) else {
            return Some("its masks are causal, windows and distances only".to_string());
        };
        let forward = sliding.distances.iter().any(|distances| !distances.symmetric);
        let bounded = sliding.left.is_some() || sliding.right.is_some();
        first_reason([
            (forward && sliding.right != Some(0), "it counts keys after a query as far as those before"),
            (bounded && s_q > s_kv, "there are queries before the first key"),
        ])
    })
}

/// The mask as one window and the slopes of distances, `None` if it is more than that.
fn sliding(mask: &AttentionMask) -> Option<MaskStructure> {
    let structure = mask.structure()?;
    let no_more = structure.lengths.is_empty() && structure.starts.is_none() && structure.distances.len() <= 1;
    no_more.then_some(structure)
}

/// The logarithms of the softmax's sums, which nobody asked for.
pub(super) fn scratch_bytes(call: &Call) -> usize {
    let AttnShape { b, h, s_q, .. } = call.shape;
    size_of::<f32>() * b * h * s_q
}

/// See [`fused`](crate::sdpa::fused).
#[cfg(feature = "flash-attn")]
pub(super) fn attend(qkv: [&Tensor; 3], rows: Option<&[usize]>, call: &Call, options: &SdpaOptions) -> Result<Tensor> {
    use candle_flash_attn::{flash_attn_alibi_windowed_softcap, flash_attn_varlen_alibi_windowed_softcap};

    let device = qkv[0].device();
    let [q, k, v] = [readable(qkv[0])?, readable(qkv[1])?, readable(qkv[2])?];
    let sliding = sliding(options.mask).unwrap_or_default();
    let slopes = sliding.distances.first().map(|distances| Tensor::new(&distances.slopes[..], device)).transpose()?;
    let (slopes, left, right) = (slopes.as_ref(), sliding.left, sliding.right);
    let scale = options.dot_product_scale(call.d) as f32;
    let softcap = options.softcap.unwrap_or(0.0) as f32;
    let Some(rows) = rows else {
        return Ok(flash_attn_alibi_windowed_softcap(&q, &k, &v, slopes, scale, left, right, softcap)?);
    };
    let ends = Tensor::new(rows.iter().map(|start| *start as u32).collect::<Vec<_>>(), device)?;
    let longest = call.shape.s_q;
    let [q, k, v] = [q.squeeze(0)?, k.squeeze(0)?, v.squeeze(0)?];
    let output = flash_attn_varlen_alibi_windowed_softcap(
        &q, &k, &v, slopes, &ends, &ends, longest, longest, scale, left, right, softcap,
    )?;
    Ok(output.unsqueeze(0)?)
}

/// It reads 16 bytes at a time and looks at no address: what begins elsewhere is copied.
#[cfg(feature = "flash-attn")]
fn readable(t: &Tensor) -> Result<Tensor> {
    let layout = t.layout();
    let [steps @ .., last] = layout.stride() else { return Ok(t.clone()) };
    let fits = *last == 1 && layout.start_offset().is_multiple_of(8) && steps.iter().all(|step| step.is_multiple_of(8));
    Ok(if fits { t.clone() } else { t.force_contiguous()? })
}

/// Without the feature [`unsupported_reason`] has a reason.
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
    fn what_it_cannot_do_goes_elsewhere() {
        let none = AttentionMask::full();
        let reason = |call: Call, mask: &AttentionMask| limits(&call, &SdpaOptions::new(mask), GPU).unwrap_or_default();
        assert_eq!(reason(call(), &none), "");
        assert_eq!(reason(Call { d: 72, d_v: 72, ..call() }, &none), "");
        assert!(reason(Call { dtype: DType::F32, ..call() }, &none).contains("f16 and bf16"));
        assert!(reason(Call { d_v: 32, ..call() }, &none).contains("another size"));
        assert!(reason(Call { d: 20, d_v: 20, ..call() }, &none).contains("multiple of 8"));
        assert!(reason(Call { d: 520, d_v: 520, ..call() }, &none).contains("512"));
        let many = AttnShape { b: 70_000, ..call().shape };
        assert!(reason(Call { shape: many, ..call() }, &none).contains("65535"));
        assert!(limits(&call(), &SdpaOptions::new(&none), Gpu { capability: 75, ..GPU }).unwrap().contains("8.0"));
        let sinks = Tensor::zeros(4, DType::F32, &Device::Cpu).unwrap();
        let with = SdpaOptions { sinks: Some(&sinks), ..SdpaOptions::new(&none) };
        assert!(limits(&call(), &with, GPU).unwrap().contains("sinks"));
        let with = SdpaOptions { appended_keys: 1, ..SdpaOptions::new(&none) };
        assert!(limits(&call(), &with, GPU).unwrap().contains("outside the mask"));
        let step = AttnShape { b: 1, s_q: 1, s_kv: 4096, ..call().shape };
        assert!(reason(Call { shape: step, ..call() }, &none).contains("without work"));
        assert_eq!(reason(Call { shape: AttnShape { b: 64, ..step }, ..call() }, &none), "");
        let forced = SdpaOptions { backend: Some(Backend::FlashAttn), ..SdpaOptions::new(&none) };
        assert_eq!(limits(&Call { shape: step, ..call() }, &forced, GPU), None, "slower, but what was asked for");

        let more_queries = Call { shape: AttnShape { s_q: 17, ..call().shape }, ..call() };
        assert_eq!(reason(more_queries, &none), "");
        assert!(reason(more_queries, &AttentionMask::causal()).contains("before the first key"));
        let slopes = |symmetric| AttentionMask::distances(vec![0.5; 4], symmetric);
        assert_eq!(reason(call(), &slopes(true)), "");
        assert_eq!(reason(call(), &slopes(false).and(AttentionMask::causal())), "");
        assert!(reason(call(), &slopes(false)).contains("as far as"));
        assert!(reason(call(), &slopes(true).and(slopes(true))).contains("masks"));
        for mask in [AttentionMask::lengths(&[3, 4]), AttentionMask::padding(&[3, 4])] {
            assert!(reason(call(), &mask).contains("masks"), "{mask}");
        }
    }

    #[test]
    fn elsewhere_or_unbuilt_it_says_so() {
        let none = AttentionMask::full();
        let options = SdpaOptions::new(&none);
        let on_cpu = Call { device: DeviceKind::Cpu, ..call() };
        assert!(unsupported_reason(&on_cpu, &options).unwrap().contains("NVIDIA"));
        assert_eq!(unsupported_reason(&call(), &options).is_some(), cfg!(not(feature = "flash-attn")));
    }
}
