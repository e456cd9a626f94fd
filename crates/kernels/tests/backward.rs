//! The backward pass of attention and products for training, against formulas in f64 and finite differences.

use candle_attention_kernels::{
    AttentionGradient, AttentionProblem, Batch, Dropout, Gradients, Isa, Lengths, Mask, MaskStructure, Matrix,
    SoftmaxRow, Team, attend, attend_for_training, attention_backward, column_sums, matmul,
};

use super::support::masks::MaskTensors;
use super::support::reference::{Sizes, mask_term, problem, qkv};
use super::{Random, isas, on_threads};

/// Whether the biases of a mask can learn.
fn learns(mask: &Mask) -> bool {
    matches!(&mask.tables[..], [table] if table.factors.is_none())
}

/// The gradients of queries, keys, values and biases by distance by their formulas, in f64.
fn naive_backward(problem: &AttentionProblem<f32>, gradient: &[f32], dropped: &dyn Fn(u64) -> f64) -> [Vec<f64>; 4] {
    let Batch::Padded { b: sequences, s_q, s_kv } = problem.batch else {
        panic!("the reference takes padded batches only")
    };
    let AttentionProblem { h: heads, h_kv, d, d_v, appended, .. } = *problem;
    let keys = s_kv + appended;
    let scale = f64::from(problem.scale);
    let table = problem.mask.tables.first().filter(|_| learns(&problem.mask));
    let biases = table.map_or(0, |table| table.values.len());
    let sizes = [problem.q.data.len(), problem.k.data.len(), problem.v.data.len(), biases];
    let mut gradients = sizes.map(|size| vec![0.0; size]);
    for (b, i, h) in (0..sequences).flat_map(|b| (0..s_q).flat_map(move |i| (0..heads).map(move |h| (b, i, h)))) {
        let query = ((b * s_q + i) * heads + h) * d;
        let key = |j: usize| ((b * keys + j) * h_kv + h / (heads / h_kv)) * d;
        let value = |j: usize| ((b * keys + j) * h_kv + h / (heads / h_kv)) * d_v;
        let output = ((b * s_q + i) * heads + h) * d_v;
        let x = |data: &[f32], at: usize| f64::from(data[at]);
        let capped: Vec<f64> = (0..keys)
            .map(|j| {
                let dot: f64 = (0..d).map(|c| x(problem.q.data, query + c) * x(problem.k.data, key(j) + c)).sum();
                problem.softcap.map_or(dot * scale, |cap| f64::from(cap) * (dot * scale / f64::from(cap)).tanh())
            })
            .collect();
        let masked = |j: usize| if j < s_kv { mask_term(&problem.mask, [b, h, i, j], s_q, s_kv) } else { 0.0 };
        let scores: Vec<f64> = (0..keys).map(|j| capped[j] + masked(j)).collect();
        let sink = problem.sinks.map_or(f64::NEG_INFINITY, |sinks| f64::from(sinks[h]));
        let max = scores.iter().copied().fold(sink, f64::max);
        if max == f64::NEG_INFINITY {
            continue;
        }
        let total = scores.iter().map(|score| (score - max).exp()).sum::<f64>() + (sink - max).exp();
        let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp() / total).collect();
        let place = ((b * heads + h) * s_q + i) * keys;
        let kept: Vec<f64> = (0..keys).map(|j| dropped((place + j) as u64)).collect();
        let of_weights: Vec<f64> = (0..keys)
            .map(|j| {
                let dot: f64 = (0..d_v).map(|c| x(gradient, output + c) * x(problem.v.data, value(j) + c)).sum();
                dot * kept[j]
            })
            .collect();
        let delta: f64 = weights.iter().zip(&of_weights).map(|(weight, gradient)| weight * gradient).sum();
        for j in 0..keys {
            let cap = problem.softcap.map_or(1.0, |cap| 1.0 - (capped[j] / f64::from(cap)).powi(2));
            let of_score = weights[j] * (of_weights[j] - delta);
            if let Some(table) = table.filter(|_| j < s_kv) {
                let start = problem.mask.structure.starts.as_ref().map_or(s_kv as i64 - s_q as i64, |starts| starts[b]);
                let place = usize::try_from(j as i64 - (start + i as i64) - table.first).unwrap();
                gradients[3][h * table.distances + place] += of_score;
            }
            let of_score = of_score * cap * scale;
            for c in 0..d {
                gradients[0][query + c] += of_score * x(problem.k.data, key(j) + c);
                gradients[1][key(j) + c] += of_score * x(problem.q.data, query + c);
            }
            for c in 0..d_v {
                gradients[2][value(j) + c] += weights[j] * kept[j] * x(gradient, output + c);
            }
        }
    }
    gradients
}

