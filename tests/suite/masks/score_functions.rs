//! Functions of scores: against PyTorch's flex_attention, against biases and softcaps that say the same, with caches and
//! gradients, and functions that panic.

use candle_attention::sdpa::{Backend, SdpaOptions, attend_bshd, plan_for};
use candle_attention::{AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, KvCache, ObserveOptions};
use candle_core::{DType, Device, Tensor, Var};

use crate::common::{Golden, Random, assert_close, attend_ragged, max_diff, random_layer, says};

const CPU: Device = Device::Cpu;

/// The functions of the golden script, by name.
fn functions() -> [(&'static str, AttentionMask); 2] {
    let capped = AttentionMask::from_score_fn_with_derivative(
        |score, _, h, q, k| 2.0 * (score / 2.0).tanh() - 0.05 * (h + 1) as f32 * q.abs_diff(k) as f32,
        |score, _, _, _, _| 1.0 - (score / 2.0).tanh().powi(2),
    );
    let factor = |h: usize| if h == 1 { 1.5 } else { 1.0 };
    let thinned = AttentionMask::from_score_fn_with_derivative(
        move |score, b, h, q, k| if (q + k) % 3 == b { f32::NEG_INFINITY } else { factor(h) * score },
        move |_, b, h, q, k| if (q + k) % 3 == b { f32::NAN } else { factor(h) },
    );
    [("capped", capped), ("thinned", thinned)]
}

#[test]
fn scores_and_gradients_of_flex_attention() {
    let golden = Golden::open("score_functions.safetensors");
    let names = ["query", "key", "value"];
    let qkv = names.map(|name| Var::from_tensor(&golden.get(name).transpose(1, 2).unwrap().contiguous().unwrap()));
    let [q, k, v] = qkv.map(|var| var.unwrap());
    for (name, mask) in functions() {
        let want = golden.get(name).transpose(1, 2).unwrap();
        for backend in [Backend::Cpu, Backend::Eager] {
            let options = SdpaOptions::new(&mask).with_backend(backend);
            let [fixed_q, fixed_k, fixed_v] = [&q, &k, &v].map(|var| var.as_detached_tensor());
            assert_close(name, &attend_bshd(&fixed_q, &fixed_k, &fixed_v, &options).unwrap().output, &want, 1e-5);
            let output = attend_bshd(&q, &k, &v, &options).unwrap().output;
            assert_close(name, &output, &want, 1e-5);
            // The golden weights are in the order (b, h, s, d).
            let output = output.transpose(1, 2).unwrap().contiguous().unwrap();
            let factors = (0..output.elem_count()).map(|i| (0.1 * i as f32).cos()).collect::<Vec<_>>();
            let factors = Tensor::from_vec(factors, output.shape(), &CPU).unwrap();
            let gradients = (output * factors).unwrap().sum_all().unwrap().backward().unwrap();
            for (var, of) in [&q, &k, &v].into_iter().zip(names) {
                let want = golden.get(&format!("{name}.{of}")).transpose(1, 2).unwrap();
                assert_close(&format!("{name}.{of}, {backend}"), gradients.get(var).unwrap(), &want, 2e-5);
            }
        }
    }
}

/// A softcap, slopes of distances and a tensor of hidden keys, each written as a function: other numbers of queries than
/// of keys, extra keys, sinks, grouped heads, all dtypes, hidden NaN.
#[test]
fn functions_equal_what_says_the_same() {
    let mut random = Random::new(21);
    for (b, h, h_kv, s_q, s_kv) in [(2, 4, 2, 37, 500), (1, 2, 2, 70, 70), (3, 2, 1, 1, 900), (2, 2, 2, 90, 11)] {
        let cap = AttentionMask::from_score_fn(|score, _, _, _, _| 3.0 * (score / 3.0).tanh());
        let start = s_kv as i64 - s_q as i64;
        let slopes = AttentionMask::from_score_fn(move |score, _, h, q, k| {
            score - 0.25 * (h + 1) as f32 * (q as i64 + start - k as i64).abs() as f32
        });
        let distances = AttentionMask::distances((0..h).map(|h| 0.25 * (h + 1) as f64).collect(), true);
        let hides =
            AttentionMask::from_score_fn(|score, b, _, _, k| if k % 3 == b { f32::NEG_INFINITY } else { score });
        let keep = Tensor::from_iter((0..b * s_kv).map(|n| u8::from(n % s_kv % 3 != n / s_kv)), &CPU).unwrap();
        let keep = AttentionMask::keep_keys(&keep.reshape((b, s_kv)).unwrap()).unwrap();
        let lengths = AttentionMask::lengths(&vec![s_kv - 1; b]);
        for dtype in [DType::F32, DType::BF16, DType::F16, DType::F64] {
            let mut tokens = |s: usize, h: usize| random.tensor(&[b, s, h, 16], dtype);
            let (q, k, v) = (tokens(s_q, h), tokens(s_kv + 1, h_kv), tokens(s_kv + 1, h_kv));
            let sinks = random.tensor(&[h], dtype);
            let attend = |mask: AttentionMask| {
                let options = SdpaOptions::new(&mask).with_sinks(Some(&sinks)).with_appended_keys(1);
                attend_bshd(&q, &k, &v, &options).unwrap().output
            };
            let tolerance = if dtype == DType::BF16 { 2e-2 } else { 2e-3 };
            let tolerance = if matches!(dtype, DType::F32 | DType::F64) { 1e-5 } else { tolerance };
            let what = format!("{dtype:?}, {s_q} queries, {s_kv} keys");
            let under = |mask: &AttentionMask| mask.clone().and(lengths.clone()).and(AttentionMask::causal());
            assert_close(&what, &attend(under(&slopes)), &attend(under(&distances)), tolerance);
            assert_close(&what, &attend(under(&hides)), &attend(under(&keep)), tolerance);
            // The cap of the call comes first, then the functions, then what is added.
            if dtype == DType::F32 {
                let without_extra = |mask: AttentionMask, cap: Option<f64>| {
                    let options = SdpaOptions::new(&mask).with_softcap(cap);
                    let cut = |t: &Tensor| t.narrow(1, 0, s_kv).unwrap();
                    attend_bshd(&q, &cut(&k), &cut(&v), &options).unwrap().output
                };
                let got = without_extra(under(&cap).and(distances.clone()), None);
                assert_close(&what, &got, &without_extra(under(&distances), Some(3.0)), 1e-5);
                let got = without_extra(slopes.clone().and(cap.clone()), Some(2.0));
                let all = AttentionMask::from_score_fn(move |score, _, h, q, k| {
                    let score = score - 0.25 * (h + 1) as f32 * (q as i64 + start - k as i64).abs() as f32;
                    3.0 * (score / 3.0).tanh()
                });
                assert_close(&what, &got, &without_extra(all, Some(2.0)), 1e-5);
            }
        }
    }
    // What a hidden key holds has no influence, whoever hides it.
    let xs = random.tensor(&[1, 5, 2, 8], DType::F32);
    let spoiled = Tensor::cat(&[&xs.narrow(1, 0, 4).unwrap(), &(xs.narrow(1, 4, 1).unwrap() * f64::NAN).unwrap()], 1);
    let spoiled = spoiled.unwrap();
    let mask = AttentionMask::from_score_fn(|score, _, _, _, k| if k == 4 { f32::NEG_INFINITY } else { score });
    for backend in [Backend::Cpu, Backend::Eager] {
        let attend = |kv: &Tensor| {
            let options = SdpaOptions::new(&mask).with_backend(backend);
            attend_bshd(&xs, kv, kv, &options).unwrap().output
        };
        assert_eq!(max_diff(&attend(&spoiled), &attend(&xs)), 0.0, "{backend}");
    }
}

/// Queries go on after a cache, statistics are those of the function, and what counts tokens is refused where a cache
/// drops them.
#[test]
fn layers_call_functions_of_scores() {
    let decay = AttentionMask::from_score_fn(|score, b, h, q, k| {
        if k > q { f32::NEG_INFINITY } else { score * (1.0 + h as f32) - 0.1 * (q - k + b) as f32 * (k % 3) as f32 }
    });
    let mut random = Random::new(23);
    let layer = random_layer(&AttentionConfig::new(24, 3), 0.3, &mut random);
    let xs = random.tensor(&[2, 17, 24], DType::F32);
    let options = AttentionOptions::default();
    let whole = layer.attend(&xs, &xs, &xs, &decay).unwrap();
    for make in [KvCache::growing, || KvCache::fixed(64)] {
        let (mut cache, mut outputs, mut start) = (make(), Vec::new(), 0);
        for length in [1, 2, 14] {
            let chunk = xs.narrow(1, start, length).unwrap();
            let inputs = AttentionInputs::self_attention(&chunk, &decay).with_cache(&mut cache);
            outputs.push(layer.attend_with(&inputs, &options).unwrap().output);
            start += length;
        }
        assert_close("chunks", &Tensor::cat(&outputs, 1).unwrap(), &whole, 1e-6);
    }
    let weights = |options: &AttentionOptions| {
        let inputs = AttentionInputs::self_attention(&xs, &decay);
        layer.attend_with(&inputs, options).unwrap().attention_weights.unwrap()
    };
    let want = weights(&options.with_return_attention_weights(true));
    let what =
        ObserveOptions::default().with_attention_weights(true).with_heads(&[2, 1]).with_queries(&[5, 6, 7, 8, 9, 10]);
    let observed = layer.observe(&AttentionInputs::self_attention(&xs, &decay), &options, &what).unwrap();
    let heads = Tensor::new(&[2u32, 1], &CPU).unwrap();
    let want = want.index_select(&heads, 1).unwrap().narrow(2, 5, 6).unwrap();
    assert_close("observed", &observed.attention_weights.unwrap(), &want, 1e-6);

    says(attend_ragged(&layer, &xs.get(0).unwrap(), &[17], &decay).map(|_| ()), &["function"]);
    for mut cache in [KvCache::streaming(3), KvCache::rotating(3)] {
        let inputs = AttentionInputs::self_attention(&xs, &decay).with_cache(&mut cache);
        says(layer.attend_with(&inputs, &options).map(|_| ()), &["drops tokens", "functions"]);
    }
    says(AttentionMask::causal().or(decay.clone()).map(|_| ()), &["under `or`", "a function of (score, b, h, q, k)"]);
}

#[test]
fn gradients_need_a_derivative_and_panics_are_errors() {
    let xs = Random::new(24).tensor(&[1, 4, 2, 8], DType::F32);
    let tracked = Var::from_tensor(&xs).unwrap();
    let mask = AttentionMask::from_score_fn(|score, _, _, _, _| score);
    for backend in [None, Some(Backend::Eager)] {
        let options = SdpaOptions::new(&mask).with_backend(backend);
        let message = ["the gradient of a call under a function of scores", "from_score_fn_with_derivative"];
        says(attend_bshd(&tracked, &xs, &xs, &options).map(|_| ()), &message);
        let numbers = [0.0; 2];
        let panics = AttentionMask::from_score_fn(move |score, _, _, q, _| score + numbers[q]);
        let options = SdpaOptions::new(&panics).with_backend(backend);
        let message = ["the function of a score", "a panic: index out of bounds"];
        says(attend_bshd(&xs, &xs, &xs, &options).map(|_| ()), &message);
    }
    let plan = plan_for(&xs, &xs, &xs, &SdpaOptions::new(&mask)).unwrap();
    assert_eq!(plan.backend, Backend::Cpu);
    let empty = Tensor::zeros((1, 0, 2, 8), DType::F32, &CPU).unwrap();
    assert_eq!(attend_bshd(&empty, &xs, &xs, &SdpaOptions::new(&mask)).unwrap().output.dims(), [1, 0, 2, 8]);
    assert_eq!(attend_bshd(&xs, &empty, &empty, &SdpaOptions::new(&mask)).unwrap().output.dims(), [1, 4, 2, 8]);
}
