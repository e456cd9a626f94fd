//! The layer itself: dropout, attention weights, grouped heads, plans, and errors for wrong inputs.

use candle_attention::position::{Alibi, AlibiSlopes, Position, Rotary, RotaryScaling, T5RelativeBias};
use candle_attention::sdpa::{SdpaOptions, attend_bshd};
use candle_attention::weights::{AttentionWeights, LinearWeights, QkvWeights};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Backend, MultiHeadAttention, PaddedIds, Scoring,
};
use candle_core::{DType, Device, Module, Tensor};
use candle_nn::{VarBuilder, VarMap};

use crate::common::naive::{self, Score};
use crate::common::{LAYER, Random, assert_close, max_diff, numbers, says};

fn fresh(config: &AttentionConfig) -> (MultiHeadAttention, VarMap) {
    let map = VarMap::new();
    let vb = VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
    (MultiHeadAttention::new(config, vb).unwrap(), map)
}

/// The whole layer, with all sizes different, against projections and attention by their formulas.
#[test]
fn grouped_heads_and_separate_sizes_equal_the_formula() {
    let mut random = Random::new(20);
    let config = AttentionConfig::new(10, 6)
        .with_num_key_value_heads(2)
        .with_head_dim(5)
        .with_value_head_dim(3)
        .with_query_size(7)
        .with_key_size(11)
        .with_value_size(13)
        .with_output_size(17)
        .with_scale(0.7);
    let (layer, map) = fresh(&config);
    for variable in map.all_vars() {
        variable.set(&random.tensor(variable.dims(), DType::F32)).unwrap();
    }
    let parameter = |name: &str| map.data().lock().unwrap()[name].as_tensor().clone();
    let project = |xs: &Tensor, name: &str| {
        let (weight, bias) = (parameter(&format!("{name}.weight")), parameter(&format!("{name}.bias")));
        candle_nn::Linear::new(weight, Some(bias)).forward(xs).unwrap()
    };
    let (query, key, value) = (
        random.tensor(&[2, 4, 7], DType::F32),
        random.tensor(&[2, 5, 11], DType::F32),
        random.tensor(&[2, 5, 13], DType::F32),
    );
    let q = project(&query, "q_proj").reshape((2, 4, 6, 5)).unwrap();
    let k = project(&key, "k_proj").reshape((2, 5, 2, 5)).unwrap();
    let v = project(&value, "v_proj").reshape((2, 5, 2, 3)).unwrap();
    let sees = |_: usize, _: usize, i: usize, j: usize| (j <= i + 1).then_some(0.0);
    let (context, weights) = naive::attend(&q, &k, &v, &Score::Dot(0.7), &sees);
    let context = context.reshape((2, 4, 18)).unwrap().to_dtype(DType::F32).unwrap();

    let mask = AttentionMask::causal();
    let inputs = AttentionInputs::new(&query, &key, &value, &mask);
    let got = layer.attend_with(&inputs, &AttentionOptions::default().with_return_attention_weights(true)).unwrap();
    assert_close("output", &got.output, &project(&context, "o_proj"), 1e-5);
    assert_close("weights", &got.attention_weights.unwrap(), &weights, 1e-5);
    assert!(layer.attend_with(&inputs, &AttentionOptions::default()).unwrap().attention_weights.is_none());
}

/// A layer of one head whose output is its attention weights: the projections of values and output are the identity.
fn identity_layer(dropout: f64, dtype: DType) -> MultiHeadAttention {
    let s = 16;
    let eye = Tensor::eye(s, dtype, &Device::Cpu).unwrap();
    let small = (Random::new(23).tensor(&[s, s], dtype) * 0.2).unwrap();
    let tensors = [("q_proj", small.clone()), ("k_proj", small), ("v_proj", eye.clone()), ("o_proj", eye)];
    let tensors = tensors.into_iter().map(|(name, tensor)| (format!("{name}.weight"), tensor)).collect();
    let vb = VarBuilder::from_tensors(tensors, dtype, &Device::Cpu);
    MultiHeadAttention::load(&AttentionConfig::new(s, 1).with_dropout(dropout), vb).unwrap()
}

