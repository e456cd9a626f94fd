//! NaN and infinities in keys and values: a query that does not see them gives the same bits as without them.

use candle_attention_kernels::{
    AttentionProblem, Batch, Broadcast, Element, Isa, Lengths, Mask, MaskStructure, Team, attend,
};
use half::{bf16, f16};

use super::support::hidden::check;
use super::support::masks::MaskTensors;
use super::support::reference::{Sizes, problem, qkv};
use super::{Random, isas, on_threads, upcast};

fn check_masks<T: Element>(use_bf16: bool) {
    let mut random = Random(11);
    for (s_q, s_kv, spoiled) in [(5, 7, &[6][..]), (35, 20, &[1, 10, 20]), (3, 200, &[3, 195])] {
        let sizes = Sizes { b: 2, s_q, s_kv, appended: 1, h: 2, h_kv: 1, d: 6, d_v: 5 };
        let [q, k, v] = qkv::<T>(&mut random, sizes);
        let tensors = MaskTensors::new(&mut random, sizes);
        let mut masks = tensors.masks();
        masks.push(MaskStructure { right: Some(0), ..MaskStructure::default() }.into());
        masks.push(Mask::default());
        for (mask, isa) in masks.iter().flat_map(|mask| isas().into_iter().map(move |isa| (mask, isa))) {
            check(sizes, mask, [&q, &k, &v], spoiled, isa.name(), |mut call| {
                call.bf16 = use_bf16;
                let mut output = Vec::new();
                attend(isa, Team::ALONE, &call, &mut output).unwrap();
                output
            });
        }
    }
}

#[test]
fn a_hidden_key_has_no_influence_whatever_it_holds() {
    check_masks::<f32>(false);
    check_masks::<f16>(false);
    check_masks::<bf16>(true);
}

/// The output of a problem, in bits (NaN is one number), on pools of 1, 2, 3 and 16 threads, which must agree.
fn on_all_threads<T: Element>(isa: Isa, call: &AttentionProblem<T>) -> Vec<u32> {
    let mut outputs = [1, 2, 3, 16].into_iter().map(|threads| {
        let mut output = Vec::new();
        on_threads(threads, || Team::with(usize::MAX, |team| attend(isa, team, call, &mut output))).unwrap();
        let bits = |x: f32| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() };
        upcast(&output).into_iter().map(bits).collect::<Vec<_>>()
    });
    let first = outputs.next().unwrap();
    assert!(outputs.all(|output| output == first), "{}", isa.name());
    first
}

/// Enough queries that the number of tasks depends on the number of threads.
const MANY: Sizes = Sizes { b: 1, s_q: 150, s_kv: 150, appended: 0, h: 2, h_kv: 1, d: 8, d_v: 4 };

/// NaN and infinities in some values, under a causal mask: the queries before them do not see them.
#[test]
fn threads_and_batches_do_not_change_what_hidden_values_leave() {
    let mut random = Random(21);
    for use_bf16 in [false, true] {
        let [q, k, clean] = qkv::<f32>(&mut random, MANY);
        let mut v = clean.clone();
        // The last one is infinite in bf16 only. Each is in a column of its own.
        let bad = [(100, f32::NAN), (121, f32::INFINITY), (130, f32::NEG_INFINITY), (143, 3.4e38)];
        for (key, x) in bad {
            v[key * 4 + key % 4] = x;
        }
        let causal: Mask = MaskStructure { right: Some(0), ..MaskStructure::default() }.into();
        let run = |isa: Isa, v: &[f32]| {
            let mut call = problem(MANY, [&q, &k, v], causal.clone());
            call.bf16 = use_bf16;
            on_all_threads(isa, &call)
        };
        for isa in isas() {
            let (clean, got) = (run(isa, &clean), run(isa, &v));
            for (at, (got, clean)) in got.iter().zip(&clean).enumerate() {
                let (query, column) = (at / 8, at % 4);
                let sees = bad.iter().any(|(key, _)| *key <= query && key % 4 == column);
                // A large finite value is one or the other.
                let right = if f32::from_bits(*got).is_finite() { !sees && got == clean || column == 3 } else { sees };
                assert!(right, "{} {query} {column}: {}", isa.name(), f32::from_bits(*got));
            }
            // Twice in a batch, and as a ragged one.
            let twice = |xs: &[f32]| [xs, xs].concat();
            let (q2, k2, v2) = (twice(&q), twice(&k), twice(&v));
            let mut batch = problem(Sizes { b: 2, ..MANY }, [&q2, &k2, &v2], causal.clone());
            batch.bf16 = use_bf16;
            assert_eq!(on_all_threads(isa, &batch), [&got[..], &got].concat(), "{}", isa.name());
            batch.batch = Batch::Ragged { offsets: &[0, 150, 300] };
            assert_eq!(on_all_threads(isa, &batch), [&got[..], &got].concat(), "{} ragged", isa.name());
            // In chunks, as with a cache.
            for (start, count) in [(0, 99), (100, 1), (120, 30)] {
                let sizes = Sizes { s_q: count, s_kv: start + count, ..MANY };
                let q = &q[start * 16..][..count * 16];
                let (k, v) = (&k[..(start + count) * 8], &v[..(start + count) * 4]);
                let mut chunk = problem(sizes, [q, k, v], causal.clone());
                chunk.bf16 = use_bf16;
                let want = &got[start * 8..][..count * 8];
                assert_eq!(on_all_threads(isa, &chunk), want, "{} from {start}, {count}", isa.name());
            }
        }
    }
}

