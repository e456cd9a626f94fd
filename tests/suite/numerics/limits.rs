//! Limits on what goes into projections and comes out of them: by their formula, on every path, and where they cannot
//! be.

use std::collections::HashMap;

use candle_attention::checkpoint::{Checkpoint, Layout, VarMapSource, layouts, write_layers};
use candle_attention::position::{Disentangled, RelativeSinusoids};
use candle_attention::sdpa::{SdpaOptions, attend_bshd};
use candle_attention::weights::AttentionWeights;
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, KvCache, LatentAttention, MultiHeadAttention,
    Position, ProjectionBias, ProjectionKind, Quantization,
};
use candle_core::{DType, Device, Module, Tensor, Var};
use candle_nn::VarMap;
use serde_json::json;

use crate::common::{Random, assert_close, attend_ragged, numbers, random_layer, says};

const CPU: Device = Device::Cpu;
const PROJECTIONS: [&str; 4] = ["q_proj", "k_proj", "v_proj", "o_proj"];
const SIDES: [&str; 4] = ["input_min", "input_max", "output_min", "output_max"];

fn config() -> AttentionConfig {
    AttentionConfig::new(12, 3).with_bias(ProjectionBias::NONE)
}

/// Of the projection `i`; all are met by numbers between -1 and 1.
fn limit(i: usize, side: usize) -> f64 {
    // Outputs are means of values, and smaller.
    let size = if i == 3 { 0.1 + 0.05 * side as f64 } else { 0.2 + 0.05 * i as f64 + 0.1 * side as f64 };
    if side.is_multiple_of(2) { -size } else { size }
}

fn limited(config: &AttentionConfig, seed: u64) -> (AttentionWeights, MultiHeadAttention) {
    let mut weights = random_layer(config, 0.5, &mut Random::new(seed)).weights().unwrap();
    for (i, projection) in PROJECTIONS.into_iter().enumerate() {
        for (side, name) in SIDES.into_iter().enumerate() {
            let tensor = Tensor::new(limit(i, side) as f32, &CPU).unwrap();
            weights.parameters.insert(format!("{projection}.{name}"), tensor);
        }
    }
    let layer = MultiHeadAttention::from_weights(config, weights.clone()).unwrap();
    (weights, layer)
}

/// Attention by its formula, of `xs` to `memory`.
fn reference(weights: &AttentionWeights, xs: &Tensor, memory: &Tensor, mask: AttentionMask) -> Tensor {
    let clamped = |i: usize, side: usize, xs: &Tensor| xs.clamp(limit(i, side), limit(i, side + 1)).unwrap();
    let product = |i: usize, xs: &Tensor, weight: &Tensor| {
        clamped(i, 2, &clamped(i, 0, xs).broadcast_matmul(&weight.t().unwrap()).unwrap())
    };
    let parts = weights.qkv.split([12, 12, 12], 3).unwrap();
    let heads = |i: usize, xs: &Tensor| {
        let ys = product(i, xs, &parts[i].weight);
        ys.reshape((xs.dim(0).unwrap(), xs.dim(1).unwrap(), 3, 4)).unwrap()
    };
    let options = SdpaOptions::new(mask);
    let attended = attend_bshd(&heads(0, xs), &heads(1, memory), &heads(2, memory), &options).unwrap();
    product(3, &attended.output.flatten_from(2).unwrap(), &weights.o.weight)
}

