//! Attention over keys and values in int8: near a loop over the values that they stand for, with equal bits on all
//! instruction sets.

use candle_attention_kernels::{
    AttentionProblem, DistanceEmbeddings, Distances, HeadsView, Int8Heads, Isa, Mask, MaskStructure, SCALE_BYTES, Team,
    attend, quantize_heads, widen_heads,
};

use super::attention::sizes;
use super::support::masks::MaskTensors;
use super::support::reference::{Sizes, naive, problem, qkv};
use super::{Random, isas, on_threads};

/// The rounding of queries to 15 bits and of attention weights to 16.
const TOLERANCE: f64 = 5e-5;

fn quantized(values: &[f32], d: usize) -> Vec<u8> {
    let mut heads = vec![0; values.len() / d * (SCALE_BYTES + d)];
    quantize_heads(values, d, &mut heads).unwrap();
    heads
}

fn widened(heads: &[u8], d: usize) -> Vec<f32> {
    let mut values = vec![0.0; heads.len() / (SCALE_BYTES + d) * d];
    widen_heads(heads, d, &mut values);
    values
}

/// The problem with its keys and values in int8, with `gap` bytes after each head.
fn in_int8<'a>(
    call: &AttentionProblem<'a, f32>,
    [k, v]: [&'a [u8]; 2],
    sizes: Sizes,
    gap: usize,
) -> AttentionProblem<'a, f32, Int8Heads<'a>> {
    let AttentionProblem { q, batch, appended, h, h_kv, d, d_v, scale, softcap, sinks, bf16, .. } = *call;
    let mask = call.mask.clone();
    let heads = |data: &'a [u8], d: usize| {
        let head = SCALE_BYTES + d + gap;
        let token = h_kv * head;
        Int8Heads(HeadsView { data, strides: [(sizes.s_kv + sizes.appended) * token, token, head] })
    };
    let (k, v) = (heads(k, d), heads(v, d_v));
    AttentionProblem { q, k, v, batch, appended, h, h_kv, d, d_v, scale, softcap, sinks, mask, bf16 }
}

fn output(isa: Isa, threads: usize, call: &AttentionProblem<f32, Int8Heads>) -> Vec<f32> {
    let mut output = Vec::new();
    on_threads(threads, || Team::with(usize::MAX, |team| attend(isa, team, call, &mut output))).unwrap();
    output
}

/// Compares a call on all instruction sets and some numbers of threads.
fn check(call: &AttentionProblem<f32, Int8Heads>, want: &[f64], what: &str) {
    let mut first: Option<Vec<f32>> = None;
    for isa in isas() {
        for threads in [1, 3] {
            let got = output(isa, threads, call);
            let name = isa.name();
            for (i, (got, want)) in got.iter().zip(want).enumerate() {
                let error = (f64::from(*got) - want).abs();
                assert!(error <= TOLERANCE + TOLERANCE * want.abs(), "{what}, {name}: [{i}] {got}, want {want}");
            }
            let first = first.get_or_insert_with(|| got.clone());
            let other = got.iter().zip(&*first).position(|(got, first)| got.to_bits() != first.to_bits());
            assert_eq!(other, None, "{what}: other bits on {name} with {threads} threads");
        }
    }
}

#[test]
fn odd_sizes_match_the_values_that_integers_stand_for() {
    let mut random = Random(51);
    for sizes in sizes() {
        let [q, k, v] = qkv::<f32>(&mut random, sizes);
        let (k, v) = (quantized(&k, sizes.d), quantized(&v, sizes.d_v));
        let (wide_k, wide_v) = (widened(&k, sizes.d), widened(&v, sizes.d_v));
        let call = problem(sizes, [&q, &wide_k, &wide_v], Mask::default());
        check(&in_int8(&call, [&k, &v], sizes, 0), &naive(&call), &format!("{sizes:?}"));
    }
}

#[test]
fn masks_sinks_and_softcaps_match() {
    let mut random = Random(52);
    for (s_q, s_kv) in [(1, 300), (5, 7), (33, 400), (130, 200)] {
        let sizes = Sizes { b: 2, s_q, s_kv, appended: 1, h: 3, h_kv: 3, d: 12, d_v: 20 };
        let [q, k, v] = qkv::<f32>(&mut random, sizes);
        let (k, v) = (quantized(&k, sizes.d), quantized(&v, sizes.d_v));
        let (wide_k, wide_v) = (widened(&k, sizes.d), widened(&v, sizes.d_v));
        let tensors = MaskTensors::new(&mut random, sizes);
        let slopes = Distances { slopes: vec![0.5, 0.25, 0.125], symmetric: false };
        let masks =
            tensors
                .masks()
                .into_iter()
                .chain([MaskStructure { distances: vec![slopes], ..MaskStructure::default() }.into()]);
        for mask in masks {
            for (softcap, sinks) in [(None, None), (Some(2.0), None), (None, Some(&[0.5, -1.0, 3.0][..]))] {
                let call = AttentionProblem { softcap, sinks, ..problem(sizes, [&q, &wide_k, &wide_v], mask.clone()) };
                let what = format!("{s_q} queries, {mask:?}, {softcap:?}, {sinks:?}");
                check(&in_int8(&call, [&k, &v], sizes, 0), &naive(&call), &what);
            }
        }
    }
}

