//! Masks that are functions: against PyTorch's flex_attention, against the same mask as a tensor, with caches and
//! gradients, and functions that panic.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use candle_attention::sdpa::{Backend, SdpaOptions, attend_bshd};
use candle_attention::weights::QkvWeights;
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, KeyValueSource, KvCache, MultiHeadAttention,
    ObserveOptions,
};
use candle_core::{DType, Device, Tensor, Var};

use crate::common::{Golden, Random, assert_close, attend_ragged, max_diff, random_layer, says};

const CPU: Device = Device::Cpu;
/// The tokens before the tree of drafts.
const PREFIX: usize = 200;

fn is_ancestor(mut token: usize, ancestor: usize) -> bool {
    while token > ancestor {
        token = (token - 1) / 2;
    }
    token == ancestor
}

/// The masks of the golden script, by name.
fn masks() -> [(&'static str, AttentionMask); 5] {
    let document = |token: usize| [150, 151, 320].iter().filter(|begin| token >= **begin).count();
    [
        (
            "document",
            AttentionMask::causal().and(AttentionMask::from_pattern_fn(move |q, k| document(q) == document(k))),
        ),
        ("dilated", AttentionMask::from_pattern_fn(|q, k| k <= q && q - k < 200 && (q - k).is_multiple_of(4))),
        (
            "tree",
            AttentionMask::from_pattern_fn(|q, k| match (q < PREFIX, k < PREFIX) {
                (true, _) => k <= q,
                (false, true) => true,
                (false, false) => is_ancestor(q - PREFIX, k - PREFIX),
            }),
        ),
        ("prefix_holes", AttentionMask::from_pattern_fn(|q, k| if k < 260 { k % 7 != 3 } else { k <= q })),
        ("strided", AttentionMask::from_fn(|b, h, q, k| k <= q && (q - k < 16 || k % 32 == b + h))),
    ]
}

#[test]
fn masks_of_flex_attention() {
    let golden = Golden::open("mask_functions.safetensors");
    let [q, k, v] = ["query", "key", "value"].map(|name| golden.get(name).transpose(1, 2).unwrap());
    for (name, mask) in masks() {
        let want = golden.get(name).transpose(1, 2).unwrap();
        for backend in [None, Some(Backend::Eager)] {
            let options = SdpaOptions::new(&mask).with_backend(backend);
            assert_close(name, &attend_bshd(&q, &k, &v, &options).unwrap().output, &want, 1e-5);
        }
        // Kept blocks, another size of calls, and kept blocks again.
        let options = SdpaOptions::new(&mask);
        let first = |t: &Tensor| t.narrow(1, 0, 300).unwrap();
        let shorter = attend_bshd(&first(&q), &first(&k), &first(&v), &options).unwrap().output;
        if name != "prefix_holes" {
            assert_close(name, &shorter, &first(&want), 1e-5);
        }
        assert_close(name, &attend_bshd(&q, &k, &v, &options).unwrap().output, &want, 1e-5);
    }
}

/// The mask as a tensor of booleans.
fn dense([b, h, s_q, s_kv]: [usize; 4], sees: impl Fn(usize, usize, usize, usize) -> bool) -> AttentionMask {
    let index = (0..b * h * s_q * s_kv).map(|n| [n / (h * s_q * s_kv), n / (s_q * s_kv) % h, n / s_kv % s_q, n % s_kv]);
    let keep = Tensor::from_iter(index.map(|[b, h, q, k]| u8::from(sees(b, h, q, k))), &CPU).unwrap();
    AttentionMask::keep(&keep.reshape((b, h, s_q, s_kv)).unwrap()).unwrap()
}

/// Other numbers of queries than of keys, extra keys, sinks, grouped heads, all dtypes, hidden NaN, `or`, gradients.
#[test]
fn functions_equal_their_tensors() {
    let mut random = Random::new(11);
    let sees = |b: usize, h: usize, q: usize, k: usize| {
        !(q * 7 + k * 3 + b + h).is_multiple_of(5) && (k / 200 + q / 9) % 3 != 1
    };
    for (b, h, h_kv, s_q, s_kv) in [(2, 4, 2, 37, 500), (1, 2, 2, 70, 70), (3, 2, 1, 1, 900), (2, 2, 2, 90, 11)] {
        let function = AttentionMask::from_fn(sees);
        let tensor = dense([b, h, s_q, s_kv], sees);
        for dtype in [DType::F32, DType::BF16, DType::F16, DType::F64] {
            let mut tokens = |s: usize, h: usize| random.tensor(&[b, s, h, 16], dtype);
            let (q, k, v) = (tokens(s_q, h), tokens(s_kv + 1, h_kv), tokens(s_kv + 1, h_kv));
            let sinks = random.tensor(&[h], dtype);
            for (function, tensor) in [
                (function.clone(), tensor.clone()),
                (AttentionMask::causal().and(function.clone()), AttentionMask::causal().and(tensor.clone())),
                (
                    AttentionMask::causal().or(function.clone()).unwrap(),
                    AttentionMask::causal().or(tensor.clone()).unwrap(),
                ),
            ] {
                let attend = |mask: &AttentionMask| {
                    let options = SdpaOptions::new(mask).with_appended_keys(1).with_sinks(Some(&sinks));
                    attend_bshd(&q, &k, &v, &options).unwrap().output
                };
                let (got, want) = (attend(&function), attend(&tensor));
                let what = format!("{function}, {dtype:?}, {s_q} queries, {s_kv} keys");
                assert_eq!(max_diff(&got, &want), 0.0, "{what}");
            }
        }
        let [q, k, v] = [(s_q, h), (s_kv, h_kv), (s_kv, h_kv)]
            .map(|(s, h)| Var::from_tensor(&random.tensor(&[b, s, h, 16], DType::F32)).unwrap());
        let gradients = |mask: &AttentionMask| {
            let output = attend_bshd(&q, &k, &v, &SdpaOptions::new(mask)).unwrap().output;
            let gradients = output.sqr().unwrap().sum_all().unwrap().backward().unwrap();
            [&q, &k, &v].map(|var| gradients.get(var).unwrap().clone())
        };
        for (got, want) in gradients(&function).iter().zip(&gradients(&tensor)) {
            assert_eq!(max_diff(got, want), 0.0, "gradients of {s_q} queries, {s_kv} keys");
        }
    }
}

/// In chunks with a cache, and observed, a layer computes what one run computes.
#[test]
fn queries_go_on_after_a_cache() {
    let mask = AttentionMask::from_fn(|b, h, q, k| k <= q && ((q - k) % (2 + h) == 0 || k == b));
    let mut random = Random::new(3);
    let layer = random_layer(&AttentionConfig::new(24, 3), 0.3, &mut random);
    let xs = random.tensor(&[2, 17, 24], DType::F32);
    let options = AttentionOptions::default();
    let whole = layer.attend_with(&AttentionInputs::self_attention(&xs, &mask), &options).unwrap().output;
    for make in [KvCache::growing, || KvCache::fixed(64)] {
        let (mut cache, mut outputs, mut start) = (make(), Vec::new(), 0);
        let s = xs.dim(1).unwrap();
        for length in [1, 2, s - 3] {
            let chunk = xs.narrow(1, start, length).unwrap();
            let inputs = AttentionInputs::self_attention(&chunk, &mask).with_cache(&mut cache);
            outputs.push(layer.attend_with(&inputs, &options).unwrap().output);
            start += length;
        }
        assert_close("chunks", &Tensor::cat(&outputs, 1).unwrap(), &whole, 1e-6);
    }
    let what = ObserveOptions::default().with_entropy(true);
    let observed = layer.observe(&AttentionInputs::self_attention(&xs, &mask), &options, &what).unwrap();
    assert_close("observed", &observed.output, &whole, 1e-6);
    let lengths = [xs.dim(1).unwrap()];
    let ragged = attend_ragged(&layer, &xs.get(0).unwrap(), &lengths, &mask);
    says(ragged.map(|_| ()), &["function"]);
}

/// Each sequence of a batch continues at its own end, also under one pattern for all.
#[test]
fn sequences_of_a_cache_count_from_their_own_ends() {
    let mut random = Random::new(8);
    let layer = random_layer(&AttentionConfig::new(24, 3), 0.3, &mut random);
    let xs = random.tensor(&[2, 9, 24], DType::F32);
    let mask = AttentionMask::from_pattern_fn(|q, k| k <= q && (q % 3 == 0 || (q + k) % 2 == 0));
    let options = AttentionOptions::default();
    let whole = layer.attend_with(&AttentionInputs::self_attention(&xs, &mask), &options).unwrap().output;
    let mut cache = KvCache::growing();
    let prompts = xs.narrow(1, 0, 5).unwrap();
    let inputs = AttentionInputs::self_attention(&prompts, &mask).with_cache_lengths(&mut cache, &[5, 2]);
    layer.attend_with(&inputs, &options).unwrap();
    let next = Tensor::cat(
        &[xs.narrow(0, 0, 1).unwrap().narrow(1, 5, 3).unwrap(), xs.narrow(0, 1, 1).unwrap().narrow(1, 2, 3).unwrap()],
        0,
    )
    .unwrap();
    let inputs = AttentionInputs::self_attention(&next, &mask).with_cache(&mut cache);
    let got = layer.attend_with(&inputs, &options).unwrap().output;
    for (i, start) in [(0, 5), (1, 2)] {
        let want = whole.get(i).unwrap().narrow(0, start, 3).unwrap();
        assert_close(&format!("sequence {i}"), &got.get(i).unwrap(), &want, 1e-6);
    }
}

/// What counts from the first token is refused where a cache has dropped it, also inside of an `or`.
#[test]
fn caches_that_drop_tokens_refuse_what_counts_them() {
    let layer = random_layer(&AttentionConfig::new(24, 3), 0.3, &mut Random::new(9));
    let xs = Random::new(10).tensor(&[1, 4, 24], DType::F32);
    let function = AttentionMask::from_pattern_fn(|q, k| k <= q);
    let chunks = AttentionMask::chunks(2).or(AttentionMask::window(Some(0), Some(0))).unwrap();
    for mask in [function, chunks] {
        for mut cache in [KvCache::streaming(3), KvCache::rotating(3)] {
            let inputs = AttentionInputs::self_attention(&xs, &mask).with_cache(&mut cache);
            says(layer.attend_with(&inputs, &AttentionOptions::default()).map(|_| ()), &["drops tokens", "functions"]);
        }
    }
}

/// Fewer queries than keys over the keys of another layer are its last tokens.
#[test]
fn shared_keys_count_from_the_first_one() {
    let mut random = Random::new(12);
    let own = random_layer(&AttentionConfig::new(24, 3), 0.3, &mut random);
    let source = KeyValueSource::Shared { layer: Some(0) };
    let mut weights = own.weights().unwrap();
    let [q, ..] = weights.qkv.split([24; 3], 3).unwrap();
    weights.qkv = QkvWeights::Query(q);
    let sharing = own.config().clone().with_key_value_source(source);
    let sharing = MultiHeadAttention::from_weights(&sharing, weights).unwrap();
    let xs = random.tensor(&[2, 7, 24], DType::F32);
    let mask = AttentionMask::from_pattern_fn(|q, k| k <= q && (q + k) % 2 == 0);
    let options = AttentionOptions::default();
    let inputs = AttentionInputs::self_attention(&xs, &mask);
    let (whole, keys) = own.attend_sharing(&inputs, &options).unwrap();
    let last = xs.narrow(1, 4, 3).unwrap();
    let inputs = AttentionInputs::shared(&last, &keys, &mask);
    let got = sharing.attend_with(&inputs, &options).unwrap().output;
    assert_close("the last tokens", &got, &whole.output.narrow(1, 4, 3).unwrap(), 1e-6);
    // After a cache, and after one that drops tokens.
    for (mut cache, drops) in [(KvCache::growing(), false), (KvCache::streaming(5), true)] {
        own.step(&xs.narrow(1, 0, 4).unwrap(), &mut cache).unwrap();
        let inputs = AttentionInputs::self_attention(&last, AttentionMask::full()).with_cache(&mut cache);
        let (_, keys) = own.attend_sharing(&inputs, &options).unwrap();
        let inputs = AttentionInputs::shared(&last, &keys, &mask);
        let got = sharing.attend_with(&inputs, &options).map(|attended| attended.output);
        if drops {
            says(got.map(|_| ()), &["drops tokens", "functions"]);
        } else {
            assert_close("after a cache", &got.unwrap(), &whole.output.narrow(1, 4, 3).unwrap(), 1e-6);
        }
    }
}

#[test]
fn kept_mask_is_not_asked_again() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = asked.clone();
    let mask = AttentionMask::from_pattern_fn(move |q, k| {
        counter.fetch_add(1, Ordering::Relaxed);
        q / 192 == k / 192
    });
    let xs = Random::new(5).tensor(&[1, 768, 4, 8], DType::F32);
    let attend = || attend_bshd(&xs, &xs, &xs, &SdpaOptions::new(&mask)).unwrap();
    attend();
    let first = asked.load(Ordering::Relaxed);
    assert_eq!(first, 768 * 768, "once for all heads");
    attend();
    assert_eq!(asked.load(Ordering::Relaxed), first, "each block is visible whole or not at all");
}

