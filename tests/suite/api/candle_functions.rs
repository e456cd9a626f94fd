//! `sdpa` and `flash_attn` with candle's arguments: against candle's operations, with gradients, and wrong arguments.

use candle_attention::AttentionMask;
use candle_attention::sdpa::{flash_attn, flash_attn_varlen, flash_attn_varlen_windowed, flash_attn_windowed, sdpa};
use candle_core::{D, DType, Device, Tensor, Var};
use candle_nn::ops::softmax;

use crate::common::{Random, assert_close, max_diff, says};

const CPU: Device = Device::Cpu;
const SCALE: f32 = 0.3;

/// `softmax(cap(q kᵀ · scale) + mask) v` by candle's operations, heads before tokens, as candle-transformers writes it.
fn by_operations(q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>, cap: f64) -> Tensor {
    let groups = q.dim(1).unwrap() / k.dim(1).unwrap();
    let repeat = |t: &Tensor| {
        let (b, h_kv, s, d) = t.dims4().unwrap();
        t.unsqueeze(2).unwrap().expand((b, h_kv, groups, s, d)).unwrap().reshape((b, h_kv * groups, s, d)).unwrap()
    };
    let (k, v) = (repeat(k), repeat(v));
    let scores = q.contiguous().unwrap().matmul(&k.t().unwrap().contiguous().unwrap()).unwrap();
    let scores = (scores * f64::from(SCALE)).unwrap();
    let scores = if cap == 1.0 { scores } else { ((scores / cap).unwrap().tanh().unwrap() * cap).unwrap() };
    let scores = mask.map_or(scores.clone(), |mask| scores.broadcast_add(mask).unwrap());
    softmax(&scores, D::Minus1).unwrap().matmul(&v.contiguous().unwrap()).unwrap()
}

/// A mask `(s_q, s_kv)` to add, in which the last query stands at the last key.
fn window(s_q: usize, s_kv: usize, left: usize, right: usize) -> Tensor {
    let sees = |i: usize, j: usize| j + left >= i + s_kv - s_q && j <= i + s_kv - s_q + right;
    let element = |place: usize| if sees(place / s_kv, place % s_kv) { 0f32 } else { f32::NEG_INFINITY };
    Tensor::from_iter((0..s_q * s_kv).map(element), &CPU).unwrap().reshape((1, 1, s_q, s_kv)).unwrap()
}

#[test]
fn sdpa_is_that_of_candle() {
    let mut random = Random::new(670);
    for (h_kv, s_q, s_kv) in [(4, 5, 5), (2, 3, 9), (1, 1, 7)] {
        let q = random.tensor(&[2, 4, s_q, 8], DType::F32);
        let [k, v] = [8, 6].map(|d| random.tensor(&[2, h_kv, s_kv, d], DType::F32));
        let (causal, bias) = (window(s_q, s_kv, s_kv, 0), random.tensor(&[2, 1, s_q, s_kv], DType::F32));
        for cap in [1.0, 2.0] {
            let compare = |what: &str, got: candle_attention::Result<Tensor>, mask: Option<&Tensor>| {
                let want = by_operations(&q, &k, &v, mask, cap);
                assert_close(&format!("{what}, {h_kv} heads, cap {cap}"), &got.unwrap(), &want, 1e-6);
            };
            let cap = cap as f32;
            compare("full", sdpa(&q, &k, &v, None, false, SCALE, cap), None);
            compare("causal", sdpa(&q, &k, &v, None, true, SCALE, cap), Some(&causal));
            compare("a bias", sdpa(&q, &k, &v, Some(&bias), false, SCALE, cap), Some(&bias));
            let both = bias.broadcast_add(&causal).unwrap();
            compare("both", sdpa(&q, &k, &v, Some(&bias), true, SCALE, cap), Some(&both));
            let mine = AttentionMask::additive(&bias).unwrap();
            compare("a mask of this crate", sdpa(&q, &k, &v, &mine, true, SCALE, cap), Some(&both));
            compare("the same by value", sdpa(&q, &k, &v, mine, true, SCALE, cap), Some(&both));
            let keep = causal.eq(0f32).unwrap();
            compare("booleans", sdpa(&q, &k, &v, Some(&keep), false, SCALE, cap), Some(&causal));
        }
    }
}

#[test]
fn gradients_flow_through_sdpa() {
    let mut random = Random::new(671);
    let mut var = |dims: &[usize]| Var::from_tensor(&random.tensor(dims, DType::F32)).unwrap();
    let [q, k, v] = [var(&[2, 4, 3, 8]), var(&[2, 2, 5, 8]), var(&[2, 2, 5, 8])];
    let got = sdpa(&q, &k, &v, None, true, SCALE, 1.0).unwrap().sqr().unwrap().sum_all().unwrap().backward().unwrap();
    let want = by_operations(&q, &k, &v, Some(&window(3, 5, 5, 0)), 1.0);
    let want = want.sqr().unwrap().sum_all().unwrap().backward().unwrap();
    for (name, var) in [("q", &q), ("k", &k), ("v", &v)] {
        assert_close(name, got.get(var).unwrap(), want.get(var).unwrap(), 1e-5);
    }
}

