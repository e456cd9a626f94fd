//! Ragged batches: results equal those of padding and masking, and their bits do not depend on the rest of the batch.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use candle_attention::checkpoint::Checkpoint;
use candle_attention::position::{Alibi, Position, Rotary, Rotary2d, RotaryScaling, RotaryStyle, T5RelativeBias};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Backend, HeadNorm, MultiHeadAttention, NormKind,
    NormOver, Scoring,
};
use candle_attention_text::{EncodeOptions, SentenceEncoder, TextModel, TextModelConfig};
use candle_core::{DType, Device, Module, Tensor};
use candle_nn::{VarBuilder, VarMap};

use crate::common::{Golden, Random, assert_close, assert_within, attend_ragged, fixture, max_diff, numbers, says};

const CPU: Device = Device::Cpu;
const LENGTHS: [usize; 5] = [3, 70, 1, 0, 17];

/// Allowed differences, as a share of the largest output. Both results are rounded at their end, by up to 2^-11 in f16
/// and 2^-8 in bf16. With bf16 instructions, one of them also rounds queries, keys, values, attention weights and the
/// outputs of heads: less than twice 2^-8 was measured, and four times is allowed.
const TOLERANCES: [(DType, f64); 4] =
    [(DType::F64, 1e-11), (DType::F32, 2e-5), (DType::F16, 2.0 / 2048.0), (DType::BF16, 4.0 / 256.0)];

#[track_caller]
fn assert_near(what: &str, got: &Tensor, want: &Tensor) {
    let (_, tolerance) = TOLERANCES.into_iter().find(|(dtype, _)| *dtype == got.dtype()).unwrap();
    let largest = numbers(want).into_iter().map(f64::abs).fold(0.0, f64::max);
    assert_within(&format!("{what} in {:?}", got.dtype()), got, want, tolerance * largest);
}

/// A layer with fixed weights that preserve the magnitude of their inputs.
fn frozen(config: &AttentionConfig, dtype: DType) -> MultiHeadAttention {
    let map = VarMap::new();
    MultiHeadAttention::new(config, VarBuilder::from_varmap(&map, DType::F32, &CPU)).unwrap();
    let mut random = Random::new(60);
    let tensors: HashMap<String, Tensor> = {
        let data = map.data().lock().unwrap();
        let mut names: Vec<_> = data.keys().cloned().collect();
        names.sort();
        let mut tensor = |dims: &[usize]| {
            let factor = dims.last().map_or(1.0, |n| (3.0 / *n as f64).sqrt());
            (random.tensor(dims, DType::F32) * factor).unwrap()
        };
        names.into_iter().map(|name| (name.clone(), tensor(data[&name].dims()))).collect()
    };
    MultiHeadAttention::load(config, VarBuilder::from_tensors(tensors, dtype, &CPU)).unwrap()
}

fn sequences(xs: &Tensor) -> Vec<Tensor> {
    let mut start = 0;
    let row = |&length: &usize| {
        start += length;
        xs.narrow(0, start - length, length).unwrap()
    };
    LENGTHS.iter().map(row).collect()
}