#[test]
fn function_that_panics_is_an_error() {
    let documents = [0, 0, 1];
    let mask = AttentionMask::from_pattern_fn(move |q, k| documents[q] == documents[k]);
    let xs = Random::new(6).tensor(&[1, 4, 2, 8], DType::F32);
    for backend in [None, Some(Backend::Eager)] {
        let options = SdpaOptions::new(&mask).with_backend(backend);
        says(
            attend_bshd(&xs, &xs, &xs, &options).map(|_| ()),
            &["the function of a mask", "a panic: index out of bounds"],
        );
    }
    // One that panics later than in the first call.
    let asked = AtomicUsize::new(0);
    let mask = AttentionMask::from_pattern_fn(move |q, k| {
        assert!(asked.fetch_add(1, Ordering::Relaxed) < 20, "asked too often");
        q != k
    });
    says(attend_bshd(&xs, &xs, &xs, &SdpaOptions::new(&mask)).map(|_| ()), &["a panic: asked too often"]);
    let empty = Tensor::zeros((1, 0, 2, 8), DType::F32, &CPU).unwrap();
    let mask = AttentionMask::from_fn(|_, _, _, _| false);
    assert_eq!(attend_bshd(&empty, &xs, &xs, &SdpaOptions::new(&mask)).unwrap().output.dims(), [1, 0, 2, 8]);
    let hidden = attend_bshd(&xs, &xs, &xs, &SdpaOptions::new(&mask)).unwrap().output;
    assert_eq!(max_diff(&hidden, &hidden.zeros_like().unwrap()), 0.0);
}
