//! Position schemes: properties that follow from their definitions, and errors.

use candle_attention::position::{Disentangled, RelativeBias2d, Rotary, Rotary2d, RotaryScaling, RotaryStyle};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, KvCache, MultiHeadAttention, Position,
};
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};

use crate::common::{Golden, LAYER, Random, SEED, assert_close, says};

fn layer(position: Position) -> MultiHeadAttention {
    let config = AttentionConfig::new(16, 2).with_position(position);
    let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu);
    MultiHeadAttention::new(&config, vb).unwrap()
}

fn attend(layer: &MultiHeadAttention, queries: &Tensor, keys: &Tensor, options: &AttentionOptions) -> Tensor {
    let mask = AttentionMask::full();
    let inputs = AttentionInputs::new(queries, keys, keys, &mask);
    layer.attend_with(&inputs, options).unwrap().output
}

/// Queries without the earlier ones have the positions that they had among all.
#[test]
fn last_query_has_the_position_of_the_last_key() {
    let disentangled = Disentangled::new(4).with_position_buckets(4).with_norm_eps(1e-5);
    for position in [Position::Disentangled(disentangled), Position::Rotary(Rotary::default())] {
        let layer = layer(position);
        let xs = Random::new(1).tensor(&[2, 9, 16], DType::F32);
        let last = xs.narrow(1, 6, 3).unwrap();
        let options = AttentionOptions::default();
        let all = attend(&layer, &xs, &xs, &options);
        let some = attend(&layer, &last, &xs, &options);
        assert_close("the last three", &some, &all.narrow(1, 6, 3).unwrap(), LAYER);
    }
}

/// The grid of the call comes before the grid of the layer, which comes before a square.
#[test]
fn grid_of_the_call_has_priority() {
    let xs = Random::new(2).tensor(&[1, 17, 16], DType::F32);
    let any = Rotary2d::new(50.0);
    let (square, wide) = (layer(Position::Rotary2d(any.clone())), Rotary2d::new(50.0).with_grid([2, 8]));
    let options = AttentionOptions::default();
    let by_count = attend(&square, &xs, &xs, &options);
    let given = attend(&square, &xs, &xs, &options.with_grid([4, 4]));
    assert_close("a square", &by_count, &given, 0.0);
    let other = attend(&square, &xs, &xs, &options.with_grid([2, 8]));
    assert!((&other - &given).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap() > 1e-3);
    let weights = square.weights().unwrap();
    let config = AttentionConfig::new(16, 2).with_position(Position::Rotary2d(wide));
    let wide = MultiHeadAttention::from_weights(&config, weights).unwrap();
    assert_close("the layer's own", &attend(&wide, &xs, &xs, &options), &other, 0.0);
    assert_close("the call's own", &attend(&wide, &xs, &xs, &options.with_grid([4, 4])), &given, 0.0);
}

/// Patches in blocks are those of a grid in another order.
#[test]
fn blocks_of_patches_are_an_order() {
    let xs = Random::new(4).tensor(&[1, 24, 16], DType::F32);
    let options = AttentionOptions::default().with_grid([4, 6]);
    let rotary = |block: usize| Position::Rotary2d(Rotary2d::new(50.0).with_prefix_tokens(0).with_block(block));
    let by_rows = layer(rotary(1));
    let config = AttentionConfig::new(16, 2).with_position(rotary(2));
    let by_blocks = MultiHeadAttention::from_weights(&config, by_rows.weights().unwrap()).unwrap();
    // (1, 2, 2, 3, 2, 16): block row, row in the block, block column, column in the block.
    let order = |xs: &Tensor, shape: [usize; 5]| xs.reshape(&shape).unwrap().transpose(1, 2).unwrap();
    let blocks = order(&xs, [2, 2, 3, 2, 16]).reshape((1, 24, 16)).unwrap();
    let want = order(&attend(&by_rows, &xs, &xs, &options), [2, 2, 3, 2, 16]).reshape((1, 24, 16)).unwrap();
    assert_close("blocks", &attend(&by_blocks, &blocks, &blocks, &options), &want, LAYER);
}