#[test]
fn flash_attn_is_that_of_candle() {
    let mut random = Random::new(672);
    for dtype in [DType::F32, DType::F16] {
        let q = random.tensor(&[2, 4, 4, 8], dtype);
        let [k, v] = [1, 2].map(|_| random.tensor(&[2, 7, 2, 8], dtype));
        let heads_first = |t: &Tensor| t.transpose(1, 2).unwrap().to_dtype(DType::F32).unwrap();
        let want = |left, right| {
            let mask = window(4, 7, left, right);
            by_operations(&heads_first(&q), &heads_first(&k), &heads_first(&v), Some(&mask), 1.0)
        };
        let tolerance = if dtype == DType::F32 { 1e-6 } else { 1e-3 };
        let compare = |what: &str, got: candle_attention::Result<Tensor>, want: &Tensor| {
            let got = got.unwrap();
            assert_eq!(got.dtype(), dtype);
            assert_close(what, &heads_first(&got), want, tolerance);
        };
        compare("full", flash_attn(&q, &k, &v, SCALE, false), &want(7, 7));
        compare("causal", flash_attn(&q, &k, &v, SCALE, true), &want(7, 0));
        compare("a window", flash_attn_windowed(&q, &k, &v, SCALE, Some(2), Some(1)), &want(2, 1));
    }
}

/// Sequences one after another are those of a batch of one each.
#[test]
fn sequences_of_any_lengths_stay_apart() {
    let mut random = Random::new(673);
    let starts = |lengths: &[u32]| {
        let ends = lengths.iter().scan(0, |end, length| {
            *end += length;
            Some(*end)
        });
        Tensor::from_iter(std::iter::once(0).chain(ends), &CPU).unwrap()
    };
    for (queries, keys) in [([3, 1, 6], [3, 1, 6]), ([1, 1, 1], [5, 2, 4]), ([2, 0, 3], [2, 4, 5])] {
        let tokens = |lengths: &[u32; 3]| lengths.iter().sum::<u32>() as usize;
        let q = random.tensor(&[tokens(&queries), 4, 8], DType::F32);
        let [k, v] = [1, 2].map(|_| random.tensor(&[tokens(&keys), 2, 8], DType::F32));
        let (seqlens_q, seqlens_k) = (starts(&queries), starts(&keys));
        let max = |lengths: &[u32; 3]| *lengths.iter().max().unwrap() as usize;
        let (max_q, max_k) = (max(&queries), max(&keys));
        let causal = flash_attn_varlen(&q, &k, &v, &seqlens_q, &seqlens_k, max_q, max_k, SCALE, true).unwrap();
        let windowed =
            flash_attn_varlen_windowed(&q, &k, &v, &seqlens_q, &seqlens_k, max_q, max_k, SCALE, Some(1), Some(0));
        let windowed = windowed.unwrap();
        assert_eq!(causal.dims(), q.dims());
        let (mut query, mut key) = (0, 0);
        for (s_q, s_kv) in queries.map(|s| s as usize).into_iter().zip(keys.map(|s| s as usize)) {
            let part = |t: &Tensor, start, s| t.narrow(0, start, s).unwrap().unsqueeze(0).unwrap();
            let [q, k, v] = [part(&q, query, s_q), part(&k, key, s_kv), part(&v, key, s_kv)];
            for (what, all, left) in [("causal", &causal, None), ("a window", &windowed, Some(1))] {
                let want = flash_attn_windowed(&q, &k, &v, SCALE, left, Some(0)).unwrap();
                if s_q > 0 {
                    assert_close(what, &part(all, query, s_q), &want, 1e-6);
                }
            }
            (query, key) = (query + s_q, key + s_kv);
        }
    }
}

#[test]
fn wrong_arguments_of_candles_functions_are_errors() {
    let mut random = Random::new(674);
    let x = random.tensor(&[1, 2, 3, 8], DType::F32);
    let three = x.squeeze(0).unwrap();
    says(sdpa(&three, &x, &x, None, false, SCALE, 1.0), &["q", "[2, 3, 8]", "(b, heads, s, d)"]);
    let pattern = Tensor::zeros((3, 3), DType::F32, &CPU).unwrap();
    says(sdpa(&x, &x, &x, Some(&pattern), false, SCALE, 1.0), &["[3, 3]"]);
    says(sdpa(&x, &x, &x, None, false, f32::NAN, 1.0), &["scale", "NaN"]);
    says(sdpa(&x, &x, &x, None, false, SCALE, 0.0), &["softcap", "0"]);
    let lengths = |lengths: &[i64]| Tensor::new(lengths, &CPU).unwrap();
    let call = |q: &Tensor, seqlens_q: &Tensor, seqlens_k: &Tensor| {
        flash_attn_varlen(q, &three, &three, seqlens_q, seqlens_k, 2, 2, SCALE, true)
    };
    let right = lengths(&[0, 2]);
    assert_eq!(max_diff(&call(&three, &right, &right).unwrap(), &call(&three, &right, &right).unwrap()), 0.0);
    says(call(&x, &right, &right), &["q", "(tokens, heads, d)"]);
    for wrong in [&[0, 3][..], &[1, 2], &[0, 3, 2], &[0, -1, 2], &[]] {
        says(call(&three, &right, &lengths(wrong)), &["seqlens_k", "rise from 0 to 2"]);
    }
    says(call(&three, &right, &lengths(&[0, 1, 2])), &["the number of elements of seqlens_k", "3", "2"]);
    says(call(&three, &Tensor::new(&[0f32, 2.], &CPU).unwrap(), &right), &["seqlens_q"]);
    assert_eq!(three.dim(D::Minus1).unwrap(), 8);
}
