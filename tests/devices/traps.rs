//! Shapes at the limits of devices.

use candle_attention::AttentionMask;
use candle_attention::sdpa::{SdpaOptions, attend_bshd, plan_for};
use candle_core::{DType, Device, Tensor};

use crate::cases::DTYPES;
use crate::common::naive::{self, Score};
use crate::common::{Random, numbers};
use crate::judge::{Verdict, What, largest, to_cpu};

/// More sequences, heads or queries than 65,535, the limit of the second and third dimension of a grid on NVIDIA GPUs.
pub fn more_rows_than_a_grid(device: &Device) {
    let mut verdict = Verdict::default();
    for (number, (b, h, s_q, s_kv)) in [(65_537, 1, 1, 2), (8_193, 8, 2, 1), (1, 1, 65_537, 2)].into_iter().enumerate()
    {
        let dtype = DTYPES[number];
        let mut random = Random::new(number as u64);
        let mut tensor = |s: usize| random.tensor(&[b, s, h, 32], dtype);
        let [q, k, v] = [tensor(s_q), tensor(s_kv), tensor(s_kv)];
        // The last key is masked for half of the sequences, or for the queries before it.
        let lengths: Vec<usize> = (0..b).map(|row| s_kv - row % 2).collect();
        let (mask, causal) = match b {
            1 => (AttentionMask::causal(), true),
            _ => (AttentionMask::lengths(&lengths), false),
        };
        let sees = |b: usize, _: usize, i: usize, j: usize| {
            let seen = if causal { j + s_q <= i + s_kv } else { j < lengths[b] };
            seen.then_some(0.0)
        };
        let (want, _) = naive::attend(&q, &k, &v, &Score::Dot(32f64.powf(-0.5)), &sees);
        let [q, k, v] = [q, k, v].map(|t| t.to_device(device).unwrap());
        let mut options = SdpaOptions::new(&mask);
        let plan = plan_for(&q, &k, &v, &options).unwrap();
        for backend in plan.rejected.iter().map(|rejected| rejected.backend).chain([plan.backend]) {
            options.backend = Some(backend);
            if plan_for(&q, &k, &v, &options).is_ok() {
                let got = attend_bshd(&q, &k, &v, &options).unwrap().output;
                let name = format!("{b} sequences of {s_q} queries and {s_kv} keys, {h} heads on {backend}");
                verdict.compare(&name, What::Attention, dtype, &got, &want, largest(&v));
            }
        }
    }
    verdict.end(device);
}

/// A decoding step: so few queries that a GPU has to split the keys of each over several blocks.
pub fn few_queries_over_many_keys(device: &Device) {
    let mut verdict = Verdict::default();
    let s_kv = 5000;
    let lengths = [0, 3333];
    let sees_lengths = |b: usize, _: usize, _: usize, j: usize| (j < lengths[b]).then_some(0.0);
    let near = |s_q: usize| {
        move |_: usize, _: usize, i: usize, j: usize| {
            let position = i + s_kv - s_q;
            (j <= position && j + 700 >= position).then_some(0.0)
        }
    };
    for (number, dtype) in DTYPES.into_iter().enumerate() {
        for (s_q, h, h_kv, d) in [(1, 8, 1, 128), (3, 2, 2, 64), (17, 4, 2, 40)] {
            let mut random = Random::new(number as u64 + 5);
            let mut tensor = |s: usize, h: usize| random.tensor(&[2, s, h, d], dtype);
            let [q, k, v] = [tensor(s_q, h), tensor(s_kv, h_kv), tensor(s_kv, h_kv)];
            let [q_on_device, k_on_device, v_on_device] = [&q, &k, &v].map(|t| t.to_device(device).unwrap());
            let window = near(s_q);
            let masks: [(AttentionMask, naive::Sees); 2] = [
                (AttentionMask::lengths(&lengths), &sees_lengths),
                (AttentionMask::causal().and(AttentionMask::window(Some(700), None)), &window),
            ];
            for (mask, sees) in masks {
                let (want, _) = naive::attend(&q, &k, &v, &Score::Dot((d as f64).powf(-0.5)), sees);
                let got =
                    attend_bshd(&q_on_device, &k_on_device, &v_on_device, &SdpaOptions::new(&mask)).unwrap().output;
                let name = format!("{s_q} queries, {h} and {h_kv} heads of {d}, {mask}");
                verdict.compare(&name, What::Attention, dtype, &got, &want, largest(&v));
            }
        }
    }
    verdict.end(device);
}