/// The infinite value has a weight that underflows to 0 in f32. Whether the queries of a task see all keys, as the last
/// one alone does, depends on the number of threads and must not decide between 0 · inf and inf.
#[test]
fn a_weight_that_underflows_does_not_depend_on_the_threads() {
    let sizes = Sizes { b: 1, s_q: 129, s_kv: 129, appended: 0, h: 1, h_kv: 1, d: 1, d_v: 2 };
    let q = vec![1.0f32; 129];
    let mut k = vec![0.0f32; 129];
    k[3] = -500.0;
    let mut v = vec![1.0f32; 258];
    v[6] = f32::INFINITY;
    let causal = MaskStructure { right: Some(0), ..MaskStructure::default() }.into();
    let call = problem(sizes, [&q, &k, &v], causal);
    for isa in isas() {
        let output = on_all_threads(isa, &call);
        assert_eq!(output[..2], [1f32.to_bits(); 2]);
        assert_eq!(output[256], output[254], "the last query is like the one before it: {}", isa.name());
    }
}

#[test]
fn a_query_that_sees_nothing_gives_zeros_whatever_is_hidden() {
    let sizes = Sizes { b: 2, s_q: 3, s_kv: 200, appended: 0, h: 2, h_kv: 1, d: 8, d_v: 8 };
    let [q, k, _] = qkv::<f32>(&mut Random(22), sizes);
    let v = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX].repeat(2 * 200 * 8 / 4);
    let hidden = [f32::NEG_INFINITY; 200];
    let row = [0, 0, 0, 1];
    let lengths = vec![Lengths::PerQuery(vec![vec![0, 200, 0]; 2])];
    // The second bias is infinite where the first one hides the key.
    let biases =
        [Broadcast { data: &hidden[..], strides: row }, Broadcast { data: &[f32::INFINITY; 200], strides: row }];
    let masks: [(Mask, &[usize]); 3] = [
        (MaskStructure { lengths, ..MaskStructure::default() }.into(), &[0, 2]),
        (Mask { bias: biases.to_vec(), ..Mask::default() }, &[0, 1, 2]),
        (Mask { keep: vec![Broadcast { data: &[0; 200], strides: row }], ..Mask::default() }, &[0, 1, 2]),
    ];
    for (mask, blind) in &masks {
        for (isa, use_bf16) in isas().into_iter().flat_map(|isa| [(isa, false), (isa, true)]) {
            let mut call = problem(sizes, [&q, &k, &v], mask.clone());
            call.bf16 = use_bf16;
            let output = on_all_threads(isa, &call);
            for (row, got) in output.chunks(16).enumerate().filter(|(row, _)| blind.contains(&(row % 3))) {
                assert_eq!(got, [0; 16], "{} row {row} under {mask:?}", isa.name());
            }
        }
    }
}

/// Products of weights and values that underflow to -0: a hidden key adds +0 or -0 to them.
#[test]
fn a_hidden_key_does_not_change_the_sign_of_zero() {
    let sizes = Sizes { b: 1, s_q: 2, s_kv: 400, appended: 0, h: 1, h_kv: 1, d: 1, d_v: 1 };
    let q = [1.0f32, 1.0];
    let mut k = vec![-80.0f32; 400];
    k[399] = 0.0;
    let run = |isa, hidden: f32| {
        let mut v = vec![-1e-38f32; 400];
        (0..399).step_by(2).for_each(|i| v[i] = hidden);
        // After the last hidden key comes no product that has a sign of its own.
        v[399] = -0.0;
        let keep: Vec<u8> = (0..400).map(|i| u8::from(i % 2 == 1)).collect();
        let mask = Mask { keep: vec![Broadcast { data: &keep, strides: [0, 0, 0, 1] }], ..Mask::default() };
        on_all_threads(isa, &problem(sizes, [&q, &k, &v], mask))
    };
    for isa in isas() {
        assert_eq!(run(isa, 1.0), run(isa, -1.0), "{}", isa.name());
    }
}
