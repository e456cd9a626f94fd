//! Windows with global tokens: against transformers, on every path, with gradients, and where they cannot be.

use std::collections::HashMap;

use candle_attention::checkpoint::{ModelAttention, layouts, write_layers};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Backend, KvCache, MultiHeadAttention,
    ObserveOptions, Quantization,
};
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};

use crate::common::{Golden, LAYER, Random, assert_close, max_diff, numbers, random_layer, says};

const CPU: Device = Device::Cpu;
const MODELS: [&str; 2] = ["longformer", "led"];
const CASES: [&str; 3] = ["none", "one", "several"];

fn golden() -> Golden {
    Golden::open("longformer.safetensors")
}

fn load(golden: &Golden, name: &str) -> ModelAttention {
    let metadata = golden.0.metadata();
    let config: serde_json::Value = serde_json::from_str(&metadata[name]).unwrap();
    let prefix = &metadata[&format!("{name}.prefix")];
    golden.0.attention_with(prefix, &config, DType::F32, &CPU).unwrap()
}

/// A layer with a window whose tokens may be global.
fn config() -> AttentionConfig {
    AttentionConfig::new(12, 3).with_mask(AttentionMask::window(Some(2), Some(2))).with_global_tokens(true)
}

/// `xs` `(b, s, size)` with zeros in place of padding.
fn real(xs: &Tensor, real: &Tensor) -> Tensor {
    xs.broadcast_mul(&real.to_dtype(xs.dtype()).unwrap().unsqueeze(2).unwrap()).unwrap()
}

#[test]
fn layers_of_longformer_and_led_agree_with_transformers_on_every_path() {
    let golden = golden();
    for name in MODELS {
        let model = load(&golden, name);
        let window = if name == "led" { 3 } else { 2 };
        assert_eq!(model.mask(), &AttentionMask::window(Some(window), Some(window)));
        for case in CASES {
            let get = |part: &str| golden.get(&format!("{name}.{case}.{part}"));
            let (xs, want, tokens, places) = (get("input"), get("output"), get("real"), get("global"));
            let mask = AttentionMask::keep_keys(&tokens).unwrap();
            let inputs = AttentionInputs::self_attention(&xs, &mask);
            let options = AttentionOptions::default().with_global_tokens(&places);
            let close = |what: &str, got: &Tensor| {
                assert_close(&format!("{name} {case} {what}"), &real(got, &tokens), &real(&want, &tokens), LAYER);
            };
            let run = |options: &AttentionOptions| model.layer.attend_with(&inputs, options).unwrap();
            close("fused", &run(&options).output);
            close("eager", &run(&options.with_backend(Backend::Eager)).output);
            close("frozen", &model.layer.frozen().unwrap().attend_with(&inputs, &options).unwrap().output);
            let returned = run(&options.with_return_attention_weights(true));
            close("with weights", &returned.output);
            let what = ObserveOptions::default().with_attention_weights(true).with_top_k(2).with_queries(&[7, 0, 3]);
            let stats = model.layer.observe(&inputs, &options, &what).unwrap();
            close("observed", &stats.output);
            let picked = Tensor::new(&[7u32, 0, 3], &CPU).unwrap();
            let weights = returned.attention_weights.unwrap().index_select(&picked, 2).unwrap();
            assert_close("weights", &stats.attention_weights.unwrap(), &weights, 1e-6);
            let largest = stats.top_keys.unwrap().attention_weights.narrow(3, 0, 1).unwrap();
            assert_close("largest weights", &largest, &weights.max_keepdim(3).unwrap(), 1e-6);
            let lengths = tokens.sum(1).unwrap().to_vec1::<i64>().unwrap();
            let lengths: Vec<usize> = lengths.into_iter().map(|length| length as usize).collect();
            let padding = AttentionMask::padding(&lengths);
            let padded = AttentionInputs::self_attention(&xs, &padding);
            close("under a mask of padding", &model.layer.attend_with(&padded, &options).unwrap().output);
            if case == "none" {
                close("without an option", &run(&AttentionOptions::default()).output);
                let rows: Vec<Tensor> = (0..3).map(|i| xs.get(i).unwrap().narrow(0, 0, lengths[i]).unwrap()).collect();
                let rows = Tensor::cat(&rows, 0).unwrap();
                let ragged = AttentionInputs::ragged(&rows, &lengths, None);
                let ragged = model.layer.attend_with(&ragged, &AttentionOptions::default()).unwrap().output;
                let last = want.get(2).unwrap();
                assert_close("ragged", &ragged.narrow(0, lengths[0] + lengths[1], lengths[2]).unwrap(), &last, LAYER);
            } else {
                let without = run(&AttentionOptions::default()).output;
                assert!(max_diff(&real(&without, &tokens), &real(&want, &tokens)) > 0.1);
            }
        }
    }
}

