//! Caches that serve: fewer tokens, other sequences, masks of rotating caches, the dtype of the layer, variables.

use candle_attention::checkpoint::infer_config;
use candle_attention::position::{Alibi, Rotary};
use candle_attention::weights::QkvWeights;
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, KvCache, MultiHeadAttention, Position,
};
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};

use crate::common::{Golden, Random, assert_close, max_diff, random_layer, says};

const CPU: Device = Device::Cpu;
const TOLERANCE: f64 = 2e-6;

fn options() -> AttentionOptions<'static> {
    AttentionOptions::default()
}

fn configs() -> [AttentionConfig; 3] {
    let base = AttentionConfig::new(24, 4);
    let rotary = base.clone().with_num_key_value_heads(2).with_position(Rotary::default().with_theta(50.0));
    [base.clone(), rotary, base.with_position(Position::Alibi(Alibi::default()))]
}

fn step(layer: &MultiHeadAttention, xs: &Tensor, mask: &AttentionMask, cache: &mut KvCache) -> Tensor {
    let inputs = AttentionInputs::self_attention(xs, mask);
    layer.attend_with(&inputs.with_cache(cache), &options()).unwrap().output
}

fn step_rows(
    layer: &MultiHeadAttention,
    xs: &Tensor,
    mask: &AttentionMask,
    (cache, lengths): (&mut KvCache, &[usize]),
) -> Tensor {
    let inputs = AttentionInputs::self_attention(xs, mask);
    layer.attend_with(&inputs.with_cache_lengths(cache, lengths), &options()).unwrap().output
}

/// The causal output of one run over all tokens.
fn whole(layer: &MultiHeadAttention, xs: &Tensor) -> Tensor {
    layer.attend(xs, xs, xs, AttentionMask::causal()).unwrap()
}

/// Speculative decoding: rejected tokens leave no trace.
#[test]
fn truncated_tokens_are_forgotten() {
    let mut random = Random::new(90);
    let causal = AttentionMask::causal();
    for config in configs() {
        let layer = random_layer(&config, 0.4, &mut random);
        let xs = random.tensor(&[2, 9, 24], DType::F32);
        let drafted = random.tensor(&[2, 4, 24], DType::F32);
        let want = whole(&layer, &xs);
        for mut cache in [KvCache::growing(), KvCache::fixed(9), KvCache::streaming(20)] {
            step(&layer, &xs.narrow(1, 0, 5).unwrap(), &causal, &mut cache);
            step(&layer, &drafted, &causal, &mut cache);
            cache.truncate(5).unwrap();
            assert_eq!((cache.len(), cache.retained_len(), cache.lengths()), (5, 5, vec![5, 5]));
            cache.truncate(7).unwrap();
            assert_eq!(cache.len(), 5, "more tokens than there are");
            let got = step(&layer, &xs.narrow(1, 5, 4).unwrap(), &causal, &mut cache);
            assert_close(&format!("{:?}", config.position), &got, &want.narrow(1, 5, 4).unwrap(), TOLERANCE);
        }
        // Each sequence accepts another number of tokens.
        let mut cache = KvCache::growing();
        step(&layer, &xs.narrow(1, 0, 6).unwrap(), &causal, &mut cache);
        cache.truncate_sequences(&[3, 6]).unwrap();
        assert_eq!(cache.lengths(), [3, 6]);
        let next = Tensor::cat(
            &[
                xs.narrow(0, 0, 1).unwrap().narrow(1, 3, 2).unwrap(),
                xs.narrow(0, 1, 1).unwrap().narrow(1, 6, 2).unwrap(),
            ],
            0,
        );
        let got = step(&layer, &next.unwrap(), &causal, &mut cache);
        for (row, start) in [(0, 3), (1, 6)] {
            let want = want.narrow(0, row, 1).unwrap().narrow(1, start, 2).unwrap();
            assert_close(&format!("row {row}"), &got.narrow(0, row, 1).unwrap(), &want, TOLERANCE);
        }
        says(cache.truncate_sequences(&[6, 2]), &["lengths[0] is 6", "at most 5, the tokens of the sequence"]);
        says(cache.truncate_sequences(&[1]), &["the number of lengths is 1", "2, the sequences in the cache"]);
        assert_eq!(cache.lengths(), [5, 8]);
    }
}

