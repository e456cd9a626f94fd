//! Calls with numbers that no model has: each is an error that names the number, before memory is requested for it.

use candle_attention::sdpa::{SdpaOptions, attend_bshd, plan_for};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Backend, Error, KvCache, MultiHeadAttention,
};
use candle_core::{DType, Device, Tensor};
use candle_nn::{VarBuilder, VarMap};

use crate::common::{Random, assert_close, numbers, random_layer, says};

const CPU: Device = Device::Cpu;

/// Numbers that overflow products, or that are 0 in 32 bits.
const HUGE: [usize; 8] = [1 << 31, (1 << 32) + 5, 1 << 40, 1 << 44, 1 << 61, 1 << 62, 1 << 63, usize::MAX];

fn layer() -> MultiHeadAttention {
    random_layer(&AttentionConfig::new(8, 2), 0.4, &mut Random::new(1))
}

fn tokens(b: usize, s: usize) -> Tensor {
    Random::new(2).tensor(&[b, s, 8], DType::F32)
}

#[test]
fn capacities_of_caches_are_checked_before_memory_is_requested() {
    let (layer, options, xs) = (layer(), AttentionOptions::default(), tokens(2, 3));
    let inputs = AttentionInputs::self_attention(&xs, AttentionMask::causal());
    let want = layer.attend_with(&inputs.with_cache(&mut KvCache::growing()), &options).unwrap().output;
    for capacity in HUGE.into_iter().chain([(1 << 30) + 1]) {
        let mut cache = KvCache::fixed(capacity);
        let limit = "at most 1073741824";
        says(layer.attend_with(&inputs.with_cache(&mut cache), &options), &["capacity", &capacity.to_string(), limit]);
        says(layer.plan(&inputs.with_cache(&mut cache), &options), &["capacity", limit]);
        assert!(cache.is_empty() && cache.lengths().is_empty() && cache.capacity() == Some(capacity));
    }
    // A capacity that is allowed, for a batch that makes it larger than any memory.
    let many = tokens(1 << 13, 1);
    let calls = AttentionInputs::self_attention(&many, AttentionMask::causal());
    let mut cache = KvCache::fixed(1 << 30);
    says(
        layer.attend_with(&calls.with_cache(&mut cache), &options),
        &["the capacity of a cache", "1073741824", "memory"],
    );
    assert!(cache.is_empty());
    // A window is no allocation: only the tokens that come are kept.
    for window in HUGE {
        let mut cache = KvCache::streaming(window);
        let got = layer.attend_with(&inputs.with_cache(&mut cache), &options).unwrap().output;
        assert_close("a rotating cache", &got, &want, 0.0);
        says(cache.truncate_sequences(&[window, 1]), &["lengths[0]", &window.to_string()]);
        cache.truncate(window).unwrap();
        cache.truncate(1).unwrap();
        assert_eq!((cache.lengths(), cache.capacity()), (vec![1, 1], Some(window)));
    }
}

#[test]
fn methods_of_caches_take_any_number() {
    let (layer, options, xs) = (layer(), AttentionOptions::default(), tokens(2, 3));
    let inputs = AttentionInputs::self_attention(&xs, AttentionMask::causal());
    let caches = [KvCache::growing(), KvCache::fixed(5), KvCache::streaming(2)];
    for mut cache in caches {
        layer.attend_with(&inputs.with_cache(&mut cache), &options).unwrap();
        let before =
            numbers(&layer.attend_with(&inputs.with_cache(&mut cache.try_clone().unwrap()), &options).map_or_else(
                |error| match error {
                    Error::CacheFull { .. } => Tensor::zeros(1, DType::F32, &CPU).unwrap(),
                    error => panic!("{error}"),
                },
                |attended| attended.output,
            ));
        let mask = Tensor::ones((2, 1, 1, 4), DType::U8, &CPU).unwrap();
        for n in HUGE {
            assert!(cache.mask_columns(&[n]) >= n && cache.mask_columns(&[1, n]) >= n);
            says(cache.select_columns(&mask, &[n]), &["mask"]);
            says(cache.select_columns(&mask, &[n, 1]), &["mask"]);
            says(cache.select_sequences(&[0, n]), &["sequence", &n.to_string()]);
            assert_eq!(cache.retained_range(n), None);
            let lengths = [n, 1];
            says(
                layer.attend_with(&inputs.with_cache_lengths(&mut cache, &lengths), &options),
                &["length", &n.to_string()],
            );
        }
        says(cache.select_sequences(&[]), &["empty"]);
        assert_eq!(cache.lengths(), [3, 3]);
        let after = layer.attend_with(&inputs.with_cache(&mut cache), &options);
        assert_eq!(after.map_or(vec![0.0], |attended| numbers(&attended.output)), before);
    }
    let memory = layer.cross_cache(&xs, &xs).unwrap();
    for n in HUGE {
        says(memory.select_sequences(&[n]), &["sequence", &n.to_string()]);
    }
    says(memory.select_sequences(&[]), &["empty"]);
}

