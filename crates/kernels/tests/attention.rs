//! Attention against the reference.

use candle_attention_kernels::{
    AttentionProblem, Batch, Distances, Element, Lengths, Mask, MaskStructure, Team, attend,
};
use half::{bf16, f16};

use super::support::masks::MaskTensors;
use super::support::reference::{Sizes, naive, problem, qkv};
use super::{Random, downcast, isas, on_threads, upcast};

pub(super) fn check<T: Element>(problem: &AttentionProblem<T>, tolerance: f64, what: &str) {
    let want = naive(problem);
    for isa in isas() {
        let mut got = downcast::<T>(&vec![f32::NAN; want.len()]); // elements that are not written stay NaN
        attend(isa, Team::ALONE, problem, &mut got).unwrap();
        for (i, (got, want)) in upcast(&got).iter().zip(&want).enumerate() {
            let error = (f64::from(*got) - want).abs();
            assert!(error <= tolerance + tolerance * want.abs(), "{what}, {}: [{i}] {got}, want {want}", isa.name());
        }
    }
}

pub(super) fn sizes() -> Vec<Sizes> {
    let mut all = Vec::new();
    for (d, d_v) in [(1, 1), (7, 5), (8, 8), (16, 48), (32, 32), (40, 64), (64, 64), (80, 80), (128, 96), (130, 129)] {
        for (s_q, s_kv) in [(1, 1), (1, 70), (5, 7), (9, 192), (64, 64), (65, 193), (70, 400)] {
            all.push(Sizes { b: 2, s_q, s_kv, appended: 0, h: 4, h_kv: 2, d, d_v });
        }
    }
    all.push(Sizes { b: 1, s_q: 300, s_kv: 300, appended: 0, h: 1, h_kv: 1, d: 24, d_v: 24 });
    all.push(Sizes { b: 3, s_q: 3, s_kv: 191, appended: 2, h: 6, h_kv: 1, d: 20, d_v: 12 });
    all.push(Sizes { b: 2, s_q: 4, s_kv: 0, appended: 1, h: 2, h_kv: 2, d: 8, d_v: 8 });
    all
}

#[test]
fn odd_sizes_match_the_reference_in_every_dtype() {
    let mut random = Random(1);
    for sizes in sizes() {
        let what = format!("{sizes:?}");
        let [q, k, v] = qkv::<f32>(&mut random, sizes);
        check(&problem(sizes, [&q, &k, &v], Mask::default()), 2e-6, &what);
        let [q, k, v] = qkv::<f16>(&mut random, sizes);
        check(&problem(sizes, [&q, &k, &v], Mask::default()), 6e-4, &what);
        let [q, k, v] = qkv::<bf16>(&mut random, sizes);
        let mut call = problem(sizes, [&q, &k, &v], Mask::default());
        check(&call, 5e-3, &what);
        call.bf16 = true;
        check(&call, 6e-3, &what);
    }
}

#[test]
fn every_kind_of_mask_matches_the_reference() {
    let mut random = Random(2);
    for (s_q, s_kv) in [(5, 7), (70, 50), (33, 400), (130, 200)] {
        let (b, h) = (2, 3);
        let sizes = Sizes { b, s_q, s_kv, appended: 1, h, h_kv: 3, d: 12, d_v: 20 };
        let [q, k, v] = qkv::<f32>(&mut random, sizes);
        let tensors = MaskTensors::new(&mut random, sizes);
        let mut masks = tensors.masks();
        masks.push(Mask {
            structure: MaskStructure { right: Some(0), ..MaskStructure::default() },
            keep: vec![tensors.keep()],
            bias: vec![tensors.bias(); 2],
            ..Mask::default()
        });
        let base = MaskStructure::default;
        // The first sequence starts before its first key, so its first queries see no key.
        let starts = Some(vec![-3, 2]);
        masks.extend([
            MaskStructure { lengths: vec![Lengths::Padding(vec![s_q.min(s_kv), 3])], ..base() }.into(),
            MaskStructure { starts: starts.clone(), left: Some(4), right: Some(1), ..base() }.into(),
        ]);
        for symmetric in [false, true] {
            let distances = vec![Distances { slopes: vec![1.0 / 64.0, 0.01, 0.0], symmetric }];
            masks.extend([
                MaskStructure { distances: distances.clone(), ..base() }.into(),
                MaskStructure { distances, starts: starts.clone(), right: Some(0), ..base() }.into(),
            ]);
        }
        for mask in masks {
            let what = format!("{s_q} × {s_kv}, {mask:?}").chars().take(200).collect::<String>();
            for appended in [0, 1] {
                let sizes = Sizes { s_kv, appended, ..sizes };
                let (k, v) = (&k[..b * (s_kv + appended) * 36], &v[..b * (s_kv + appended) * 60]);
                let mut call = problem(sizes, [&q, k, v], mask.clone());
                check(&call, 2e-6, &what);
                call.bf16 = true;
                check(&call, 2e-2, &what);
            }
        }
    }
}

