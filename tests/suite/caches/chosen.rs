//! The cache that a layer chooses, steps with a mask and lengths, and clones of caches.

use candle_attention::position::Rotary;
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, KvCache, MultiHeadAttention,
};
use candle_core::{DType, Module, Tensor, Var};

use crate::common::{Random, assert_close, max_diff, random_layer, says};

fn decoder(mask: AttentionMask, random: &mut Random) -> MultiHeadAttention {
    let config = AttentionConfig::new(24, 4).with_num_key_value_heads(2).with_position(Rotary::default());
    random_layer(&config.with_mask(mask), 0.4, random)
}

fn tokens(xs: &Tensor, start: usize, count: usize) -> Tensor {
    xs.narrow(1, start, count).unwrap()
}

/// A loop that knows nothing of the layer decodes as one call over all tokens, in memory that its window bounds.
#[test]
fn a_layer_chooses_its_cache() {
    let mut random = Random::new(680);
    let function = AttentionMask::from_pattern_fn(|q, k| k <= q && (q - k) % 3 != 1);
    let masks = [
        (AttentionMask::causal(), None),
        (AttentionMask::window(Some(2), Some(0)), Some(3)),
        (AttentionMask::window(Some(4), None).and(AttentionMask::causal()), Some(5)),
        (AttentionMask::chunks(4).and(AttentionMask::causal()), None),
        (function.clone(), None),
        (function.and(AttentionMask::window(Some(5), Some(0))), None),
    ];
    for (mask, capacity) in masks {
        let layer = decoder(mask.clone(), &mut random);
        let xs = random.tensor(&[2, 11, 24], DType::F32);
        let want = layer.forward(&xs).unwrap();
        let mut cache = layer.new_cache();
        assert_eq!(cache.capacity(), capacity, "{mask}");
        let mut start = 0;
        for count in [4, 1, 1, 3, 1, 1] {
            let got = layer.step(&tokens(&xs, start, count), &mut cache).unwrap();
            assert_close(&mask.to_string(), &got, &tokens(&want, start, count), 2e-6);
            start += count;
        }
        assert_eq!(cache.retained_len(), capacity.unwrap_or(11));
    }
    assert_eq!(AttentionMask::causal().window_sizes(), (None, Some(0)));
    assert_eq!(AttentionMask::window(Some(7), Some(2)).and(AttentionMask::causal()).window_sizes(), (Some(7), Some(0)));
    assert_eq!(AttentionMask::lengths(&[3]).window_sizes(), (None, None));
}

/// Prompts of unequal length, then a token each: as each sequence alone.
#[test]
fn a_step_takes_a_mask_and_lengths() {
    let mut random = Random::new(681);
    let layer = decoder(AttentionMask::causal(), &mut random);
    let (prompts, next) = (random.tensor(&[2, 6, 24], DType::F32), random.tensor(&[2, 1, 24], DType::F32));
    let mut cache = layer.new_cache();
    let output = layer.step_with(&prompts, &mut cache, None, &[6, 4][..]).unwrap();
    let last = layer.step_with(&next, &mut cache, AttentionMask::full(), None).unwrap();
    for (i, length) in [6, 4].into_iter().enumerate() {
        let own = |xs: &Tensor| xs.narrow(0, i, 1).unwrap();
        let whole = Tensor::cat(&[tokens(&own(&prompts), 0, length), own(&next)], 1).unwrap();
        let want = layer.forward(&whole).unwrap();
        assert_close("prompt", &tokens(&own(&output), 0, length), &tokens(&want, 0, length), 2e-6);
        assert_close("step", &own(&last), &tokens(&want, length, 1), 2e-6);
    }
    // The mask has a column for each key in the cache and each new one.
    let keep = Tensor::ones((2, 8), DType::U8, next.device()).unwrap();
    let mask = AttentionMask::keep_keys(&keep).unwrap();
    assert_eq!(layer.step_with(&next, &mut cache, &mask, None).unwrap().dims(), [2, 1, 24]);
    says(layer.step_with(&next, &mut cache, &mask, None), &["8", "9"]);
    says(layer.step_with(&next, &mut cache, None, &[1][..]), &["the number of lengths", "2"]);
    assert_eq!(cache.lengths(), [8, 6]);
}

/// A clone and its original go on apart, whatever is done to one of both.
#[test]
fn clones_go_on_apart() {
    let mut random = Random::new(682);
    for (mask, cache) in [
        (AttentionMask::causal(), KvCache::growing()),
        (AttentionMask::causal(), KvCache::fixed(12)),
        (AttentionMask::causal(), KvCache::growing().with_int8()),
        (AttentionMask::window(Some(3), Some(0)), KvCache::rotating(4)),
    ] {
        let layer = decoder(mask, &mut random);
        let (prompt, paths) = (random.tensor(&[1, 5, 24], DType::F32), random.tensor(&[4, 3, 24], DType::F32));
        let path = |i: usize, token: usize| tokens(&paths.narrow(0, i, 1).unwrap(), token, 1);
        let alone = |i: usize| {
            let mut own = cache.try_clone().unwrap();
            layer.step(&prompt, &mut own).unwrap();
            (0..3).map(|token| layer.step(&path(i, token), &mut own).unwrap()).collect::<Vec<_>>()
        };
        let mut first = cache.clone();
        layer.step(&prompt, &mut first).unwrap();
        let mut all = [first.clone(), first.clone(), first, cache.clone()];
        // One that is empty, and gets the prompt by itself.
        layer.step(&prompt, &mut all[3]).unwrap();
        for token in 0..3 {
            for (i, cache) in all.iter_mut().enumerate() {
                // A call that fails changes none of them.
                says(layer.step(&random.tensor(&[3, 1, 24], DType::F32), cache), &["1"]);
                let got = layer.step(&path(i, token), cache).unwrap();
                assert_eq!(max_diff(&got, &alone(i)[token]), 0.0, "{cache:?}, path {i}, token {token}");
            }
        }
    }
}