#[test]
fn they_are_applied_on_every_path() {
    let causal = config().with_mask(AttentionMask::causal());
    let (weights, layer) = limited(&causal, 1);
    let xs = Random::new(2).tensor(&[2, 7, 12], DType::F32);
    let want = reference(&weights, &xs, &xs, AttentionMask::causal());
    assert_close("padded", &layer.forward(&xs).unwrap(), &want, 1e-5);
    assert_close("frozen", &layer.frozen().unwrap().forward(&xs).unwrap(), &want, 1e-5);
    // They are met: without them it is another function.
    let mut without = weights.clone();
    without.parameters = Default::default();
    let without = MultiHeadAttention::from_weights(&causal, without).unwrap().forward(&xs).unwrap();
    let apart = (without - &want).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
    assert!(apart > 0.1, "{apart}");

    let both = xs.flatten_to(1).unwrap();
    let ragged = attend_ragged(&layer, &both, &[7, 7], &AttentionMask::full()).unwrap();
    assert_close("ragged", &ragged, &want.flatten_to(1).unwrap(), 1e-5);
    let uneven = attend_ragged(&layer, &both.narrow(0, 0, 11).unwrap(), &[7, 4], &AttentionMask::full()).unwrap();
    assert_close("ragged, uneven", &uneven, &want.flatten_to(1).unwrap().narrow(0, 0, 11).unwrap(), 1e-5);
    let masked = layer.attend(&xs, &xs, &xs, AttentionMask::padding(&[7, 4])).unwrap();
    assert_close("padding", &masked.get(1).unwrap().narrow(0, 0, 4).unwrap(), &uneven.narrow(0, 7, 4).unwrap(), 1e-5);

    let mut cache = KvCache::growing();
    let steps: Vec<Tensor> =
        [(0, 3), (3, 1), (4, 3)].map(|(at, n)| layer.step(&xs.narrow(1, at, n).unwrap(), &mut cache).unwrap()).into();
    assert_close("a cache", &Tensor::cat(&steps, 1).unwrap(), &want, 1e-5);
    let mut cache = KvCache::growing();
    let inputs = AttentionInputs::self_attention(&xs, AttentionMask::full()).with_cache_lengths(&mut cache, &[7, 4]);
    let lengths = layer.attend_with(&inputs, &AttentionOptions::default()).unwrap().output;
    assert_close(
        "a cache of unequal sequences",
        &lengths.narrow(1, 0, 4).unwrap(),
        &want.narrow(1, 0, 4).unwrap(),
        1e-5,
    );

    let (weights, crossed) = limited(&config(), 3);
    let memory = Random::new(4).tensor(&[2, 5, 12], DType::F32);
    let want = reference(&weights, &xs, &memory, AttentionMask::full());
    assert_close("a memory", &crossed.attend(&xs, &memory, &memory, AttentionMask::full()).unwrap(), &want, 1e-5);
    let kept = crossed.cross_cache(&memory, &memory).unwrap();
    assert_close("a kept memory", &crossed.cross_step(&xs, &kept, AttentionMask::full()).unwrap(), &want, 1e-5);
    let none = crossed.prune_heads(&[0, 1, 2]).unwrap().forward(&xs).unwrap();
    assert_eq!(numbers(&none), vec![0.0; 168]);
}

/// What is put in place of a projection, or beside it, is inside of the limits.
#[test]
fn they_hold_projections_of_other_kinds() {
    let (weights, layer) = limited(&config(), 5);
    let mut random = Random::new(6);
    let xs = random.tensor(&[2, 7, 12], DType::F32);
    let rounded = layer.quantized(Quantization::Int8).unwrap();
    assert_eq!(rounded.quantization(), Some(Quantization::Int8));
    let exact = MultiHeadAttention::from_weights(&config(), rounded.weights().unwrap()).unwrap();
    assert_close("int8", &rounded.forward(&xs).unwrap(), &exact.forward(&xs).unwrap(), 0.08);

    let (a, b) = (random.tensor(&[2, 12], DType::F32), random.tensor(&[12, 2], DType::F32));
    for (kind, part) in [(ProjectionKind::Query, 0), (ProjectionKind::Value, 2), (ProjectionKind::Output, 3)] {
        let low_rank = layer.projection(kind).unwrap().with_low_rank(&a, &b, 0.5).unwrap();
        let adapted = layer.with_projection(kind, low_rank).unwrap().forward(&xs).unwrap();
        let change = (b.matmul(&a).unwrap() * 0.5).unwrap();
        let mut merged = weights.clone();
        let mut parts = merged.qkv.split([12, 12, 12], 3).unwrap();
        let weight = if part == 3 { &mut merged.o.weight } else { &mut parts[part].weight };
        *weight = (&*weight + change).unwrap();
        merged.qkv = candle_attention::weights::QkvWeights::Split(Box::new(parts));
        let merged = MultiHeadAttention::from_weights(&config(), merged).unwrap().forward(&xs).unwrap();
        assert_close(&format!("{kind:?}"), &adapted, &merged, 1e-5);
    }

    let pruned = layer.prune_heads(&[1]).unwrap().forward(&xs).unwrap();
    let factors = Tensor::new(&[1f32, 0.0, 1.0], &CPU).unwrap();
    let inputs = AttentionInputs::self_attention(&xs, AttentionMask::full());
    let masked = layer.attend_with(&inputs, &AttentionOptions::default().with_head_mask(&factors)).unwrap().output;
    assert_close("without a head", &pruned, &masked, 1e-5);
}