fn backward(
    isa: Isa,
    team: Team,
    problem: &AttentionProblem<f32>,
    gradient: &[f32],
    dropout: Option<Dropout>,
) -> [Vec<f32>; 4] {
    let (mut output, mut rows) = (Vec::new(), Vec::<SoftmaxRow>::new());
    attend_for_training(isa, team, problem, dropout, &mut output, &mut rows).unwrap();
    let learns_table = learns(&problem.mask);
    let call = AttentionGradient { problem, dropout, rows: &rows, output: &output, gradient, learns_table };
    let Gradients { q, k, v, table, .. } = attention_backward(isa, team, &call).unwrap();
    [q, k, v, table]
}

fn check(random: &mut Random, problem: &AttentionProblem<f32>, dropout: Option<(f64, u64)>, what: &str) {
    let size = problem.batch.queries() * problem.h * problem.d_v;
    let gradient = random.values::<f32>(size);
    let dropout = dropout.map(|(p, seed)| Dropout::new(p, seed).unwrap());
    let factor = |place: u64| {
        let mut factor = [1.0];
        dropout.inspect(|dropout| dropout.factors(place, &mut factor));
        f64::from(factor[0])
    };
    let want = naive_backward(problem, &gradient, &factor);
    for isa in isas() {
        let got = backward(isa, Team::ALONE, problem, &gradient, dropout);
        for ((name, got), want) in ["q", "k", "v", "biases"].into_iter().zip(&got).zip(&want) {
            assert_eq!(got.len(), want.len());
            // Gradients of keys are sums over all queries.
            let largest = want.iter().fold(1.0f64, |largest, x| largest.max(x.abs()));
            for (i, (got, want)) in got.iter().zip(want).enumerate() {
                let error = (f64::from(*got) - want).abs();
                assert!(error <= 1e-5 * largest, "{what}, {}: d{name}[{i}] {got}, want {want}", isa.name());
            }
        }
    }
}

#[test]
fn gradients_of_odd_sizes() {
    let mut random = Random(31);
    for (d, d_v) in [(1, 1), (7, 5), (16, 48), (32, 32), (64, 64), (80, 80), (130, 129)] {
        for (s_q, s_kv) in [(1, 1), (1, 70), (5, 7), (9, 192), (65, 193), (130, 200)] {
            let sizes = Sizes { b: 2, s_q, s_kv, appended: 0, h: 4, h_kv: 2, d, d_v };
            let [q, k, v] = qkv::<f32>(&mut random, sizes);
            check(&mut random, &problem(sizes, [&q, &k, &v], Mask::default()), None, &format!("{sizes:?}"));
        }
    }
}