#[test]
fn softcap_and_sinks_match_the_reference() {
    let mut random = Random(7);
    for (s_q, s_kv) in [(3, 5), (20, 300)] {
        let sizes = Sizes { b: 2, s_q, s_kv, appended: 0, h: 4, h_kv: 2, d: 24, d_v: 16 };
        let [q, k, v] = qkv::<f32>(&mut random, sizes);
        for (softcap, sinks) in
            [(Some(0.7), None), (None, Some([0.5, -2.0, f32::NEG_INFINITY, 9.0])), (Some(30.0), Some([1.0; 4]))]
        {
            // The first sequence sees no key: its outputs are zeros, also with a sink.
            let lengths = vec![Lengths::PerSequence(vec![0, s_kv])];
            let mask = MaskStructure { lengths, right: Some(0), ..MaskStructure::default() }.into();
            let mut call = problem(sizes, [&q, &k, &v], mask);
            (call.softcap, call.sinks) = (softcap, sinks.as_ref().map(|sinks| &sinks[..]));
            check(&call, 2e-6, &format!("{softcap:?}, {sinks:?}"));
            call.bf16 = true;
            check(&call, 2e-2, &format!("{softcap:?}, {sinks:?} in bf16"));
        }
    }
}

/// Alone, in a batch, with padding, ragged, and on one thread.
#[test]
fn a_sequence_gives_the_same_bits_in_every_batch() {
    check_batch_invariance(false);
    check_batch_invariance(true);
}

fn check_batch_invariance(bf16: bool) {
    let mut random = Random(3);
    for (length, padded, d) in [(1, 5, 32), (20, 64, 64), (65, 130, 40), (200, 450, 32)] {
        let sizes = Sizes { b: 3, s_q: padded, s_kv: padded, appended: 0, h: 2, h_kv: 2, d, d_v: d };
        let [q, k, v] = qkv::<f32>(&mut random, sizes);
        let lengths = vec![Lengths::PerSequence(vec![padded, length, padded / 2])];
        let lengths = MaskStructure { lengths, ..MaskStructure::default() }.into();
        let mut batch = problem(sizes, [&q, &k, &v], lengths);
        batch.bf16 = bf16;
        let alone_sizes = Sizes { b: 1, s_q: length, s_kv: length, ..sizes };
        let part = |x: &[f32]| x[padded * 2 * d..][..length * 2 * d].to_vec();
        let (q_1, k_1, v_1) = (part(&q), part(&k), part(&v));
        let mut alone = problem(alone_sizes, [&q_1, &k_1, &v_1], Mask::default());
        alone.bf16 = bf16;
        for isa in isas() {
            let mut together = vec![0.0; 3 * padded * 2 * d];
            let mut one = vec![0.0; length * 2 * d];
            attend(isa, Team::ALONE, &batch, &mut together).unwrap();
            attend(isa, Team::ALONE, &alone, &mut one).unwrap();
            assert_eq!(part(&together), one, "{} of {length} in {padded}", isa.name());
            // The first two sequences as a ragged batch.
            let offsets = [0, padded, padded + length];
            let part_of = |x: &[f32]| [&x[..padded * 2 * d], &part(x)].concat();
            let (q_2, k_2, v_2) = (part_of(&q), part_of(&k), part_of(&v));
            let sizes = Sizes { b: 1, s_q: padded + length, s_kv: padded + length, ..sizes };
            let mut ragged = problem(sizes, [&q_2, &k_2, &v_2], Mask::default());
            (ragged.batch, ragged.bf16) = (Batch::Ragged { offsets: &offsets }, bf16);
            let mut two = vec![0.0; (padded + length) * 2 * d];
            attend(isa, Team::ALONE, &ragged, &mut two).unwrap();
            assert_eq!(part_of(&together), two, "{} ragged", isa.name());
            let mut again = vec![0.0; 3 * padded * 2 * d];
            on_threads(3, || Team::with(usize::MAX, |team| attend(isa, team, &batch, &mut again))).unwrap();
            assert_eq!(together, again, "{} by three threads", isa.name());
        }
    }
}

#[test]
fn nan_in_a_visible_key_gives_nan() {
    let sizes = Sizes { b: 1, s_q: 2, s_kv: 20, appended: 0, h: 1, h_kv: 1, d: 8, d_v: 8 };
    let [q, mut k, v] = qkv::<f32>(&mut Random(4), sizes);
    k[3 * 8 + 1] = f32::NAN;
    let lengths = vec![Lengths::PerQuery(vec![vec![20, 3]])];
    let mask = MaskStructure { lengths, ..MaskStructure::default() }.into();
    let mut call = problem(sizes, [&q, &k, &v], mask);
    for (isa, bf16) in isas().into_iter().flat_map(|isa| [(isa, false), (isa, true)]) {
        let mut output = vec![0.0; 16];
        call.bf16 = bf16;
        attend(isa, Team::ALONE, &call, &mut output).unwrap();
        assert!(output[..8].iter().all(|x| x.is_nan()), "{}", isa.name());
        assert!(output[8..].iter().all(|x| x.is_finite()), "{}", isa.name());
    }
}

/// Scores of 1e11, whose rounding errors are themselves large numbers: two equal keys, in different blocks, are far
/// above all others.
#[test]
fn huge_scores_are_no_overflow() {
    for s_q in [1, 150] {
        let sizes = Sizes { b: 1, s_q, s_kv: 200, appended: 0, h: 1, h_kv: 1, d: 8, d_v: 8 };
        let [_, _, v] = qkv::<f32>(&mut Random(6), sizes);
        let (mut q, mut k) = (vec![0.0; s_q * 8], vec![0.0; 200 * 8]);
        q.iter_mut().step_by(8).for_each(|x| *x = 3.1e5);
        k.iter_mut().step_by(8).for_each(|x| *x = 3e5);
        (k[7 * 8], k[195 * 8]) = (3.7e5, 3.7e5);
        let mut call = problem(sizes, [&q, &k, &v], Mask::default());
        for use_bf16 in [false, true] {
            call.bf16 = use_bf16;
            check(&call, if use_bf16 { 6e-3 } else { 2e-6 }, "huge scores");
        }
    }
}