/// Dropout zeroes single attention weights after the softmax and scales up the others, only in training. Returned
/// attention weights are those before dropout.
#[test]
fn dropout_applies_to_attention_weights_in_training() {
    for (dtype, tolerance) in [(DType::F32, 1e-6), (DType::F64, 1e-12), (DType::F16, 1e-3), (DType::BF16, 8e-3)] {
        let layer = identity_layer(0.25, dtype);
        let query = Random::new(24).tensor(&[3, 16, 16], dtype);
        let value = Tensor::eye(16, dtype, &Device::Cpu).unwrap().broadcast_as((3, 16, 16)).unwrap();
        let mask = AttentionMask::full();
        let inputs = AttentionInputs::new(&query, &query, &value, &mask);
        let run = |train| {
            layer
                .attend_with(
                    &inputs,
                    &AttentionOptions::default().with_train(train).with_return_attention_weights(true),
                )
                .unwrap()
        };
        let (inference, training) = (run(false), run(true));
        let weights = inference.attention_weights.unwrap().squeeze(1).unwrap();
        assert_close("weights pass through", &inference.output, &weights, tolerance);
        assert_eq!(numbers(&training.attention_weights.unwrap().squeeze(1).unwrap()), numbers(&weights));
        let mut dropped = 0;
        for (got, weight) in numbers(&training.output).into_iter().zip(numbers(&weights)) {
            if got == 0.0 {
                dropped += 1
            } else {
                assert!((got - weight / 0.75).abs() < tolerance, "{got} from {weight}")
            }
        }
        // 768 draws of 1 in 4: six standard deviations are 72.
        assert!((120..265).contains(&dropped), "{dropped} of 768 dropped");
        assert!(max_diff(&inference.output, &run(false).output) == 0.0);
        let without =
            identity_layer(0.0, dtype).attend_with(&inputs, &AttentionOptions::default().with_train(true)).unwrap();
        assert_close("no dropout", &without.output, &inference.output, tolerance);
    }
}

#[test]
fn empty_inputs_give_empty_outputs() {
    let (layer, map) = fresh(&AttentionConfig::new(8, 2));
    let zeros = |dims: [usize; 3]| Tensor::zeros(&dims, DType::F32, &Device::Cpu).unwrap();
    for (b, s) in [(0, 5), (2, 0), (0, 0)] {
        assert_eq!(layer.forward(&zeros([b, s, 8])).unwrap().dims(), [b, s, 8]);
    }
    // Without any key but a learned and a zero one.
    let (extra, _) = fresh(&AttentionConfig::new(8, 2).with_add_bias_kv(true).with_add_zero_attn(true));
    let none = AttentionMask::full();
    let got = extra.attend(&zeros([2, 3, 8]), &zeros([2, 0, 8]), &zeros([2, 0, 8]), &none).unwrap();
    assert!(numbers(&got).iter().any(|n| *n != 0.0));
    // Queries without any key: zeros, so the output is the bias of the output projection.
    let bias = map.data().lock().unwrap()["o_proj.bias"].clone();
    bias.set(&Random::new(25).tensor(&[8], DType::F32)).unwrap();
    let got = layer.attend(&zeros([2, 3, 8]), &zeros([2, 0, 8]), &zeros([2, 0, 8]), AttentionMask::full()).unwrap();
    assert_close("bias", &got, &bias.broadcast_as((2, 3, 8)).unwrap(), 0.0);
}