/// A sequence gives the same result alone and in a batch: bitwise on the CPU, within the tolerance on other devices,
/// whose matrix products may be split by the size of the batch. The head strides differ from the batch stride, so that
/// a kernel that merges both dimensions would mix heads.
pub fn batch_invariance(device: &Device) {
    let mut verdict = Verdict::default();
    for dtype in DTYPES {
        let mut random = Random::new(77);
        let mut tensor = |dims: &[usize]| random.tensor(dims, dtype).to_device(device).unwrap();
        let [q, k, v] = [[3, 70, 4, 64], [3, 90, 2, 64], [3, 90, 2, 64]].map(|dims| tensor(&dims));
        let mask = AttentionMask::causal();
        let options = SdpaOptions::new(&mask);
        let together = attend_bshd(&q, &k, &v, &options).unwrap().output;
        for row in 0..3 {
            let of = |t: &Tensor| t.narrow(0, row, 1).unwrap();
            let alone = attend_bshd(&of(&q), &of(&k), &of(&v), &options).unwrap().output;
            let name = format!("row {row} in {dtype:?}");
            if device.is_cpu() {
                verdict.same(&name, &alone, &of(&together));
            }
            let want = to_cpu(&of(&together)).to_dtype(DType::F64).unwrap();
            verdict.compare(&name, What::Attention, dtype, &alone, &want, largest(&v));
        }
    }
    verdict.end(device);
}

/// NaN in two keys or values: on every backend a query that does not see them gives the same bits as without them,
/// zeros if it sees nothing, and a query that does see them gives NaN.
pub fn hidden_keys(device: &Device) {
    let mut verdict = Verdict::default();
    let (s, h, d, spoiled) = (70, 4, 64, [20, 65]);
    type Rule = fn(usize, usize, usize) -> bool;
    // With all queries, and with the last one alone, as in a decoding step.
    let masks: [(AttentionMask, &[usize], Rule); 4] = [
        (AttentionMask::causal(), &[s, 1], |_, i, j| j <= i),
        (AttentionMask::lengths(&[60, 0]), &[s, 1], |b, _, j| j < [60, 0][b]),
        (AttentionMask::padding(&[70, 15]), &[s], |b, i, j| i < [70, 15][b] && j < [70, 15][b]),
        (AttentionMask::window(Some(3), Some(2)), &[s, 1], |_, i, j| j + 3 >= i && j <= i + 2),
    ];
    let each = masks.iter().flat_map(|(mask, queries, rule)| queries.iter().map(move |s_q| (mask, *s_q, rule)));
    for (dtype, (mask, s_q, rule)) in DTYPES.into_iter().flat_map(|dtype| each.clone().map(move |case| (dtype, case))) {
        let mut random = Random::new(91);
        let [q, k, v] = [h, h / 2, h / 2].map(|h| random.tensor(&[2, s, h, d], dtype).to_device(device).unwrap());
        let q = q.narrow(1, s - s_q, s_q).unwrap();
        let row = |j: usize| if spoiled.contains(&j) { f32::NAN } else { 0.0 };
        let nan = Tensor::from_iter((0..s).map(row), &Device::Cpu).unwrap().reshape((1, s, 1, 1)).unwrap();
        let nan = nan.to_dtype(dtype).unwrap().to_device(device).unwrap();
        let spoil = |t: &Tensor| t.broadcast_add(&nan).unwrap();
        let mut options = SdpaOptions::new(mask);
        let plan = plan_for(&q, &k, &v, &options).unwrap();
        for backend in plan.rejected.iter().map(|rejected| rejected.backend).chain([plan.backend]) {
            options.backend = Some(backend);
            if plan_for(&q, &k, &v, &options).is_err() {
                continue;
            }
            verdict.judged += 1;
            let run = |k: &Tensor, v: &Tensor| numbers(&to_cpu(&attend_bshd(&q, k, v, &options).unwrap().output));
            let [clean, keys, values] = [(&k, &v), (&spoil(&k), &v), (&k, &spoil(&v))].map(|(k, v)| run(k, v));
            let wrong = (0..clean.len()).find(|at| {
                let (b, i) = (at / d / h / s_q, s - s_q + at / d / h % s_q);
                let sees = spoiled.iter().any(|j| rule(b, i, *j));
                let right = |x: f64| if sees { x.is_nan() } else { x == clean[*at] };
                !right(keys[*at]) || !right(values[*at])
            });
            if let Some(at) = wrong {
                let found = (clean[at], keys[at], values[at]);
                verdict.wrong(format!("{s_q} queries, {mask} in {dtype:?} on {backend}: element {at} is {found:?}"));
            }
        }
    }
    verdict.end(device);
}
