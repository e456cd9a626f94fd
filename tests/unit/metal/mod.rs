//! Tests without an Apple GPU: which calls are accepted, and that they match the eager backend when a mock of candle's
//! kernel, written as loops, takes its place.

mod hidden;

use std::collections::HashSet;

use candle_core::{Device, IndexOp, Tensor};
use half::{bf16, f16};

use crate::kernels::cuda::Gpu;
use crate::mask::AttentionMask;
use crate::mask::AttnShape;
use crate::sdpa;
use crate::sdpa::metal::*;
use crate::sdpa::{Backend, eager};
use crate::tensor::with_slice;

pub(super) fn call(b: usize, [h, h_kv]: [usize; 2], s_q: usize, s_kv: usize, d: usize) -> Call {
    let shape = AttnShape { b, h, s_q, s_kv };
    Call {
        shape,
        h_kv,
        d,
        d_v: d,
        dtype: DType::F32,
        device: DeviceKind::Metal,
        distance_embeddings: [0; 2],
        tracks_gradient: false,
    }
}

fn reason(call: Call, mask: &AttentionMask) -> String {
    unsupported_reason(&call, &SdpaOptions::new(mask)).unwrap_or_default()
}

#[test]
fn common_calls_are_accepted() {
    let masks = [
        AttentionMask::full(),
        AttentionMask::causal(),
        AttentionMask::lengths(&[40, 0]),
        AttentionMask::padding(&[40, 7]),
        AttentionMask::causal().and(AttentionMask::lengths(&[40, 3])),
        AttentionMask::window(Some(3), Some(0)),
    ];
    for d in [32, 64, 72, 80, 96, 128] {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            for mask in &masks {
                for heads in [[4, 4], [4, 2]] {
                    assert_eq!(reason(Call { dtype, ..call(2, heads, 40, 40, d) }, mask), "", "{d} {dtype:?} {mask}");
                }
            }
        }
    }
    let unmasked = AttentionMask::full();
    assert_eq!(reason(call(2, [4, 2], 40, 7, 64), &unmasked), "");
    assert_eq!(reason(call(2, [4, 4], 7, 40, 64), &AttentionMask::causal()), "");
}

#[test]
fn calls_with_wrong_results_are_rejected() {
    let (none, causal) = (AttentionMask::full(), AttentionMask::causal());
    let plain = call(2, [4, 4], 40, 40, 64);
    let cases = [
        (Call { device: DeviceKind::Cpu, ..plain }, &none, "not on an Apple GPU"),
        (Call { device: DeviceKind::Cuda(Gpu::default()), ..plain }, &none, "not on an Apple GPU"),
        (Call { dtype: DType::F64, ..plain }, &none, "computes in f32"),
        (Call { tracks_gradient: true, ..plain }, &none, "gradient"),
        (Call { d_v: 32, ..plain }, &none, "differ in head dimension"),
        (call(2, [4, 4], 40, 40, 48), &none, "not compiled for this head dimension"),
        (call(2, [4, 4], 40, 40, 192), &none, "not compiled for this head dimension"),
        (call(2, [4, 4], 40, 40, 256), &none, "threadgroup memory"),
        (call(2, [4, 4], 40, 40, 512), &none, "threadgroup memory"),
        (call(2, [4, 4], 1, 40, 64), &none, "single query"),
        (call(2, [4, 4], 1, 40, 72), &causal, "single query"),
        (call(2, [4, 4], 1, 40, 80), &AttentionMask::lengths(&[40, 3]), "single query"),
        (call(2, [4, 4], 41, 40, 64), &causal, "queries outnumber keys"),
        (call(2, [4, 4], 41, 40, 64), &AttentionMask::lengths(&[40, 3]), "queries outnumber keys"),
        (call(2, [4, 2], 7, 40, 64), &causal, "grouped heads give NaN"),
        (call(2, [4, 2], 7, 40, 64), &AttentionMask::lengths(&[40, 3]), "grouped heads give NaN"),
        (call(1, [1, 1], 50_000, 50_000, 64), &AttentionMask::window(Some(9), None), "32 bits"),
    ];
    for (call, mask, expected) in cases {
        let reason = reason(call, mask);
        assert!(reason.contains(expected), "{call:?} {mask}: {reason}");
    }
    for d in [256, 512] {
        assert_eq!(reason(Call { dtype: DType::F16, ..call(1, [2, 2], 40, 40, d) }, &none), "", "{d}");
    }
}