#[test]
fn errors_name_the_value_and_the_allowed_ones() {
    let xs = Random::new(3).tensor(&[1, 7, 16], DType::F32);
    let mask = AttentionMask::full();
    let inputs = AttentionInputs::self_attention(&xs, &mask);
    let options = AttentionOptions::default();
    let rotary = layer(Position::Rotary2d(Rotary2d::new(50.0)));
    says(rotary.attend_with(&inputs, &options), &["the number of tokens is 7", "1 and 2 x 2 patches"]);
    says(rotary.attend_with(&inputs, &options.with_grid([usize::MAX, 2])), &["the number of tokens is 7"]);
    let blocks = layer(Position::Rotary2d(Rotary2d::new(50.0).with_prefix_tokens(1).with_block(2)));
    says(
        blocks.attend_with(&inputs, &options.with_grid([2, 3])),
        &["a side of the grid is 3", "multiple of the block, 2"],
    );
    let table = layer(Position::RelativeBias2d(RelativeBias2d::new([2, 2], true)));
    says(table.attend_with(&inputs, &options), &["7 and 7", "5 and 5: 1 and 2 x 2 patches"]);
    says(table.attend_with(&inputs, &options.with_grid([2, 3])), &["grid", "relative grid(2 x 2 patches"]);
    for layer in [&rotary, &table] {
        says(layer.attend_with(&inputs.with_cache(&mut KvCache::growing()), &options), &["position", "whole sequence"]);
        says(layer.cross_cache(&xs, &xs), &["position", "none with a cache for cross-attention"]);
    }
    let says_of = |position: Position, parts: &[&str]| {
        says(AttentionConfig::new(12, 2).with_position(position).validate(), parts);
    };
    says_of(Position::Rotary2d(Rotary2d::new(50.0)), &["head_dim = 6", "multiple of 4"]);
    let no_block = Position::Rotary2d(Rotary2d::new(50.0).with_block(0));
    says(AttentionConfig::new(16, 2).with_position(no_block).validate(), &["block = 0", "at least 1"]);
    says_of(Position::RelativeBias2d(RelativeBias2d::new([0, 2], false)), &["the grid of patches = 0"]);
    says_of(Position::Disentangled(Disentangled::new(0)), &["max_relative_positions = 0"]);
    let buckets = Disentangled::new(4).with_position_buckets(6);
    says_of(Position::Disentangled(buckets), &["position_buckets = 6", "half of it less than 4 - 1"]);
    let grouped = AttentionConfig::new(16, 4)
        .with_num_key_value_heads(2)
        .with_position(Position::Disentangled(Disentangled::new(4)));
    let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu);
    says(MultiHeadAttention::new(&grouped, vb), &["num_key_value_heads = 2", "disentangled"]);
}

/// Half types differ from f64 by their rounding only, in the fused kernel and in the eager backend.
#[test]
fn half_types_are_within_tolerance() {
    let config =
        AttentionConfig::new(16, 2).with_position(Position::Disentangled(Disentangled::new(6).with_norm_eps(1e-5)));
    let map = VarMap::new();
    MultiHeadAttention::new(&config, VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu)).unwrap();
    let xs = Random::new(5).tensor(&[2, 9, 16], DType::F32);
    let run = |dtype: DType| {
        let data = map.data().lock().unwrap();
        let fixed = data.iter().map(|(name, var)| (name.clone(), var.as_tensor().detach())).collect();
        let vb = VarBuilder::from_tensors(fixed, dtype, &Device::Cpu);
        let layer = MultiHeadAttention::load(&config, vb).unwrap();
        let xs = xs.to_dtype(dtype).unwrap();
        let ys = attend(&layer, &xs, &xs, &AttentionOptions::default());
        let eager = attend(&layer, &xs, &xs, &AttentionOptions::default().with_return_attention_weights(true));
        assert_eq!(ys.dtype(), dtype);
        [ys, eager].map(|ys| ys.to_dtype(DType::F64).unwrap())
    };
    let [want, _] = run(DType::F64);
    for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::F16, 4e-3), (DType::BF16, 3e-2)] {
        for got in run(dtype) {
            assert_close(&format!("{dtype:?}"), &got, &want, tolerance);
        }
    }
}

