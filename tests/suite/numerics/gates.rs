//! The gate and the norm between the heads and the output projection.

use candle_attention::checkpoint::{Checkpoint, VarMapSource, WeightSource, config_from_json, layouts};
use candle_attention::lora::{LoraConfig, LoraTraining};
use candle_attention::position::Rotary;
use candle_attention::weights::{AttentionWeights, LinearWeights, NormWeights};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Error, GateActivation, GateOver, HeadNorm,
    KvCache, MultiHeadAttention, NormKind, NormOver, OutputGate, ProjectionBias,
};
use candle_core::{DType, Device, Module, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};
use serde_json::json;

use crate::common::everywhere::Everywhere;
use crate::common::{Random, assert_close, assert_within, attend_ragged, max_diff, numbers};

const CPU: Device = Device::Cpu;
const SIGMOID: GateActivation = GateActivation::Sigmoid;
const SOFTPLUS: GateActivation = GateActivation::Softplus;

fn decoder() -> AttentionConfig {
    AttentionConfig::new(12, 4)
        .with_num_key_value_heads(2)
        .with_head_dim(6)
        .with_bias(ProjectionBias::NONE)
        .with_mask(AttentionMask::causal())
        .with_position(Rotary::default().with_dim(4))
}

/// A gate per head or per element, by name of its projection.
fn gated(activation: GateActivation, over: GateOver) -> AttentionConfig {
    decoder().with_output_gate(OutputGate::new(activation, over))
}

#[test]
fn gates_give_the_same_everywhere() {
    let norm = HeadNorm::new(NormKind::Rms, NormOver::Head, 1e-6);
    Everywhere::new(gated(SIGMOID, GateOver::Element).with_qk_norm(norm)).check(1);
    Everywhere::new(gated(SIGMOID, GateOver::Element).with_qk_norm(norm)).in_layout("gated-query").check(2);
    Everywhere::new(gated(SOFTPLUS, GateOver::Head).with_value_head_dim(5)).in_layout("g-proj").check(3);
    let heads = gated(SIGMOID, GateOver::Element).with_num_key_value_heads(4);
    Everywhere::new(heads).in_layout("hrm").check(10);
    // Without anything that needs f32 between projection and kernel, and with biases.
    let plain = AttentionConfig::new(12, 3);
    let gate = OutputGate::new(SOFTPLUS, GateOver::Element).with_bias(true);
    Everywhere::new(plain.with_output_gate(gate)).check(4);
}

#[test]
fn norms_of_the_context_give_the_same_everywhere() {
    let all = HeadNorm::new(NormKind::Rms, NormOver::AllHeads, 1e-5);
    Everywhere::new(decoder().with_context_norm(all)).without_pruning().check(5);
    let layer = HeadNorm::new(NormKind::Layer, NormOver::AllHeads, 1e-5);
    let config = AttentionConfig::new(12, 3).with_mask(AttentionMask::causal());
    Everywhere::new(config.with_context_norm(layer)).in_layout("bart").without_pruning().check(6);
    // Muse Spark: each head without a weight, then a gate.
    let head = HeadNorm::new(NormKind::Rms, NormOver::Head, 1e-5).with_weighted(false);
    Everywhere::new(gated(SIGMOID, GateOver::Element).with_context_norm(head)).check(7);
    let learned = HeadNorm::new(NormKind::RmsOffset, NormOver::Head, 1e-5);
    Everywhere::new(gated(SOFTPLUS, GateOver::Head).with_context_norm(learned)).check(8);
    // A shift before a gate: what a token without keys gives depends on its input.
    let layer = HeadNorm::new(NormKind::Layer, NormOver::Head, 1e-5);
    Everywhere::new(gated(SIGMOID, GateOver::Head).with_context_norm(layer)).without_pruning().check(9);
}

