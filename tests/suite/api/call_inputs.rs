//! What only the call knows: vectors added to the inputs of queries and keys, cosines and sines, a bias of the scores.

use std::collections::HashMap;

use candle_attention::position::{GivenRotation, Position, Rotary, Rotary2d, Rotary3d, RotaryStyle};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Backend, CallInput, Error, KvCache,
    MultiHeadAttention, ObserveOptions,
};
use candle_core::{DType, Device, Module, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};

use crate::common::{Random, assert_close, max_diff, numbers, says};

const CPU: Device = Device::Cpu;

/// Layers of these configurations with the same fixed weights.
fn layers<const N: usize>(configs: [AttentionConfig; N], dtype: DType) -> [MultiHeadAttention; N] {
    let map = VarMap::new();
    MultiHeadAttention::new(&configs[0], VarBuilder::from_varmap(&map, DType::F64, &CPU)).unwrap();
    let data = map.data().lock().unwrap();
    let mut random = Random::new(7);
    let mut names: Vec<&String> = data.keys().collect();
    names.sort();
    let weights = names.into_iter().map(|name| {
        let values = random.tensor(data[name].dims(), DType::F64).affine(0.5, 0.0).unwrap();
        (name.clone(), values.to_dtype(dtype).unwrap())
    });
    let weights: HashMap<String, Tensor> = weights.collect();
    configs.map(|config| {
        MultiHeadAttention::load(&config, VarBuilder::from_tensors(weights.clone(), dtype, &CPU)).unwrap()
    })
}

fn with_vectors() -> AttentionConfig {
    AttentionConfig::new(12, 3).with_requires(&[CallInput::PositionVectors])
}

fn random(dims: &[usize], seed: u64) -> Tensor {
    Random::new(seed).tensor(dims, DType::F32)
}

fn output(layer: &MultiHeadAttention, inputs: &AttentionInputs) -> Tensor {
    layer.attend_with(inputs, &AttentionOptions::default()).unwrap().output
}

fn is_missing<T>(result: Result<T, Error>) {
    assert!(matches!(result, Err(Error::MissingInput { .. })));
}

#[test]
fn vectors_are_added_to_the_inputs_of_queries_and_keys_alone() {
    let [layer] = layers([with_vectors()], DType::F32);
    let (xs, memory) = (random(&[2, 5, 12], 1), random(&[2, 7, 12], 2));
    let (of_queries, of_keys) = (random(&[1, 5, 12], 3), random(&[2, 7, 12], 4));
    let (query, key) = (xs.broadcast_add(&of_queries).unwrap(), (&memory + &of_keys).unwrap());
    let mask = AttentionMask::lengths(&[7, 4]);
    // Inputs that include them are given, too.
    let want = layer.attend(&query, &key, &memory, &mask).unwrap();
    let inputs = AttentionInputs::cross_attention(&xs, &memory, &mask).with_position_vectors(&of_queries, &of_keys);
    assert_close("cross-attention", &output(&layer, &inputs), &want, 1e-6);
    let eager = AttentionOptions::default().with_backend(Backend::Eager);
    assert_close("eager", &layer.attend_with(&inputs, &eager).unwrap().output, &want, 1e-5);
    layer.plan(&inputs, &eager).unwrap();
    let observed = layer.observe(&inputs, &AttentionOptions::default(), &ObserveOptions::default()).unwrap();
    assert_close("observed", &observed.output, &want, 1e-5);
    assert!(
        max_diff(&want, &layer.attend(&query, &key, &memory.copy().unwrap(), AttentionMask::full()).unwrap()) > 1e-3
    );

    // A memory that is projected once holds the vectors of its keys.
    let cache = layer.cross_cache(&key, &memory).unwrap();
    let cached = AttentionInputs::cross_cached(&xs, &cache, &mask);
    is_missing(layer.attend_with(&cached, &AttentionOptions::default()));
    assert_close("cached memory", &output(&layer, &cached.with_position_vectors(&of_queries, None)), &want, 1e-5);
    is_missing(layer.cross_cache(&memory, &memory));
    let twice = AttentionInputs::cross_cached(&xs, &cache, &mask).with_position_vectors(&of_queries, &of_keys);
    says(layer.attend_with(&twice, &AttentionOptions::default()), &["key_vectors", "projected"]);
}