#[test]
fn new_parameters_have_documented_names_and_shapes() {
    let config = AttentionConfig::new(12, 4)
        .with_num_key_value_heads(2)
        .with_scoring(Scoring::Additive)
        .with_add_bias_kv(true)
        .with_add_zero_attn(true);
    let (layer, map) = fresh(&config);
    let mut shapes: Vec<_> =
        map.data().lock().unwrap().iter().map(|(name, t)| format!("{name} {:?}", t.dims())).collect();
    shapes.sort();
    let want = [
        "bias_k [1, 1, 6]",
        "bias_v [1, 1, 6]",
        "k_proj.bias [6]",
        "k_proj.weight [6, 12]",
        "o_proj.bias [12]",
        "o_proj.weight [12, 12]",
        "q_proj.bias [12]",
        "q_proj.weight [12, 12]",
        "score.weight [4, 3]",
        "v_proj.bias [6]",
        "v_proj.weight [6, 12]",
    ];
    assert_eq!(shapes, want);

    // Saved and loaded, it is the same layer.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("layer.safetensors");
    map.save(&file).unwrap();
    let source = candle_attention::checkpoint::Checkpoint::open(&file).unwrap().at("", DType::F32, &Device::Cpu);
    let loaded = MultiHeadAttention::load(&config, source).unwrap();
    let xs = Random::new(22).tensor(&[2, 3, 12], DType::F32);
    assert_close("loaded", &loaded.forward(&xs).unwrap(), &layer.forward(&xs).unwrap(), 1e-6);
}

#[test]
fn plan_gives_a_reason_for_every_backend() {
    let (trained, map) = fresh(&AttentionConfig::new(8, 2));
    let frozen = map.data().lock().unwrap().iter().map(|(name, v)| (name.clone(), v.as_detached_tensor())).collect();
    let vb = VarBuilder::from_tensors(frozen, DType::F32, &Device::Cpu);
    let frozen = MultiHeadAttention::load(&AttentionConfig::new(8, 2).with_dropout(0.5), vb).unwrap();
    let xs = Random::new(26).tensor(&[2, 3, 8], DType::F32);
    let none = AttentionMask::full();
    let inputs = AttentionInputs::self_attention(&xs, &none);
    let plain = AttentionOptions::default();

    let plan = frozen.plan(&inputs, &plain).unwrap();
    assert_eq!((plan.backend, plan.rejected.len()), (Backend::Cpu, 4));
    assert!(plan.scratch_bytes > 0);
    assert!(plan.to_string().starts_with("backend cpu with "), "{plan}");
    assert!(plan.to_string().contains("not eager: cpu can run the call"), "{plan}");

    let bias = candle_core::Var::zeros((1, 2, 3, 3), DType::F32, &Device::Cpu).unwrap();
    let learned = AttentionMask::additive(&bias).unwrap();
    let with_bias = AttentionInputs::self_attention(&xs, &learned);
    let tracked = candle_core::Var::from_tensor(&xs).unwrap();
    let from_variable = AttentionInputs::self_attention(&tracked, &none);
    let falls_back = [
        (&frozen, &with_bias, plain, "a gradient of the mask is tracked"),
        (&frozen, &inputs, plain.with_return_attention_weights(true), "the attention weights are asked for"),
    ];
    for (layer, inputs, options, reason) in falls_back {
        let plan = layer.plan(inputs, &options).unwrap();
        assert_eq!(plan.backend, Backend::Eager);
        assert!(plan.to_string().contains(&format!("not cpu: {reason}")), "{plan}");
        assert!(plan.scratch_bytes >= 2 * 2 * 3 * 3 * 4 * 3);
        let forced = layer.attend_with(inputs, &options.with_backend(Backend::Cpu));
        says(forced, &["backend cpu cannot run this call", reason]);
    }

    let train = plain.with_train(true);
    for (layer, inputs, options) in
        [(&trained, &inputs, plain), (&frozen, &from_variable, plain), (&frozen, &inputs, train)]
    {
        let plan = layer.plan(inputs, &options).unwrap();
        assert_eq!(plan.backend, Backend::Cpu);
        assert!(plan.to_string().contains("not eager: cpu can run the call"), "{plan}");
    }

    let forced = |backend| frozen.attend_with(&inputs, &plain.with_backend(backend));
    let (fused, eager) = (forced(Backend::Cpu).unwrap().output, forced(Backend::Eager).unwrap().output);
    assert_close("fused and eager", &fused, &eager, 1e-6);
    assert_eq!(numbers(&fused), numbers(&frozen.forward(&xs).unwrap()));
    says(forced(Backend::Metal), &["backend metal cannot run this call", "not on an Apple GPU"]);
    assert_eq!(frozen.plan(&inputs, &plain.with_backend(Backend::Eager)).unwrap().backend, Backend::Eager);
}

