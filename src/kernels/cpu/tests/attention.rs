//! Attention against loops over f64.

use half::{bf16, f16};

use super::masks::Numbers;
use super::{Random, convert, isas, wide};
use crate::kernels::cpu::attention::{Attention, attend};
use crate::kernels::cpu::batch::Batch;
use crate::kernels::cpu::element::Element;
use crate::kernels::cpu::heads::Heads;
use crate::kernels::cpu::mask::{Lengths, Mask, MaskStructure};

#[derive(Debug, Clone, Copy)]
pub(in crate::kernels) struct Sizes {
    pub b: usize,
    pub s_q: usize,
    pub s_kv: usize,
    pub appended: usize,
    pub h: usize,
    pub h_kv: usize,
    pub d: usize,
    pub d_v: usize,
}

/// The judge: the same in loops over f64. `bias` and `keep` are looked up through the mask itself.
pub(in crate::kernels) fn naive<T: Element>(call: &Attention<T>) -> Vec<f64> {
    let Batch::Padded { b: rows, s_q, s_kv } = call.batch else { panic!("the judge knows padded batches only") };
    let (q, k, v) = (wide(call.q.data), wide(call.k.data), wide(call.v.data));
    let at = |heads: [usize; 3], b: usize, s: usize, h: usize| b * heads[0] + s * heads[1] + h * heads[2];
    let mut output = Vec::new();
    for (b, i, h) in (0..rows).flat_map(|b| (0..s_q).flat_map(move |i| (0..call.h).map(move |h| (b, i, h)))) {
        let h_kv = h / (call.h / call.h_kv);
        let q_row = &q[at(call.q.strides, b, i, h)..][..call.d];
        let range = call.mask.range(b, i, s_q, s_kv);
        let scores: Vec<f64> = (0..s_kv + call.appended)
            .map(|j| {
                let k_row = &k[at(call.k.strides, b, j, h_kv)..][..call.d];
                let dot: f64 = q_row.iter().zip(k_row).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                let mut score = [0.0];
                if j < s_kv {
                    call.mask.apply(&mut score, (b, h, i), call.mask.position(b, i, s_q, s_kv), j);
                    if !range.contains(&j) {
                        score[0] = f32::NEG_INFINITY;
                    }
                }
                let dot = dot * f64::from(call.scale);
                let dot = call.softcap.map_or(dot, |cap| f64::from(cap) * (dot / f64::from(cap)).tanh());
                dot + f64::from(score[0])
            })
            .collect();
        let sink = call.sinks.map_or(f64::NEG_INFINITY, |sinks| f64::from(sinks[h]));
        let max = scores.iter().copied().fold(sink, f64::max);
        let weights: Vec<f64> =
            scores.iter().map(|s| if *s == f64::NEG_INFINITY { 0.0 } else { (s - max).exp() }).collect();
        let sink = if sink == f64::NEG_INFINITY { 0.0 } else { (sink - max).exp() };
        let total = weights.iter().sum::<f64>() + sink;
        for column in 0..call.d_v {
            let value = |j: usize| f64::from(v[at(call.v.strides, b, j, h_kv) + column]);
            let sum: f64 = weights.iter().enumerate().map(|(j, w)| w * value(j)).sum();
            output.push(if total == 0.0 { 0.0 } else { sum / total });
        }
    }
    output
}

fn check<T: Element>(call: &Attention<T>, tolerance: f64, what: &str) {
    let want = naive(call);
    for isa in isas() {
        let mut got = convert::<T>(&vec![f32::NAN; want.len()]); // what is not written shows
        attend(isa, call, &mut got);
        for (i, (got, want)) in wide(&got).iter().zip(&want).enumerate() {
            let error = (f64::from(*got) - want).abs();
            assert!(error <= tolerance + tolerance * want.abs(), "{what}, {}: [{i}] {got}, want {want}", isa.name());
        }
    }
}

fn heads<T>(data: &[T], s: usize, h: usize, d: usize) -> Heads<'_, T> {
    Heads { data, strides: [s * h * d, h * d, d] }
}