#[test]
fn gradients_under_every_kind_of_mask() {
    let mut random = Random(32);
    for (s_q, s_kv) in [(5, 7), (70, 50), (33, 400), (130, 200)] {
        let sizes = Sizes { b: 2, s_q, s_kv, appended: 1, h: 3, h_kv: 3, d: 12, d_v: 20 };
        let tensors = MaskTensors::new(&mut random, sizes);
        let base = MaskStructure::default;
        let mut masks = tensors.masks();
        masks.extend([
            MaskStructure { right: Some(0), ..base() }.into(),
            MaskStructure { lengths: vec![Lengths::Padding(vec![s_q.min(s_kv), 3])], ..base() }.into(),
            MaskStructure { starts: Some(vec![-3, 2]), left: Some(4), right: Some(1), ..base() }.into(),
        ]);
        for (i, mask) in masks.into_iter().filter(|mask| mask.embeddings.is_none()).enumerate() {
            let what = format!("{s_q} × {s_kv}, {mask:?}").chars().take(200).collect::<String>();
            for appended in [0, 1] {
                let sizes = Sizes { appended, ..sizes };
                let [q, k, v] = qkv::<f32>(&mut random, sizes);
                let mut call = problem(sizes, [&q, &k, &v], mask.clone());
                check(&mut random, &call, None, &what);
                call.softcap = Some(0.7);
                call.sinks = Some(&[0.5, -2.0, f32::NEG_INFINITY]);
                check(&mut random, &call, Some((0.3, i as u64)), &format!("{what}, softcap, sinks, dropout"));
            }
        }
    }
}

/// In a ragged batch, with strides of a packed projection, and on any number of threads.
#[test]
fn gradients_of_a_sequence_are_the_same_bits_in_every_batch() {
    let mut random = Random(33);
    let (h, h_kv, d) = (4, 2, 40);
    let (lengths, width) = ([1, 70, 0, 200], (h + 2 * h_kv) * d);
    let offsets = [0, 1, 71, 71, 271];
    let packed = random.values::<f32>(271 * width);
    let gradient = random.values::<f32>(271 * h * d);
    let base = Sizes { b: 1, s_q: 1, s_kv: 1, appended: 0, h, h_kv, d, d_v: d };
    let mask = || Mask::from(MaskStructure { right: Some(0), ..MaskStructure::default() });
    let of = |packed: &[f32]| [0, h * d, (h + h_kv) * d].map(|start| packed[start.min(packed.len())..].to_vec());
    let [q, k, v] = of(&packed);
    let mut ragged = problem(base, [&q, &k, &v], mask());
    for view in [&mut ragged.q, &mut ragged.k, &mut ragged.v] {
        view.strides = [0, width, d];
    }
    ragged.batch = Batch::Ragged { offsets: &offsets };
    for isa in isas() {
        let whole = backward(isa, Team::ALONE, &ragged, &gradient, None);
        let shared = on_threads(3, || Team::with(usize::MAX, |team| backward(isa, team, &ragged, &gradient, None)));
        assert_eq!(whole, shared, "{}", isa.name());
        for (length, start) in lengths.into_iter().zip(offsets) {
            let [q, k, v] = of(&packed[start * width..(start + length) * width]);
            let mut alone = problem(Sizes { s_q: length, s_kv: length, ..base }, [&q, &k, &v], mask());
            for view in [&mut alone.q, &mut alone.k, &mut alone.v] {
                view.strides = [length * width, width, d];
            }
            let part = |heads: usize| start * heads * d..(start + length) * heads * d;
            let alone = backward(isa, Team::ALONE, &alone, &gradient[part(h)], None);
            assert_eq!(alone[0], whole[0][part(h)], "{}", isa.name());
            assert_eq!(alone[1], whole[1][part(h_kv)], "{}", isa.name());
            assert_eq!(alone[2], whole[2][part(h_kv)], "{}", isa.name());
        }
    }
}

#[test]
fn a_forward_pass_for_training_has_the_bits_of_inference() {
    let mut random = Random(34);
    let sizes = Sizes { b: 2, s_q: 70, s_kv: 230, appended: 1, h: 4, h_kv: 2, d: 24, d_v: 16 };
    let [q, k, v] = qkv::<f32>(&mut random, sizes);
    let call = problem(sizes, [&q, &k, &v], MaskStructure { right: Some(0), ..MaskStructure::default() }.into());
    for isa in isas() {
        let [mut want, mut got] = [const { Vec::new() }; 2];
        attend(isa, Team::ALONE, &call, &mut want).unwrap();
        attend_for_training(isa, Team::ALONE, &call, None, &mut got, &mut Vec::new()).unwrap();
        assert_eq!(want, got, "{}", isa.name());
    }
}