#[test]
fn they_are_written_and_read_and_can_be_learned() {
    let (weights, layer) = limited(&config(), 7);
    let xs = Random::new(8).tensor(&[1, 5, 12], DType::F32);
    let want = numbers(&layer.forward(&xs).unwrap());
    let layout = |name: &str| -> &'static Layout { layouts().find(|layout| layout.name() == name).unwrap() };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("layer.safetensors");
    for (name, output) in [
        ("candle-attention", "o_proj"),
        ("inner-linear", "o_proj"),
        ("gemma4-audio", "post"),
        ("bart", "o_proj"),
        ("phi3", "o_proj"),
    ] {
        write_layers(&file, &[("some.layer", &weights, &config())], layout(name), HashMap::new()).unwrap();
        let read = Checkpoint::open(&file).unwrap();
        assert!(read.contains(&format!("some.layer.{output}.input_min")), "{name}");
        let again = MultiHeadAttention::load(&config(), read.at("some.layer", DType::F32, &CPU)).unwrap();
        assert_eq!(numbers(&again.forward(&xs).unwrap()), want, "{name}");
    }

    let map = VarMap::new();
    for (name, tensor) in weights.to_layout(&config(), layout("candle-attention")).unwrap() {
        map.data().lock().unwrap().insert(name, Var::from_tensor(&tensor.to_dtype(DType::F64).unwrap()).unwrap());
    }
    let xs = xs.to_dtype(DType::F64).unwrap();
    let loss = || {
        let layer = MultiHeadAttention::load(&config(), VarMapSource::new(&map)).unwrap();
        layer.forward(&xs).unwrap().sqr().unwrap().sum_all().unwrap()
    };
    let gradients = loss().backward().unwrap();
    for name in ["q_proj.input_max", "k_proj.output_min", "v_proj.input_min", "o_proj.input_max", "o_proj.output_min"] {
        let var = map.data().lock().unwrap()[name].clone();
        let value = var.to_scalar::<f64>().unwrap();
        let at = |step: f64| {
            var.set(&Tensor::new(value + step, &CPU).unwrap()).unwrap();
            let loss = loss().to_scalar::<f64>().unwrap();
            var.set(&Tensor::new(value, &CPU).unwrap()).unwrap();
            loss
        };
        let (got, want) = (gradients.get(&var).unwrap().to_scalar::<f64>().unwrap(), (at(1e-6) - at(-1e-6)) / 2e-6);
        assert!((got - want).abs() < 1e-6 && want.abs() > 1e-6, "{name}: {got} and {want}");
    }
}