/// One row of global tokens is that of every sequence, in any integer dtype, and half types are near.
#[test]
fn global_tokens_are_integers_of_one_or_all_sequences_and_any_dtype_of_weights() {
    let mut random = Random::new(3);
    let layer = random_layer(&config(), 0.5, &mut random);
    let xs = random.tensor(&[2, 9, 12], DType::F32);
    let row = Tensor::new(&[[0u8, 2, 0, 0, 0, 0, 1, 1, 0]], &CPU).unwrap();
    let call = |layer: &MultiHeadAttention, xs: &Tensor, tokens: &Tensor| {
        let inputs = AttentionInputs::self_attention(xs, None);
        layer.attend_with(&inputs, &AttentionOptions::default().with_global_tokens(tokens)).unwrap().output
    };
    let want = call(&layer, &xs, &row);
    for dtype in [DType::U32, DType::I64] {
        let all = row.to_dtype(dtype).unwrap().broadcast_as((2, 9)).unwrap();
        assert_eq!(numbers(&call(&layer, &xs, &all)), numbers(&want));
    }
    let none = call(&layer, &xs, &row.zeros_like().unwrap());
    assert_eq!(numbers(&none), numbers(&layer.attend(&xs, &xs, &xs, None).unwrap()));
    for (dtype, tolerance) in [(DType::F16, 0.02), (DType::BF16, 0.1)] {
        let tensors: HashMap<String, Tensor> = layer
            .weights()
            .unwrap()
            .to_layout(layer.config(), layouts().next().unwrap())
            .unwrap()
            .into_iter()
            .map(|(name, tensor)| (name, tensor.to_dtype(dtype).unwrap()))
            .collect();
        let half = MultiHeadAttention::load(&config(), VarBuilder::from_tensors(tensors, dtype, &CPU)).unwrap();
        assert_close("a half type", &call(&half, &xs.to_dtype(dtype).unwrap(), &row), &want, tolerance);
    }
}

/// Global tokens run in one call where they are near, and in several where they are far from each other.
#[test]
fn each_global_token_is_as_it_is_alone() {
    let mut random = Random::new(7);
    let layer = random_layer(&config(), 0.5, &mut random);
    let xs = random.tensor(&[2, 90, 12], DType::F32);
    let mask = AttentionMask::lengths(&[90, 71]);
    let inputs = AttentionInputs::self_attention(&xs, &mask);
    let mut is_global = [[0u8; 90]; 2];
    for (sequence, token) in [(0, 0), (0, 1), (1, 5), (0, 40), (1, 64), (1, 70)] {
        is_global[sequence][token] = 1;
    }
    let run = |is_global: &[[u8; 90]; 2], backend: Option<Backend>| {
        let tokens = Tensor::new(is_global, &CPU).unwrap();
        let options = AttentionOptions::default().with_global_tokens(&tokens).with_return_attention_weights(true);
        let options = backend.map_or(options, |backend| options.with_backend(backend));
        layer.attend_with(&inputs, &options).unwrap()
    };
    let all = run(&is_global, None);
    let eager = run(&is_global, Some(Backend::Eager));
    assert_close("eager", &all.output, &eager.output, LAYER);
    let what = ObserveOptions::default().with_attention_weights(true);
    let tokens = Tensor::new(&is_global, &CPU).unwrap();
    let observed = layer.observe(&inputs, &AttentionOptions::default().with_global_tokens(&tokens), &what).unwrap();
    assert_close("observed", &all.output, &observed.output, LAYER);
    assert_close("weights", &all.attention_weights.unwrap(), &observed.attention_weights.unwrap(), 1e-6);
}