/// Against plain loops in f64, from the heads of a layer whose output projection changes nothing.
#[test]
fn the_output_is_that_of_the_formula() {
    let (h, d) = (3, 5);
    let mut random = Random::new(11);
    for (activation, over, norm_over) in [
        (SIGMOID, GateOver::Element, None),
        (SIGMOID, GateOver::Head, Some(NormOver::Head)),
        (SOFTPLUS, GateOver::Element, Some(NormOver::AllHeads)),
        (SOFTPLUS, GateOver::Head, None),
    ] {
        let plain = AttentionConfig::new(7, h).with_head_dim(d).with_output_size(h * d);
        let map = VarMap::new();
        let layer = MultiHeadAttention::new(&plain, VarBuilder::from_varmap(&map, DType::F64, &CPU)).unwrap();
        let mut weights = layer.weights().unwrap();
        let o = weights.o.clone();
        weights.o = LinearWeights::new(Tensor::eye(h * d, DType::F64, &CPU).unwrap(), None);
        let heads = MultiHeadAttention::from_weights(&plain, weights.clone()).unwrap();
        weights.o = o.clone();

        let mut config = plain.clone().with_output_gate(OutputGate::new(activation, over));
        let gates = if over == GateOver::Head { h } else { h * d };
        let gate = random.tensor(&[gates, 7], DType::F64);
        weights = weights.with_gate(LinearWeights::new(gate.clone(), None));
        let size = if norm_over == Some(NormOver::Head) { d } else { h * d };
        let factors = random.tensor(&[size], DType::F64);
        if let Some(over) = norm_over {
            config = config.with_context_norm(HeadNorm::new(NormKind::Rms, over, 1e-3));
            weights = weights.with_norm("attn_sub_norm", NormWeights::new(factors.clone(), None));
        }
        let layer = MultiHeadAttention::from_weights(&config, weights).unwrap();

        let xs = random.tensor(&[2, 4, 7], DType::F64);
        let projected = numbers(&xs.reshape((8, 7)).unwrap().matmul(&gate.t().unwrap()).unwrap());
        let mut context = numbers(&heads.forward(&xs).unwrap());
        let factors = numbers(&factors);
        for (token, context) in context.chunks_mut(h * d).enumerate() {
            if norm_over.is_some() {
                for part in context.chunks_mut(size) {
                    let mean = part.iter().map(|x| x * x).sum::<f64>() / size as f64;
                    part.iter_mut().zip(&factors).for_each(|(x, factor)| *x *= factor / (mean + 1e-3).sqrt());
                }
            }
            for (i, x) in context.iter_mut().enumerate() {
                let gate = projected[token * gates + i * gates / (h * d)];
                *x *= if activation == SIGMOID { 1.0 / (1.0 + (-gate).exp()) } else { gate.exp().ln_1p() };
            }
        }
        let context = Tensor::from_vec(context, (8, h * d), &CPU).unwrap();
        let want = context.matmul(&o.weight.t().unwrap()).unwrap();
        let want = want.broadcast_add(o.bias.as_ref().unwrap()).unwrap().reshape((2, 4, h * d)).unwrap();
        assert_close(&format!("{activation:?}, {over:?}"), &layer.forward(&xs).unwrap(), &want, 1e-9);
    }
}

/// Queries of cross-attention are not its keys: the gate reads the queries.
#[test]
fn a_gate_reads_the_input_of_the_queries() {
    let mut random = Random::new(12);
    let config =
        AttentionConfig::new(8, 2).with_query_size(6).with_output_gate(OutputGate::new(SIGMOID, GateOver::Head));
    let map = VarMap::new();
    let layer = MultiHeadAttention::new(&config, VarBuilder::from_varmap(&map, DType::F32, &CPU)).unwrap();
    let (xs, memory) = (random.tensor(&[2, 3, 6], DType::F32), random.tensor(&[2, 5, 8], DType::F32));
    let want = layer.attend(&xs, &memory, &memory, AttentionMask::full()).unwrap();
    let frozen = layer.frozen().unwrap();
    let cache = frozen.cross_cache(&memory, &memory).unwrap();
    let inputs = AttentionInputs::cross_cached(&xs, &cache, AttentionMask::full());
    let got = frozen.attend_with(&inputs, &AttentionOptions::default()).unwrap().output;
    assert_close("a cached memory", &got, &want, 1e-5);
}