/// The tokens of a clone stay where they are when those of the original are moved, and after a truncation.
#[test]
fn edits_of_a_clone_are_its_own() {
    let mut random = Random::new(683);
    let layer = decoder(AttentionMask::causal(), &mut random);
    let (xs, next) = (random.tensor(&[1, 6, 24], DType::F32), random.tensor(&[1, 1, 24], DType::F32));
    let mut cache = layer.new_cache();
    layer.step(&xs, &mut cache).unwrap();
    let want = layer.step(&next, &mut cache.clone()).unwrap();
    let mut moved = cache.clone();
    moved.select_tokens(0, &[0, 3, 5]).unwrap();
    let mut shorter = cache.clone();
    shorter.truncate(2).unwrap();
    layer.step(&random.tensor(&[1, 3, 24], DType::F32), &mut shorter).unwrap();
    let (mut empty, mut beams) = (cache.clone(), cache.clone());
    empty.reset();
    layer.step(&random.tensor(&[2, 4, 24], DType::F32), &mut empty).unwrap();
    beams.select_sequences(&[0, 0]).unwrap();
    layer.step(&random.tensor(&[2, 2, 24], DType::F32), &mut beams).unwrap();
    assert_eq!([moved.len(), shorter.len(), empty.len(), beams.len()], [3, 5, 4, 8]);
    assert_eq!(max_diff(&layer.step(&next, &mut cache).unwrap(), &want), 0.0);
}

/// A layer alone with its cache writes in place: keys and values of a step stay where they were.
#[test]
fn a_cache_without_clones_is_not_copied() {
    let mut cache = KvCache::growing();
    let mut random = Random::new(684);
    let mut append = |cache: &mut KvCache| {
        let [k, v] = [1, 2].map(|_| random.tensor(&[1, 1, 2, 8], DType::F32));
        cache.append(&k, &v).unwrap().0
    };
    let address = |keys: &Tensor| {
        let (storage, _) = keys.storage_and_layout();
        let candle_core::Storage::Cpu(storage) = &*storage else { unreachable!() };
        storage.as_slice::<f32>().unwrap().as_ptr()
    };
    let first = address(&append(&mut cache));
    drop(cache.clone());
    assert_eq!(address(&append(&mut cache)), first);
    let clone = cache.clone();
    let copied = address(&append(&mut cache));
    assert_ne!(copied, first);
    assert_eq!(address(&append(&mut cache)), copied);
    assert_eq!(clone.len(), 2);
}

/// The mask of a layer may be a function: in a call, a frozen copy, with attention weights and gradients.
#[test]
fn a_function_is_the_mask_of_a_layer() {
    let mut random = Random::new(685);
    let hides = AttentionMask::from_pattern_fn(|q, k| k <= q && k % 2 == q % 2);
    let decays = AttentionMask::from_score_fn_with_derivative(
        |score, _, h, q, k| 0.5 * score - h as f32 * q.abs_diff(k) as f32,
        |_, _, _, _, _| 0.5,
    );
    for mask in [hides, decays] {
        let layer = decoder(mask.clone(), &mut random);
        let free = layer.with_mask(AttentionMask::full()).unwrap();
        let xs = Var::from_tensor(&random.tensor(&[2, 7, 24], DType::F32)).unwrap();
        let want = free.attend(&xs, &xs, &xs, &mask).unwrap();
        let got = layer.forward(&xs).unwrap();
        assert!(max_diff(&want, &free.forward(&xs).unwrap()) > 1e-3, "{mask} changes something");
        assert_eq!(max_diff(&got, &want), 0.0, "{mask}");
        let gradient = |output: &Tensor| {
            let gradients = output.sqr().unwrap().sum_all().unwrap().backward().unwrap();
            gradients.get(&xs).unwrap().clone()
        };
        assert_eq!(max_diff(&gradient(&got), &gradient(&want)), 0.0, "{mask}");
        let frozen = layer.frozen().unwrap();
        let fixed = xs.as_detached_tensor();
        assert_close(&mask.to_string(), &frozen.forward(&fixed).unwrap(), &want, 2e-6);
        // With padding in the call.
        let lengths = AttentionMask::lengths(&[7, 3]);
        let both = free.attend(&fixed, &fixed, &fixed, lengths.clone().and(mask.clone())).unwrap();
        assert_eq!(max_diff(&layer.attend(&fixed, &fixed, &fixed, lengths).unwrap(), &both), 0.0, "{mask}");

        let ragged = fixed.flatten(0, 1).unwrap();
        let inputs = AttentionInputs::ragged(&ragged, &[7, 7], AttentionMask::full());
        says(layer.attend_with(&inputs, &AttentionOptions::default()), &["the layer's mask in a ragged batch"]);
        says(layer.prune_heads(&[1]), &["the mask of a layer to prune", "function"]);
        says(layer.step(&fixed, &mut KvCache::streaming(4)), &["the mask of a call with a cache that drops tokens"]);
    }
    let or = AttentionMask::causal().or(AttentionMask::from_pattern_fn(|q, _| q == 0)).unwrap();
    says(AttentionConfig::new(24, 4).with_mask(or).validate(), &["mask", "chunks or functions"]);
}