#[test]
fn a_rotating_cache_is_truncated_as_far_as_it_can_be() {
    let mut random = Random::new(91);
    let layer = random_layer(&configs()[1], 0.4, &mut random);
    let xs = random.tensor(&[1, 9, 24], DType::F32);
    let window = AttentionMask::window(Some(3), Some(0));
    let want = layer.attend(&xs, &xs, &xs, &window).unwrap();
    let mut cache = KvCache::rotating(4);
    step(&layer, &xs.narrow(1, 0, 7).unwrap(), &window, &mut cache);
    assert_eq!(
        (cache.len(), cache.retained_len(), cache.retained_range(0), cache.capacity()),
        (7, 4, Some(3..7), Some(4))
    );
    says(cache.truncate(5), &["the length of sequence 0 in a rotating cache is 5", "at least 6", "the first 3 tokens"]);
    assert_eq!(cache.len(), 7);
    // A query sees itself and three tokens, which are still held without the last one.
    cache.truncate(6).unwrap();
    assert_eq!((cache.len(), cache.retained_range(0), cache.retained_range(1)), (6, Some(3..6), None));
    let got = step(&layer, &xs.narrow(1, 6, 3).unwrap(), &window, &mut cache);
    assert_close("after the truncation", &got, &want.narrow(1, 6, 3).unwrap(), TOLERANCE);
    // Without any token there is none to see, and the cache begins anew.
    cache.truncate(0).unwrap();
    assert_eq!((cache.len(), cache.retained_range(0)), (0, Some(0..0)));
    let got = step(&layer, &xs, &window, &mut cache);
    assert_close("begun anew", &got, &want, TOLERANCE);
}

/// Sequences that keep as many tokens, of which one has seen more: the position of the next token differs.
#[test]
fn keys_of_ones_own_are_appended_to_sequences_of_one_length() {
    let filled = |tokens: usize| {
        let mut cache = KvCache::rotating(4);
        let keys = Tensor::zeros((1, tokens, 2, 4), DType::F32, &Device::Cpu).unwrap();
        cache.append(&keys, &keys).unwrap();
        cache
    };
    let one = Tensor::zeros((2, 1, 2, 4), DType::F32, &Device::Cpu).unwrap();
    for (second, is_equal) in [(9, true), (6, false), (3, false)] {
        let mut cache = filled(9);
        cache.append_sequences(&filled(second)).unwrap();
        let appended = cache.append(&one, &one);
        assert_eq!(appended.is_ok(), is_equal, "{second}");
        if !is_equal {
            says(appended, &["the lengths of the sequences in the cache", &format!("[9, {second}]"), "equal ones"]);
            assert_eq!(cache.lengths(), [9, second]);
        }
    }
}

/// Many more tokens than the window, in memory that is used again: what a window over all tokens gives.
#[test]
fn a_rotating_cache_rotates_many_times() {
    let mut random = Random::new(97);
    for (config, window) in configs().into_iter().zip([3, 20, 70]) {
        let layer = random_layer(&config, 0.4, &mut random);
        let xs = random.tensor(&[2, 400, 24], DType::F32);
        let want = layer.attend(&xs, &xs, &xs, AttentionMask::window(Some(window - 1), Some(0))).unwrap();
        let mut cache = KvCache::streaming(window);
        let mut start = 0;
        while start < 400 {
            let len = [1, 2, 1, 40, 1, 90][start % 6].min(400 - start);
            let got = step(&layer, &xs.narrow(1, start, len).unwrap(), &AttentionMask::causal(), &mut cache);
            assert_close("rotated", &got, &want.narrow(1, start, len).unwrap(), TOLERANCE);
            start += len;
            if start % 5 == 0 {
                cache.select_sequences(&[1, 0]).unwrap();
                cache.select_sequences(&[1, 0]).unwrap();
            }
            assert_eq!((cache.len(), cache.retained_len()), (start, start.min(window)));
        }
    }
}