fn tensors(config: &AttentionConfig, layout: &str, random: &mut Random) -> Vec<(String, Tensor)> {
    let map = VarMap::new();
    let layer = MultiHeadAttention::new(config, VarBuilder::from_varmap(&map, DType::F32, &CPU)).unwrap();
    let mut weights = layer.weights().unwrap();
    for name in ["q_norm.weight", "k_norm.weight"] {
        if let Some(norm) = weights.parameters.get(name) {
            let norm = random.tensor(norm.dims(), DType::F32);
            weights.parameters.insert(name, norm);
        }
    }
    let layout = layouts().find(|found| found.name() == layout).unwrap();
    weights.to_layout(layer.config(), layout).unwrap().into_iter().collect()
}

fn checkpoint(tensors: &[(String, Tensor)], prefix: &str) -> Checkpoint {
    let named: std::collections::HashMap<String, Tensor> =
        tensors.iter().map(|(name, tensor)| (format!("{prefix}.{name}"), tensor.clone())).collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.safetensors");
    candle_core::safetensors::save(&named, &file).unwrap();
    Checkpoint::from_bytes(std::fs::read(&file).unwrap()).unwrap()
}

/// A gate in the query projection that learns: a layer follows its variable, and the gradient reaches it.
#[test]
fn a_gate_in_the_query_projection_learns() {
    let mut random = Random::new(13);
    let config = gated(SIGMOID, GateOver::Element);
    let stored = checkpoint(&tensors(&config, "gated-query", &mut random), "attn");
    assert_eq!(stored.tensor("attn.q_proj.weight", &CPU).unwrap().dims(), [2 * 24, 12]);
    let map = stored.to_varmap("attn", DType::F32, &CPU).unwrap();
    let layer = MultiHeadAttention::load(&config, VarMapSource::new(&map).at("attn")).unwrap();
    let xs = random.tensor(&[2, 3, 12], DType::F32);
    let gradients = layer.forward(&xs).unwrap().sqr().unwrap().sum_all().unwrap().backward().unwrap();
    let q_proj: Var = map.data().lock().unwrap()["attn.q_proj.weight"].clone();
    let gradient = numbers(gradients.get(&q_proj).unwrap());
    assert!(gradient.iter().filter(|value| **value != 0.0).count() > gradient.len() * 9 / 10);
    q_proj.set(&random.tensor(&[48, 12], DType::F32)).unwrap();
    let again = MultiHeadAttention::load(&config, VarMapSource::new(&map).at("attn")).unwrap();
    assert_within("its present value", &layer.forward(&xs).unwrap(), &again.forward(&xs).unwrap(), 0.0);
    assert_close("frozen", &layer.frozen().unwrap().forward(&xs).unwrap(), &layer.forward(&xs).unwrap(), 1e-5);
}

/// An adapter of the projection of a gate, alone or in the query projection.
#[test]
fn adapters_change_gates() {
    let mut random = Random::new(16);
    for (layout, module) in [("candle-attention", "gate_proj"), ("g-proj", "g_proj"), ("gated-query", "q_proj")] {
        let config = gated(SIGMOID, GateOver::Element);
        let stored = checkpoint(&tensors(&config, layout, &mut random), "attn");
        let base = stored.at("", DType::F32, &CPU);
        let training = LoraTraining::new(&LoraConfig::new(2, 4.0, &[module]), base).unwrap();
        let load = || MultiHeadAttention::load(&config, training.source().unwrap().child("attn")).unwrap();
        let xs = random.tensor(&[1, 3, 12], DType::F32);
        let before = load().forward(&xs).unwrap();
        for variable in training.variables() {
            variable.set(&random.tensor(variable.dims(), DType::F32)).unwrap();
        }
        let after = load().forward(&xs).unwrap();
        assert!(max_diff(&before, &after) > 1e-3, "{layout}");
        let gradients = after.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        for variable in training.variables() {
            assert!(numbers(gradients.get(&variable).unwrap()).iter().any(|value| *value != 0.0), "{layout}");
        }
    }
}