#[test]
fn vectors_of_padded_ragged_and_cached_tokens_are_those_of_a_sequence_alone() {
    let causal = with_vectors().with_mask(AttentionMask::causal());
    let [layer] = layers([causal], DType::F32);
    let lengths = [6, 1, 4];
    let (xs, vectors) = (random(&[3, 6, 12], 1), random(&[3, 6, 12], 2));
    let part =
        |of: &Tensor, i: usize| of.narrow(0, i, 1).unwrap().narrow(1, 0, lengths[i]).unwrap().contiguous().unwrap();
    let alone: Vec<Tensor> = (0..3)
        .map(|i| {
            let (xs, vectors) = (part(&xs, i), part(&vectors, i));
            let sum = (&xs + &vectors).unwrap();
            layer.attend(&sum, &sum, &xs, AttentionMask::full()).unwrap().squeeze(0).unwrap()
        })
        .collect();
    let padded = AttentionInputs::self_attention(&xs, AttentionMask::padding(&lengths));
    let padded = output(&layer, &padded.with_position_vectors(&vectors, &vectors));
    let rows = |of: &Tensor| Tensor::cat(&[0, 1, 2].map(|i| part(of, i).squeeze(0).unwrap()), 0).unwrap();
    let (xs_rows, vector_rows) = (rows(&xs), rows(&vectors));
    let ragged = AttentionInputs::ragged(&xs_rows, &lengths, AttentionMask::full());
    is_missing(layer.attend_with(&ragged, &AttentionOptions::default()));
    let ragged = ragged.with_position_vectors(&vector_rows, &vector_rows);
    let got = output(&layer, &ragged);
    let weights = AttentionOptions::default().with_return_attention_weights(true);
    let in_buckets = layer.attend_with(&ragged, &weights).unwrap().output;
    let observed = layer.observe(&ragged, &AttentionOptions::default(), &ObserveOptions::default()).unwrap().output;
    let mut start = 0;
    for (i, alone) in alone.iter().enumerate() {
        assert_close("padded", &padded.get(i).unwrap().narrow(0, 0, lengths[i]).unwrap(), alone, 1e-5);
        for (name, got) in [("ragged", &got), ("in buckets", &in_buckets), ("observed", &observed)] {
            assert_close(name, &got.narrow(0, start, lengths[i]).unwrap(), alone, 1e-5);
        }
        start += lengths[i];
    }
    for sizes in [vec![1; 6], vec![2, 3, 1]] {
        let (mut cache, mut start, mut outputs) = (KvCache::growing(), 0, Vec::new());
        for size in sizes {
            let chunk = |of: &Tensor| of.narrow(0, 0, 1).unwrap().narrow(1, start, size).unwrap();
            let (xs, vectors) = (chunk(&xs), chunk(&vectors));
            let inputs = AttentionInputs::self_attention(&xs, AttentionMask::full()).with_cache(&mut cache);
            outputs.push(output(&layer, &inputs.with_position_vectors(&vectors, &vectors)));
            start += size;
        }
        assert_close("cached", &Tensor::cat(&outputs, 1).unwrap().squeeze(0).unwrap(), &alone[0], 1e-5);
    }
    let (mut cache, next) = (KvCache::growing(), random(&[2, 3, 12], 5));
    let inputs = AttentionInputs::self_attention(&next, AttentionMask::full());
    let inputs = inputs.with_cache_lengths(&mut cache, &[3, 1]);
    let got = output(&layer, &inputs.with_position_vectors(&next, &next));
    let sum = (&next * 2.0).unwrap();
    let want = layer.attend(&sum, &sum, &next, AttentionMask::full()).unwrap();
    assert_close("cached, all tokens", &got.get(0).unwrap(), &want.get(0).unwrap(), 1e-5);
    assert_close(
        "cached, one token",
        &got.get(1).unwrap().get(0).unwrap(),
        &want.get(1).unwrap().get(0).unwrap(),
        1e-5,
    );
}

/// The gradient of `of` at a tensor is that of finite differences.
fn check_gradient(name: &str, value: &Tensor, of: impl Fn(&Tensor) -> Tensor) {
    let var = Var::from_tensor(value).unwrap();
    let loss = |output: Tensor| (output.sqr().unwrap() * 0.5).unwrap().sum_all().unwrap();
    let gradients = loss(of(var.as_tensor())).backward().unwrap();
    let gradient = numbers(gradients.get(&var).unwrap_or_else(|| panic!("{name} gets no gradient")));
    let values = numbers(value);
    for i in [0, values.len() / 2, values.len() - 1] {
        let at = |step: f64| {
            let mut moved = values.clone();
            moved[i] += step;
            let moved = Tensor::from_vec(moved, value.dims(), &CPU).unwrap();
            loss(of(&moved)).to_scalar::<f64>().unwrap()
        };
        let want = (at(1e-5) - at(-1e-5)) / 2e-5;
        assert!((gradient[i] - want).abs() <= 1e-5 * want.abs().max(1.0), "{name} {i}: {} and {want}", gradient[i]);
    }
}