#[test]
fn invalid_configurations_name_field_and_allowed_values() {
    let config = || AttentionConfig::new(12, 4);
    let rotary = |rotary: Rotary| config().with_position(Position::Rotary(rotary));
    let yarn = RotaryScaling::Yarn {
        factor: 2.0,
        original_max_position_embeddings: 8,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: None,
        truncate: true,
    };
    let dynamic = RotaryScaling::Dynamic { factor: 2.0, original_max_position_embeddings: 8 };
    let slopes = Alibi::default().with_slopes(AlibiSlopes::Given(vec![0.5; 3]));
    let bad = [
        (AttentionConfig::new(0, 4), "hidden_size = 0", "at least 1"),
        (AttentionConfig::new(12, 0), "num_attention_heads = 0", "at least 1"),
        (AttentionConfig::new(12, 5), "num_attention_heads = 5", "a divisor of hidden_size = 12"),
        (config().with_num_key_value_heads(3), "num_key_value_heads = 3", "a divisor of num_attention_heads = 4"),
        (config().with_num_key_value_heads(0), "num_key_value_heads = 0", "at least 1"),
        (config().with_num_key_value_heads(8), "num_key_value_heads = 8", "a divisor of num_attention_heads = 4"),
        (config().with_head_dim(0), "head_dim = 0", "at least 1"),
        (config().with_value_head_dim(0), "value_head_dim = 0", "at least 1"),
        (config().with_query_size(0), "query_size = 0", "at least 1"),
        (config().with_key_size(0), "key_size = 0", "at least 1"),
        (config().with_value_size(0), "value_size = 0", "at least 1"),
        (config().with_output_size(0), "output_size = 0", "at least 1"),
        (config().with_head_dim(usize::MAX), "head_dim = 18446744073709551615", "at most"),
        (config().with_scale(f64::NAN), "scale = NaN", "finite"),
        (config().with_scale(f64::INFINITY), "scale = inf", "finite"),
        (config().with_dropout(1.0), "dropout = 1", "[0, 1)"),
        (config().with_dropout(-0.1), "dropout = -0.1", "[0, 1)"),
        (config().with_dropout(f64::NAN), "dropout = NaN", "[0, 1)"),
        (config().with_softcap(0.0), "softcap = 0", "a positive number"),
        (config().with_clip_qkv(f64::NAN), "clip_qkv = NaN", "a positive number"),
        (rotary(Rotary::default().with_dim(3)), "rotary dim = 3", "an even number up to head_dim = 3"),
        (rotary(Rotary::default().with_dim(2).with_theta(-1.0)), "rope_theta = -1", "at least 1"),
        (rotary(Rotary::default().with_dim(2).with_theta(1.0).with_scaling(yarn)), "rope_theta = 1", "more than 1"),
        (rotary(Rotary::default().with_dim(2).with_scaling(dynamic)), "rotary dim = 2", "at least 4"),
        (
            config().with_position(Position::T5RelativeBias(T5RelativeBias::new(2, 9, true))),
            "num_buckets = 2",
            "4 to 1048576",
        ),
        (config().with_position(Position::Alibi(slopes)), "position = given slopes", "4 of them"),
    ];
    for (config, value, allowed) in bad {
        says(config.validate(), &["config", value, allowed]);
        let vb = VarBuilder::zeros(DType::F32, &Device::Cpu);
        says(MultiHeadAttention::new(&config, vb).map(|_| ()), &[value]);
    }
    assert!(AttentionConfig::new(10, 3).with_head_dim(4).validate().is_ok());
}