/// Beyond the keys that an indexer chooses all of, every call is an error: padded, ragged and cached.
#[test]
fn more_keys_than_an_indexer_takes_are_an_error() {
    let map = VarMap::new();
    let config = decoder().with_max_keys(4);
    let layer = MultiHeadAttention::new(&config, VarBuilder::from_varmap(&map, DType::F32, &CPU)).unwrap();
    let layer = layer.frozen().unwrap();
    let xs = Tensor::ones((1, 5, 12), DType::F32, &CPU).unwrap();
    let says = |result: candle_attention::Result<Tensor>| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains("the number of keys") && error.contains("max_keys"), "{error}");
    };
    layer.forward(&xs.narrow(1, 0, 4).unwrap()).unwrap();
    says(layer.attend(&xs, &xs, &xs, AttentionMask::full()));
    let (rows, full) = (xs.squeeze(0).unwrap(), AttentionMask::full());
    attend_ragged(&layer, &rows, &[4, 1], &full).unwrap();
    says(attend_ragged(&layer, &rows, &[5], &full));
    let mut cache = KvCache::growing();
    layer.step(&xs.narrow(1, 0, 3).unwrap(), &mut cache).unwrap();
    says(layer.step(&xs.narrow(1, 3, 2).unwrap(), &mut cache));
    assert!(AttentionConfig::new(8, 2).with_max_keys(0).validate().is_err());
}

/// Beam has one bias for all gates of a head.
#[test]
fn a_bias_per_head_of_a_gate_per_element_is_written_as_it_was() {
    let mut random = Random::new(14);
    let config = decoder().with_output_gate(OutputGate::new(SIGMOID, GateOver::Element));
    let mut tensors = tensors(&config, "candle-attention", &mut random);
    tensors.push(("gate_bias".to_string(), random.tensor(&[4], DType::F32)));
    let stored = checkpoint(&tensors, "attn");
    let (weights, layout) = AttentionWeights::read(&config, &stored.at("attn", DType::F32, &CPU)).unwrap();
    assert_eq!(layout.name(), "beam");
    assert_eq!(weights.gate.as_ref().unwrap().bias.as_ref().unwrap().dims(), [24]);
    let written = weights.to_layout(&config, layout).unwrap();
    assert_within("gate_bias", &written["gate_bias"], &tensors.last().unwrap().1, 0.0);
    let own = weights.to_layout(&config, layouts().next().unwrap()).unwrap();
    assert_eq!(own["gate_proj.bias"].dims(), [24]);
}

/// A gate that the configuration does not have, or that the checkpoint does not, is an error that says so.
#[test]
fn a_gate_is_never_ignored_and_never_invented() {
    let mut random = Random::new(15);
    let plain = decoder();
    for layout in ["candle-attention", "gated-query", "g-proj"] {
        let stored = checkpoint(&tensors(&gated(SIGMOID, GateOver::Element), layout, &mut random), "attn");
        let error = MultiHeadAttention::load(&plain, stored.at("attn", DType::F32, &CPU)).unwrap_err();
        assert!(matches!(&error, Error::Config { field, .. } if *field == "output_gate"), "{layout}: {error}");
        let config = json!({"model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 2});
        let error = config_from_json(&config, &stored.at("attn", DType::F32, &CPU)).unwrap_err().to_string();
        assert!(error.contains("gate") || error.contains("the layout of a layer"), "{layout}: {error}");
    }
    let stored = checkpoint(&tensors(&plain, "candle-attention", &mut random), "attn");
    let gated = gated(SIGMOID, GateOver::Element);
    let error = MultiHeadAttention::load(&gated, stored.at("attn", DType::F32, &CPU)).unwrap_err();
    assert!(matches!(&error, Error::MissingTensor { name, .. } if name == "attn.gate_proj.weight"), "{error}");
    let normed = plain.with_context_norm(HeadNorm::new(NormKind::Rms, NormOver::AllHeads, 1e-5));
    let error = MultiHeadAttention::load(&normed, stored.at("attn", DType::F32, &CPU)).unwrap_err();
    assert!(matches!(&error, Error::MissingTensor { name, .. } if name == "attn.attn_sub_norm.weight"), "{error}");
}