#[test]
fn ragged_batch_equals_its_sequences_alone() {
    let tokens = LENGTHS.iter().sum::<usize>();
    let config = AttentionConfig::new(24, 4).with_num_key_value_heads(2).with_head_dim(8).with_value_head_dim(5);
    let plain = AttentionConfig::new(24, 3);
    let none = AttentionMask::full;
    let masks = || [none(), AttentionMask::causal(), AttentionMask::window(Some(2), Some(1))];
    let rotary = || Rotary::default().with_theta(30.0);
    let dynamic = RotaryScaling::Dynamic { factor: 3.0, original_max_position_embeddings: 20 };
    let positions = [
        Position::Rotary(rotary()),
        Position::Rotary(rotary().with_dim(4).with_style(RotaryStyle::Interleaved)),
        Position::Rotary(rotary().with_scaling(dynamic)),
        Position::Alibi(Alibi::default()),
        Position::Alibi(Alibi::default().with_symmetric(true)),
        Position::T5RelativeBias(T5RelativeBias::new(8, 12, true)),
    ];
    let positioned = positions.iter().flat_map(|position| {
        let config = config.clone().with_position(position.clone());
        // With limited scores the pass over plain numbers is not taken, but the one over tensors.
        let capped = config.clone().with_softcap(0.8);
        [(config.clone(), DType::F32), (config.clone(), DType::F16), (config, DType::BF16), (capped, DType::F32)]
    });
    for (config, dtype) in positioned.chain([
        (plain.clone(), DType::F32),
        (config.clone(), DType::F32),
        (config.clone(), DType::F64),
        (config.clone(), DType::F16),
        (config.clone(), DType::BF16),
        (plain.clone().with_add_zero_attn(true), DType::F32),
        (plain.clone().with_scale(0.05), DType::F32),
        (plain.clone().with_clip_qkv(0.3), DType::F32),
        (plain.clone().with_qk_norm(HeadNorm::new(NormKind::Rms, NormOver::Head, 1e-5)), DType::F32),
        (plain.with_scoring(Scoring::Additive).with_add_bias_kv(true), DType::F32),
    ]) {
        let layer = frozen(&config, dtype);
        let xs = Random::new(61).tensor(&[tokens, 24], dtype);
        for mask in masks() {
            let ragged = attend_ragged(&layer, &xs, &LENGTHS, &mask).unwrap();
            assert_eq!((ragged.dims(), ragged.dtype()), (&[tokens, 24][..], dtype));
            for (sequence, got) in sequences(&xs).iter().zip(sequences(&ragged)) {
                let alone = sequence.unsqueeze(0).unwrap();
                let inputs = AttentionInputs::self_attention(&alone, &mask);
                let options = AttentionOptions::default().with_backend(Backend::Eager);
                let want = layer.attend_with(&inputs, &options).unwrap().output.squeeze(0).unwrap();
                assert_near(&format!("{config:?} {mask}"), &got, &want);
            }
        }
    }
}

/// A new layer has no sinks, so they are added to one.
#[test]
fn sinks_take_their_share_in_a_ragged_batch() {
    let plain = frozen(&AttentionConfig::new(24, 3), DType::F32);
    let mut random = Random::new(62);
    let weights = plain.weights().unwrap().with_parameter("sinks", random.tensor(&[3], DType::F32));
    let layer = MultiHeadAttention::from_weights(plain.config(), weights).unwrap();
    let xs = random.tensor(&[LENGTHS.iter().sum(), 24], DType::F32);
    let ragged = attend_ragged(&layer, &xs, &LENGTHS, &AttentionMask::full()).unwrap();
    for (sequence, got) in sequences(&xs).iter().zip(sequences(&ragged)) {
        let want = layer.forward(&sequence.unsqueeze(0).unwrap()).unwrap().squeeze(0).unwrap();
        assert_near("sinks", &got, &want);
    }
}