#[test]
fn unsupported_options_are_rejected() {
    let (mask, extra) = (AttentionMask::full(), Tensor::zeros(4, DType::F32, &Device::Cpu).unwrap());
    let plain = SdpaOptions::new(&mask);
    let cases = [
        (SdpaOptions { return_attention_weights: true, ..plain.clone() }, "weights are asked for"),
        (SdpaOptions { dropout: 0.1, ..plain.clone() }, "drop"),
        (SdpaOptions { additive: Some(&extra), ..plain.clone() }, "dot product only"),
        (SdpaOptions { softcap: Some(30.0), ..plain.clone() }, "softcap"),
        (SdpaOptions { sinks: Some(&extra), ..plain }, "sinks"),
    ];
    for (options, expected) in cases {
        let reason = unsupported_reason(&call(2, [4, 4], 40, 40, 64), &options).unwrap();
        assert!(reason.contains(expected), "{reason}");
    }
}

#[test]
fn biases_are_not_rounded_to_half_types() {
    let bias = Tensor::zeros((1, 4, 40, 40), DType::F32, &Device::Cpu).unwrap();
    let masks = [AttentionMask::additive(&bias).unwrap(), AttentionMask::distances(vec![0.5; 4], false)];
    for mask in &masks {
        let plain = call(2, [4, 4], 40, 40, 64);
        assert_eq!(reason(plain, mask), "");
        for dtype in [DType::F16, DType::BF16] {
            assert!(reason(Call { dtype, ..plain }, mask).contains("round"));
        }
    }
}

#[test]
fn forcing_metal_on_cpu_tensors_is_an_error() {
    let q = Tensor::zeros((1, 4, 2, 64), DType::F32, &Device::Cpu).unwrap();
    let mask = AttentionMask::full();
    let options = SdpaOptions { backend: Some(Backend::Metal), ..SdpaOptions::new(&mask) };
    let error = sdpa::attend_bshd(&q, &q, &q, &options).unwrap_err().to_string();
    assert!(error.contains("not on an Apple GPU"), "{error}");
}

/// The keys that query `i` sees in the kernel's causal loop, modeled on its source. Keys past the last one are read
/// from memory after the tensor.
fn keys_seen_by_kernel(i: usize, s_q: usize, s_kv: usize, d: usize) -> HashSet<usize> {
    let (bq, bk) = tile_sizes(d);
    let (offset, tile) = (s_kv as i64 - s_q as i64, i / bq);
    let last = (((tile + 1) * bq) as i64 + offset + bk as i64 - 1) / bk as i64;
    let uneven = !s_kv.is_multiple_of(bk);
    let masked_from = last - bq.div_ceil(bk) as i64 - i64::from(uneven);
    let mut seen = HashSet::new();
    for block in 0..last {
        for key in block * bk as i64..(block + 1) * bk as i64 {
            let cut = uneven && block == (s_kv / bk) as i64 && key >= s_kv as i64;
            if !cut && (block < masked_from || key <= i as i64 + offset) {
                seen.insert(key as usize);
            }
        }
        // Value tiles are read whole; past the end of the tensor they may hold anything, also NaN.
        if block > (s_kv.div_ceil(bk) - 1) as i64 {
            seen.insert(usize::MAX);
        }
    }
    seen
}

fn causal_flag_is_correct(s_q: usize, s_kv: usize, d: usize) -> bool {
    (0..s_q).all(|i| keys_seen_by_kernel(i, s_q, s_kv, d) == (0..=i + s_kv - s_q).collect())
}

