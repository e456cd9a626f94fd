//! What a hidden key holds has no influence, NaN and infinities included, on any backend of the CPU.

use candle_attention::position::{Alibi, Disentangled, Rotary, T5RelativeBias};
use candle_attention::sdpa::{SdpaOptions, attend_bshd};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Backend, KvCache, MultiHeadAttention, Position,
};
use candle_core::{DType, Device, Tensor, Var};

use crate::common::{Random, attend_ragged, max_diff, numbers, random_layer};

const CPU: Device = Device::Cpu;
const B: usize = 2;
const S_Q: usize = 5;
const S_KV: usize = 7;
const H: usize = 4;
const H_KV: usize = 2;
const D: usize = 6;

fn masks() -> Vec<AttentionMask> {
    let random = |dims: &[usize], seed| Random::new(seed).booleans(dims, 0.5);
    let additive = random(&[1, 1, S_Q, S_KV], 3).to_dtype(DType::F32).unwrap().log().unwrap();
    let ids = |s: usize, seed| random(&[B, s], seed);
    vec![
        AttentionMask::lengths(&[3, 6]),
        AttentionMask::query_lengths(&[[1, 2, 3, 4, 5], [0, 7, 6, 1, 2]]),
        AttentionMask::causal(),
        AttentionMask::window(Some(1), Some(1)),
        AttentionMask::keep(&random(&[B, H, S_Q, S_KV], 1)).unwrap(),
        AttentionMask::keep_keys(&random(&[B, S_KV], 2)).unwrap(),
        AttentionMask::additive(&additive).unwrap(),
        AttentionMask::segments(&ids(S_Q, 4), &ids(S_KV, 5)).unwrap(),
        AttentionMask::causal().and(AttentionMask::distances(vec![0.5, 0.25, 0.1, 0.0], false)),
    ]
}

/// NaN and infinities in one element each of the key `j`.
fn spoil(xs: &Tensor, j: usize) -> Tensor {
    let (b, s, h, d) = xs.dims4().unwrap();
    let bad = [f64::NAN, f64::INFINITY, 0.0, f64::NEG_INFINITY];
    let each = (0..b * s * h * d).map(|i| if i / d / h % s == j { bad[i % d % 4] } else { 0.0 });
    let bad = Tensor::from_iter(each, &CPU).unwrap().reshape((b, s, h, d)).unwrap();
    (xs + bad.to_dtype(xs.dtype()).unwrap()).unwrap()
}

#[test]
fn hidden_keys_have_no_influence_on_any_backend() {
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        let mut random = Random::new(60);
        let q = random.tensor(&[B, S_Q, H, D], dtype);
        let [k, v] = [(); 2].map(|()| random.tensor(&[B, S_KV, H_KV, D], dtype));
        let w = random.tensor(&[H, D], dtype);
        for (mask, scored) in masks().into_iter().flat_map(|mask| [(mask.clone(), None), (mask, Some(&w))]) {
            let options = SdpaOptions::new(&mask).with_additive(scored).with_return_attention_weights(true);
            let weights = attend_bshd(&q, &k, &v, &options).unwrap().attention_weights.unwrap();
            let weights = numbers(&weights.transpose(1, 2).unwrap()); // (b, s_q, h, s_kv)
            for backend in [Backend::Eager, Backend::Cpu] {
                if backend == Backend::Cpu && (dtype == DType::F64 || scored.is_some()) {
                    continue;
                }
                let options = SdpaOptions::new(&mask).with_additive(scored).with_backend(backend);
                let run = |k: &Tensor, v: &Tensor| numbers(&attend_bshd(&q, k, v, &options).unwrap().output);
                let clean = run(&k, &v);
                for j in 0..S_KV {
                    let (keys, values) = (run(&spoil(&k, j), &v), run(&k, &spoil(&v, j)));
                    for (at, clean) in clean.iter().enumerate() {
                        let (row, column) = (at / D, at % D);
                        let sees = weights[row * S_KV + j] > 0.0;
                        let what = format!("{dtype:?}, {backend}, {mask}, key {j}, row {row}, column {column}");
                        assert!(if sees { keys[at].is_nan() } else { keys[at] == *clean }, "{what}: {}", keys[at]);
                        let bad = sees && column % 4 != 2;
                        assert!(if bad { !values[at].is_finite() } else { values[at] == *clean }, "{what}: values");
                    }
                }
            }
        }
    }
}

