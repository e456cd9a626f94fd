//! The reference for attention: loops over f64, with a mask rule of its own.

use candle_attention_kernels::{AttentionProblem, Batch, DistanceTable, Element, HeadsView, Lengths, Mask};

use super::{Random, upcast};

#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    pub b: usize,
    pub s_q: usize,
    pub s_kv: usize,
    pub appended: usize,
    pub h: usize,
    pub h_kv: usize,
    pub d: usize,
    pub d_v: usize,
}

/// Attention by its formula.
pub fn naive<T: Element>(problem: &AttentionProblem<T>) -> Vec<f64> {
    let Batch::Padded { b: sequences, s_q, s_kv } = problem.batch else {
        panic!("the reference takes padded batches only")
    };
    let (q, k, v) = (upcast(problem.q.data), upcast(problem.k.data), upcast(problem.v.data));
    let at = |strides: [usize; 3], b: usize, s: usize, h: usize| b * strides[0] + s * strides[1] + h * strides[2];
    let mut output = Vec::new();
    for (b, i, h) in (0..sequences).flat_map(|b| (0..s_q).flat_map(move |i| (0..problem.h).map(move |h| (b, i, h)))) {
        let h_kv = h / (problem.h / problem.h_kv);
        let query = &q[at(problem.q.strides, b, i, h)..][..problem.d];
        let scores: Vec<f64> = (0..s_kv + problem.appended)
            .map(|j| {
                let key = &k[at(problem.k.strides, b, j, h_kv)..][..problem.d];
                let dot: f64 = query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                let start = s_kv as i64 - s_q as i64;
                let products =
                    if j < s_kv { embedded(&problem.mask, [b, h, i, j], [query, key], problem.h, start) } else { 0.0 };
                let score = (dot + products) * f64::from(problem.scale);
                let score = problem.softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh());
                if j < s_kv { score + mask_term(&problem.mask, [b, h, i, j], s_q, s_kv) } else { score }
            })
            .collect();
        let sink = problem.sinks.map_or(f64::NEG_INFINITY, |sinks| f64::from(sinks[h]));
        let max = scores.iter().copied().fold(sink, f64::max);
        let weights: Vec<f64> =
            scores.iter().map(|s| if *s == f64::NEG_INFINITY { 0.0 } else { (s - max).exp() }).collect();
        let sink = if sink == f64::NEG_INFINITY { 0.0 } else { (sink - max).exp() };
        let total = weights.iter().sum::<f64>() + sink;
        for column in 0..problem.d_v {
            let value = |j: usize| f64::from(v[at(problem.v.strides, b, j, h_kv) + column]);
            let sum: f64 = weights.iter().enumerate().map(|(j, w)| w * value(j)).sum();
            output.push(if total == 0.0 { 0.0 } else { sum / total });
        }
    }
    output
}

