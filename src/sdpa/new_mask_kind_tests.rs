//! A mask kind without support in any kernel, on every backend that runs here.

use candle_core::{DType, Device, Tensor};

use crate::mask::{AttentionMask, AttnShape, Stripes};
use crate::sdpa::{Backend, SdpaOptions, attend_bshd};

const SHAPE: AttnShape = AttnShape { b: 2, h: 4, s_q: 5, s_kv: 7 };
const H_KV: usize = 2;
const D: usize = 3;
const D_V: usize = 11;

/// `(b, s, h, d)`, the same on every run.
fn tensor(dims: [usize; 4], seed: usize, dtype: DType) -> Tensor {
    let count: usize = dims.iter().product();
    let elements: Vec<f64> = (0..count).map(|n| ((n * 37 + seed * 101) as f64 * 0.7).sin() * 1.5).collect();
    Tensor::from_vec(elements, &dims, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
}

fn qkv(dtype: DType, appended: usize) -> [Tensor; 3] {
    let AttnShape { b, h, s_q, s_kv } = SHAPE;
    let keys = s_kv + appended;
    [tensor([b, s_q, h, D], 1, dtype), tensor([b, keys, H_KV, D], 2, dtype), tensor([b, keys, H_KV, D_V], 3, dtype)]
}

fn elements(t: &Tensor) -> Vec<f64> {
    t.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// Attention of one query in loops over f64, `added` being what a mask adds to the score of each key.
fn naive(q: &[f64], k: &[Vec<f64>], v: &[Vec<f64>], added: &[Option<f64>]) -> Vec<f64> {
    let scale = (q.len() as f64).powf(-0.5);
    let dot = |k: &[f64]| q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>() * scale;
    let weights: Vec<f64> = k.iter().zip(added).map(|(k, added)| added.map_or(0.0, |x| (dot(k) + x).exp())).collect();
    let total: f64 = weights.iter().sum();
    let column = |c: usize| weights.iter().zip(v).map(|(w, v)| w * v[c]).sum::<f64>();
    (0..D_V).map(|c| if total == 0.0 { 0.0 } else { column(c) / total }).collect()
}

/// `(b, s_q, h, d_v)` for `added(b, h, i, j)`.
fn reference(
    [q, k, v]: &[Tensor; 3],
    appended: usize,
    added: &dyn Fn(usize, usize, usize, usize) -> Option<f64>,
) -> Vec<f64> {
    let AttnShape { b, h, s_q, s_kv } = SHAPE;
    let keys = s_kv + appended;
    let (q, k, v) = (elements(q), elements(k), elements(v));
    let mut output = Vec::new();
    for (b, i, h) in (0..b).flat_map(|b| (0..s_q).flat_map(move |i| (0..h).map(move |h| (b, i, h)))) {
        let key_rows = |xs: &[f64], d: usize| -> Vec<Vec<f64>> {
            let at = |j: usize| ((b * keys + j) * H_KV + h / (SHAPE.h / H_KV)) * d;
            (0..keys).map(|j| xs[at(j)..][..d].to_vec()).collect()
        };
        let added: Vec<_> = (0..keys).map(|j| if j < s_kv { added(b, h, i, j) } else { Some(0.0) }).collect();
        let query = &q[((b * s_q + i) * SHAPE.h + h) * D..][..D];
        output.extend(naive(query, &key_rows(&k, D), &key_rows(&v, D_V), &added));
    }
    output
}

fn assert_close(got: &Tensor, want: &[f64], tolerance: f64, what: &str) {
    let got = elements(got);
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= tolerance + tolerance * want.abs(), "{what}: {got}, not {want}, at {i}");
    }
}

/// The backends that run here, with the dtypes that they take and their tolerances.
const BACKENDS: [(Backend, DType, f64); 3] =
    [(Backend::Eager, DType::F64, 1e-12), (Backend::Eager, DType::F32, 2e-6), (Backend::Cpu, DType::F32, 2e-6)];

fn stripes() -> AttentionMask {
    AttentionMask::from_term(Stripes { heads: SHAPE.h })
}

/// The key of query 0 is the first one after the keys that no query stands at.
fn ahead(i: usize, j: usize) -> i64 {
    j as i64 - i as i64 - (SHAPE.s_kv - SHAPE.s_q) as i64
}

#[test]
fn a_kind_without_a_kernel_agrees_with_the_reference() {
    let causal = |_: usize, h, i, j| Stripes::bias(h, ahead(i, j)).filter(|_| ahead(i, j) <= 0);
    let lengths = |b: usize, h, i, j| Stripes::bias(h, ahead(i, j)).filter(|_| j < [7, 3][b]);
    let started = |b: usize, h, i: usize, j: usize| Stripes::bias(h, j as i64 - i as i64 - [1, 0][b]);
    type Added<'a> = &'a dyn Fn(usize, usize, usize, usize) -> Option<f64>;
    let masks: [(AttentionMask, Added); 4] = [
        (stripes(), &|_, h, i, j| Stripes::bias(h, ahead(i, j))),
        (stripes().and(AttentionMask::causal()), &causal),
        (AttentionMask::lengths(&[7, 3]).and(stripes()), &lengths),
        (stripes().with_query_starts(vec![1, 0]), &started),
    ];
    for (mask, added) in &masks {
        for ((backend, dtype, tolerance), appended) in BACKENDS.into_iter().flat_map(|case| [(case, 0), (case, 2)]) {
            let qkv = qkv(dtype, appended);
            let mut options = SdpaOptions::new(mask);
            (options.backend, options.appended_keys) = (Some(backend), appended);
            let [q, k, v] = &qkv;
            let output = attend_bshd(q, k, v, &options).unwrap().output;
            let what = format!("{mask}, {backend}, {dtype:?}, {appended} appended keys");
            assert_close(&output, &reference(&qkv, appended, added), tolerance, &what);
        }
    }
}

#[test]
fn cutting_queries_and_heads_cuts_the_output() {
    let heads = [3, 0];
    let causal = || stripes().and(AttentionMask::causal());
    for mask in [stripes(), causal(), stripes().with_query_starts(vec![1, 0]), causal().with_query_starts(vec![1, 0])] {
        for (backend, dtype, tolerance) in BACKENDS {
            let [q, k, v] = qkv(dtype, 0);
            let attend = |q: &Tensor, k: &Tensor, v: &Tensor, mask: &AttentionMask| {
                let mut options = SdpaOptions::new(mask);
                options.backend = Some(backend);
                attend_bshd(q, k, v, &options).unwrap().output
            };
            let whole = attend(&q, &k, &v, &mask);
            for queries in [0..5, 1..4, 2..3, 4..5] {
                let part = |t: &Tensor| t.narrow(1, queries.start, queries.len()).unwrap();
                let cut = mask.select_queries(queries.clone(), SHAPE).unwrap();
                let want = elements(&part(&whole));
                assert_close(&attend(&part(&q), &k, &v, &cut), &want, tolerance, &format!("{mask}, {queries:?}"));
            }
            let select = |t: &Tensor, group: usize| crate::tensor::select(t, &heads.map(|h| h / group), 2).unwrap();
            let cut = mask.select_heads(&heads, SHAPE).unwrap();
            let (want, group) = (elements(&select(&whole, 1)), SHAPE.h / H_KV);
            let output = attend(&select(&q, 1), &select(&k, group), &select(&v, group), &cut);
            assert_close(&output, &want, tolerance, &format!("{mask}, heads {heads:?}"));
        }
    }
}