/// A query that sees an infinity gets it, whatever a hidden value holds in the same column.
#[test]
fn hidden_nan_does_not_change_a_visible_infinity() {
    let ones = |s: usize| Tensor::ones((1, s, 1, 2), DType::F32, &CPU).unwrap();
    for infinity in [f32::INFINITY, f32::NEG_INFINITY] {
        for hidden in [0.0, f32::NAN, -infinity] {
            let values = [[infinity, 1.0], [2.0, 3.0], [hidden, hidden]];
            let values = Tensor::new(&values, &CPU).unwrap().reshape((1, 3, 1, 2)).unwrap();
            for backend in [Backend::Eager, Backend::Cpu] {
                let options = SdpaOptions::new(AttentionMask::lengths(&[2])).with_backend(backend);
                let got = numbers(&attend_bshd(&ones(1), &ones(3), &values, &options).unwrap().output);
                assert_eq!(got, [f64::from(infinity), 2.0], "{backend} with {hidden}");
            }
        }
    }
}

/// Gradients of queries, keys and values, under a mask that hides keys from all queries or from some.
#[test]
fn hidden_keys_have_no_influence_on_gradients() {
    let mut random = Random::new(61);
    let variable = |xs: Tensor| Var::from_tensor(&xs).unwrap();
    let q = random.tensor(&[B, S_Q, H, D], DType::F64);
    let [k, v] = [(); 2].map(|()| random.tensor(&[B, S_KV, H_KV, D], DType::F64));
    let weighting = random.tensor(&[B, S_Q, H, D], DType::F64);
    let grads = |q: &Tensor, k: &Tensor, v: &Tensor, mask: &AttentionMask, rows: usize| {
        let [q, k, v] = [q, k, v].map(|t| variable(t.clone()));
        let output = attend_bshd(&q, &k, &v, &SdpaOptions::new(mask)).unwrap().output;
        let part = |t: &Tensor| t.narrow(1, 0, rows).unwrap();
        let loss = (part(&output) * part(&weighting)).unwrap().sum_all().unwrap();
        let grads = loss.backward().unwrap();
        [&q, &k, &v].map(|t| grads.get(t).unwrap().clone())
    };
    let hidden = AttentionMask::lengths(&[6, 6]);
    let want = grads(&q, &k, &v, &hidden, S_Q);
    let got = grads(&q, &spoil(&k, 6), &spoil(&v, 6), &hidden, S_Q);
    for (got, want) in got.iter().zip(&want) {
        assert_eq!(max_diff(got, want), 0.0);
    }
    // The last value is seen by the last query only, which takes no part in the loss.
    let causal = AttentionMask::causal();
    let want = grads(&q, &k, &v, &causal, S_Q - 1);
    let got = grads(&q, &k, &spoil(&v, 6), &causal, S_Q - 1);
    assert_eq!(max_diff(&got[1], &want[1]), 0.0);
    assert_eq!(max_diff(&got[2], &want[2]), 0.0);
}

/// Padding that was never initialized: the layer gives the same for the real tokens, with fixed weights, with
/// variables, ragged and with a cache.
#[test]
fn padding_of_nan_does_not_change_what_a_layer_gives() {
    for position in [Position::None, Position::Disentangled(Disentangled::new(2))] {
        check_padding_of_nan(&AttentionConfig::new(12, 3).with_position(position).with_dropout(0.0));
    }
}

fn check_padding_of_nan(config: &AttentionConfig) {
    let fixed = random_layer(config, 0.5, &mut Random::new(62));
    let learning = {
        let map = candle_nn::VarMap::new();
        let vb = candle_nn::VarBuilder::from_varmap(&map, DType::F32, &CPU);
        MultiHeadAttention::new(config, vb).unwrap()
    };
    let xs = Random::new(63).tensor(&[1, 4, 12], DType::F32);
    let nan = Tensor::full(f32::NAN, (1, 1, 12), &CPU).unwrap();
    let real = xs.narrow(1, 0, 3).unwrap();
    let padded = Tensor::cat(&[&real, &nan], 1).unwrap();
    for layer in [&fixed, &learning] {
        for backend in [None, Some(Backend::Eager)] {
            let options = AttentionOptions::default().with_backend(backend);
            for mask in [AttentionMask::lengths(&[3]), AttentionMask::padding(&[3]), AttentionMask::causal()] {
                let run = |xs: &Tensor| {
                    let inputs = AttentionInputs::self_attention(xs, &mask);
                    layer.attend_with(&inputs, &options).unwrap().output.narrow(1, 0, 3).unwrap()
                };
                assert_eq!(max_diff(&run(&padded), &run(&xs)), 0.0, "{backend:?} under {mask}");
            }
        }
    }
}

/// The elements in bits; NaN is one number, whatever its sign and payload.
fn bits(xs: &Tensor) -> Vec<u32> {
    let xs: Vec<f32> = xs.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap();
    xs.into_iter().map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).collect()
}