/// Beam search, and a batch that loses a finished sequence, with sequences of unequal length.
#[test]
fn selected_sequences_continue_as_they_would_alone() {
    let mut random = Random::new(92);
    let causal = AttentionMask::causal();
    for config in configs() {
        let layer = random_layer(&config, 0.4, &mut random);
        let prompts = random.tensor(&[3, 5, 24], DType::F32);
        let lengths = [5, 2, 4];
        for mut cache in [KvCache::growing(), KvCache::fixed(9), KvCache::streaming(9)] {
            step_rows(&layer, &prompts, &causal, (&mut cache, &lengths));
            for (rows, then) in [(vec![2, 0, 0, 1], [4, 5, 5, 2].as_slice()), (vec![3, 0], &[3, 5])] {
                cache.select_sequences(&rows).unwrap();
                if rows.len() == 4 {
                    assert_eq!(cache.lengths(), then);
                    let token = random.tensor(&[4, 1, 24], DType::F32);
                    let got = step(&layer, &token, &causal, &mut cache);
                    for (i, &row) in rows.iter().enumerate() {
                        let prompt = prompts.narrow(0, row, 1).unwrap().narrow(1, 0, lengths[row]).unwrap();
                        let alone = Tensor::cat(&[prompt, token.narrow(0, i, 1).unwrap()], 1).unwrap();
                        let want = whole(&layer, &alone).narrow(1, lengths[row], 1).unwrap();
                        assert_close(&format!("beam {i}"), &got.narrow(0, i, 1).unwrap(), &want, TOLERANCE);
                    }
                } else {
                    assert_eq!(cache.lengths(), then);
                }
            }
            says(
                cache.select_sequences(&[0, 2]),
                &["a sequence to select is 2", "less than 2, the sequences in the cache"],
            );
            says(cache.select_sequences(&[]), &["the list of sequences to select is empty"]);
            assert_eq!(cache.lengths(), [3, 5]);
            cache.reset();
            assert!(cache.is_empty() && cache.lengths().is_empty());
            // Another batch, in the same cache.
            let want = whole(&layer, &prompts.narrow(0, 0, 1).unwrap());
            let got = step(&layer, &prompts.narrow(0, 0, 1).unwrap(), &causal, &mut cache);
            assert_close("after the reset", &got, &want, TOLERANCE);
        }
    }
}

/// The mask of a rotating cache: the columns that it asks for, cut from a mask over all tokens.
#[test]
fn masks_of_a_rotating_cache_are_cut_from_those_of_all_tokens() {
    let mut random = Random::new(93);
    let layer = random_layer(&configs()[1], 0.4, &mut random);
    let xs = random.tensor(&[2, 9, 24], DType::F32);
    // Every query sees itself, so that no row is fully masked.
    let keep = random.booleans(&[2, 9], 0.6);
    let window = AttentionMask::window(Some(3), Some(0));
    let all = window.clone().and(AttentionMask::keep_keys(&keep).unwrap());
    let want = layer.attend(&xs, &xs, &xs, &all).unwrap();
    let mut cache = KvCache::rotating(4);
    let mut start = 0;
    for (len, columns) in [(3, 3), (1, 4), (3, 7), (2, 6)] {
        assert_eq!(cache.mask_columns(&[len]), columns);
        let keep = cache.select_columns(&keep.narrow(1, 0, start + len).unwrap(), &[len]).unwrap();
        assert_eq!(keep.dims(), [2, columns]);
        let mask = window.clone().and(AttentionMask::keep_keys(&keep).unwrap());
        let got = step(&layer, &xs.narrow(1, start, len).unwrap(), &mask, &mut cache);
        assert_close("kept columns", &got, &want.narrow(1, start, len).unwrap(), TOLERANCE);
        start += len;
    }
    says(cache.select_columns(&keep, &[1]), &["the mask has shape [2, 9]", "(2 or 1, …, 10)"]);
    // A mask of no sequences has its columns all the same.
    let none = Tensor::zeros((0, 0), DType::U8, &CPU).unwrap();
    says(KvCache::growing().select_columns(&none, &[9]), &["the mask has shape [0, 0]", "(0 or 1, …, 9)"]);
    // In a sum that wraps this would be eight tokens.
    let eight = keep.narrow(1, 0, 8).unwrap();
    says(cache.select_columns(&eight, &[usize::MAX]), &["the mask has shape [2, 8]", "(2 or 1, …, "]);

    // Sequences of unequal length: 9 and 6 tokens, then 1 and 2 more.
    let mut cache = KvCache::rotating(4);
    step_rows(&layer, &xs, &window, (&mut cache, &[9, 6]));
    assert_eq!((cache.retained_range(0), cache.retained_range(1)), (Some(5..9), Some(2..6)));
    assert_eq!((cache.mask_columns(&[1]), cache.mask_columns(&[1, 2]), cache.mask_columns(&[0, 3])), (5, 6, 7));
    let numbers = Tensor::arange(0u32, 10, &CPU).unwrap().reshape((1, 1, 10)).unwrap();
    let cut = cache.select_columns(&numbers, &[1, 2]).unwrap();
    assert_eq!(cut.dims(), [2, 1, 6]);
    assert_eq!(cut.squeeze(1).unwrap().to_vec2::<u32>().unwrap(), [[5, 6, 7, 8, 9, 0], [2, 3, 4, 5, 6, 7]]);
}