/// What the mask adds to the score of query `i` with key `j`: -inf if the key is hidden. By the definition of each
/// field, element by element, without the methods of the mask types.
pub fn mask_term(mask: &Mask, [b, h, i, j]: [usize; 4], s_q: usize, s_kv: usize) -> f64 {
    let structure = &mask.structure;
    let at = |[b_stride, h_stride, i_stride, j_stride]: [usize; 4]| {
        b * b_stride + h * h_stride + i * i_stride + j * j_stride
    };
    let too_long = |lengths: &Lengths| match lengths {
        Lengths::PerSequence(lengths) => j >= lengths[b],
        Lengths::PerQuery(lengths) => j >= lengths[b][i],
        Lengths::Padding(lengths) => i >= lengths[b] || j >= lengths[b],
    };
    // Query 0 stands at the key `starts[b]`, or the last query at the last key.
    let first = structure.starts.as_ref().map_or(s_kv as i64 - s_q as i64, |starts| starts[b]);
    let distance = first + i as i64 - j as i64;
    let by_distance =
        |table: &DistanceTable| table.values[h * table.distances + usize::try_from(-distance - table.first).unwrap()];
    let too_far = |limit: Option<usize>, distance: i64| limit.is_some_and(|limit| i128::from(distance) > limit as i128);
    let hidden = structure.lengths.iter().any(too_long)
        || too_far(structure.left, distance)
        || too_far(structure.right, -distance)
        || mask.segments.iter().any(|[queries, keys]| queries.data[at(queries.strides)] != keys.data[at(keys.strides)])
        || mask.keep.iter().any(|keep| keep.data[at(keep.strides)] == 0)
        || mask.bias.iter().any(|bias| bias.data[at(bias.strides)] <= f32::MIN)
        || mask.tables.iter().any(|table| by_distance(table) <= f32::MIN);
    if hidden {
        return f64::NEG_INFINITY;
    }
    let bias: f64 = mask.bias.iter().map(|bias| f64::from(bias.data[at(bias.strides)])).sum();
    let slopes = structure.distances.iter().map(|distances| {
        let distance = if distances.symmetric { distance.abs() } else { distance };
        f64::from(distances.slopes[h]) * distance as f64
    });
    let factor =
        |table: &DistanceTable| table.factors.map_or(1.0, |factors| f64::from(factors.data[at(factors.strides)]));
    let tables: f64 = mask.tables.iter().map(|table| f64::from(by_distance(table)) * factor(table)).sum();
    let grids = mask.grids.iter().map(|grid| {
        let at = |[b_stride, h_stride, i_stride, stride]: [usize; 4], place: usize| {
            b * b_stride + h * h_stride + i * i_stride + place * stride
        };
        let [_, width] = grid.grid;
        let (row, column) = (at(grid.rows.strides, j / width), at(grid.columns.strides, j % width));
        f64::from(grid.rows.data[row]) + f64::from(grid.columns.data[column])
    });
    bias + tables + grids.sum::<f64>() - slopes.sum::<f64>()
}

/// The products of a query and a key with the embedding of their distance.
fn embedded(mask: &Mask, [b, h, i, j]: [usize; 4], [query, key]: [&[f32]; 2], heads: usize, start: i64) -> f64 {
    let Some(embeddings) = &mask.embeddings else { return 0.0 };
    let start = mask.structure.starts.as_ref().map_or(start, |starts| starts[b]);
    let place = j as i64 - (start + i as i64) - embeddings.first;
    let embedding = embeddings.indices[usize::try_from(place).unwrap()] as usize;
    let dot = |xs: &[f32], values: Option<&[f32]>| {
        let values = values.map(|values| &values[(embedding * heads + h) * xs.len()..]);
        xs.iter().zip(values.unwrap_or(&[])).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>()
    };
    dot(query, embeddings.c2p) + dot(key, embeddings.p2c)
}

fn heads<T>(data: &[T], s: usize, h: usize, d: usize) -> HeadsView<'_, T> {
    HeadsView { data, strides: [s * h * d, h * d, d] }
}

/// A problem over contiguous queries, keys and values.
pub fn problem<'a, T: Element>(sizes: Sizes, [q, k, v]: [&'a [T]; 3], mask: Mask<'a>) -> AttentionProblem<'a, T> {
    let Sizes { b, s_q, s_kv, appended, h, h_kv, d, d_v } = sizes;
    let keys = s_kv + appended;
    AttentionProblem {
        q: heads(q, s_q, h, d),
        k: heads(k, keys, h_kv, d),
        v: heads(v, keys, h_kv, d_v),
        batch: Batch::Padded { b, s_q, s_kv },
        appended,
        h,
        h_kv,
        d,
        d_v,
        scale: (d as f32).powf(-0.5),
        softcap: None,
        sinks: None,
        mask,
        bf16: false,
    }
}

/// Random queries, keys and values.
pub fn qkv<T: Element>(random: &mut Random, sizes: Sizes) -> [Vec<T>; 3] {
    let Sizes { b, s_q, s_kv, appended, h, h_kv, d, d_v } = sizes;
    let keys = s_kv + appended;
    [random.values(b * s_q * h * d), random.values(b * keys * h_kv * d), random.values(b * keys * h_kv * d_v)]
}