/// Options of a ragged batch mean what they mean in the padded one.
#[test]
fn options_are_those_of_the_padded_batch() {
    let config = AttentionConfig::new(24, 4).with_num_key_value_heads(2).with_dropout(0.5);
    let config = config.with_position(Rotary::default().with_theta(30.0));
    let layer = frozen(&config, DType::F32);
    let mut random = Random::new(66);
    let (xs, s, b) = (random.tensor(&[LENGTHS.iter().sum(), 24], DType::F32), 70, LENGTHS.len());
    let pad = |xs: Tensor| match xs.dims()[0] {
        0 => Tensor::zeros((1, s, 24), DType::F32, &CPU).unwrap(),
        length => xs.pad_with_zeros(0, 0, s - length).unwrap().unsqueeze(0).unwrap(),
    };
    let padded = Tensor::cat(&sequences(&xs).into_iter().map(pad).collect::<Vec<_>>(), 0).unwrap();
    let causal = AttentionMask::causal();
    let inputs = AttentionInputs::self_attention(&padded, causal.clone().and(AttentionMask::padding(&LENGTHS)));
    let unpadded = |ys: &Tensor| {
        let row = |(i, &length): (usize, &usize)| ys.get(i).unwrap().narrow(0, 0, length).unwrap();
        Tensor::cat(&LENGTHS.iter().enumerate().filter(|(_, n)| **n > 0).map(row).collect::<Vec<_>>(), 0).unwrap()
    };
    let plain = AttentionOptions::default();
    let run = |options: &AttentionOptions| layer.attend_with(&AttentionInputs::ragged(&xs, &LENGTHS, &causal), options);
    let [by_head, by_row] = [&[4][..], &[b, 4]].map(|dims| random.tensor(dims, DType::F32));
    let options = [
        plain,
        plain.with_return_attention_weights(true),
        plain.with_head_mask(&by_head),
        plain.with_head_mask(&by_row).with_return_attention_weights(true),
        plain.with_backend(Backend::Eager),
        plain.with_backend(Backend::Cpu),
    ];
    for options in options {
        let (got, want) = (run(&options).unwrap(), layer.attend_with(&inputs, &options).unwrap());
        assert_near(&format!("{options:?}"), &got.output, &unpadded(&want.output));
        assert_eq!(got.attention_weights.is_some(), options.return_attention_weights);
        if let (Some(got), Some(want)) = (got.attention_weights, want.attention_weights) {
            assert_eq!(got.dims(), [b, 4, s, s]);
            assert_near("weights", &got, &want);
        }
    }
    let without = run(&plain).unwrap().output;
    let dropped = run(&plain.with_train(true)).unwrap().output;
    assert!(max_diff(&dropped, &without) > 1e-2, "half of the attention weights are dropped");
    says(run(&plain.with_backend(Backend::Metal)), &["backend metal cannot run this call"]);
    says(run(&plain.with_grid([2, 2])), &["grid = 2 x 2"]);
    let wrong = random.tensor(&[3], DType::F32);
    says(run(&plain.with_head_mask(&wrong)), &["head_mask has shape [3]", "[4] or [5, 4]"]);
    let short = xs.narrow(0, 0, 90).unwrap();
    let failed =
        layer.attend_with(&AttentionInputs::ragged(&short, &LENGTHS, &causal), &plain.with_head_mask(&by_head));
    says(failed, &["the sum of lengths is 91", "90, the tokens of xs"]);
    let nothing = xs.narrow(0, 0, 0).unwrap();
    let weighted = plain.with_return_attention_weights(true);
    let got = layer.attend_with(&AttentionInputs::ragged(&nothing, &[0, 0], &causal), &weighted).unwrap();
    assert_eq!((got.output.dims(), got.attention_weights.unwrap().dims()), (&[0, 24][..], &[2, 4, 0, 0][..]));
}

/// Where the number of tokens says where they stand, a shorter sequence in a padded batch would stand elsewhere.
#[test]
fn images_of_different_sizes_are_refused() {
    let config = AttentionConfig::new(24, 3).with_position(Position::Rotary2d(Rotary2d::new(30.0)));
    let layer = frozen(&config, DType::F32);
    let xs = Random::new(67).tensor(&[10, 24], DType::F32);
    let full = AttentionMask::full();
    says(
        attend_ragged(&layer, &xs, &[5, 2, 3], &full),
        &["the list of lengths is [5, 2, 3]", "equal ones for rotary grid"],
    );
    let got = attend_ragged(&layer, &xs, &[5, 5], &full).unwrap();
    let images = xs.reshape((2, 5, 24)).unwrap();
    let want = layer.attend(&images, &images, &images, &full).unwrap();
    assert_near("images", &got, &want.reshape((10, 24)).unwrap());
}

/// Compared bitwise with the sequence alone, as a ragged batch and as a padded one.
#[test]
fn bits_do_not_depend_on_other_sequences() {
    let layer = frozen(&AttentionConfig::new(24, 3), DType::F32);
    let xs = Random::new(62).tensor(&[LENGTHS.iter().sum(), 24], DType::F32);
    let none = AttentionMask::full();
    let together = attend_ragged(&layer, &xs, &LENGTHS, &none).unwrap();
    for ((sequence, got), length) in sequences(&xs).iter().zip(sequences(&together)).zip(LENGTHS) {
        let alone = attend_ragged(&layer, sequence, &[length], &none).unwrap();
        assert!(numbers(&alone) == numbers(&got), "a sequence of {length}");
        if length > 0 {
            let one = sequence.unsqueeze(0).unwrap();
            let dense = layer.attend(&one, &one, &one, &none).unwrap();
            assert!(numbers(&dense) == numbers(&got), "a padded call with a sequence of {length}");
            let padded = one.pad_with_zeros(1, 0, 11).unwrap();
            let mask = AttentionMask::lengths(&[length]);
            let padded = layer.attend(&padded, &padded, &padded, &mask).unwrap().narrow(1, 0, length).unwrap();
            assert!(numbers(&padded) == numbers(&got), "a padded sequence of {length}");
        }
    }
}