#[test]
fn the_causal_flag_is_used_only_where_it_is_correct() {
    let causal = AttentionMask::causal();
    let options = SdpaOptions::new(&causal);
    for d in HEAD_DIMS {
        for s in 2..140 {
            let taken = uses_causal_flag(&call(1, [1, 1], s, s, d), &options);
            assert_eq!(taken, causal_flag_is_correct(s, s, d), "{s} tokens, head size {d}");
        }
    }
    // Why other shapes are rejected: masked keys are seen, and memory after the tensor is read.
    assert!(keys_seen_by_kernel(0, 27, 32, 64).contains(&31));
    assert!(keys_seen_by_kernel(0, 10, 10, 128).contains(&usize::MAX));
    assert!(!uses_causal_flag(&call(1, [1, 1], 32, 64, 64), &options), "not square");
    assert!(!uses_causal_flag(&call(1, [1, 1], 32, 32, 64), &SdpaOptions { appended_keys: 1, ..options }));
    let both = AttentionMask::causal().and(AttentionMask::lengths(&[32]));
    assert!(!uses_causal_flag(&call(1, [1, 1], 32, 32, 64), &SdpaOptions::new(&both)));
}

/// Mock of candle's kernel `attention`, modeled on its source: memory is read by strides, the mask from the start of
/// its memory; queries are scaled in the dtype of the tensors, everything else is f32.
pub(super) fn mock_kernel(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    causal: bool,
    scale: f32,
) -> CandleResult {
    match q.dtype() {
        DType::F16 => mock_kernel_as(q, k, v, mask, causal, scale, f16::to_f32, f16::from_f32),
        DType::BF16 => mock_kernel_as(q, k, v, mask, causal, scale, bf16::to_f32, bf16::from_f32),
        _ => mock_kernel_as(q, k, v, mask, causal, scale, |x: f32| x, |x| x),
    }
}

type CandleResult = candle_core::Result<Tensor>;

#[expect(clippy::too_many_arguments, reason = "the arguments of the kernel and the conversions of the dtype")]
fn mock_kernel_as<T: candle_core::WithDType>(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    causal: bool,
    scale: f32,
    wide: fn(T) -> f32,
    narrow: fn(f32) -> T,
) -> CandleResult {
    let ((b, h, s_q, d), (_, h_kv, s_kv, _)) = (q.dims4()?, k.dims4()?);
    assert!(s_q > 1 && [q, k, v].iter().all(|t| t.is_contiguous()), "other calls run other kernels");
    assert!(!causal || (mask.is_none() && s_q == s_kv));
    let log2_e = std::f32::consts::LOG2_E;
    let factor = wide(narrow(scale * log2_e));
    let row = |t: &Tensor, i, j, n| t.i((i, j, n))?.to_vec1::<T>();
    let added = |i: usize, j: usize, m: usize, n: usize| {
        let Some(mask) = mask else { return Ok(0.0) };
        assert_eq!((mask.dims(), mask.dtype()), (&[b, h, s_q, s_kv][..], q.dtype()));
        let strides = mask.stride();
        assert_eq!((mask.layout().start_offset(), strides[3]), (0, 1), "the kernel does not check either");
        let at = i * strides[0] + j * strides[1] + m * strides[2] + n;
        let (storage, _) = mask.storage_and_layout();
        let candle_core::Storage::Cpu(storage) = &*storage else { unreachable!("a test on the CPU") };
        Ok::<_, candle_core::Error>(wide(storage.as_slice::<T>()?[at]))
    };
    let mut output = Vec::with_capacity(b * h * s_q * d);
    for (i, j, m) in (0..b * h * s_q).map(|at| (at / s_q / h, at / s_q % h, at % s_q)) {
        let q: Vec<f32> = row(q, i, j, m)?.into_iter().map(|x| wide(narrow(factor * wide(x)))).collect();
        let mut scores = Vec::with_capacity(s_kv);
        for n in 0..s_kv {
            let k = row(k, i, j / (h / h_kv), n)?;
            let score: f32 = q.iter().zip(k).map(|(q, k)| q * wide(k)).sum();
            scores.push(if causal && n > m { f32::NEG_INFINITY } else { score + log2_e * added(i, j, m, n)? });
        }
        let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let (mut sum, mut mean) = (0.0, vec![0.0; d]);
        for (n, score) in scores.into_iter().enumerate() {
            let weight = (score - max).exp2();
            sum += weight;
            let v = row(v, i, j / (h / h_kv), n)?;
            mean.iter_mut().zip(v).for_each(|(mean, v)| *mean += weight * wide(v));
        }
        output.extend(mean.into_iter().map(|x| narrow(x / sum)));
    }
    Tensor::from_vec(output, (b, h, s_q, d), &Device::Cpu)
}