#[test]
fn wrong_inputs_are_named_with_the_expected_shape() {
    let (layer, _) = fresh(&AttentionConfig::new(8, 2).with_key_size(6).with_value_size(4));
    let zeros = |dims: &[usize]| Tensor::zeros(dims, DType::F32, &Device::Cpu).unwrap();
    let (query, key, value) = (zeros(&[2, 3, 8]), zeros(&[2, 5, 6]), zeros(&[2, 5, 4]));
    let none = AttentionMask::full();
    assert!(layer.attend(&query, &key, &value, &none).is_ok());
    says(layer.attend(&zeros(&[3, 8]), &key, &value, &none), &["query has shape [3, 8]", "(b, s_q, 8)"]);
    says(layer.attend(&zeros(&[2, 3, 9]), &key, &value, &none), &["query has shape [2, 3, 9]", "(b, s_q, 8)"]);
    says(layer.attend(&query, &zeros(&[2, 5, 8]), &value, &none), &["key has shape [2, 5, 8]", "(b, s_kv, 6)"]);
    says(layer.attend(&query, &key, &zeros(&[2, 5, 6]), &none), &["value has shape [2, 5, 6]", "(b, s_kv, 4)"]);
    says(layer.attend(&query, &zeros(&[3, 5, 6]), &value, &none), &["key has shape [3, 5, 6]", "[2, 5, 6]"]);
    says(layer.attend(&query, &key, &zeros(&[2, 4, 4]), &none), &["value has shape [2, 4, 4]", "[2, 5, 4]"]);
    let half = query.to_dtype(DType::F16).unwrap();
    says(layer.attend(&half, &key, &value, &none), &["query has dtype f16", "f32"]);
    says(layer.forward(&query), &["key has shape [2, 3, 8]", "(b, s_kv, 6)"]);
}

/// Which dimensions a mask has is the constructor's to say, whatever their sizes: two or three dimensions are an error
/// that names the constructor, also where the batch is as large as the sequence.
#[test]
fn masks_without_four_dimensions_need_a_constructor_that_names_them() {
    let ones = |dims: &[usize]| Tensor::ones(dims, DType::U8, &Device::Cpu).unwrap();
    let zeros = |dims: &[usize]| Tensor::zeros(dims, DType::F32, &Device::Cpu).unwrap();
    let two = ["has shape [3, 3]", "4 dimensions (b, h, s_q, s_kv)"];
    says(AttentionMask::keep(&ones(&[3, 3])), &[&two[..], &["`keep_keys`", "`keep_pattern`"]].concat());
    says(AttentionMask::exclude(&ones(&[3, 3])), &[&two[..], &["`exclude_keys`", "`exclude_pattern`"]].concat());
    says(AttentionMask::additive(&zeros(&[3, 3])), &[&two[..], &["`additive_keys`", "`additive_pattern`"]].concat());
    let three =
        ["has shape [3, 3, 3]", "(b, s_q, s_kv) becomes that by `unsqueeze(1)`", "(h, s_q, s_kv) by `unsqueeze(0)`"];
    for mask in [AttentionMask::keep(&ones(&[3; 3])), AttentionMask::exclude(&ones(&[3; 3]))] {
        says(mask, &three);
    }
    says(AttentionMask::additive(&zeros(&[3; 3])), &three);
    says(AttentionMask::keep(&ones(&[5])), &["keep mask has shape [5]", "4 dimensions"]);
    says(AttentionMask::additive(&zeros(&[1; 5])), &["additive mask has shape [1, 1, 1, 1, 1]", "4 dimensions"]);
    for dims in [&[3][..], &[3; 3], &[3; 4]] {
        says(AttentionMask::keep_keys(&ones(dims)), &["keep_keys mask has shape", "(b, s_kv)", "`keep` takes"]);
        says(AttentionMask::exclude_keys(&ones(dims)), &["exclude_keys mask has shape", "(b, s_kv)"]);
        says(AttentionMask::additive_keys(&zeros(dims)), &["additive_keys mask has shape", "(b, s_kv)"]);
        says(AttentionMask::keep_pattern(&ones(dims)), &["keep_pattern mask has shape", "(s_q, s_kv)"]);
        says(AttentionMask::exclude_pattern(&ones(dims)), &["exclude_pattern mask has shape", "(s_q, s_kv)"]);
        says(AttentionMask::additive_pattern(&zeros(dims)), &["additive_pattern mask has shape", "`additive` takes"]);
    }
}