/// A layer with fixed weights removes padding and adds it again: results equal those of masking at every token.
#[test]
fn removing_padding_equals_masking_it() {
    let mut random = Random::new(64);
    let config = AttentionConfig::new(48, 4);
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let layer = frozen(&config, dtype);
        let xs = random.tensor(&[4, 20, 48], dtype);
        for mask in [AttentionMask::full(), AttentionMask::causal(), AttentionMask::window(Some(4), Some(2))] {
            let lengths = [20, 3, 0, 11];
            let mask = mask.and(AttentionMask::padding(&lengths));
            let inputs = AttentionInputs::self_attention(&xs, &mask);
            let run = |options: AttentionOptions| layer.attend_with(&inputs, &options).unwrap();
            let want = run(AttentionOptions::default().with_backend(Backend::Eager)).output;
            let got = run(AttentionOptions::default()).output;
            assert_near(&mask.to_string(), &got, &want);
            let weights =
                run(AttentionOptions::default().with_return_attention_weights(true)).attention_weights.unwrap();
            assert!(numbers(&weights.narrow(0, 1, 1).unwrap().narrow(2, 3, 17).unwrap()).iter().all(|w| *w == 0.0));
            // The tokens of a row have the bits that they have alone.
            let alone = xs.narrow(0, 1, 1).unwrap().narrow(1, 0, 3).unwrap();
            let alone = attend_ragged(&layer, &alone.squeeze(0).unwrap(), &[3], &AttentionMask::full()).unwrap();
            let row = got.narrow(0, 1, 1).unwrap().narrow(1, 0, 3).unwrap();
            if mask.to_string().starts_with("padding") {
                assert_eq!(numbers(&row), numbers(&alone));
            }
        }
    }
    let layer = frozen(&config, DType::F32);
    let xs = random.tensor(&[2, 5, 48], DType::F32);
    let attend = |keys: &Tensor, lengths: &[usize]| layer.attend(&xs, keys, keys, AttentionMask::padding(lengths));
    says(attend(&xs, &[5, 6]), &["padding[1] is 6", "at most 5"]);
    says(attend(&xs, &[5]), &["the number of rows in padding is 1", "2, the batch size"]);
    says(attend(&xs.narrow(1, 0, 4).unwrap(), &[3, 3]), &["5 queries and 4 keys", "self-attention"]);
}

#[test]
fn gradients_flow_through_a_ragged_batch() {
    let map = VarMap::new();
    let vb = VarBuilder::from_varmap(&map, DType::F64, &CPU);
    let layer = MultiHeadAttention::new(&AttentionConfig::new(8, 2), vb).unwrap();
    let xs = Random::new(63).tensor(&[9, 8], DType::F64);
    let output = attend_ragged(&layer, &xs, &[4, 5], &AttentionMask::causal()).unwrap();
    let grads = output.sqr().unwrap().sum_all().unwrap().backward().unwrap();
    for (name, variable) in map.data().lock().unwrap().iter() {
        let grad = numbers(grads.get(variable).unwrap());
        assert!(name == "k_proj.bias" || grad.iter().any(|n| n.abs() > 1e-9), "{name}");
    }
}

#[test]
fn wrong_ragged_inputs_are_named() {
    let layer = frozen(&AttentionConfig::new(8, 2), DType::F32);
    let zeros = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, &CPU).unwrap();
    let none = AttentionMask::full();
    let xs = zeros(&[5, 8], DType::F32);
    says(
        attend_ragged(&layer, &zeros(&[1, 5, 8], DType::F32), &[5], &none),
        &["xs has shape [1, 5, 8]", "(tokens, 8)"],
    );
    says(attend_ragged(&layer, &zeros(&[5, 7], DType::F32), &[5], &none), &["xs has shape [5, 7]"]);
    says(attend_ragged(&layer, &zeros(&[5, 8], DType::F16), &[5], &none), &["xs has dtype f16", "f32"]);
    says(attend_ragged(&layer, &xs, &[2, 2], &none), &["the sum of lengths is 4", "5, the tokens of xs"]);
    // In 64 bits these add up to 5.
    says(attend_ragged(&layer, &xs, &[usize::MAX, 6], &none), &["the sum of lengths is 18446744073709551615"]);
    let lengths = AttentionMask::lengths(&[1, 2]);
    says(attend_ragged(&layer, &xs, &[2, 3], &lengths), &["the mask of a ragged batch is lengths(2 rows)"]);
    assert_eq!(attend_ragged(&layer, &zeros(&[0, 8], DType::F32), &[], &none).unwrap().dims(), [0, 8]);
}