/// f16 and bf16 are held as such: the error against f64 is not above PyTorch's, which holds them as such, too.
#[test]
fn a_cache_has_the_dtype_of_its_layer() {
    let golden = Golden::open("half.safetensors");
    for (dtype, name) in [(DType::F16, "f16"), (DType::BF16, "bf16")] {
        for (case, heads) in [("7", 4), ("64", 4), ("333", 2), ("uniform", 2)] {
            let case = format!("{name}_{case}");
            let source = golden.0.at(&format!("{case}.layer"), dtype, &CPU);
            let layer = MultiHeadAttention::load(&infer_config(&source, heads).unwrap(), source).unwrap();
            let xs = golden.get(&format!("{case}.query"));
            let got = step(&layer, &xs, &AttentionMask::full(), &mut KvCache::growing());
            let reference = golden.get(&format!("{case}.reference"));
            let torch = max_diff(&golden.get(&format!("{case}.torch")), &reference);
            let ours = max_diff(&got, &reference);
            println!("{case}: with a cache {ours:e}, PyTorch {torch:e}");
            assert!(ours <= 1.05 * torch, "{case}: our error {ours:e} is above PyTorch's {torch:e}");

            let causal = AttentionMask::causal();
            let (mut cache, s) = (KvCache::growing(), xs.dim(1).unwrap());
            step(&layer, &xs.narrow(1, 0, 3).unwrap(), &causal, &mut cache);
            let other = Tensor::zeros((5, 1, xs.dim(2).unwrap()), dtype, &CPU).unwrap();
            let inputs = AttentionInputs::self_attention(&other, &causal);
            says(layer.attend_with(&inputs.with_cache(&mut cache), &options()), &[&format!("in {}", dtype.as_str())]);
            // Every chunking reads the same rounded keys.
            let want = step(&layer, &xs, &causal, &mut KvCache::growing());
            let rest = [step(&layer, &xs.narrow(1, 3, 1).unwrap(), &causal, &mut cache)];
            let last = step(&layer, &xs.narrow(1, 4, s - 4).unwrap(), &causal, &mut cache);
            assert_eq!(max_diff(&rest[0], &want.narrow(1, 3, 1).unwrap()), 0.0, "{case}");
            assert_eq!(max_diff(&last, &want.narrow(1, 4, s - 4).unwrap()), 0.0, "{case}");
        }
    }
}

/// In f32 a sequence has the same bits in chunks and in one run.
#[test]
fn chunks_in_f32_have_the_bits_of_one_run() {
    let mut random = Random::new(94);
    for config in configs() {
        let layer = random_layer(&config, 0.4, &mut random);
        let xs = random.tensor(&[2, 150, 24], DType::F32);
        let want = whole(&layer, &xs);
        for mut cache in [KvCache::growing(), KvCache::fixed(150), KvCache::streaming(150)] {
            let mut start = 0;
            for len in [70, 1, 1, 3, 64, 11] {
                let got = step(&layer, &xs.narrow(1, start, len).unwrap(), &AttentionMask::causal(), &mut cache);
                assert_eq!(max_diff(&got, &want.narrow(1, start, len).unwrap()), 0.0, "{start}");
                start += len;
            }
        }
    }
}