#[test]
fn wrong_limits_are_an_error() {
    let (weights, _) = limited(&config(), 9);
    let build = |change: &dyn Fn(&mut AttentionWeights)| {
        let mut weights = weights.clone();
        change(&mut weights);
        MultiHeadAttention::from_weights(&config(), weights).map(|_| ())
    };
    let number = |number: f32| Tensor::new(number, &CPU).unwrap();
    build(&|weights| weights.parameters.insert("q_proj.input_min", number(f32::NEG_INFINITY))).unwrap();
    says(
        build(&|weights| weights.parameters.insert("k_proj.input_min", number(0.5).reshape(1).unwrap())),
        &["k_proj.input_min has shape [1]", "expected []"],
    );
    says(
        build(&|weights| _ = weights.parameters.remove("v_proj.output_max")),
        &["`v_proj.output_max` is missing", "the layer has `v_proj.output_min`"],
    );
    for (found, said) in [(f32::NAN, "NaN and 0.3"), (0.5, "0.5 and 0.3")] {
        says(
            build(&|weights| weights.parameters.insert("q_proj.input_min", number(found))),
            &["the limits `q_proj.input_min` and `q_proj.input_max`", said, "the lower one first"],
        );
    }

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("layer.safetensors");
    let save = |change: &dyn Fn(&mut HashMap<String, Tensor>)| {
        let own = layouts().find(|layout| layout.name() == "candle-attention").unwrap();
        let mut tensors: HashMap<String, Tensor> = weights.to_layout(&config(), own).unwrap().into_iter().collect();
        change(&mut tensors);
        candle_core::safetensors::save(&tensors, &file).unwrap();
        let checkpoint = Checkpoint::open(&file).unwrap();
        MultiHeadAttention::load(&config(), checkpoint.at("", DType::F32, &CPU)).map(|_| ())
    };
    save(&|_| ()).unwrap();
    says(
        save(&|tensors| _ = tensors.remove("q_proj.input_max")),
        &["`q_proj.input_max` is missing", "q_proj.input_min"],
    );
    let wide = Tensor::zeros(12, DType::F32, &CPU).unwrap();
    says(
        save(&|tensors| _ = tensors.insert("o_proj.output_max".to_string(), wide.clone())),
        &["`o_proj.output_max`", "[12]", "[]"],
    );

    // Where what is projected is not what the limits are of.
    let global = config().with_global_tokens(true).with_mask(AttentionMask::window(Some(1), Some(1)));
    let latent = config().with_latent(LatentAttention::new(4, 4, 4, 4));
    let disentangled = config().with_position(Position::Disentangled(Disentangled::new(16)));
    for config in [global, latent, disentangled] {
        let mut weights = random_layer(&config, 0.5, &mut Random::new(10)).weights().unwrap();
        for side in SIDES {
            weights.parameters.insert(format!("o_proj.{side}"), number(0.0));
        }
        says(MultiHeadAttention::from_weights(&config, weights), &["limits = none is not allowed", "o_proj.input_m"]);
    }
}

/// The configuration says whether a model applies the limits of its files, and what its distances are counted from.
#[test]
fn a_model_applies_the_limits_that_its_configuration_asks_for() {
    let sinusoids = RelativeSinusoids::default().with_in_halves(true);
    let config = config().with_position(Position::RelativeSinusoids(sinusoids));
    let (mut weights, _) = limited(&config, 11);
    weights.parameters.insert("scaling", Tensor::zeros(4, DType::F32, &CPU).unwrap());
    let layout = layouts().find(|layout| layout.name() == "gemma4-audio").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("layer.safetensors");
    write_layers(&file, &[("layers.0.self_attn", &weights, &config)], layout, HashMap::new()).unwrap();
    let checkpoint = Checkpoint::open(&file).unwrap();
    let load = |key: &str, value: serde_json::Value| {
        let mut json = json!({"model_type": "gemma4_audio", "hidden_size": 12, "num_attention_heads": 3});
        json[key] = value;
        checkpoint.attention_with("layers.0.self_attn", &json, DType::F32, &CPU)
    };
    let model = load("use_clipped_linears", json!(true)).unwrap();
    assert!(model.weights().unwrap().parameters.get("o_proj.output_max").is_some());
    assert_eq!(model.mask().to_string(), "window(Some(11), Some(0))");
    says(load("use_clipped_linears", json!(false)), &["use_clipped_linears = false", "the checkpoint holds limits"]);
    says(load("attention_chunk_size", json!(8)), &["attention_chunk_size = 8", "12: distances are counted from half"]);
    says(load("attention_context_right", json!(1)), &["attention_context_right = 1", "on the left alone"]);
    let whole = json!({"model_type": "gemma4", "audio_config": {
        "model_type": "gemma4_audio", "hidden_size": 12, "num_attention_heads": 3}});
    assert!(checkpoint.attention_with("layers.0.self_attn", &whole, DType::F32, &CPU).is_ok());
}
