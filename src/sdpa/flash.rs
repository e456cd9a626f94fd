//! FlashAttention 2 ([Dao 2023](https://arxiv.org/abs/2307.08691)) and 3
//! ([Shah 2024](https://arxiv.org/abs/2407.08608)) by candle-flash-attn and candle-flash-attn-v3, limited to the calls
//! they support. A call that both can run runs on version 3.

use candle_attention_kernels::MaskStructure;
use candle_core::{DType, Tensor};

use crate::error::Result;
use crate::kernels::cuda::Gpu;
use crate::mask::{AttentionMask, AttnShape};
use crate::sdpa::reasons::{first_reason, no_fused_kernel};
use crate::sdpa::{Call, DeviceKind, SdpaOptions, cuda};

/// Why FlashAttention cannot run a call; `None` if it can.
pub(super) fn unsupported_reason(call: &Call, options: &SdpaOptions) -> Option<String> {
    let DeviceKind::Cuda(gpu) = call.device else {
        return Some("the tensors are not on an NVIDIA GPU".to_string());
    };
    let reason = no_fused_kernel(call, options).or_else(|| limits(call, options, gpu));
    let two = (cfg!(not(feature = "flash-attn")), "the crate was built without its feature `flash-attn`");
    reason.or_else(|| {
        limits_of_three(call, options).and_then(|three| Some(format!("{}, and {three}", first_reason([two])?)))
    })
}

/// Why FlashAttention 3 cannot run a call that version 2 can.
fn limits_of_three(call: &Call, options: &SdpaOptions) -> Option<String> {
    let is_hopper = matches!(call.device, DeviceKind::Cuda(gpu) if gpu.capability == 90);
    let slopes = sliding(&options.mask).is_some_and(|sliding| !sliding.distances.is_empty());
    first_reason([
        (!is_hopper, "version 3 is for compute capability 9.0"),
        (![64, 128, 256, 512].contains(&call.d), "version 3 has head dimensions 64, 128, 256 and 512"),
        (options.softcap.is_some() || slopes, "version 3 supports neither softcap nor distances"),
        (cfg!(not(feature = "flash-attn-v3")), "without `flash-attn-v3`"),
    ])
}