/// Queries at the end of the keys have the bits that they have among all queries.
#[test]
fn few_queries_have_the_bits_of_many() {
    let mut random = Random(53);
    for (h, h_kv, d, keys, counts) in
        [(2, 2, 8, 40, &[1, 2, 5][..]), (8, 2, 64, 577, &[1, 3, 31]), (12, 1, 130, 210, &[1, 8])]
    {
        let all = Sizes { b: 1, s_q: keys, s_kv: keys, appended: 0, h, h_kv, d, d_v: d };
        let [q, k, v] = qkv::<f32>(&mut random, all);
        let (k, v) = (quantized(&k, d), quantized(&v, d));
        let causal = || MaskStructure { right: Some(0), ..MaskStructure::default() }.into();
        for isa in isas() {
            let call =
                |sizes: Sizes, q| output(isa, 1, &in_int8(&problem(sizes, [q, &[], &[]], causal()), [&k, &v], all, 0));
            let want = call(all, &q);
            for &count in counts {
                let sizes = Sizes { s_q: count, ..all };
                let got = call(sizes, &q[(keys - count) * h * d..]);
                assert!(got == want[(keys - count) * h * d..], "{}: {sizes:?}", isa.name());
            }
        }
    }
}

/// Heads at any address, as in views of a cache.
#[test]
fn heads_at_odd_addresses_match() {
    let sizes = Sizes { b: 2, s_q: 1, s_kv: 200, appended: 0, h: 4, h_kv: 2, d: 24, d_v: 32 };
    let [q, k, v] = qkv::<f32>(&mut Random(54), sizes);
    let spread = |values: &[f32], d: usize, gap: usize| {
        let heads = quantized(values, d);
        let spread = heads.chunks(SCALE_BYTES + d).flat_map(|head| head.iter().copied().chain(vec![0x55; gap]));
        (spread.collect::<Vec<u8>>(), widened(&heads, d))
    };
    for gap in [0, 1, 8] {
        let ((k, wide_k), (v, wide_v)) = (spread(&k, sizes.d, gap), spread(&v, sizes.d_v, gap));
        let call = problem(sizes, [&q, &wide_k, &wide_v], Mask::default());
        let int8 = in_int8(&call, [&k, &v], sizes, gap);
        assert!(int8.erase().has_few_queries());
        check(&int8, &naive(&call), &format!("a gap of {gap}"));
    }
}

#[test]
fn queries_that_are_not_finite_and_large_values_are_kept() {
    let sizes = Sizes { b: 1, s_q: 2, s_kv: 9, appended: 0, h: 1, h_kv: 1, d: 8, d_v: 8 };
    let [mut q, k, mut v] = qkv::<f32>(&mut Random(55), sizes);
    q[3] = f32::NAN;
    v.iter_mut().for_each(|x| *x *= 1.5e38);
    let (k, v) = (quantized(&k, 8), quantized(&v, 8));
    for isa in isas() {
        let call = problem(sizes, [&q, &[], &[]], Mask::default());
        let output = output(isa, 1, &in_int8(&call, [&k, &v], sizes, 0));
        assert!(output[..8].iter().all(|x| x.is_nan()) && output[8..].iter().all(|x| x.is_finite()), "{output:?}");
    }
}

#[test]
fn heads_are_rounded_to_the_nearest_integer() {
    let mut random = Random(56);
    let values: Vec<f32> = random.values(40 * 17);
    let heads = quantized(&values, 17);
    for ((head, widened), values) in heads.chunks(21).zip(widened(&heads, 17).chunks(17)).zip(values.chunks(17)) {
        let scale = f32::from_ne_bytes(head[..4].try_into().unwrap());
        let largest = values.iter().fold(0f32, |largest, x| largest.max(x.abs()));
        assert!((scale * 127.0 - largest).abs() <= largest * 1e-6);
        for (x, y) in values.iter().zip(widened) {
            assert!((x - y).abs() <= 0.501 * scale, "{x} became {y}");
        }
    }
    assert_eq!(widened(&quantized(&[0.0, -0.0, 1e-44], 3), 3), [0.0; 3]);
    let large = widened(&quantized(&[f32::MAX, -f32::MAX], 2), 2);
    assert!(large.iter().all(|x| x.is_finite() && x.abs() > 3.4e38), "{large:?}");
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        assert_eq!(quantize_heads(&[1.0, 2.0, 3.0, bad], 2, &mut [0; 12]), Err(3));
    }
}

#[test]
fn views_outside_of_their_memory_and_too_large_heads_are_errors() {
    let sizes = Sizes { b: 1, s_q: 1, s_kv: 9, appended: 0, h: 1, h_kv: 1, d: 8, d_v: 8 };
    let heads = vec![0; 9 * 12 - 1];
    let call = problem(sizes, [&[1.0; 8], &[], &[]], Mask::default());
    let mut to = Vec::new();
    let error = attend(isas()[0], Team::ALONE, &in_int8(&call, [&heads, &heads], sizes, 0), &mut to).unwrap_err();
    assert!(error.to_string().contains("keys"), "{error}");
    let mut call = in_int8(&call, [&heads, &heads], sizes, 0);
    call.mask.embeddings = Some(DistanceEmbeddings { c2p: None, p2c: None, count: 0, indices: &[], first: 0 });
    let error = attend(isas()[0], Team::ALONE, &call, &mut to).unwrap_err();
    assert!(error.to_string().contains("embeddings of distances"), "{error}");
    let call = AttentionProblem { d: 1 << 18, ..call };
    let error = attend(isas()[0], Team::ALONE, &call, &mut to).unwrap_err();
    assert!(error.to_string().contains("at most 131072 in int8"), "{error}");
}