#[test]
fn encoder_gives_equal_results_ragged_and_padded() {
    let config = TextModelConfig::from_file(fixture("tiny-bert/config.json")).unwrap();
    let checkpoint = Checkpoint::open(fixture("tiny-bert")).unwrap();
    let model = TextModel::load(&config, checkpoint.at("", DType::F32, &CPU)).unwrap();
    let golden = Golden::open("tiny_bert.safetensors");
    let (padded, mask) = (golden.get("ids").to_vec2::<i64>().unwrap(), golden.get("mask"));
    let lengths: Vec<usize> = mask
        .to_dtype(DType::U32)
        .unwrap()
        .sum(1)
        .unwrap()
        .to_vec1::<u32>()
        .unwrap()
        .into_iter()
        .map(|n| n as usize)
        .collect();
    let ids: Vec<u32> =
        padded.iter().zip(&lengths).flat_map(|(row, &n)| row[..n].iter().map(|&id| id as u32)).collect();
    let types = vec![0; ids.len()];
    assert!(model.supports_ragged());
    let ragged = model.forward_ragged(&ids, &types, &lengths).unwrap();
    let want = golden.get("hidden");
    let mut start = 0;
    for (row, &length) in lengths.iter().enumerate() {
        let want = want.get(row).unwrap().narrow(0, 0, length).unwrap();
        assert_close("hidden", &ragged.narrow(0, start, length).unwrap(), &want, 1e-5);
        start += length;
    }
    says(model.forward_ragged(&ids, &types, &lengths[1..]), &["the sum of lengths"]);
    says(model.forward_ragged(&ids, &types[1..], &lengths), &["the number of types"]);
    says(model.forward_ragged(&[1; 41], &[0; 41], &[41]), &["the longest sequence is 41", "at most 40"]);
    says(model.forward_ragged(&[109], &[0], &[1]), &["the largest of ids is 109"]);
    let wide = TextModel::load(&config, checkpoint.at("", DType::F64, &CPU)).unwrap();
    assert!(!wide.supports_ragged());
    let padded = wide.forward_ragged(&ids, &types, &lengths).unwrap();
    assert_close("f64", &padded, &ragged.to_dtype(DType::F64).unwrap(), 1e-5);
    // Another activation than the fused one.
    let mut config = config;
    config.hidden_act = candle_nn::Activation::Silu;
    let model = TextModel::load(&config, checkpoint.at("", DType::F32, &CPU)).unwrap();
    let ragged = model.forward_ragged(&ids[..lengths[0]], &types[..lengths[0]], &lengths[..1]).unwrap();
    let dense = Tensor::new(&ids[..lengths[0]], &CPU).unwrap().unsqueeze(0).unwrap();
    let dense = model.forward(&dense, None, &AttentionMask::full()).unwrap().squeeze(0).unwrap();
    assert_close("silu", &ragged, &dense, 1e-5);
}

/// An embedding has the same bits alone, in any batch and with any number of threads.
#[test]
fn embeddings_do_not_depend_on_the_batch() {
    let texts: Vec<String> =
        serde_json::from_str(&std::fs::read_to_string(fixture("tiny_sentences.json")).unwrap()).unwrap();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    for dtype in [DType::F32, DType::BF16] {
        let encoder = SentenceEncoder::from_folder(fixture("tiny-bert"), dtype, &CPU).unwrap();
        let encode = |batch_size: usize| {
            numbers(&encoder.encode(&texts, &EncodeOptions::default().with_batch_size(batch_size)).unwrap())
        };
        let want = encode(100);
        assert!([1, 2, 3, 5].into_iter().all(|batch_size| encode(batch_size) == want));
        for tokens in [0, 1, 20, 50] {
            let batches = AtomicUsize::new(0);
            let count = |_, _| {
                batches.fetch_add(1, Relaxed);
            };
            let options = EncodeOptions::default().with_max_batch_tokens(tokens).with_on_progress(&count);
            assert!(numbers(&encoder.encode(&texts, &options).unwrap()) == want, "{tokens} tokens");
            // One text a batch where none has room for a second.
            let batches = batches.into_inner();
            assert!(if tokens < 2 { batches == texts.len() } else { batches < texts.len() });
        }
        for threads in [1, 2, 5] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            assert!(pool.install(|| encode(3)) == want, "{threads} threads");
        }
    }
}