#[test]
fn gradients_flow_into_what_the_call_gives() {
    let all = [CallInput::PositionVectors, CallInput::CosSin, CallInput::ScoreBias { scaled: true }];
    let config = AttentionConfig::new(12, 3).with_requires(&all).with_position(GivenRotation::default());
    let [layer] = layers([config], DType::F64);
    let wide = |dims: &[usize], seed| Random::new(seed).tensor(dims, DType::F64);
    let (xs, vectors, bias) = (wide(&[2, 5, 12], 1), wide(&[1, 5, 12], 2), wide(&[2, 1, 5, 5], 3));
    let (cos, sin) = (wide(&[1, 5, 2], 4), wide(&[2, 5, 2], 5).narrow(0, 0, 1).unwrap());
    let run = |xs: &Tensor, query: &Tensor, key: &Tensor, bias: &Tensor, cos: &Tensor, sin: &Tensor| {
        let inputs = AttentionInputs::self_attention(xs, AttentionMask::causal()).with_position_vectors(query, key);
        let options = AttentionOptions::default().with_score_bias(bias).with_cos_sin([cos, sin]);
        layer.attend_with(&inputs, &options).unwrap().output
    };
    check_gradient("the input", &xs, |xs| run(xs, &vectors, &vectors, &bias, &cos, &sin));
    check_gradient("vectors of queries", &vectors, |p| run(&xs, p, &vectors, &bias, &cos, &sin));
    check_gradient("vectors of keys", &vectors, |p| run(&xs, &vectors, p, &bias, &cos, &sin));
    check_gradient("the bias", &bias, |bias| run(&xs, &vectors, &vectors, bias, &cos, &sin));
    check_gradient("cosines", &cos, |cos| run(&xs, &vectors, &vectors, &bias, cos, &sin));
    check_gradient("sines", &sin, |sin| run(&xs, &vectors, &vectors, &bias, &cos, sin));
}

#[test]
fn a_call_without_what_the_layer_requires_is_one_error_that_names_it() {
    let xs = random(&[1, 4, 12], 1);
    let all = [
        (CallInput::PositionVectors, ["position vectors", "(b or 1, s, size)", "with_position_vectors"]),
        (CallInput::CosSin, ["cosines and sines", "(b or 1, s, pairs)", "with_cos_sin"]),
        (CallInput::ScoreBias { scaled: false }, ["a score bias", "(b, h, s_q, s_kv)", "with_score_bias"]),
        (CallInput::Mask, ["a mask", "which keys each query sees", "padding alone"]),
    ];
    for (input, parts) in all {
        let mut config = AttentionConfig::new(12, 3).with_requires(&[input]);
        config.model_type = Some("detr");
        if input == CallInput::CosSin {
            config = config.with_position(GivenRotation::default());
        }
        let [layer] = layers([config], DType::F32);
        let error = layer.forward_t(&xs, false).unwrap_err();
        assert!(matches!(error, Error::MissingInput { model_type: Some("detr"), .. }), "{error:?}");
        let text = error.to_string();
        assert!(parts.iter().all(|part| text.contains(part)) && text.contains("`detr`"), "{text}");
        let candle = layer.forward(&xs).unwrap_err();
        assert!(matches!(Error::find_in(&candle), Some(Error::MissingInput { .. })), "{candle:?}");
        let inputs = AttentionInputs::self_attention(&xs, AttentionMask::full());
        is_missing(layer.plan(&inputs, &AttentionOptions::default()));
        is_missing(layer.observe(&inputs, &AttentionOptions::default(), &ObserveOptions::default()));
        is_missing(layer.step(&xs, &mut KvCache::growing()));
        is_missing(layer.frozen().unwrap().forward_t(&xs, false));
        assert!(!layer.supports_rows());
    }
}

