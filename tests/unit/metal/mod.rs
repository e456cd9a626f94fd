//! Tests without an Apple GPU: which calls are accepted. `.ci/devices metal-run` runs them, on candle's own kernels.

use std::collections::HashSet;

use candle_core::{Device, Tensor};
use half::f16;

use crate::kernels::cuda::Gpu;
use crate::mask::AttentionMask;
use crate::mask::AttnShape;
use crate::sdpa::metal::*;
use crate::sdpa::{self, Backend};
use crate::tensor::with_slice;

fn call(b: usize, [h, h_kv]: [usize; 2], s_q: usize, s_kv: usize, d: usize) -> Call {
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
    for heads in [[4, 4], [4, 2]] {
        assert_eq!(reason(call(2, heads, 7, 40, 64), &AttentionMask::causal()), "");
    }
}

/// Decoding steps: one query of each sequence, over a cache that may hold padding or more than a window.
#[test]
fn a_single_query_is_accepted_if_it_sees_one_range_of_keys() {
    let window = || AttentionMask::window(Some(8), Some(0));
    let masks = [
        (AttentionMask::full(), [0..40, 0..40]),
        (AttentionMask::causal(), [0..40, 0..40]),
        (AttentionMask::lengths(&[40, 0]), [0..40, 0..0]),
        (window(), [31..40, 31..40]),
        (AttentionMask::causal().with_query_starts(vec![12, 39]), [0..13, 0..40]),
        (window().and(AttentionMask::lengths(&[40, 33])), [31..40, 31..33]),
    ];
    for (mask, ranges) in &masks {
        for d in [32, 64, 96, 128, 256, 512] {
            for dtype in [DType::F32, DType::F16, DType::BF16] {
                let call = Call { dtype, ..call(2, [4, 2], 1, 40, d) };
                assert_eq!(reason(call, mask), "", "{d} {dtype:?} {mask}");
                assert_eq!(visible_ranges(&call, &SdpaOptions::new(mask)).as_deref(), Some(&ranges[..]), "{mask}");
            }
        }
    }
    let (mask, one) = (AttentionMask::full(), call(2, [4, 2], 1, 40, 256));
    assert!(reason(call(1 << 50, [4, 2], 1, 40, 256), &mask).contains("at most 2^20 sequences"));
    let capped = |cap: f64| unsupported_reason(&one, &SdpaOptions { softcap: Some(cap), ..SdpaOptions::new(&mask) });
    assert_eq!(capped(50.0), None);
    for one in [1.0, 1.0 + 1e-12] {
        assert!(capped(one).unwrap().contains("a softcap of 1 means none"));
    }
    let appended = |mask| unsupported_reason(&one, &SdpaOptions { appended_keys: 1, ..SdpaOptions::new(mask) });
    assert_eq!(appended(mask), None);
    assert!(appended(AttentionMask::causal()).unwrap().contains("one range"));
}

#[test]
fn calls_with_wrong_results_are_rejected() {
    let (none, causal) = (AttentionMask::full(), AttentionMask::causal());
    let plain = call(2, [4, 4], 40, 40, 64);
    let lengths: Vec<usize> = (1..201).collect();
    let every_second =
        Tensor::from_iter((0..40).map(|i| i % 2u8), &Device::Cpu).unwrap().reshape((1, 1, 1, 40)).unwrap();
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
        (call(2, [4, 4], 1, 40, 72), &none, "single query"),
        (call(2, [4, 4], 1, 40, 80), &causal, "single query"),
        (call(2, [4, 4], 1, 40, 64), &AttentionMask::distances(vec![1.0; 4], true), "one range of keys"),
        (call(2, [4, 4], 1, 40, 64), &AttentionMask::keep(&every_second).unwrap(), "one range of keys"),
        (call(200, [4, 4], 1, 400, 64), &AttentionMask::lengths(&lengths), "at most 64 different"),
        (call(2, [4, 4], 41, 40, 64), &causal, "queries outnumber keys"),
        (call(2, [4, 4], 41, 40, 64), &AttentionMask::lengths(&[40, 3]), "queries outnumber keys"),
        (call(1, [1, 1], 50_000, 50_000, 64), &AttentionMask::window(Some(9), None), "32 bits"),
    ];
    for (call, mask, expected) in cases {
        let reason = reason(call, mask);
        assert!(reason.contains(expected), "{call:?} {mask}: {reason}");
    }
    for d in [256, 512] {
        assert_eq!(reason(Call { dtype: DType::F16, ..call(1, [2, 2], 40, 40, d) }, &none), "", "{d}");
        assert_eq!(reason(Call { dtype: DType::BF16, ..call(1, [2, 2], 40, 40, d) }, &none), "", "{d}");
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
        assert_eq!(reason(Call { dtype: DType::BF16, ..plain }, mask), "", "it runs in f32");
        for call in [Call { dtype: DType::F16, ..plain }, Call { dtype: DType::BF16, d: 256, d_v: 256, ..plain }] {
            assert!(reason(call, mask).contains("round"), "{call:?}");
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

#[test]
fn half_types_are_scaled_in_f32() {
    let numbers: Vec<f32> = (0..64).map(|i| (i as f32 * 0.7391).sin() * 3.0).collect();
    let q = Tensor::from_vec(numbers, (1, 2, 1, 32), &Device::Cpu).unwrap().to_dtype(DType::F16).unwrap();
    let (scaled_q, scale) = scaled(&q, 0.125).unwrap();
    assert_eq!(f16::from_f32(scale * std::f32::consts::LOG2_E), f16::ONE);
    let wide = |t: &Tensor| with_slice(&t.to_dtype(DType::F32).unwrap(), <[f32]>::to_vec).unwrap();
    let expected: Vec<f32> = wide(&q).iter().map(|x| f16::from_f32(x * (0.125 * LOG2_E) as f32).to_f32()).collect();
    assert_eq!(wide(&scaled_q), expected);
}

#[test]
fn scratch_has_no_score_matrix() {
    let bytes = |call: &Call, mask: &AttentionMask| scratch_bytes(call, &SdpaOptions::new(mask));
    let plain = call(2, [4, 2], 40, 40, 64);
    let copies = (2 * 2 * 40 * 4 * 64 + 2 * 40 * 2 * 2 * 64) * 4;
    assert_eq!(bytes(&plain, &AttentionMask::full()), copies);
    // In bf16 the same again: the tensors in f32.
    assert_eq!(bytes(&Call { dtype: DType::BF16, ..plain }, &AttentionMask::full()), 2 * copies);
    assert_eq!(
        bytes(&call(2, [4, 2], 1, 40, 64), &AttentionMask::causal()),
        (2 * 2 * 4 * 64 + 2 * 40 * 2 * 2 * 64) * 4
    );
    let copies = copies + 2 * 40 * 2 * 2 * 64 * 4; // the finite keys and values
    assert_eq!(bytes(&plain, &AttentionMask::causal()), copies);
    assert_eq!(bytes(&plain, &AttentionMask::lengths(&[40, 3])), copies + 2 * 40 * 5);
    assert_eq!(bytes(&plain, &AttentionMask::padding(&[40, 3])), copies + 2 * 40 * 40 * 5);
    assert_eq!(bytes(&plain, &AttentionMask::distances(vec![1.0; 4], true)), copies + 4 * 40 * 40 * 5);
}