/// Sampling from a batch during training: a layer on a `VarMap` works with sequences of unequal length, and its
/// gradients are those of each sequence in one run.
#[test]
fn unequal_sequences_work_with_variables() {
    let mut random = Random::new(95);
    let steps: [&[usize]; 4] = [&[4, 2], &[1, 1], &[0, 3], &[2, 1]];
    for config in configs() {
        let map = VarMap::new();
        let layer = MultiHeadAttention::new(&config, VarBuilder::from_varmap(&map, DType::F32, &CPU)).unwrap();
        let xs = Var::from_tensor(&random.tensor(&[2, 7, 24], DType::F32)).unwrap();
        let window = AttentionMask::window(Some(2), Some(0));
        let caches = [
            (KvCache::growing(), AttentionMask::causal()),
            (KvCache::fixed(7), AttentionMask::causal()),
            (KvCache::streaming(3), window),
        ];
        for (mut cache, one_run) in caches {
            let mut starts = [0, 0];
            let mut loss = Tensor::zeros((), DType::F32, &CPU).unwrap();
            for lengths in steps {
                let longest = lengths.iter().copied().max().unwrap();
                let row = |i: usize| {
                    let own = xs.narrow(0, i, 1).unwrap().narrow(1, starts[i], lengths[i]).unwrap();
                    own.pad_with_zeros(1, 0, longest - lengths[i]).unwrap()
                };
                let chunk = Tensor::cat(&[row(0), row(1)], 0).unwrap();
                let got = step_rows(&layer, &chunk, &AttentionMask::causal(), (&mut cache, lengths));
                for i in 0..2 {
                    let own = got.narrow(0, i, 1).unwrap().narrow(1, 0, lengths[i]).unwrap();
                    loss = (loss + own.sqr().unwrap().sum_all().unwrap()).unwrap();
                    starts[i] += lengths[i];
                }
            }
            assert_eq!((starts, cache.lengths()), ([7, 7], vec![7, 7]));
            let whole = layer.attend(&xs, &xs, &xs, &one_run).unwrap().sqr().unwrap().sum_all().unwrap();
            assert_close("loss", &loss, &whole, 1e-4);
            let (got, want) = (loss.backward().unwrap(), whole.backward().unwrap());
            let variables = map.all_vars();
            assert!(variables.len() >= 8);
            for var in variables.iter().chain([&xs]) {
                assert_close("gradient", got.get(var).unwrap(), want.get(var).unwrap(), 2e-5);
            }
        }
    }
}

/// With fixed keys and trained queries (LoRA on queries) the graph of an earlier call holds the cached keys, which
/// later calls must not overwrite.
#[test]
fn a_graph_keeps_the_keys_that_it_has_seen() {
    let mut random = Random::new(96);
    let config = AttentionConfig::new(24, 4).with_num_key_value_heads(1);
    let mut weights = random_layer(&config, 0.4, &mut random).weights().unwrap();
    let QkvWeights::Split(parts) = &mut weights.qkv else { panic!("a layer gives its projections apart") };
    let query = Var::from_tensor(&parts[0].weight).unwrap();
    parts[0].weight = query.as_tensor().clone();
    let layer = MultiHeadAttention::from_weights(&config, weights).unwrap();
    let causal = AttentionMask::causal();
    let [first, second] = [4, 3].map(|s| random.tensor(&[1, s, 24], DType::F32));
    let sum = |ys: Tensor| ys.sqr().unwrap().sum_all().unwrap();
    let gradient = |cache: &mut KvCache, between: &dyn Fn(&mut KvCache)| {
        let early = sum(step(&layer, &first, &causal, cache));
        between(cache);
        let late = sum(step(&layer, &second, &causal, cache));
        (early + late).unwrap().backward().unwrap().remove(&query).unwrap()
    };
    let fixed = || {
        // Memory that was allocated by calls without a gradient.
        let mut cache = KvCache::fixed(8);
        let detached = layer.frozen().unwrap();
        step(&detached, &first, &causal, &mut cache);
        cache.reset();
        cache
    };
    let want = gradient(&mut KvCache::growing(), &|cache| *cache = KvCache::growing());
    assert_close("reset", &gradient(&mut fixed(), &KvCache::reset), &want, 1e-6);
    assert_close("truncated", &gradient(&mut fixed(), &|cache| cache.truncate(0).unwrap()), &want, 1e-6);
}