#[test]
fn what_a_call_gives_is_checked() {
    let [layer, plain] = layers([with_vectors().with_position(GivenRotation::default()), with_vectors()], DType::F32);
    let (xs, vectors) = (random(&[2, 4, 12], 1), random(&[2, 3, 12], 2));
    let inputs = || AttentionInputs::self_attention(&xs, AttentionMask::full());
    let given = || inputs().with_position_vectors(&xs, &xs);
    let none = AttentionOptions::default();
    says(layer.attend_with(&inputs().with_position_vectors(&vectors, &xs), &none), &["query_vectors", "[2, 3, 12]"]);
    says(layer.attend_with(&inputs().with_position_vectors(&xs, &vectors), &none), &["key_vectors", "[2, 4, 12]"]);
    let halves = xs.to_dtype(DType::F16).unwrap();
    says(layer.attend_with(&inputs().with_position_vectors(&halves, &xs), &none), &["query_vectors", "f16"]);
    says(layer.attend_with(&given(), &none), &["cos_sin", "with_cos_sin"]);
    let (cos, long) = (random(&[1, 4, 2], 3), random(&[1, 4, 3], 4));
    says(layer.attend_with(&given(), &none.with_cos_sin([&cos, &long])), &["cos", "up to 2 pairs"]);
    says(layer.attend_with(&given(), &none.with_cos_sin([&long, &long])), &["cos", "[1, 4, 3]"]);
    says(plain.attend_with(&given(), &none.with_cos_sin([&cos, &cos])), &["cos_sin", "none"]);
    let bias = random(&[2, 3, 4, 5], 5);
    says(plain.attend_with(&given(), &none.with_score_bias(&bias)), &["score_bias", "[2, 3, 4, 5]", "[2, 3, 4, 4]"]);
    let rows = random(&[4, 12], 6);
    let ragged = AttentionInputs::ragged(&rows, &[3, 1], AttentionMask::full()).with_position_vectors(&rows, &rows);
    says(plain.attend_with(&ragged, &none.with_score_bias(&bias)), &["score_bias", "ragged"]);
    let short = random(&[3, 12], 6);
    let ragged = AttentionInputs::ragged(&rows, &[3, 1], AttentionMask::full()).with_position_vectors(&short, &rows);
    says(plain.attend_with(&ragged, &none), &["query_vectors", "[4, 12]"]);
}

#[test]
fn a_given_rotation_is_the_rotary_one() {
    for style in [RotaryStyle::HalfSplit, RotaryStyle::Interleaved] {
        let config = |position: Position| AttentionConfig::new(24, 3).with_position(position);
        let rotary = Rotary::default().with_theta(30.0).with_style(style).with_dim(6);
        let given = config(GivenRotation::new(style).into()).with_requires(&[CallInput::CosSin]);
        let causal = AttentionMask::causal();
        let [rotary, given] =
            layers([config(rotary.into()), given].map(|config| config.with_mask(causal.clone())), DType::F32);
        let xs = random(&[2, 7, 24], 1);
        let angles = (0..7).flat_map(|p| (0..3).map(move |i| f64::from(p) * 30f64.powf(-f64::from(i) / 3.0)));
        let angles = Tensor::from_iter(angles, &CPU).unwrap().reshape((1, 7, 3)).unwrap();
        let (cos, sin) = (angles.cos().unwrap(), angles.sin().unwrap());
        let want = rotary.forward(&xs).unwrap();
        let inputs = AttentionInputs::self_attention(&xs, AttentionMask::full());
        let options = AttentionOptions::default().with_cos_sin([&cos, &sin]);
        assert_close("whole", &given.attend_with(&inputs, &options).unwrap().output, &want, 1e-5);
        let last = xs.narrow(1, 4, 3).unwrap();
        let of_last = AttentionInputs::cross_attention(&last, &xs, AttentionMask::full());
        let got = given.attend_with(&of_last, &options).unwrap().output;
        assert_close("the last queries", &got, &want.narrow(1, 4, 3).unwrap(), 1e-5);
        let (mut cache, mut outputs) = (KvCache::growing(), Vec::new());
        for (start, size) in [(0, 3), (3, 1), (4, 3)] {
            let [xs, cos, sin] = [&xs, &cos, &sin].map(|of| of.narrow(1, start, size).unwrap());
            let inputs = AttentionInputs::self_attention(&xs, AttentionMask::full()).with_cache(&mut cache);
            let options = AttentionOptions::default().with_cos_sin([&cos, &sin]);
            outputs.push(given.attend_with(&inputs, &options).unwrap().output);
        }
        assert_close("cached", &Tensor::cat(&outputs, 1).unwrap(), &want, 1e-5);
    }
}

