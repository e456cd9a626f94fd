//! Every kind of mask, in every dtype, against the naive reference.

use candle_attention::AttentionMask;
use candle_attention::sdpa::{Backend, SdpaOptions, attend_bshd, plan_for};
use candle_core::{DType, Device, Tensor};

use crate::common::naive::{self, Score};
use crate::common::{Random, assert_close, numbers, says};

/// One tolerance per dtype. The inputs are rounded first, so it covers the computation and one rounding at its end.
const TOLERANCES: [(DType, f64); 4] =
    [(DType::F64, 1e-12), (DType::F32, 2e-6), (DType::F16, 6e-4), (DType::BF16, 5e-3)];

/// The sizes of a case, different and prime where possible, so that a swapped axis cannot pass.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    b: usize,
    s_q: usize,
    s_kv: usize,
    h: usize,
    h_kv: usize,
    d: usize,
    d_v: usize,
}

const SIZES: [Sizes; 4] = [
    Sizes { b: 2, s_q: 5, s_kv: 7, h: 6, h_kv: 3, d: 11, d_v: 13 },
    Sizes { b: 3, s_q: 7, s_kv: 5, h: 2, h_kv: 2, d: 8, d_v: 8 },
    Sizes { b: 1, s_q: 1, s_kv: 65, h: 5, h_kv: 1, d: 3, d_v: 17 },
    Sizes { b: 2, s_q: 64, s_kv: 64, h: 1, h_kv: 1, d: 32, d_v: 32 },
];

/// What a mask adds to the score of sequence, head, query and key; `None` hides the key.
type MaskFn = Box<dyn Fn(usize, usize, usize, usize) -> Option<f64>>;

fn visible_if(visible: impl Fn(usize, usize, usize, usize) -> bool + 'static) -> MaskFn {
    Box::new(move |b, h, i, j| visible(b, h, i, j).then_some(0.0))
}

/// Looks up a tensor that broadcasts to (b, h, s_q, s_kv).
fn broadcast(tensor: &Tensor) -> impl Fn(usize, usize, usize, usize) -> f64 + 'static {
    let (numbers, dims) = (numbers(tensor), tensor.dims().to_vec());
    move |b, h, i, j| {
        let index = [b, h, i, j];
        let used = &index[4 - dims.len()..];
        let place = used.iter().zip(&dims).fold(0, |place, (&i, &n)| place * n + if n == 1 { 0 } else { i });
        numbers[place]
    }
}

type Constructor = fn(&Tensor) -> candle_attention::Result<AttentionMask>;