#[test]
fn inputs_that_contradict_each_other_are_refused() {
    let mut random = Random(35);
    let sizes = Sizes { b: 2, s_q: 3, s_kv: 5, appended: 0, h: 2, h_kv: 2, d: 4, d_v: 4 };
    let [q, k, v] = qkv::<f32>(&mut random, sizes);
    let call = problem(sizes, [&q, &k, &v], Mask::default());
    let isa = isas()[0];
    let (mut output, mut rows) = (Vec::new(), Vec::new());
    attend_for_training(isa, Team::ALONE, &call, None, &mut output, &mut rows).unwrap();
    let refused = |rows: &[SoftmaxRow], output: &[f32], gradient: &[f32]| {
        let call = AttentionGradient { problem: &call, dropout: None, rows, output, gradient, learns_table: false };
        attention_backward(isa, Team::ALONE, &call).is_err()
    };
    let learns_table = AttentionGradient {
        problem: &call,
        dropout: None,
        rows: &rows,
        output: &output,
        gradient: &output,
        learns_table: true,
    };
    assert!(attention_backward(isa, Team::ALONE, &learns_table).is_err(), "there are no biases");
    assert!(!refused(&rows, &output, &output));
    assert!(refused(&rows[1..], &output, &output) && refused(&rows, &output[1..], &output));
    assert!(refused(&rows, &output, &output[1..]));
}

#[test]
fn products_of_changing_matrices() {
    let mut random = Random(36);
    let sizes = [(1, 1, 1), (3, 50, 7), (8, 48, 16), (17, 97, 33), (130, 200, 600), (5, 1600, 20), (140, 3, 1100)];
    for (m, n, k) in sizes {
        let (a, b, bias) = (random.values::<f32>(m * k), random.values::<f32>(k * n), random.values::<f32>(n));
        for (a_transposed, b_transposed) in [(false, false), (false, true), (true, false), (true, true)] {
            let a = Matrix { data: &a, dims: [m, k], transposed: a_transposed };
            let b = Matrix { data: &b, dims: [k, n], transposed: b_transposed };
            let at = |of: Matrix, i: usize, j: usize| {
                f64::from(of.data[if of.transposed { j * of.dims[0] + i } else { i * of.dims[1] + j }])
            };
            let mut want = Vec::new();
            for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                want.push((0..k).map(|t| at(a, i, t) * at(b, t, j)).sum::<f64>());
            }
            for isa in isas() {
                for bias in [None, Some(&bias[..])] {
                    let mut got = vec![f32::NAN; 3];
                    matmul(isa, Team::ALONE, a, b, bias, &mut got).unwrap();
                    assert_eq!(got.len(), want.len());
                    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                        let want = want + bias.map_or(0.0, |bias| f64::from(bias[i % n]));
                        let error = (f64::from(*got) - want).abs();
                        assert!(error <= 2e-6 * k as f64, "{m}, {n}, {k}, {}: [{i}] {got}, want {want}", isa.name());
                    }
                    let shared = on_threads(3, || {
                        let mut shared = Vec::new();
                        Team::with(usize::MAX, |team| matmul(isa, team, a, b, bias, &mut shared)).unwrap();
                        shared
                    });
                    assert_eq!(got, shared, "{}", isa.name());
                }
            }
        }
    }
    assert_eq!(column_sums(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2), [9.0, 12.0]);
    let (isa, data) = (isas()[0], [0.0; 6]);
    let of = |dims| Matrix { data: &data, dims, transposed: false };
    let refused = |a, b| matmul(isa, Team::ALONE, a, b, None, &mut Vec::new()).is_err();
    assert!(refused(of([2, 3]), of([2, 3])) && refused(of([2, 2]), of([2, 3])) && !refused(of([2, 3]), of([3, 2])));
}