pub(in crate::kernels) fn sized<'a, T: Element>(
    sizes: Sizes,
    [q, k, v]: [&'a [T]; 3],
    mask: Mask<'a>,
) -> Attention<'a, T> {
    let Sizes { b, s_q, s_kv, appended, h, h_kv, d, d_v } = sizes;
    let keys = s_kv + appended;
    let (q, k, v) = (heads(q, s_q, h, d), heads(k, keys, h_kv, d), heads(v, keys, h_kv, d_v));
    let scale = (d as f32).powf(-0.5);
    Attention {
        q,
        k,
        v,
        batch: Batch::Padded { b, s_q, s_kv },
        appended,
        h,
        h_kv,
        d,
        d_v,
        scale,
        softcap: None,
        sinks: None,
        mask,
        bf16: false,
    }
}

pub(in crate::kernels) fn qkv<T: Element>(random: &mut Random, sizes: Sizes) -> [Vec<T>; 3] {
    let Sizes { b, s_q, s_kv, appended, h, h_kv, d, d_v } = sizes;
    let keys = s_kv + appended;
    [random.numbers(b * s_q * h * d), random.numbers(b * keys * h_kv * d), random.numbers(b * keys * h_kv * d_v)]
}

fn sizes() -> Vec<Sizes> {
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
fn odd_sizes_in_every_dtype() {
    let mut random = Random(1);
    for sizes in sizes() {
        let what = format!("{sizes:?}");
        let [q, k, v] = qkv::<f32>(&mut random, sizes);
        check(&sized(sizes, [&q, &k, &v], Mask::default()), 2e-6, &what);
        let [q, k, v] = qkv::<f16>(&mut random, sizes);
        check(&sized(sizes, [&q, &k, &v], Mask::default()), 6e-4, &what);
        let [q, k, v] = qkv::<bf16>(&mut random, sizes);
        let mut call = sized(sizes, [&q, &k, &v], Mask::default());
        check(&call, 5e-3, &what);
        call.bf16 = true;
        check(&call, 6e-3, &what);
    }
}

#[test]
fn every_kind_of_mask() {
    let mut random = Random(2);
    for (s_q, s_kv) in [(5, 7), (70, 50), (33, 400), (130, 200)] {
        let (b, h) = (2, 3);
        let sizes = Sizes { b, s_q, s_kv, appended: 1, h, h_kv: 3, d: 12, d_v: 20 };
        let [q, k, v] = qkv::<f32>(&mut random, sizes);
        let numbers = Numbers::new(&mut random, sizes);
        let mut masks = numbers.masks();
        masks.push(Mask {
            structure: MaskStructure { right: Some(0), ..MaskStructure::default() },
            keep: vec![numbers.keep()],
            bias: vec![numbers.bias(); 2],
            ..Mask::default()
        });
        for mask in masks {
            let what = format!("{s_q} × {s_kv}, {mask:?}").chars().take(200).collect::<String>();
            for appended in [0, 1] {
                let sizes = Sizes { s_kv, appended, ..sizes };
                let (k, v) = (&k[..b * (s_kv + appended) * 36], &v[..b * (s_kv + appended) * 60]);
                let mut call = sized(sizes, [&q, k, v], mask.clone());
                check(&call, 2e-6, &what);
                call.bf16 = true;
                check(&call, 2e-2, &what);
            }
        }
    }
}

#[test]
fn scores_are_capped_and_sinks_take_their_share() {
    let mut random = Random(7);
    for (s_q, s_kv) in [(3, 5), (20, 300)] {
        let sizes = Sizes { b: 2, s_q, s_kv, appended: 0, h: 4, h_kv: 2, d: 24, d_v: 16 };
        let [q, k, v] = qkv::<f32>(&mut random, sizes);
        for (softcap, sinks) in
            [(Some(0.7), None), (None, Some([0.5, -2.0, f32::NEG_INFINITY, 9.0])), (Some(30.0), Some([1.0; 4]))]
        {
            // The first row sees nothing: with a sink, too, it gets zeros.
            let lengths = vec![Lengths::PerSequence(vec![0, s_kv])];
            let mask = MaskStructure { lengths, right: Some(0), ..MaskStructure::default() }.into();
            let mut call = sized(sizes, [&q, &k, &v], mask);
            (call.softcap, call.sinks) = (softcap, sinks.as_ref().map(|sinks| &sinks[..]));
            check(&call, 2e-6, &format!("{softcap:?}, {sinks:?}"));
            call.bf16 = true;
            check(&call, 2e-2, &format!("{softcap:?}, {sinks:?} in bf16"));
        }
    }
}

/// A sequence alone, in a batch, with padding: the same bits.
#[test]
fn a_sequence_does_not_see_its_neighbours() {
    neighbours(false);
    neighbours(true);
}

fn neighbours(bf16: bool) {
    let mut random = Random(3);
    for (length, padded, d) in [(1, 5, 32), (20, 64, 64), (65, 130, 40), (200, 450, 32)] {
        let sizes = Sizes { b: 3, s_q: padded, s_kv: padded, appended: 0, h: 2, h_kv: 2, d, d_v: d };
        let [q, k, v] = qkv::<f32>(&mut random, sizes);
        let lengths = vec![Lengths::PerSequence(vec![padded, length, padded / 2])];
        let lengths = MaskStructure { lengths, ..MaskStructure::default() }.into();
        let mut batch = sized(sizes, [&q, &k, &v], lengths);
        batch.bf16 = bf16;
        let alone_sizes = Sizes { b: 1, s_q: length, s_kv: length, ..sizes };
        let part = |x: &[f32]| x[padded * 2 * d..][..length * 2 * d].to_vec();
        let (q_1, k_1, v_1) = (part(&q), part(&k), part(&v));
        let mut alone = sized(alone_sizes, [&q_1, &k_1, &v_1], Mask::default());
        alone.bf16 = bf16;
        for isa in isas() {
            let mut together = vec![0.0; 3 * padded * 2 * d];
            let mut one = vec![0.0; length * 2 * d];
            attend(isa, &batch, &mut together);
            attend(isa, &alone, &mut one);
            assert_eq!(part(&together), one, "{} of {length} in {padded}", isa.name());
            // The first two rows without their padding, one after the other.
            let starts = [0, padded, padded + length];
            let part_of = |x: &[f32]| [&x[..padded * 2 * d], &part(x)].concat();
            let (q_2, k_2, v_2) = (part_of(&q), part_of(&k), part_of(&v));
            let sizes = Sizes { b: 1, s_q: padded + length, s_kv: padded + length, ..sizes };
            let mut ragged = sized(sizes, [&q_2, &k_2, &v_2], Mask::default());
            (ragged.batch, ragged.bf16) = (Batch::Ragged { starts: &starts }, bf16);
            let mut two = vec![0.0; (padded + length) * 2 * d];
            attend(isa, &ragged, &mut two);
            assert_eq!(part_of(&together), two, "{} ragged", isa.name());
            let serial = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
            let mut again = vec![0.0; 3 * padded * 2 * d];
            serial.install(|| attend(isa, &batch, &mut again));
            assert_eq!(together, again, "{} on one thread", isa.name());
        }
    }
}

/// NaN in what a query sees comes out as NaN, not as a number.
#[test]
fn nan_is_not_lost() {
    let sizes = Sizes { b: 1, s_q: 2, s_kv: 20, appended: 0, h: 1, h_kv: 1, d: 8, d_v: 8 };
    let [q, mut k, v] = qkv::<f32>(&mut Random(4), sizes);
    k[3 * 8 + 1] = f32::NAN;
    let lengths = vec![Lengths::PerQuery(vec![vec![20, 3]])];
    let mask = MaskStructure { lengths, ..MaskStructure::default() }.into();
    let mut call = sized(sizes, [&q, &k, &v], mask);
    for (isa, bf16) in isas().into_iter().flat_map(|isa| [(isa, false), (isa, true)]) {
        let mut output = vec![0.0; 16];
        call.bf16 = bf16;
        attend(isa, &call, &mut output);
        assert!(output[..8].iter().all(|x| x.is_nan()), "{}", isa.name());
        assert!(output[8..].iter().all(|x| x.is_finite()), "{}", isa.name());
    }
}