#[test]
fn a_score_bias_is_an_additive_mask_times_the_scale_of_the_layer() {
    let config = |scaled| AttentionConfig::new(12, 3).with_requires(&[CallInput::ScoreBias { scaled }]);
    let [plain, scaled] = layers([config(false), config(true)], DType::F32);
    let (xs, bias) = (random(&[2, 5, 12], 1), random(&[2, 3, 5, 5], 2));
    let options = AttentionOptions::default().with_score_bias(&bias);
    let padding = AttentionMask::padding(&[5, 3]);
    for (layer, factor) in [(&plain, 1.0), (&scaled, 0.5)] {
        let mask = AttentionMask::additive(&(&bias * factor).unwrap()).unwrap().and(padding.clone());
        // The mask is the bias, and is added as it is.
        let want = layer.attend(&xs, &xs, &xs, &mask).unwrap();
        let inputs = AttentionInputs::self_attention(&xs, &padding);
        assert_close("a bias", &layer.attend_with(&inputs, &options).unwrap().output, &want, 1e-5);
        let eager = options.with_backend(Backend::Eager);
        assert_close("eager", &layer.attend_with(&inputs, &eager).unwrap().output, &want, 1e-5);
        layer.plan(&inputs, &options).unwrap();
    }
    // With a cache there is a column for each key.
    let (mut cache, mut outputs) = (KvCache::growing(), Vec::new());
    for (start, size) in [(0, 2), (2, 3)] {
        let chunk = xs.narrow(1, start, size).unwrap();
        let rows = bias.narrow(2, start, size).unwrap().narrow(3, 0, start + size).unwrap().contiguous().unwrap();
        let inputs = AttentionInputs::self_attention(&chunk, AttentionMask::causal()).with_cache(&mut cache);
        let options = AttentionOptions::default().with_score_bias(&rows);
        outputs.push(plain.attend_with(&inputs, &options).unwrap().output);
    }
    let inputs = AttentionInputs::self_attention(&xs, AttentionMask::causal());
    let want = plain.attend_with(&inputs, &options).unwrap().output;
    assert_close("cached", &Tensor::cat(&outputs, 1).unwrap(), &want, 1e-5);
}

/// Row and column of each patch, window by window, and its window.
fn in_windows(rows: u32, columns: u32, block: u32, window: u32) -> Vec<(u32, [u32; 2])> {
    let side = block * window;
    let mut patches: Vec<(u32, [u32; 2])> = (0..rows * columns).map(|i| (0, [i / columns, i % columns])).collect();
    patches.iter_mut().for_each(|(number, [y, x])| *number = *y / side * columns.div_ceil(side) + *x / side);
    patches.sort_by_key(|(number, [y, x])| (*number, y / block, x / block, *y, *x));
    patches
}

#[test]
fn patches_in_windows_are_the_same_patches_in_another_order() {
    let (rows, columns) = (8, 12);
    let square = Rotary2d::new(50.0).with_prefix_tokens(0);
    let windows = square.clone().with_block(2).with_window(3);
    let config = |rotary: Rotary2d| AttentionConfig::new(16, 2).with_position(rotary);
    let configs = [config(square), config(windows.clone()), config(windows.with_within_window(true))];
    let [square, ordered, within] = layers(configs, DType::F32);
    let patches = in_windows(rows, columns, 2, 3);
    let xs = random(&[2, 96, 16], 1);
    let order = patches.iter().map(|(_, [y, x])| y * columns + x);
    let order = Tensor::from_iter(order, &CPU).unwrap();
    let mut numbers = vec![0i64; 96];
    patches.iter().for_each(|(number, [y, x])| numbers[(y * columns + x) as usize] = i64::from(*number));
    let numbers = Tensor::new(numbers, &CPU).unwrap().unsqueeze(0).unwrap().broadcast_as((2, 96)).unwrap();
    let moved = xs.index_select(&order, 1).unwrap();
    let grid = AttentionOptions::default().with_grid([rows as usize, columns as usize]);
    let segments = AttentionMask::segments(&numbers, &numbers).unwrap();
    for (layer, mask) in [(&ordered, AttentionMask::full()), (&within, segments)] {
        let want = square.attend_with(&AttentionInputs::self_attention(&xs, &mask), &grid).unwrap().output;
        let want = want.index_select(&order, 1).unwrap();
        let inputs = AttentionInputs::self_attention(&moved, AttentionMask::full());
        assert_close("in windows", &layer.attend_with(&inputs, &grid).unwrap().output, &want, 1e-5);
        layer.plan(&inputs, &grid).unwrap();
    }
    says(
        config(Rotary2d::new(50.0).with_within_window(true)).validate().map_err(|e| e.to_string()),
        &["within_window"],
    );
    says(config(Rotary2d::new(50.0).with_window(0)).validate().map_err(|e| e.to_string()), &["window", "at least 1"]);
}