/// Numbers of f64 that kernels in f32 would read as 0, 1 or infinity.
#[test]
fn numbers_are_checked_as_kernels_compute_with_them() {
    let mut random = Random::new(3);
    let [q, k, v] = [(); 3].map(|()| random.tensor(&[1, 3, 2, 4], DType::F32));
    let mask = AttentionMask::full();
    let options = || SdpaOptions::new(&mask);
    let config = || AttentionConfig::new(8, 2);
    let refused = |name: &str, x: f64, options: SdpaOptions, config: AttentionConfig| {
        // Errors shorten numbers of hundreds of digits.
        let digits: String = x.to_string().chars().take(20).collect();
        for backend in [None, Some(Backend::Cpu), Some(Backend::Eager)] {
            let options = options.clone().with_backend(backend);
            says(attend_bshd(&q, &k, &v, &options), &[name, &digits]);
            says(plan_for(&q, &k, &v, &options), &[name, &digits]);
        }
        says(config.validate(), &[name, &digits]);
    };
    for scale in [1e300, -1e300, 1e39, 1e16, f64::NAN, f64::INFINITY] {
        refused("scale", scale, options().with_scale(scale), config().with_scale(scale));
    }
    for cap in [1e-320, 1e-46, 1e-16, 1e16, 1e300, 0.0, -1.0, f64::NAN, f64::INFINITY] {
        refused("softcap", cap, options().with_softcap(cap), config().with_softcap(cap));
        says(config().with_clip_qkv(cap).validate(), &["clip_qkv", "from 1e-15 to 1e15"]);
    }
    for p in [0.999999999, 1.0, -0.1, -1e-320, f64::NAN] {
        refused("dropout", p, options().with_dropout(p), config().with_dropout(p));
    }
    for slope in [1e300, -1e16, f64::NAN, f64::INFINITY] {
        let mask = AttentionMask::distances(vec![0.5, slope], true);
        says(attend_bshd(&q, &k, &v, &SdpaOptions::new(&mask)), &["slopes[1]", "from -1e15 to 1e15"]);
    }
    // The largest and the smallest that are allowed give numbers, the same on every backend.
    for options in [
        options().with_scale(1e15),
        options().with_scale(-1e15).with_softcap(1e-15),
        options().with_scale(1e-15).with_softcap(1e15),
        options().with_scale(0.0),
    ] {
        let run = |backend| attend_bshd(&q, &k, &v, &options.clone().with_backend(backend)).unwrap().output;
        assert_close(&format!("{options:?}"), &run(Backend::Cpu), &run(Backend::Eager), 1e-5);
    }
}

/// One sequence in memory, seen as more than any memory has outputs for: they are not counted one by one.
#[test]
fn sequences_that_are_one_row_of_memory_are_not_counted() {
    let one = Tensor::zeros((1, 2, 2, 4), DType::F32, &CPU).unwrap();
    let many = one.broadcast_as((1usize << 44, 2, 2, 4)).unwrap();
    for mask in [AttentionMask::full(), AttentionMask::causal()] {
        says(attend_bshd(&many, &many, &many, &SdpaOptions::new(mask)), &["the memory for"]);
    }
}

#[test]
fn configurations_of_absurd_sizes_are_errors() {
    let new = |config: &AttentionConfig| {
        MultiHeadAttention::new(config, VarBuilder::from_varmap(&VarMap::new(), DType::F32, &CPU))
    };
    let heads = |h: usize, d: usize| AttentionConfig::new(8, h).with_head_dim(d);
    for n in HUGE {
        let configs = [
            AttentionConfig::new(n, 2),
            AttentionConfig::new(8, n),
            heads(n, 4),
            heads(2, n),
            heads(2, 4).with_num_key_value_heads(n),
            heads(2, 4).with_value_head_dim(n),
            heads(2, 4).with_query_size(n),
            heads(2, 4).with_key_size(n),
            heads(2, 4).with_value_size(n),
            heads(2, 4).with_output_size(n),
        ];
        for config in configs {
            assert!(matches!(new(&config), Err(Error::Config { .. })), "{config:?}");
        }
    }
    // Each number is allowed, their product is not.
    says(new(&heads(1 << 24, 1 << 24)), &["head_dim", "16777216 elements in all of the 16777216 heads"]);
    says(new(&heads(2, 4).with_value_head_dim(1 << 24)), &["value_head_dim", "16777216 elements"]);
    // One that could be, and that no memory holds.
    says(new(&AttentionConfig::new(1 << 24, 1 << 10)), &["projection", "16777216", "memory"]);
}