/// Why FlashAttention cannot run a call that other fused kernels can.
fn limits(call: &Call, options: &SdpaOptions, gpu: Gpu) -> Option<String> {
    let AttnShape { b, h, s_q, s_kv } = call.shape;
    let half = matches!(call.dtype, DType::F16 | DType::BF16);
    let reason = first_reason([
        (!half, "it supports f16 and bf16 only"),
        (counts(call).is_none(), "it counts tokens and the elements of a sequence in 32 bits"),
        (gpu.capability < 80, "the GPU is older than compute capability 8.0"),
        (call.d != call.d_v, "the head dimension of values differs from that of keys"),
        (!call.d.is_multiple_of(8), "the head dimension is not a multiple of 8"),
        (call.d > 512, "the head dimension is larger than 512"),
        (options.sinks.is_some(), "it does not support sinks"),
        (call.distance_embeddings != [0; 2], "it supports causal masks, windows and distances only"),
        (options.appended_keys > 0, "it does not support appended keys, which are outside the mask"),
        (
            cuda::HAVE_RUN && options.backend.is_none() && cuda::splits(call, options) > 1,
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

/// The tokens of a batch, and the elements of its longest sequence of queries or keys, if they can be counted.
fn counts(call: &Call) -> Option<[u32; 2]> {
    let AttnShape { b, h, s_q, s_kv } = call.shape;
    let product = |numbers: [usize; 3]| numbers.into_iter().try_fold(1usize, |product, n| product.checked_mul(n));
    let elements = product([s_q, h, call.d])?.max(product([s_kv, call.h_kv, call.d])?);
    let tokens = i32::try_from(b.checked_mul(s_q.max(s_kv))?).ok()?;
    Some([tokens as u32, u32::try_from(elements).ok()?])
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
#[cfg(any(feature = "flash-attn", feature = "flash-attn-v3"))]
pub(super) fn attend(
    qkv: [&Tensor; 3],
    offsets: Option<&[usize]>,
    call: &Call,
    options: &SdpaOptions,
) -> Result<Tensor> {
    let device = qkv[0].device();
    let [q, k, v] = [vector_aligned(qkv[0])?, vector_aligned(qkv[1])?, vector_aligned(qkv[2])?];
    let MaskStructure { left, right, distances, .. } = sliding(&options.mask).unwrap_or_default();
    let scale = options.dot_product_scale(call.d) as f32;
    // Of one sequence after another, or with the starts of ragged ones.
    let kernel = |q: &Tensor, k: &Tensor, v: &Tensor, starts: Option<&Tensor>| {
        let longest = call.shape.s_q;
        #[cfg(feature = "flash-attn-v3")]
        if limits_of_three(call, options).is_none() {
            use candle_flash_attn_v3::{flash_attn_varlen_windowed as ragged, flash_attn_windowed as padded};
            return match starts {
                None => padded(q, k, v, scale, left, right, false),
                Some(starts) => ragged(q, k, v, starts, starts, longest, longest, scale, left, right, false),
            };
        }
        #[cfg(feature = "flash-attn")]
        {
            use candle_flash_attn::flash_attn_alibi_windowed_softcap as padded;
            use candle_flash_attn::flash_attn_varlen_alibi_windowed_softcap as ragged;
            let slopes = distances.first().map(|distances| Tensor::new(&distances.slopes[..], device)).transpose()?;
            let (slopes, cap) = (slopes.as_ref(), options.softcap.unwrap_or(0.0) as f32);
            return match starts {
                None => padded(q, k, v, slopes, scale, left, right, cap),
                Some(starts) => ragged(q, k, v, slopes, starts, starts, longest, longest, scale, left, right, cap),
            };
        }
        #[cfg(not(feature = "flash-attn"))]
        candle_core::bail!("a call under {distances:?} needs the feature `flash-attn`")
    };
    let Some(offsets) = offsets else {
        return with_finite_values(&v, None, call, [left, right], |v| Ok(kernel(&q, &k, v, None)?));
    };
    let starts = offsets.iter().map(|start| small("tokens", *start)).collect::<Result<Vec<_>>>()?;
    let starts = Tensor::new(starts, device)?;
    let [q, k] = [q.squeeze(0)?, k.squeeze(0)?];
    with_finite_values(&v, Some(offsets), call, [left, right], |v| {
        Ok(kernel(&q, &k, &v.squeeze(0)?, Some(&starts))?.unsqueeze(0)?)
    })
}

/// A count as the kernel takes it.
#[cfg(any(feature = "flash-attn", feature = "flash-attn-v3"))]
fn small(name: &str, count: usize) -> Result<u32> {
    let fits = u32::try_from(count).ok().filter(|count| i32::try_from(*count).is_ok());
    let expected = "less than 2^31 for FlashAttention";
    fits.ok_or_else(|| crate::error::Error::value(format!("the number of {name}"), count, expected))
}

/// The output `(b, s_q, h, d)` of `kernel` for values `(b, s_kv, h_kv, d)` in a window. The kernel multiplies the
/// values of whole tiles, of which a query may not see all keys; see `hidden_values`.
#[cfg(any(test, feature = "flash-attn", feature = "flash-attn-v3"))]
fn with_finite_values(
    v: &Tensor,
    offsets: Option<&[usize]>,
    call: &Call,
    window: [Option<usize>; 2],
    kernel: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    use crate::sdpa::hidden_values::{finite_parts, marked_in_ranges, with_nan};

    // Without a window every query sees every key of its sequence.
    if window == [None, None] {
        return kernel(v);
    }
    let [values, spoiled] = finite_parts(v)?;
    let AttnShape { s_q, s_kv, .. } = call.shape;
    let ranges: Vec<_> = match offsets {
        None => window_ranges(0, s_q, s_kv, window).collect(),
        Some(offsets) => {
            let each = offsets.windows(2).map(|ends| (ends[0], ends[1].saturating_sub(ends[0])));
            each.flat_map(|(start, length)| window_ranges(start, length, length, window)).collect()
        }
    };
    with_nan(&kernel(&values)?, &marked_in_ranges(&spoiled, &ranges)?)
}

/// The keys that each query of a sequence sees in a window. The keys of the sequence begin with key `first`.
#[cfg(any(test, feature = "flash-attn", feature = "flash-attn-v3"))]
fn window_ranges(
    first: usize,
    s_q: usize,
    s_kv: usize,
    [left, right]: [Option<usize>; 2],
) -> impl Iterator<Item = std::ops::Range<usize>> {
    let window = MaskStructure { left, right, ..MaskStructure::default() };
    (0..s_q).map(move |i| {
        let seen = window.range(0, i, s_q, s_kv);
        first + seen.start..first + seen.end
    })
}

/// The tensor, copied unless all its rows are aligned to 16 bytes. The kernel reads 16 bytes at a time and does not
/// check.
#[cfg(any(feature = "flash-attn", feature = "flash-attn-v3"))]
fn vector_aligned(t: &Tensor) -> Result<Tensor> {
    let layout = t.layout();
    let [strides @ .., last] = layout.stride() else { return Ok(t.clone()) };
    let aligned =
        *last == 1 && layout.start_offset().is_multiple_of(8) && strides.iter().all(|stride| stride.is_multiple_of(8));
    // candle passes strides on in 32 bits.
    let aligned = aligned && strides.iter().all(|stride| u32::try_from(*stride).is_ok());
    Ok(if aligned { t.clone() } else { t.force_contiguous()? })
}

/// Without these features, [`unsupported_reason`] always has a reason.
#[cfg(not(any(feature = "flash-attn", feature = "flash-attn-v3")))]
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
            distance_embeddings: [0; 2],
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
        for shape in [
            AttnShape { s_kv: 1 << 32, ..call().shape },
            AttnShape { s_q: 1 << 25, ..call().shape },
            AttnShape { b: 40_000, s_q: 1 << 16, ..call().shape },
            AttnShape { s_q: usize::MAX, s_kv: usize::MAX, ..call().shape },
        ] {
            assert!(reason(Call { shape, ..call() }, &full).contains("32 bits"), "{shape:?}");
        }
        let step = AttnShape { b: 1, s_q: 1, s_kv: 4096, ..call().shape };
        assert_eq!(reason(Call { shape: step, ..call() }, &full).contains("too few queries"), cuda::HAVE_RUN);
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

    /// A kernel that multiplies hidden values by 0, as FlashAttention does in a tile.
    fn multiply(weights: &Tensor, v: &Tensor) -> Result<Tensor> {
        let (b, h, _, keys) = weights.dims4()?;
        let (_, _, h_kv, d) = v.dims4()?;
        let values = v.transpose(1, 2)?.unsqueeze(2)?.broadcast_as((b, h_kv, h / h_kv, keys, d))?;
        Ok(weights.matmul(&values.reshape((b, h, keys, d))?)?.transpose(1, 2)?.contiguous()?)
    }

    #[test]
    fn a_hidden_key_has_no_influence_whatever_it_holds() {
        let (s_q, s_kv, h, h_kv, d) = (5, 7, 4, 2, 3);
        let shape = AttnShape { b: 1, h, s_q, s_kv };
        let call = Call { shape, d, d_v: d, ..call() };
        let windows = [[None, Some(0)], [Some(1), Some(0)], [Some(0), Some(1)], [Some(2), None], [None, None]];
        // The second case is a ragged batch, as one mask.
        let cases = [(None, shape), (Some(&[0, 3, 3, 7][..]), AttnShape { s_q: 7, ..shape })];
        for (window, (offsets, shape)) in windows.into_iter().flat_map(|window| cases.map(|case| (window, case))) {
            // Without a window the values of other sequences are not read, which this product does not imitate.
            if offsets.is_some() && window == [None, None] {
                continue;
            }
            let ranges: Vec<_> = match offsets {
                None => window_ranges(0, s_q, s_kv, window).collect(),
                Some(_) => window_ranges(0, 3, 3, window).chain(window_ranges(3, 4, 4, window)).collect(),
            };
            let mask = AttentionMask::window(window[0], window[1]);
            if offsets.is_none() && window != [None, None] {
                let keep = mask.dense(shape, 0, DType::F32, &Device::Cpu).unwrap().keep.unwrap();
                let keep =
                    keep.broadcast_as((1, 1, s_q, s_kv)).unwrap().flatten_all().unwrap().to_vec1::<u8>().unwrap();
                let sees = ranges.iter().flat_map(|range| (0..s_kv).map(|j| u8::from(range.contains(&j))));
                assert_eq!(sees.collect::<Vec<_>>(), keep, "{window:?}");
            }
            let weight = |(at, range): (usize, &std::ops::Range<usize>)| {
                (0..s_kv).map(move |j| if range.contains(&j) { 1.0 + ((at + j) % 5) as f32 } else { 0.0 }).collect()
            };
            let one_head: Vec<f32> = ranges.iter().enumerate().flat_map(|row| -> Vec<f32> { weight(row) }).collect();
            let weights = Tensor::from_vec(one_head.repeat(h), (1, h, ranges.len(), s_kv), &Device::Cpu).unwrap();
            let clean: Vec<f32> = (0..s_kv * h_kv * d).map(|i| (i % 11) as f32 - 5.0).collect();
            let run = |values: Vec<f32>| {
                let v = Tensor::from_vec(values, (1, s_kv, h_kv, d), &Device::Cpu).unwrap();
                let output = with_finite_values(&v, offsets, &call, window, |v| multiply(&weights, v)).unwrap();
                output.flatten_all().unwrap().to_vec1::<f32>().unwrap()
            };
            let want = run(clean.clone());
            for (j, bad) in (0..s_kv).flat_map(|j| [(j, f32::NAN), (j, f32::INFINITY)]) {
                let mut values = clean.clone();
                values[j * h_kv * d + 1] = bad; // of key-value head 0, which two query heads read
                for (at, (got, want)) in run(values).iter().zip(&want).enumerate() {
                    let sees = ranges[at / d / h].contains(&j) && at / d % h < h / h_kv;
                    let right = if sees { at % d != 1 || !got.is_finite() } else { got == want };
                    assert!(right, "{window:?}, {offsets:?}, key {j}, {at}: {got}");
                }
            }
        }
    }

    #[test]
    fn other_devices_and_builds_without_the_feature_are_rejected() {
        let full = AttentionMask::full();
        let options = SdpaOptions::new(&full);
        let on_cpu = Call { device: DeviceKind::Cpu, ..call() };
        assert!(unsupported_reason(&on_cpu, &options).unwrap().contains("NVIDIA"));
        // Version 3 is not for this GPU.
        assert_eq!(unsupported_reason(&call(), &options).is_some(), cfg!(not(feature = "flash-attn")));
    }

    #[test]
    fn version_three_is_for_hopper_and_four_head_dimensions() {
        let full = AttentionMask::full();
        let hopper = Call { device: DeviceKind::Cuda(Gpu { capability: 90, ..GPU }), ..call() };
        let reason = |call: Call, options: &SdpaOptions| limits_of_three(&call, options).unwrap_or_default();
        let plain = SdpaOptions::new(&full);
        let built = if cfg!(feature = "flash-attn-v3") { "" } else { "without `flash-attn-v3`" };
        for d in [64, 128, 256, 512] {
            assert_eq!(reason(Call { d, d_v: d, ..hopper }, &plain), built);
        }
        assert!(reason(Call { d: 96, d_v: 96, ..hopper }, &plain).contains("head dimensions 64, 128, 256 and 512"));
        assert!(reason(call(), &plain).contains("compute capability 9.0"));
        assert!(reason(hopper, &SdpaOptions { softcap: Some(30.0), ..plain.clone() }).contains("softcap"));
        let slopes = AttentionMask::distances(vec![0.5; 4], true);
        assert!(reason(hopper, &SdpaOptions::new(&slopes)).contains("distances"));
    }
}