#[test]
fn patches_of_a_video_are_turned_by_frame_row_and_column() {
    let config = |position: Position| AttentionConfig::new(32, 2).with_position(position);
    let [layer] = layers([config(Rotary3d::new([2, 3]).into())], DType::F32);
    let xs = random(&[1, 12, 32], 1);
    let inputs = |xs: &Tensor| {
        layer
            .attend_with(&AttentionInputs::self_attention(xs, AttentionMask::causal()), &AttentionOptions::default())
            .unwrap()
            .output
    };
    let want = inputs(&xs);
    // A part of the patches, by their numbers.
    let numbers = Tensor::new(&[0u32, 1, 4, 5, 11], &CPU).unwrap();
    let some = xs.index_select(&numbers, 1).unwrap();
    let kept = Tensor::from_iter((0..12).map(|i| u8::from([0, 1, 4, 5, 11].contains(&i))), &CPU).unwrap();
    let mask = AttentionMask::keep_keys(&kept.unsqueeze(0).unwrap()).unwrap().and(AttentionMask::causal());
    let all = layer.attend(&xs, &xs, &xs, &mask).unwrap().index_select(&numbers, 1).unwrap();
    let given = AttentionInputs::self_attention(&some, AttentionMask::causal());
    let options = AttentionOptions::default().with_positions(&numbers);
    assert_close("some patches", &layer.attend_with(&given, &options).unwrap().output, &all, 1e-5);
    let (mut cache, mut outputs) = (KvCache::growing(), Vec::new());
    for (start, size) in [(0, 5), (5, 1), (6, 6)] {
        let chunk = xs.narrow(1, start, size).unwrap();
        let inputs = AttentionInputs::self_attention(&chunk, AttentionMask::causal()).with_cache(&mut cache);
        outputs.push(layer.attend_with(&inputs, &AttentionOptions::default()).unwrap().output);
    }
    assert_close("cached", &Tensor::cat(&outputs, 1).unwrap(), &want, 1e-5);
    let [wide] = layers([config(Rotary3d::new([2, 3]).into())], DType::F64);
    check_gradient("the input", &Random::new(3).tensor(&[1, 8, 32], DType::F64), |xs| wide.forward(xs).unwrap());
    says(AttentionConfig::new(8, 2).with_position(Rotary3d::new([2, 3])).validate(), &["head_dim = 4", "at least 6"]);
}

#[test]
fn columns_first_other_numbers_and_tokens_after_the_patches() {
    let rotary = Rotary2d::new(50.0).with_prefix_tokens(0).with_suffix_tokens(1);
    let rotary = rotary.with_columns_first(true).with_first(1).with_style(RotaryStyle::Interleaved);
    let given = GivenRotation::new(RotaryStyle::Interleaved);
    let config = |position: Position| AttentionConfig::new(16, 2).with_position(position);
    let [layer, given] = layers([config(rotary.into()), config(given.into())], DType::F32);
    let xs = random(&[1, 7, 16], 1);
    let frequencies = [1.0, 50f64.powf(-0.5)];
    let of_patch = |i: u32| [i % 3 + 1, i / 3 + 1].map(|at| frequencies.map(|frequency| f64::from(at) * frequency));
    let angles = (0..6).flat_map(of_patch).chain([[0.0; 2]; 2]).flatten();
    let angles = Tensor::from_iter(angles, &CPU).unwrap().reshape((1, 7, 4)).unwrap();
    let (cos, sin) = (angles.cos().unwrap(), angles.sin().unwrap());
    let inputs = AttentionInputs::self_attention(&xs, AttentionMask::full());
    let want = given.attend_with(&inputs, &AttentionOptions::default().with_cos_sin([&cos, &sin])).unwrap().output;
    let got = layer.attend_with(&inputs, &AttentionOptions::default().with_grid([2, 3])).unwrap().output;
    assert_close("columns first", &got, &want, 1e-5);
}