/// Each kind of mask with a function that means the same.
fn masks(random: &mut Random, sizes: Sizes) -> Vec<(AttentionMask, MaskFn)> {
    let Sizes { b, s_q, s_kv, h, .. } = sizes;
    let mut masks: Vec<(AttentionMask, MaskFn)> = vec![(AttentionMask::full(), visible_if(|_, _, _, _| true))];

    // Each constructor, the dimensions that it takes, and the same as dimensions of the scores.
    let scores: [Constructor; 3] = [AttentionMask::keep, AttentionMask::exclude, AttentionMask::additive];
    let keys: [Constructor; 3] = [AttentionMask::keep_keys, AttentionMask::exclude_keys, AttentionMask::additive_keys];
    let pattern: [Constructor; 3] =
        [AttentionMask::keep_pattern, AttentionMask::exclude_pattern, AttentionMask::additive_pattern];
    let four_dims = [[b, h, s_q, s_kv], [b, 1, s_q, s_kv], [1, h, 1, s_kv], [1, 1, s_q, 1]];
    let mut forms: Vec<_> = four_dims.map(|dims| (scores, dims.to_vec(), dims)).into();
    forms.push((keys, vec![b, s_kv], [b, 1, 1, s_kv]));
    forms.push((keys, vec![1, s_kv], [1, 1, 1, s_kv]));
    forms.push((pattern, vec![s_q, s_kv], [1, 1, s_q, s_kv]));
    for ([keep, exclude, additive], given, dims) in forms {
        let visible = random.booleans(&given, 0.7);
        let look = broadcast(&visible.reshape(&dims).unwrap());
        masks.push((keep(&visible).unwrap(), visible_if(move |b, h, i, j| look(b, h, i, j) != 0.0)));
        let look = broadcast(&visible.reshape(&dims).unwrap());
        let hidden = visible.to_dtype(DType::I64).unwrap();
        masks.push((exclude(&hidden).unwrap(), visible_if(move |b, h, i, j| look(b, h, i, j) == 0.0)));
        let bias = random.tensor(&given, DType::F32);
        let look = broadcast(&bias.reshape(&dims).unwrap());
        masks.push((additive(&bias).unwrap(), Box::new(move |b, h, i, j| Some(look(b, h, i, j)))));
    }
    for (dtype, lowest) in [(DType::F32, f32::MIN), (DType::F16, -65504.0), (DType::F32, f32::NEG_INFINITY)] {
        let keep = random.booleans(&[b, 1, s_q, s_kv], 0.6);
        let zero = Tensor::zeros(keep.shape(), dtype, &Device::Cpu).unwrap();
        let low = Tensor::full(lowest, keep.shape(), &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
        let bias = keep.where_cond(&zero, &low).unwrap();
        let look = broadcast(&keep);
        masks.push((AttentionMask::additive(&bias).unwrap(), visible_if(move |b, h, i, j| look(b, h, i, j) != 0.0)));
    }

    // The first sequence sees no key, the last one every key.
    let lengths: Vec<usize> = (0..b).map(|row| if b == 1 { 1 } else { row * s_kv / (b - 1) }).collect();
    let rows = lengths.clone();
    masks.push((AttentionMask::lengths(&lengths), visible_if(move |b, _, _, j| j < rows[b])));
    let per_query: Vec<Vec<usize>> = (0..b).map(|b| (0..s_q).map(|i| (i * 3 + b) % (s_kv + 1)).collect()).collect();
    let rows = per_query.clone();
    masks.push((AttentionMask::query_lengths(&per_query), visible_if(move |b, _, i, j| j < rows[b][i])));

    if s_q == s_kv {
        let rows = lengths.clone();
        masks.push((AttentionMask::padding(&lengths), visible_if(move |b, _, i, j| i < rows[b] && j < rows[b])));
    }

    let position = move |i: usize| i as i64 + s_kv as i64 - s_q as i64;
    masks.push((AttentionMask::causal(), visible_if(move |_, _, i, j| j as i64 <= position(i))));
    for (left, right) in [(Some(2), Some(1)), (Some(0), Some(0)), (None, Some(2)), (Some(3), None), (None, None)] {
        let inside = move |i: usize, j: usize| {
            let ahead = j as i64 - position(i);
            left.is_none_or(|left: usize| -ahead <= left as i64)
                && right.is_none_or(|right: usize| ahead <= right as i64)
        };
        masks.push((AttentionMask::window(left, right), visible_if(move |_, _, i, j| inside(i, j))));
        let both = AttentionMask::causal().and(AttentionMask::window(left, right));
        masks.push((both, visible_if(move |_, _, i, j| inside(i, j) && j as i64 <= position(i))));
    }
    let huge = AttentionMask::window(Some(usize::MAX), Some(usize::MAX));
    masks.push((huge, visible_if(|_, _, _, _| true)));

    let ids =
        |random: &mut Random, s| (random.tensor(&[b, s], DType::F32) * 1.9).unwrap().to_dtype(DType::I64).unwrap();
    let (queries, keys) = (ids(random, s_q), ids(random, s_kv));
    let (q_ids, k_ids) = (queries.to_vec2::<i64>().unwrap(), keys.to_vec2::<i64>().unwrap());
    masks.push((
        AttentionMask::segments(&queries, &keys).unwrap(),
        visible_if(move |b, _, i, j| q_ids[b][i] == k_ids[b][j]),
    ));

    // Several kinds together.
    let keep = random.booleans(&[b, s_kv], 0.8);
    let bias = random.tensor(&[1, h, s_q, s_kv], DType::F32);
    let mask = AttentionMask::causal()
        .and(AttentionMask::keep_keys(&keep).unwrap())
        .and(AttentionMask::additive(&bias).unwrap())
        .and(AttentionMask::window(Some(3), None))
        .and(AttentionMask::additive(&bias).unwrap());
    let (keep, bias) = (broadcast(&keep.unsqueeze(1).unwrap().unsqueeze(1).unwrap()), broadcast(&bias));
    let entry: MaskFn = Box::new(move |b, h, i, j| {
        let ahead = j as i64 - position(i);
        ((-3..=0).contains(&ahead) && keep(b, h, i, j) != 0.0).then(|| 2.0 * bias(b, h, i, j))
    });
    masks.push((mask, entry));
    masks
}

fn qkv(random: &mut Random, sizes: Sizes, dtype: DType) -> [Tensor; 3] {
    let Sizes { b, s_q, s_kv, h, h_kv, d, d_v } = sizes;
    // Larger than 1, so that a softmax is far from uniform.
    let wide = |t: Tensor| (t * 2.5).unwrap();
    [
        wide(random.tensor(&[b, s_q, h, d], dtype)),
        wide(random.tensor(&[b, s_kv, h_kv, d], dtype)),
        random.tensor(&[b, s_kv, h_kv, d_v], dtype),
    ]
}

#[test]
fn every_mask_in_every_dtype_equals_the_reference() {
    let mut random = Random::new(1);
    for sizes in SIZES {
        for (mask, entry) in masks(&mut random, sizes) {
            for (dtype, tolerance) in TOLERANCES {
                let [q, k, v] = qkv(&mut random, sizes, dtype);
                let what = format!("{mask} {dtype:?} {sizes:?}");
                let (want, want_weights) = naive::attend(&q, &k, &v, &Score::Dot(0.3), &entry);
                let mut options = SdpaOptions::new(&mask);
                (options.scale, options.return_attention_weights) = (Some(0.3), true);
                let eager = attend_bshd(&q, &k, &v, &options).unwrap();
                assert_close(&what, &eager.attention_weights.unwrap(), &want_weights, tolerance);
                options.return_attention_weights = false;
                let fused = attend_bshd(&q, &k, &v, &options).unwrap();
                let backend = plan_for(&q, &k, &v, &options).unwrap().backend;
                assert_eq!(backend, if dtype == DType::F64 { Backend::Eager } else { Backend::Cpu });
                for output in [eager.output, fused.output] {
                    assert_eq!(output.dtype(), dtype);
                    assert_close(&what, &output, &want, tolerance);
                }
            }
        }
    }
}

#[test]
fn additive_scoring_under_every_mask_equals_the_reference() {
    let mut random = Random::new(2);
    for sizes in SIZES {
        for (mask, entry) in masks(&mut random, sizes) {
            let [q, k, v] = qkv(&mut random, sizes, DType::F64);
            let w = random.tensor(&[sizes.h, sizes.d], DType::F64);
            let (want, want_weights) = naive::attend(&q, &k, &v, &Score::Additive(&w, 1.0), &entry);
            let mut options = SdpaOptions::new(&mask);
            (options.additive, options.return_attention_weights) = (Some(&w), true);
            let got = attend_bshd(&q, &k, &v, &options).unwrap();
            assert_close(&mask.to_string(), &got.output, &want, 1e-12);
            assert_close(&mask.to_string(), &got.attention_weights.unwrap(), &want_weights, 1e-12);
        }
    }
}

/// Capped scores, and sinks that take a share of the softmax: both backends, and the gradient of the sinks.
#[test]
fn softcap_and_sinks_under_every_mask_equal_the_reference() {
    let mut random = Random::new(7);
    for sizes in SIZES {
        for (mask, entry) in masks(&mut random, sizes) {
            for (dtype, tolerance) in TOLERANCES {
                let [q, k, v] = qkv(&mut random, sizes, dtype);
                let sinks = random.tensor(&[sizes.h], DType::F32);
                let score = Score::Bent { scale: 0.3, cap: Some(0.8), sinks: Some(&sinks) };
                let (want, want_weights) = naive::attend(&q, &k, &v, &score, &entry);
                let mut options = SdpaOptions::new(&mask);
                (options.scale, options.softcap, options.sinks) = (Some(0.3), Some(0.8), Some(&sinks));
                let what = format!("{mask} {dtype:?} {sizes:?}");
                assert_close(&what, &attend_bshd(&q, &k, &v, &options).unwrap().output, &want, tolerance);
                (options.return_attention_weights, options.backend) = (true, Some(Backend::Eager));
                let eager = attend_bshd(&q, &k, &v, &options).unwrap();
                assert_close(&what, &eager.output, &want, tolerance);
                assert_close(&what, &eager.attention_weights.unwrap(), &want_weights, tolerance);
            }
        }
    }
    let [q, k, v] = qkv(&mut random, SIZES[0], DType::F32);
    let mask = AttentionMask::full();
    let sinks = candle_core::Var::from_tensor(&random.tensor(&[SIZES[0].h], DType::F32)).unwrap();
    let mut options = SdpaOptions::new(&mask);
    options.sinks = Some(&sinks);
    assert_eq!(plan_for(&q, &k, &v, &options).unwrap().backend, Backend::Eager);
    let loss = attend_bshd(&q, &k, &v, &options).unwrap().output.sqr().unwrap().sum_all().unwrap();
    let gradient = loss.backward().unwrap().remove(&sinks).unwrap();
    // A larger sink leaves less weight to the keys, and so makes the output smaller.
    assert!(numbers(&gradient).iter().all(|g| *g < 0.0));
    // One so far above the scores that nothing is left has a gradient too.
    let far = candle_core::Var::from_vec(vec![100f32; SIZES[0].h], SIZES[0].h, q.device()).unwrap();
    options.sinks = Some(&far);
    let loss = attend_bshd(&q, &k, &v, &options).unwrap().output.sqr().unwrap().sum_all().unwrap();
    assert!(numbers(&loss.backward().unwrap().remove(&far).unwrap()).iter().all(|g| g.is_finite()));
    let wrong = random.tensor(&[SIZES[0].h + 1], DType::F32);
    options.sinks = Some(&wrong);
    says(attend_bshd(&q, &k, &v, &options), &["sinks", "the heads of q"]);
    (options.sinks, options.softcap) = (None, Some(0.0));
    says(attend_bshd(&q, &k, &v, &options), &["softcap is 0", "a positive number"]);
}

/// Additive scoring takes many queries in chunks; there are several here.
#[test]
fn additive_scoring_in_pieces_equals_one_piece() {
    let mut random = Random::new(3);
    let sizes = Sizes { b: 1, s_q: 131, s_kv: 509, h: 2, h_kv: 1, d: 64, d_v: 5 };
    let [q, k, v] = qkv(&mut random, sizes, DType::F64);
    let w = random.tensor(&[2, 64], DType::F64);
    let (want, _) = naive::attend(&q, &k, &v, &Score::Additive(&w, 0.5), &|_, _, _, _| Some(0.0));
    let mask = AttentionMask::full();
    let mut options = SdpaOptions::new(&mask);
    (options.additive, options.scale) = (Some(&w), Some(0.5));
    assert_close("additive", &attend_bshd(&q, &k, &v, &options).unwrap().output, &want, 1e-12);
}

/// Views with strides and offsets mean the same as their copies.
#[test]
fn strided_views_equal_their_copies() {
    let mut random = Random::new(4);
    let (b, s, h, d) = (2, 7, 3, 5);
    let all = random.tensor(&[b, s + 2, 3 * h, d], DType::F32).narrow(1, 1, s).unwrap();
    // A view: a reshape would copy it.
    let part = |i: usize| all.narrow(2, i * h, h).unwrap();
    let heads_first = random.tensor(&[b, h, s, d], DType::F32).transpose(1, 2).unwrap();
    let mask = AttentionMask::causal();
    for (q, k, v) in [(part(0), part(1), part(2)), (heads_first.clone(), part(1), heads_first)] {
        let (want, _) =
            naive::attend(&q, &k, &v, &Score::Dot((d as f64).powf(-0.5)), &|_, _, i, j| (j <= i).then_some(0.0));
        assert_close("strided", &attend_bshd(&q, &k, &v, &SdpaOptions::new(&mask)).unwrap().output, &want, 2e-6);
    }
}

#[test]
fn nothing_to_attend_to_gives_zeros() {
    let mask = AttentionMask::full();
    let mut options = SdpaOptions::new(&mask);
    options.return_attention_weights = true;
    for (b, s_q, s_kv) in [(2, 3, 0), (2, 0, 3), (0, 3, 3), (0, 0, 0)] {
        let zeros = |s: usize| Tensor::zeros((b, s, 2, 4), DType::F32, &Device::Cpu).unwrap();
        let got = attend_bshd(&zeros(s_q), &zeros(s_kv), &zeros(s_kv), &options).unwrap();
        assert_eq!(got.output.dims(), [b, s_q, 2, 4]);
        assert_eq!(got.attention_weights.unwrap().dims(), [b, 2, s_q, s_kv]);
        assert!(numbers(&got.output).iter().all(|n| *n == 0.0));
    }
}

/// Scores of 0 and ln 3 give attention weights of 1/4 and 3/4.
#[test]
fn two_keys_equal_the_result_worked_out_by_hand() {
    let device = Device::Cpu;
    let q = Tensor::new(&[[[[1f64]]]], &device).unwrap();
    let k = Tensor::new(&[[[[0f64]], [[3f64.ln()]]]], &device).unwrap();
    let v = Tensor::new(&[[[[10f64, 0.0]], [[20.0, 4.0]]]], &device).unwrap();
    let mask = AttentionMask::full();
    let mut options = SdpaOptions::new(&mask);
    options.return_attention_weights = true;
    let got = attend_bshd(&q, &k, &v, &options).unwrap();
    assert_close(
        "weights",
        &got.attention_weights.unwrap(),
        &Tensor::new(&[[[[0.25f64, 0.75]]]], &device).unwrap(),
        1e-15,
    );
    assert_close("output", &got.output, &Tensor::new(&[[[[17.5f64, 3.0]]]], &device).unwrap(), 1e-15);
}

/// A sequence's result is the same alone and in a batch.
#[test]
fn batch_entries_and_heads_are_independent() {
    let mut random = Random::new(5);
    let [q, k, v] = qkv(&mut random, SIZES[0], DType::F32);
    let mask = AttentionMask::causal();
    let whole = attend_bshd(&q, &k, &v, &SdpaOptions::new(&mask)).unwrap().output;
    for row in 0..2 {
        let one = |t: &Tensor| t.narrow(0, row, 1).unwrap();
        let alone = attend_bshd(&one(&q), &one(&k), &one(&v), &SdpaOptions::new(&mask)).unwrap().output;
        assert_close("row", &alone, &one(&whole), 1e-6);
    }
}