pub(super) fn random(dims: [usize; 4], seed: f64, dtype: DType) -> Tensor {
    let count: usize = dims.iter().product();
    let numbers: Vec<f32> = (0..count).map(|i| ((i as f64 * 0.7391 + seed).sin() * 3.0) as f32).collect();
    Tensor::from_vec(numbers, &dims, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
}

/// The largest difference between the mock kernel and the eager backend. Neither may return NaN.
fn difference(call: &Call, options: &SdpaOptions) -> f32 {
    let AttnShape { b, h, s_q, s_kv } = call.shape;
    let keys = s_kv + options.appended_keys;
    let q = random([b, s_q, h, call.d], 0.0, call.dtype);
    let (k, v) =
        (random([b, keys, call.h_kv, call.d], 1.0, call.dtype), random([b, keys, call.h_kv, call.d], 2.0, call.dtype));
    assert_eq!(unsupported_reason(call, options), None, "{}", options.mask);
    let dense = options.mask.dense(call.shape, options.appended_keys, DType::F32, &Device::Cpu).unwrap();
    let most = options.mask.dense_elements(call.shape, options.appended_keys);
    assert!(dense.keep.iter().chain(&dense.bias).all(|mask| mask.elem_count() <= most), "{}", options.mask);
    let wide = |output: Tensor| output.to_dtype(DType::F32).unwrap();
    let ours = wide(attend_with_kernel(mock_kernel, [&q, &k, &v], call, options).unwrap());
    let expected = wide(eager::attend(&q, &k, &v, call, options).unwrap().output);
    assert_eq!(ours.dims(), expected.dims());
    let numbers = |t: &Tensor| with_slice(t, <[f32]>::to_vec).unwrap();
    let (ours, expected) = (numbers(&ours), numbers(&expected));
    assert!(ours.iter().chain(&expected).all(|x| x.is_finite()), "{}", options.mask);
    ours.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn tolerance(dtype: DType) -> f32 {
    match dtype {
        DType::F32 => 2e-5,
        DType::F16 => 6e-3,
        _ => 5e-2,
    }
}

#[test]
fn keep_masks_match_the_eager_backend() {
    let cpu = &Device::Cpu;
    let some: Vec<u8> = (0..2 * 6 * 6).map(|i| u8::from(i % 3 != 0 && i >= 6)).collect();
    let some = Tensor::from_vec(some, (2, 1, 6, 6), cpu).unwrap(); // the first row is fully masked
    let queries_only = Tensor::from_vec(vec![1u8, 0, 1, 1, 0, 1], (1, 1, 6, 1), cpu).unwrap();
    let ids = Tensor::from_vec(vec![0i32, 0, 1, 1, 1, 2, 0, 0, 0, 0, 0, 0], (2, 6), cpu).unwrap();
    let others = Tensor::from_vec(vec![0i32, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0], (2, 6), cpu).unwrap();
    let masks = [
        AttentionMask::full(),
        AttentionMask::causal(),
        AttentionMask::lengths(&[6, 6]),
        AttentionMask::lengths(&[0, 4]),
        AttentionMask::padding(&[5, 2]),
        AttentionMask::query_lengths(&[[1, 2, 3, 0, 5, 6], [6; 6]]),
        AttentionMask::window(Some(1), Some(0)).and(AttentionMask::lengths(&[2, 6])),
        AttentionMask::causal().and(AttentionMask::lengths(&[6, 3])),
        AttentionMask::keep(&some).unwrap(),
        AttentionMask::exclude(&queries_only).unwrap(),
        AttentionMask::segments(&ids, &others).unwrap(),
    ];
    for mask in &masks {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            for (heads, d) in [([2, 2], 32), ([4, 2], 32), ([2, 1], 128)] {
                let call = Call { dtype, ..call(2, heads, 6, 6, d) };
                let off = difference(&call, &SdpaOptions { scale: Some(0.3), ..SdpaOptions::new(mask) });
                assert!(off <= tolerance(dtype), "{off:e} {mask} {dtype:?} {heads:?} {d}");
            }
        }
    }
}

#[test]
fn additive_masks_match_the_eager_backend() {
    let numbers = random([2, 2, 6, 6], 3.0, DType::F32);
    let with_some = |x: f64| numbers.gt(2.0)?.where_cond(&numbers.affine(0.0, x)?, &numbers);
    let nothing = Tensor::full(f32::NEG_INFINITY, (6, 6), &Device::Cpu).unwrap();
    let tall = random([4, 2, 6, 6], 4.0, DType::F32);
    let masks = [
        AttentionMask::additive(&numbers).unwrap(),
        AttentionMask::additive(&with_some(f64::from(f32::MIN)).unwrap()).unwrap(),
        AttentionMask::additive(&with_some(-3e38).unwrap()).unwrap(),
        AttentionMask::additive_pattern(&nothing).unwrap(),
        AttentionMask::additive(&tall.narrow(0, 2, 2).unwrap()).unwrap(), // does not start at the start of its memory
        AttentionMask::additive(&random([6, 6, 2, 2], 5.0, DType::F32).permute((2, 3, 0, 1)).unwrap()).unwrap(),
        AttentionMask::additive(&random([2, 2, 6, 1], 6.0, DType::F32)).unwrap(), // broadcast over the keys
        AttentionMask::distances(vec![0.5, 0.25], true),
        AttentionMask::distances(vec![0.5, 0.25], false).and(AttentionMask::causal()),
    ];
    for mask in &masks {
        let off = difference(&call(2, [2, 2], 6, 6, 32), &SdpaOptions::new(mask));
        assert!(off <= tolerance(DType::F32), "{off:e} {mask}");
    }
}

#[test]
fn other_shapes_match_the_eager_backend() {
    let (none, causal, lengths) = (AttentionMask::full(), AttentionMask::causal(), AttentionMask::lengths(&[4, 0]));
    let cases = [
        (call(2, [4, 2], 6, 3, 32), &none, 0),
        (call(2, [4, 2], 3, 6, 32), &none, 0),
        (call(2, [2, 2], 3, 6, 32), &causal, 0),
        (call(2, [2, 2], 3, 6, 32), &lengths, 0),
        (call(2, [2, 2], 5, 6, 32), &lengths, 2), // the appended keys are visible where the others are not
        (call(2, [2, 1], 4, 4, 32), &none, 1),
        (call(2, [2, 2], 4, 4, 32), &causal, 1),
    ];
    for (call, mask, appended_keys) in cases {
        let off = difference(&call, &SdpaOptions { appended_keys, ..SdpaOptions::new(mask) });
        assert!(off <= tolerance(DType::F32), "{off:e} {call:?} {mask}");
    }
}

#[test]
fn half_types_are_scaled_in_f32() {
    let q = random([1, 2, 1, 32], 0.0, DType::BF16);
    let (scaled_q, scale) = scaled(&q, 0.125).unwrap();
    let factor = scale * std::f32::consts::LOG2_E;
    assert_eq!((bf16::from_f32(factor), f16::from_f32(factor)), (bf16::ONE, f16::ONE));
    let wide = |t: &Tensor| with_slice(&t.to_dtype(DType::F32).unwrap(), <[f32]>::to_vec).unwrap();
    let expected: Vec<f32> = wide(&q).iter().map(|x| bf16::from_f32(x * (0.125 * LOG2_E) as f32).to_f32()).collect();
    assert_eq!(wide(&scaled_q), expected);
}

#[test]
fn scratch_has_no_score_matrix() {
    let bytes = |call: &Call, mask: &AttentionMask| scratch_bytes(call, &SdpaOptions::new(mask));
    let plain = call(2, [4, 2], 40, 40, 64);
    let copies = (2 * 2 * 40 * 4 * 64 + 2 * 40 * 2 * 2 * 64) * 4;
    assert_eq!(bytes(&plain, &AttentionMask::full()), copies);
    let copies = copies + 2 * 40 * 2 * 2 * 64 * 4; // the finite keys and values
    assert_eq!(bytes(&plain, &AttentionMask::causal()), copies);
    assert_eq!(bytes(&plain, &AttentionMask::lengths(&[40, 3])), copies + 2 * 40 * 5);
    assert_eq!(bytes(&plain, &AttentionMask::padding(&[40, 3])), copies + 2 * 40 * 40 * 5);
    assert_eq!(bytes(&plain, &AttentionMask::distances(vec![1.0; 4], true)), copies + 4 * 40 * 40 * 5);
}