/// A random layer whose weights are not variables, in any dtype.
fn layer_in(config: &AttentionConfig, dtype: DType) -> MultiHeadAttention {
    let map = candle_nn::VarMap::new();
    MultiHeadAttention::new(config, candle_nn::VarBuilder::from_varmap(&map, DType::F32, &CPU)).unwrap();
    let data = map.data().lock().unwrap();
    let tensors: std::collections::HashMap<String, Tensor> =
        data.iter().map(|(name, var)| (name.clone(), var.as_detached_tensor().to_dtype(dtype).unwrap())).collect();
    MultiHeadAttention::load(config, candle_nn::VarBuilder::from_tensors(tensors, dtype, &CPU)).unwrap()
}

/// A token of NaN and infinities in a causal layer: the tokens before it give the same bits as without it, on any
/// number of threads, alone, in a batch, as a ragged batch, and in chunks of a cache. A cache holds keys in the dtype
/// of the layer, and a call without one in f32, so that half types give other bits with a cache, the same in all
/// chunks.
#[test]
fn tokens_before_a_token_of_nan_give_the_same_bits_however_they_run() {
    let t5 = Position::T5RelativeBias(T5RelativeBias::new(8, 12, false));
    let positions = [Position::None, Position::Rotary(Rotary::default()), Position::Alibi(Alibi::default()), t5];
    for (position, heads) in positions.into_iter().flat_map(|position| [(position.clone(), 1), (position, 4)]) {
        let config = AttentionConfig::new(16, heads).with_position(position).with_dropout(0.0);
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let layer = layer_in(&config, dtype);
            let clean = Random::new(71).tensor(&[1, 150, 16], dtype);
            let bad = [f32::NAN, f32::INFINITY, 1.0, f32::NEG_INFINITY].repeat(4);
            let bad = Tensor::from_vec(bad, (1, 1, 16), &CPU).unwrap().to_dtype(dtype).unwrap();
            let parts = [&clean.narrow(1, 0, 140).unwrap(), &bad, &clean.narrow(1, 141, 9).unwrap()];
            let spoiled = Tensor::cat(&parts, 1).unwrap();
            let mask = AttentionMask::causal();
            let run = |xs: &Tensor| {
                let inputs = AttentionInputs::self_attention(xs, &mask);
                layer.attend_with(&inputs, &AttentionOptions::default()).unwrap().output
            };
            let before = |xs: &Tensor| bits(&xs.narrow(1, 0, 140).unwrap());
            let cached = |xs: &Tensor, chunk: usize| {
                let mut cache = KvCache::growing();
                let mut outputs = Vec::new();
                for start in (0..150).step_by(chunk) {
                    let xs = xs.narrow(1, start, chunk.min(150 - start)).unwrap();
                    let inputs = AttentionInputs::self_attention(&xs, &mask);
                    let output = layer.attend_with(&inputs.with_cache(&mut cache), &AttentionOptions::default());
                    outputs.push(output.unwrap().output);
                }
                Tensor::cat(&outputs, 1).unwrap()
            };
            let want = before(&run(&clean));
            let whole = bits(&run(&spoiled));
            let in_one_chunk = bits(&cached(&spoiled, 150));
            let what = format!("{heads} heads, {dtype:?}, {}", config.position);
            assert_eq!(before(&cached(&spoiled, 150)), before(&cached(&clean, 150)), "{what}, with a cache");
            if dtype == DType::F32 {
                assert_eq!(in_one_chunk, whole, "{what}, with a cache");
            }
            for threads in [1, 2, 3, 16] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| {
                    assert_eq!(bits(&run(&spoiled)), whole, "{what}, {threads} threads");
                    assert_eq!(before(&run(&spoiled)), want, "{what}, {threads} threads");
                    let batch = run(&Tensor::cat(&[&clean, &spoiled], 0).unwrap());
                    assert_eq!(bits(&batch.get(1).unwrap()), whole, "{what}, in a batch on {threads} threads");
                    let rows =
                        Tensor::cat(&[&spoiled, &clean.narrow(1, 0, 7).unwrap()], 1).unwrap().squeeze(0).unwrap();
                    let ragged = attend_ragged(&layer, &rows, &[150, 7], &mask).unwrap();
                    assert_eq!(bits(&ragged.narrow(0, 0, 150).unwrap()), whole, "{what}, ragged on {threads} threads");
                    for chunk in [50, 139, 149] {
                        let chunks = bits(&cached(&spoiled, chunk));
                        assert_eq!(chunks, in_one_chunk, "{what}, in chunks of {chunk} on {threads} threads");
                    }
                });
            }
        }
    }
}