/// Queries and keys alone, at the positions of each sequence: `tests/golden/rotary.py`.
#[test]
fn rotation_alone_equals_transformers() {
    let golden = Golden::open("rotary.safetensors");
    let llama3 = RotaryScaling::llama3(8.0, 32);
    let factor = |mscale: f64| 0.1 * mscale * 4f64.ln() + 1.0;
    let yarn = RotaryScaling::Yarn {
        factor: 4.0,
        original_max_position_embeddings: 64,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: Some(factor(0.7) / factor(1.0)),
        truncate: true,
    };
    let longrope = RotaryScaling::LongRope {
        short_factor: vec![1.0, 1.5, 2.0, 3.0],
        long_factor: vec![2.0, 3.0, 5.0, 7.0],
        original_max_position_embeddings: 16,
        attention_factor: (1.0 + 4f64.ln() / 16f64.ln()).sqrt(),
    };
    let rotary = |theta: f64| Rotary::default().with_theta(theta);
    let long = rotary(100.0).with_dim(8).with_scaling(longrope);
    for (case, rotary, length) in [
        ("llama", rotary(100.0).with_scaling(llama3), 21),
        ("deepseek", rotary(1000.0).with_scaling(yarn).with_style(RotaryStyle::Interleaved), 21),
        ("neox", rotary(100.0).with_dim(6), 21),
        ("phi_short", long.clone(), 16),
        ("phi_long", long, 17),
    ] {
        let get = |name: &str| golden.get(&format!("{case}.{name}"));
        let positions = get("positions");
        for name in ["q", "k"] {
            let (xs, want) = (get(name), get(&format!("{name}_rotated")));
            assert_close(case, &rotary.apply(&xs, &positions).unwrap(), &want, SEED);
            let last = |xs: &Tensor| xs.narrow(0, xs.dims()[0] - 1, 1).unwrap();
            let of_all = last(&positions).squeeze(0).unwrap();
            assert_close(case, &rotary.apply(&last(&xs), &of_all).unwrap(), &last(&want), SEED);
        }
        let (frequencies, factor) = rotary.frequencies(12, length).unwrap();
        let frequencies = Tensor::from_vec(frequencies, get("frequencies").dims(), &Device::Cpu).unwrap();
        assert_close(case, &frequencies, &get("frequencies"), SEED);
        assert_close(case, &Tensor::new(&[factor], &Device::Cpu).unwrap(), &get("factor"), SEED);
    }
}

#[test]
fn rotation_alone_has_a_gradient_and_says_what_does_not_fit() {
    let mut random = Random::new(6);
    let positions = Tensor::new(&[[3u32, 4], [0, 9]], &Device::Cpu).unwrap();
    let rotary = Rotary::default().with_dim(4);
    for style in [RotaryStyle::HalfSplit, RotaryStyle::Interleaved] {
        let rotary = rotary.clone().with_style(style);
        let xs = Var::from_tensor(&random.tensor(&[2, 2, 3, 6], DType::F64)).unwrap();
        let weights = random.tensor(&[2, 2, 3, 6], DType::F64);
        let sum = (rotary.apply(&xs, &positions).unwrap() * &weights).unwrap().sum_all().unwrap();
        let gradient = sum.backward().unwrap().remove(&xs).unwrap();
        // The gradient of a rotation is the rotation back, so that turning it forward gives the weights.
        assert_close("the gradient", &rotary.apply(&gradient, &positions).unwrap(), &weights, 1e-12);
    }
    let xs = random.tensor(&[2, 2, 3, 6], DType::F32);
    says(rotary.apply(&xs.get(0).unwrap(), &positions), &["the tensor to rotate", "[2, 3, 6]", "(b, s, h, d)"]);
    says(rotary.apply(&xs.to_dtype(DType::U32).unwrap(), &positions), &["the tensor to rotate", "u32", "f16, bf16"]);
    says(rotary.apply(&xs, &positions.narrow(1, 0, 1).unwrap()), &["positions", "[2, 1]", "[2, 2]"]);
    says(rotary.apply(&xs, &xs), &["positions", "an integer dtype"]);
    let axes = Tensor::zeros((3, 2, 2), DType::U32, &Device::Cpu).unwrap();
    says(rotary.apply(&xs, &axes), &["the number of positions is 3 per token", "expected 1", "rotary"]);
    let far = |dims: &[usize]| Tensor::zeros(1, DType::U32, &Device::Cpu).unwrap().broadcast_as(dims).unwrap();
    let many = xs.narrow(0, 0, 1).unwrap().narrow(1, 0, 1).unwrap().broadcast_as((1, 1 << 50, 3, 6)).unwrap();
    says(rotary.apply(&many, &far(&[1 << 50])), &["a rotation", "memory"]);
    says(rotary.apply(&xs, &far(&[2, 1 << 50])), &["positions", "[2, 2]"]);
    let wide = Rotary::default().with_dim(8);
    says(wide.apply(&xs, &positions), &["rotary dim = 8", "head_dim = 6"]);
    says(wide.frequencies(6, 1), &["rotary dim = 8", "head_dim = 6"]);
}