#[test]
fn windows_and_lengths_of_any_size_are_errors_or_mean_what_they_say() {
    let (layer, xs) = (layer(), tokens(1, 5));
    let causal = layer.attend(&xs, &xs, &xs, AttentionMask::causal()).unwrap();
    for n in HUGE {
        for backend in [None, Some(Backend::Eager)] {
            let options = AttentionOptions::default().with_backend(backend);
            let mask = AttentionMask::causal().and(AttentionMask::window(Some(n), Some(n)));
            let got = layer.attend_with(&AttentionInputs::self_attention(&xs, &mask), &options).unwrap().output;
            assert_close("a window", &got, &causal, 1e-5);
            for mask in [
                AttentionMask::lengths(&[n]),
                AttentionMask::padding(&[n]),
                AttentionMask::query_lengths(&[[1, 2, n, 4, 5]]),
            ] {
                says(layer.attend_with(&AttentionInputs::self_attention(&xs, &mask), &options), &[&n.to_string()]);
            }
        }
    }
}

#[test]
fn ragged_batches_of_absurd_lengths_are_errors() {
    let (layer, full) = (layer(), AttentionMask::full());
    let xs = tokens(1, 5).squeeze(0).unwrap();
    let with_weights = AttentionOptions::default().with_return_attention_weights(true);
    for n in HUGE {
        for lengths in [vec![n], vec![n, 5], vec![5, n], vec![n, n.wrapping_neg().wrapping_add(5)], vec![n; 4]] {
            for options in [AttentionOptions::default(), with_weights] {
                says(
                    layer.attend_with(&AttentionInputs::ragged(&xs, &lengths, &full), &options),
                    &["the sum of lengths"],
                );
                says(layer.plan(&AttentionInputs::ragged(&xs, &lengths, &full), &options), &["the sum of lengths"]);
            }
        }
    }
    // A small batch, and 4 · 10^9 tokens with padding.
    let mut lengths = vec![0; 1 << 20];
    lengths[0] = 1 << 12;
    let xs = Tensor::zeros((1 << 12, 8), DType::F32, &CPU).unwrap();
    says(
        layer.attend_with(&AttentionInputs::ragged(&xs, &lengths, &full), &with_weights),
        &["padded", "1048576 sequences"],
    );
}

#[test]
fn positions_outside_of_32_bits_are_errors() {
    let config = AttentionConfig::new(8, 2).with_position(candle_attention::position::Rotary::default());
    let (layer, xs) = (random_layer(&config, 0.4, &mut Random::new(4)), tokens(1, 3));
    let inputs = AttentionInputs::self_attention(&xs, AttentionMask::causal());
    for position in [-1, i64::MIN, 1 << 32, (1 << 32) + 5, i64::MAX] {
        let positions = Tensor::new(&[0i64, position, 2], &CPU).unwrap();
        let options = AttentionOptions::default().with_positions(&positions);
        let mut cache = KvCache::growing();
        says(layer.attend_with(&inputs, &options), &["a position", &position.to_string()]);
        says(layer.attend_with(&inputs.with_cache(&mut cache), &options), &["a position", &position.to_string()]);
        assert!(cache.is_empty());
    }
    // The largest one is followed by none.
    let positions = Tensor::new(&[1i64 << 31, 5, (1 << 32) - 1], &CPU).unwrap();
    let (options, mut cache) = (AttentionOptions::default().with_positions(&positions), KvCache::growing());
    layer.attend_with(&inputs.with_cache(&mut cache), &options).unwrap();
    let next = layer.attend_with(&inputs.with_cache(&mut cache), &AttentionOptions::default());
    says(next, &["a position is 4294967298", "a number from 0 to 2^32 - 1"]);
    assert_eq!(cache.lengths(), [3]);
}