/// Analytic gradients of every parameter and of the input are finite differences.
#[test]
fn gradients_reach_all_projections() {
    let mut random = Random::new(5);
    let map = VarMap::new();
    let make = || MultiHeadAttention::new(&config(), VarBuilder::from_varmap(&map, DType::F64, &CPU)).unwrap();
    make();
    let mut variables: Vec<(String, Var)> =
        map.data().lock().unwrap().iter().map(|(name, var)| (name.clone(), var.clone())).collect();
    variables.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(variables.len(), 14);
    for (_, var) in &variables {
        var.set(&random.tensor(var.dims(), DType::F64).affine(0.5, 0.0).unwrap()).unwrap();
    }
    let input = Var::from_tensor(&random.tensor(&[2, 7, 12], DType::F64)).unwrap();
    let factors = random.tensor(&[2, 7, 12], DType::F64);
    let tokens = Tensor::new(&[[1u8, 0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 1, 0]], &CPU).unwrap();
    let loss = || {
        let mask = AttentionMask::lengths(&[7, 6]);
        let inputs = AttentionInputs::self_attention(input.as_tensor(), &mask);
        let options = AttentionOptions::default().with_global_tokens(&tokens);
        let output = make().attend_with(&inputs, &options).unwrap().output;
        (output * &factors).unwrap().sum_all().unwrap()
    };
    let gradients = loss().backward().unwrap();
    variables.push(("the input".to_string(), input.clone()));
    for (name, var) in variables {
        let gradient = gradients.get(&var).unwrap_or_else(|| panic!("`{name}` gets no gradient"));
        let (gradient, value) = (numbers(gradient), numbers(&var));
        for _ in 0..3 {
            let i = (random.uniform() * value.len() as f64) as usize;
            let at = |step: f64| {
                let mut moved = value.clone();
                moved[i] += step;
                var.set(&Tensor::from_vec(moved, var.dims(), &CPU).unwrap()).unwrap();
                let result = loss().to_scalar::<f64>().unwrap();
                var.set(&Tensor::from_vec(value.clone(), var.dims(), &CPU).unwrap()).unwrap();
                result
            };
            let want = (at(1e-5) - at(-1e-5)) / 2e-5;
            let off = (gradient[i] - want).abs();
            assert!(off <= 1e-5 * want.abs().max(1.0), "gradient {i} of {name}: {} and {want}", gradient[i]);
        }
    }
}

#[test]
fn quantized_pruned_and_written_layers_keep_their_global_projections() {
    let golden = golden();
    for name in MODELS {
        let model = load(&golden, name);
        let get = |part: &str| golden.get(&format!("{name}.several.{part}"));
        let (xs, tokens, places) = (get("input"), get("real"), get("global"));
        let mask = AttentionMask::keep_keys(&tokens).unwrap();
        let inputs = AttentionInputs::self_attention(&xs, &mask);
        let options = AttentionOptions::default().with_global_tokens(&places);
        let run = |layer: &MultiHeadAttention, options: &AttentionOptions| {
            real(&layer.attend_with(&inputs, options).unwrap().output, &tokens)
        };
        let want = run(&model.layer, &options);
        let int8 = model.layer.quantized(Quantization::Int8).unwrap();
        assert_eq!(int8.weights().unwrap().parameters.iter().count(), 6);
        assert_close("int8", &run(&int8, &options), &want, 0.15);
        assert!(max_diff(&run(&int8, &AttentionOptions::default()), &want) > 0.5);

        let factors = Tensor::new(&[1f32, 0.], &CPU).unwrap();
        let pruned = model.layer.prune_heads(&[1]).unwrap();
        assert_close("pruned", &run(&pruned, &options), &run(&model.layer, &options.with_head_mask(&factors)), LAYER);
        let none = run(&model.layer.prune_heads(&[0, 1]).unwrap(), &options);
        assert_close(
            "without heads",
            &none,
            &run(&model.layer, &options.with_head_mask(&factors.zeros_like().unwrap())),
            LAYER,
        );

        let own = layouts().next().unwrap();
        for layout in [model.layout, own] {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("layer.safetensors");
            let weights = model.layer.weights().unwrap();
            write_layers(&file, &[("layer", &weights, model.layer.config())], layout, HashMap::new()).unwrap();
            let source = candle_attention::checkpoint::Checkpoint::open(&file).unwrap();
            let read = MultiHeadAttention::load(model.layer.config(), source.at("layer", DType::F32, &CPU)).unwrap();
            assert_eq!(numbers(&run(&read, &options)), numbers(&want), "{}", layout.name());
            // Without the field, the six tensors are an error.
            let plain = model.layer.config().clone().with_global_tokens(false);
            says(MultiHeadAttention::load(&plain, source.at("layer", DType::F32, &CPU)), &["global_tokens", "_global"]);
        }
    }
}