/// Three sequences of three tokens: keys of each sequence and one pattern are different masks.
#[test]
fn the_meaning_of_a_mask_does_not_depend_on_its_size() {
    let (layer, _) = fresh(&AttentionConfig::new(8, 2));
    let xs = Random::new(31).tensor(&[3, 3, 8], DType::F32);
    let attend = |mask: AttentionMask| layer.attend(&xs, &xs, &xs, &mask).unwrap();
    let lower = Tensor::new(&[[1u8, 0, 0], [1, 1, 0], [1, 1, 1]], &Device::Cpu).unwrap();
    let pattern = attend(AttentionMask::keep_pattern(&lower).unwrap());
    assert_close("pattern", &pattern, &attend(AttentionMask::causal()), LAYER);
    let keys = attend(AttentionMask::keep_keys(&lower).unwrap());
    assert_close("keys", &keys, &attend(AttentionMask::lengths(&[1, 2, 3])), LAYER);
    assert!(max_diff(&pattern, &keys) > 1e-2);
}

#[test]
fn wrong_masks_are_named_with_the_expected_shape() {
    let (layer, _) = fresh(&AttentionConfig::new(8, 2));
    let (query, key) = (
        Tensor::zeros((2, 3, 8), DType::F32, &Device::Cpu).unwrap(),
        Tensor::zeros((2, 5, 8), DType::F32, &Device::Cpu).unwrap(),
    );
    let none = AttentionMask::full();
    let run = |mask: AttentionMask| layer.attend(&query, &key, &key, &mask);
    let ones = |dims: &[usize]| Tensor::ones(dims, DType::U8, &Device::Cpu).unwrap();
    let float = |dims: &[usize]| Tensor::zeros(dims, DType::F32, &Device::Cpu).unwrap();
    // Shapes that do not fit the call.
    let fits = |mask: candle_attention::Result<AttentionMask>| run(mask.unwrap());
    says(fits(AttentionMask::keep_keys(&ones(&[2, 3]))), &["keep_keys mask has shape [2, 3]", "[2, 5]", "[1, 5]"]);
    says(fits(AttentionMask::exclude_keys(&ones(&[2, 1]))), &["exclude_keys mask has shape [2, 1]", "[2, 5]"]);
    says(fits(AttentionMask::keep_pattern(&ones(&[1, 5]))), &["keep_pattern mask has shape [1, 5]", "[3, 5]"]);
    says(fits(AttentionMask::additive_pattern(&float(&[3, 6]))), &["additive_pattern mask has shape [3, 6]", "[3, 5]"]);
    says(fits(AttentionMask::exclude(&ones(&[4, 1, 3, 5]))), &["exclude mask has shape [4, 1, 3, 5]", "[2, 2, 3, 5]"]);
    says(
        fits(AttentionMask::additive(&float(&[1, 1, 3, 6]))),
        &["additive mask has shape [1, 1, 3, 6]", "[2, 2, 3, 5]"],
    );
    says(run(AttentionMask::lengths(&[1])), &["the number of rows in lengths is 1", "2, the batch size"]);
    says(run(AttentionMask::lengths(&[5, 6])), &["lengths[1] is 6", "at most 5"]);
    says(run(AttentionMask::query_lengths(&[[1; 3]])), &["rows in lengths per query is 1", "2"]);
    says(run(AttentionMask::query_lengths(&[[1; 2]; 2])), &["the number of lengths in row 0 is 2", "3"]);
    says(run(AttentionMask::query_lengths(&[[1, 1, 1], [1, 9, 1]])), &["lengths[1][1] is 9", "at most 5"]);
    let segments = AttentionMask::segments(&ones(&[2, 3]), &ones(&[2, 3])).unwrap();
    says(run(segments), &["segments of keys has shape [2, 3]", "[2, 5]"]);

    says(AttentionMask::keep_keys(&float(&[2, 5])), &["keep mask has dtype f32", "an integer dtype"]);
    says(AttentionMask::exclude_pattern(&float(&[2, 5])), &["exclude mask has dtype f32"]);
    says(AttentionMask::additive_keys(&ones(&[2, 5])), &["additive mask has dtype u8", "`keep`"]);
    says(AttentionMask::lengths_tensor(&float(&[2])), &["lengths has dtype f32"]);
    says(AttentionMask::lengths_tensor(&ones(&[2, 3, 4])), &["lengths has shape [2, 3, 4]", "(b) or (b, s_q)"]);
    let negative = Tensor::new(&[3i64, -1], &Device::Cpu).unwrap();
    says(AttentionMask::lengths_tensor(&negative), &["lengths element 1 is -1"]);
    says(AttentionMask::segments(&ones(&[3]), &ones(&[2, 5])), &["segments of queries has shape [3]", "(b, s)"]);
    says(PaddedIds::new(&[vec![], vec![]], 0, &Device::Cpu), &["the list of sequences is 2 sequences of 0 ids"]);
    says(PaddedIds::new::<Vec<u32>>(&[], 0, &Device::Cpu), &["the list of sequences is 0 sequences"]);
    let mut options = SdpaOptions::new(&none);
    options.dropout = f64::NAN;
    let zeros = float(&[1, 2, 2, 4]);
    says(attend_bshd(&zeros, &zeros, &zeros, &options), &["dropout is NaN", "[0, 1)"]);
    says("cup".parse::<Backend>(), &["the backend is cup", "eager, cpu, flash-attn, cuda or metal"]);
}

#[test]
fn weights_of_wrong_shape_or_dtype_are_named() {
    let dense = |out: usize, input: usize| {
        LinearWeights::new(Tensor::zeros((out, input), DType::F32, &Device::Cpu).unwrap(), None)
    };
    let good = || {
        let qkv = QkvWeights::Split(Box::new([dense(8, 8), dense(8, 8), dense(8, 8)]));
        AttentionWeights::new(qkv, dense(8, 8))
    };
    let config = AttentionConfig::new(8, 2);
    let build = |weights| MultiHeadAttention::from_weights(&config, weights);
    assert!(build(good()).is_ok());
    let vector = |n: usize, dtype| Tensor::zeros(n, dtype, &Device::Cpu).unwrap();
    let mut weights = good();
    weights.o = dense(8, 6);
    says(build(weights), &["o_proj weight has shape [8, 6]", "[8, 8]"]);
    let mut weights = good();
    weights.qkv = QkvWeights::Packed(dense(23, 8));
    says(build(weights), &["packed q, k, v weight has shape [23, 8]", "[24, 8]"]);
    let mut weights = good();
    weights.o.bias = Some(vector(7, DType::F32));
    says(build(weights), &["o_proj bias has shape [7]", "[8]"]);
    let mut weights = good();
    weights.o.bias = Some(vector(8, DType::F16));
    says(build(weights), &["o_proj bias has dtype f16", "f32"]);
    let mut weights = good();
    let mut key = dense(8, 8);
    key.weight = key.weight.to_dtype(DType::F64).unwrap();
    weights.qkv = QkvWeights::Split(Box::new([dense(8, 8), key, dense(8, 8)]));
    says(build(weights), &["k_proj weight has dtype f64", "f32"]);
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap();
    let weights = good().with_parameter("bias_k", zeros(&[1, 1, 8]));
    says(build(weights.clone()), &["tensor `bias_v` is missing"]);
    says(build(weights.with_parameter("bias_v", zeros(&[1, 1, 4]))), &["bias_v has shape [1, 1, 4]", "[1, 1, 8]"]);
    says(build(good().with_parameter("sinks", zeros(&[3]))), &["sinks has shape [3]", "[2]"]);
    says(build(good().with_parameter("score.weight", zeros(&[2, 4]))), &["scoring = none", "`score.weight`"]);
    says(build(good().with_parameter("sink", zeros(&[2]))), &["`sink`"]);
    let additive = config.clone().with_scoring(Scoring::Additive);
    let build = |weights| MultiHeadAttention::from_weights(&additive, weights);
    says(build(good()), &["tensor `score.weight` is missing", "scoring"]);
    says(build(good().with_parameter("score.weight", zeros(&[8]))), &["score.weight has shape [8]", "[2, 4]"]);
}