#[test]
fn calls_that_cannot_have_global_tokens_say_so() {
    let layer = random_layer(&config(), 0.5, &mut Random::new(9));
    let xs = Random::new(1).tensor(&[2, 5, 12], DType::F32);
    let tokens = Tensor::zeros((2, 5), DType::U8, &CPU).unwrap();
    let options = AttentionOptions::default().with_global_tokens(&tokens);
    let inputs = AttentionInputs::self_attention(&xs, None);
    let mut cache = KvCache::growing();
    says(layer.attend_with(&inputs.with_cache(&mut cache), &options), &["global_tokens", "without a cache"]);
    assert!(cache.is_empty());
    says(layer.attend_sharing(&inputs, &options), &["global_tokens", "keys"]);
    let rows = xs.reshape((10, 12)).unwrap();
    says(layer.attend_with(&AttentionInputs::ragged(&rows, &[4, 6], None), &options), &["global_tokens", "padded"]);
    let free = layer.with_mask(AttentionMask::full()).unwrap();
    let memory = free.cross_cache(&xs, &xs).unwrap();
    says(free.attend_with(&AttentionInputs::cross_cached(&xs, &memory, None), &options), &["global_tokens", "padded"]);
    let few = xs.narrow(1, 0, 2).unwrap();
    says(layer.attend_with(&AttentionInputs::cross_attention(&few, &xs, None), &options), &["global_tokens"]);
    for wrong in [tokens.narrow(1, 0, 4).unwrap(), tokens.flatten_all().unwrap()] {
        let options = AttentionOptions::default().with_global_tokens(&wrong);
        says(layer.attend_with(&inputs, &options), &["global_tokens", "[2 or 1, 5]"]);
    }
    let floats = tokens.to_dtype(DType::F32).unwrap();
    says(
        layer.attend_with(&inputs, &AttentionOptions::default().with_global_tokens(&floats)),
        &["global_tokens", "int"],
    );
    let bias = Tensor::zeros((1, 1, 5, 5), DType::F32, &CPU).unwrap();
    says(layer.attend_with(&inputs, &options.with_score_bias(&bias)), &["global_tokens", "score bias"]);
    let plain = random_layer(&AttentionConfig::new(12, 3), 0.5, &mut Random::new(9));
    says(plain.attend_with(&inputs, &options), &["global_tokens", "AttentionConfig::global_tokens"]);
    says(AttentionConfig::new(12, 3).with_query_pool(1 << 32).validate(), &["query_pool = 4294967296", "65,535"]);
    for impossible in
        [config().with_position(candle_attention::position::Rotary::default()), config().with_query_pool(2)]
    {
        assert!(impossible.validate().is_err());
    }
}

#[test]
fn empty_calls_with_global_tokens_are_empty() {
    let layer = random_layer(&config(), 0.5, &mut Random::new(9));
    for [b, s] in [[0, 5], [2, 0], [0, 0]] {
        let xs = Tensor::zeros((b, s, 12), DType::F32, &CPU).unwrap();
        let tokens = Tensor::zeros((b, s), DType::U8, &CPU).unwrap();
        let options = AttentionOptions::default().with_global_tokens(&tokens);
        let returned = options.with_return_attention_weights(true);
        let inputs = AttentionInputs::self_attention(&xs, None);
        for options in [options, returned] {
            assert_eq!(layer.attend_with(&inputs, &options).unwrap().output.dims(), [b, s, 12], "{b} {s}");
        }
    }
}
