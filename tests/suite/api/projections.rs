//! Projections as values: a module of the caller, a low-rank change, and the weights of another layer in their place.

use std::sync::Arc;

use candle_attention::ops::Linear;
use candle_attention::position::Rotary;
use candle_attention::tensor::ShareWeights;
use candle_attention::weights::{AttentionWeights, LinearWeights, QkvWeights};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Backend, Error, GateActivation, GateOver,
    KvCache, MultiHeadAttention, OutputGate, ProjectionKind, Quantization,
};
use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::Module;

use crate::common::{LAYER, Random, assert_close, attend_ragged, max_diff, random_layer, says};

const CPU: Device = Device::Cpu;
const FOUR: [ProjectionKind; 4] =
    [ProjectionKind::Query, ProjectionKind::Key, ProjectionKind::Value, ProjectionKind::Output];

fn config() -> AttentionConfig {
    AttentionConfig::new(64, 4).with_num_key_value_heads(2).with_position(Rotary::default())
}

fn attend(layer: &MultiHeadAttention, xs: &Tensor, mask: &AttentionMask) -> Tensor {
    layer.attend(xs, xs, xs, mask).unwrap()
}

fn q8_0(weight: &Tensor) -> Arc<QTensor> {
    Arc::new(QTensor::quantize(weight, GgmlDType::Q8_0).unwrap())
}

/// A layer without biases, the same with the four products of candle's Q8_0, and with their dequantized weights.
fn quantized(random: &mut Random) -> [MultiHeadAttention; 2] {
    let (h, d) = (64, 16);
    let mut weight = |out| (random.tensor(&[out, h], DType::F32) * 0.2).unwrap();
    let all = [weight(h), weight(2 * d), weight(2 * d), weight(h)].map(|weight| q8_0(&weight));
    let [q, k, v, o] = all.each_ref().map(|weight| LinearWeights::new(weight.dequantize(&CPU).unwrap(), None));
    let weights = AttentionWeights::new(QkvWeights::Split(Box::new([q, k, v])), o);
    let dequantized = MultiHeadAttention::from_weights(&config(), weights).unwrap();
    let mut layer = dequantized.clone();
    for (kind, weight) in FOUR.into_iter().zip(all) {
        layer = layer.with_module(kind, QMatMul::QTensor(weight)).unwrap();
    }
    [layer, dequantized]
}

#[test]
fn a_quantized_product_of_candle_is_a_projection_on_every_route() {
    let mut random = Random::new(420);
    let [layer, dequantized] = quantized(&mut random);
    let xs = random.tensor(&[3, 7, 64], DType::F32);
    let lengths = [7, 2, 5];
    let causal = AttentionMask::causal();
    let masks = [AttentionMask::full(), causal.clone(), causal.clone().and(AttentionMask::lengths(&lengths))];
    for mask in &masks {
        // Candle rounds the inputs of each product to 8 bits.
        assert_close("padded", &attend(&layer, &xs, mask), &attend(&dequantized, &xs, mask), 3e-2);
    }
    let want = attend(&layer, &xs, &causal);
    let mut cache = KvCache::growing();
    let causal_layer = layer.with_mask(causal.clone()).unwrap();
    for (start, len) in [(0, 3), (3, 1), (4, 3)] {
        let got = causal_layer.step(&xs.narrow(1, start, len).unwrap(), &mut cache).unwrap();
        assert_close("cached", &got, &want.narrow(1, start, len).unwrap(), LAYER);
    }
    let sequence = |i: usize| xs.get(i).unwrap().narrow(0, 0, lengths[i]).unwrap();
    let tokens = Tensor::cat(&[sequence(0), sequence(1), sequence(2)], 0).unwrap();
    let ragged = attend_ragged(&layer, &tokens, &lengths, &causal).unwrap();
    let mut start = 0;
    for (i, length) in lengths.into_iter().enumerate() {
        let want = want.get(i).unwrap().narrow(0, 0, length).unwrap();
        assert_close("ragged", &ragged.narrow(0, start, length).unwrap(), &want, LAYER);
        start += length;
    }
    let weights = AttentionOptions::default().with_return_attention_weights(true);
    let attended = layer.attend_with(&AttentionInputs::self_attention(&xs, &causal), &weights).unwrap();
    assert_close("eager", &attended.output, &want, LAYER);
    // Its weights cannot change: the kernel runs, a frozen copy shares it, and nothing is empty that it cannot take.
    let inputs = AttentionInputs::self_attention(&xs, &causal);
    assert_eq!(layer.plan(&inputs, &AttentionOptions::default()).unwrap().backend, Backend::Cpu);
    assert_close("frozen", &attend(&layer.frozen().unwrap(), &xs, &causal), &want, 0.0);
    assert_eq!(attend(&layer, &xs.narrow(1, 0, 0).unwrap(), &causal).dims(), [3, 0, 64]);
    let strided = xs.transpose(0, 1).unwrap().contiguous().unwrap().transpose(0, 1).unwrap();
    assert_close("strided", &attend(&layer, &strided, &causal), &want, 0.0);
}

#[test]
fn one_product_for_queries_keys_and_values() {
    let mut random = Random::new(421);
    let layer = random_layer(&config(), 0.3, &mut random);
    let xs = random.tensor(&[2, 5, 64], DType::F32);
    let memory = random.tensor(&[2, 4, 64], DType::F32);
    let full = AttentionMask::full();
    let QkvWeights::Split(parts) = layer.weights().unwrap().qkv else { panic!("three projections") };
    let all = LinearWeights::concat(&[&parts[0], &parts[1], &parts[2]]).unwrap();
    let bias = all.bias.unwrap();
    let product = candle_nn::Linear::new(all.weight, Some(bias));
    let packed = layer.with_module(ProjectionKind::QueryKeyValue, product).unwrap();
    assert_close("self", &attend(&packed, &xs, &full), &attend(&layer, &xs, &full), LAYER);
    let cross = |layer: &MultiHeadAttention| layer.attend(&xs, &memory, &memory, &full).unwrap();
    assert_close("cross", &cross(&packed), &cross(&layer), LAYER);
    // A frozen layer has them packed in one.
    says(layer.projection(ProjectionKind::QueryKeyValue), &["qkv_proj is three projections", "Query"]);
    let own = layer.frozen().unwrap().projection(ProjectionKind::QueryKeyValue).unwrap();
    assert_eq!([own.out_features(), own.in_features()], [128, 64]);
    let again = layer.with_projection(ProjectionKind::QueryKeyValue, own).unwrap();
    assert_close("packed", &attend(&again, &xs, &full), &attend(&layer, &xs, &full), LAYER);
}

#[test]
fn a_projection_is_read_out_and_put_into_another_layer() {
    let mut random = Random::new(422);
    let gated = config().with_output_gate(OutputGate::new(GateActivation::Sigmoid, GateOver::Element));
    let [first, second] = [0.3, 0.4].map(|scale| random_layer(&gated, scale, &mut random));
    let xs = random.tensor(&[2, 6, 64], DType::F32);
    let mask = AttentionMask::causal();
    let want = attend(&second, &xs, &mask);
    for source in [second.clone(), second.frozen().unwrap()] {
        let mut layer = first.frozen().unwrap();
        for kind in FOUR.into_iter().chain([ProjectionKind::Gate]) {
            layer = layer.with_projection(kind, source.projection(kind).unwrap()).unwrap();
        }
        assert_close("moved", &attend(&layer, &xs, &mask), &want, LAYER);
        assert_close("frozen", &attend(&layer.frozen().unwrap(), &xs, &mask), &want, LAYER);
        let weights = layer.weights().unwrap();
        let rebuilt = MultiHeadAttention::from_weights(&gated, weights).unwrap();
        assert_close("rebuilt", &attend(&rebuilt, &xs, &mask), &want, LAYER);
    }
}

/// LoRA as a caller writes it.
struct Lora {
    base: Linear,
    a: Var,
    b: Var,
}

impl Module for Lora {
    fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
        let change = xs.broadcast_matmul(&self.a.t()?)?.broadcast_matmul(&self.b.t()?)?;
        self.base.forward_in_dtype(xs, xs.dtype())? + (change * 0.5)?
    }
}

#[test]
fn gradients_are_those_of_the_merged_weights() {
    let mut random = Random::new(423);
    let layer = random_layer(&config(), 0.3, &mut random);
    let xs = Var::from_tensor(&random.tensor(&[2, 5, 64], DType::F32)).unwrap();
    let target = random.tensor(&[2, 5, 64], DType::F32);
    let mut variable = |dims: [usize; 2]| Var::from_tensor(&(random.tensor(&dims, DType::F32) * 0.2).unwrap()).unwrap();
    let pairs = [64, 32, 32, 64].map(|out| [variable([3, 64]), variable([out, 3])]);
    let mask = AttentionMask::causal().and(AttentionMask::lengths(&[5, 3]));
    let gradients = |layer: &MultiHeadAttention| {
        let ys = attend(layer, &xs, &mask);
        let store = (&ys - &target).unwrap().sqr().unwrap().sum_all().unwrap().backward().unwrap();
        let all = pairs.iter().flatten().chain([&xs]);
        let gradients: Vec<Tensor> = all.map(|variable| store.get(variable).unwrap().clone()).collect();
        (ys, gradients)
    };
    let AttentionWeights { qkv, mut o, .. } = layer.weights().unwrap();
    let QkvWeights::Split(mut parts) = qkv else { panic!("three projections") };
    for (weights, [a, b]) in parts.iter_mut().chain([&mut o]).zip(&pairs) {
        weights.weight = (&weights.weight + (b.matmul(a).unwrap() * 0.5).unwrap()).unwrap();
    }
    let merged = AttentionWeights::new(QkvWeights::Split(parts), o);
    let merged = MultiHeadAttention::from_weights(&config(), merged).unwrap();
    let (output, want) = gradients(&merged);
    // The base of tensors, and the base that is packed alone.
    for base in [layer.clone(), layer.frozen().unwrap()] {
        let (mut own, mut module) = (base.clone(), base.clone());
        for (kind, [a, b]) in FOUR.into_iter().zip(&pairs) {
            let linear = base.projection(kind).unwrap();
            own = own.with_projection(kind, linear.with_low_rank(a, b, 0.5).unwrap()).unwrap();
            module = module.with_module(kind, Lora { base: linear, a: a.clone(), b: b.clone() }).unwrap();
        }
        for layer in [&own, &module] {
            let (got_output, got) = gradients(layer);
            assert_close("output", &got_output, &output, LAYER);
            for (got, want) in got.iter().zip(&want) {
                assert_close("gradient", got, want, 3e-5);
            }
            let inputs = AttentionInputs::self_attention(&target, &mask);
            let plan = layer.plan(&inputs, &AttentionOptions::default()).unwrap();
            assert_eq!(plan.backend, Backend::Cpu);
            let output = layer.attend_with(&inputs, &AttentionOptions::default()).unwrap().output;
            assert!(output.track_op(), "the variables are found without being told");
        }
        says(module.frozen(), &["q_proj is a module of the caller", "weights"]);
        // The low-rank change can be merged, and a frozen copy has it beside fixed weights.
        let rebuilt = MultiHeadAttention::from_weights(&config(), own.weights().unwrap()).unwrap();
        assert_close("rebuilt", &attend(&rebuilt, &xs, &mask), &output, LAYER);
        let frozen = own.frozen().unwrap();
        assert_close("frozen", &attend(&frozen, &xs.detach(), &mask), &output, LAYER);
        pairs[0][1].set(&(pairs[0][1].as_tensor() * 2.0).unwrap()).unwrap();
        assert_close("snapshot", &attend(&frozen, &xs.detach(), &mask), &output, LAYER);
        assert!(max_diff(&attend(&own, &xs, &mask), &output) > 1e-3, "the layer itself follows its variables");
        pairs[0][1].set(&(pairs[0][1].as_tensor() / 2.0).unwrap()).unwrap();
    }
}

#[test]
fn a_cache_knows_whether_a_low_rank_change_has_changed() {
    let mut random = Random::new(424);
    let layer = random_layer(&config(), 0.3, &mut random).frozen().unwrap();
    let (a, b) = (random.tensor(&[2, 64], DType::F32), Var::zeros((32, 2), DType::F32, &CPU).unwrap());
    let key = layer.projection(ProjectionKind::Key).unwrap().with_low_rank(&a, &b, 1.0).unwrap();
    let adapted = layer.with_projection(ProjectionKind::Key, key).unwrap();
    let xs = random.tensor(&[1, 2, 64], DType::F32);
    let mut cache = KvCache::growing();
    layer.step(&xs, &mut cache).unwrap();
    says(adapted.step(&xs, &mut cache), &["one of another layer"]);
    cache = KvCache::growing();
    adapted.step(&xs, &mut cache).unwrap();
    adapted.step(&xs, &mut cache).unwrap();
    b.set(&random.tensor(&[32, 2], DType::F32)).unwrap();
    says(adapted.step(&xs, &mut cache), &["other weights"]);
    // Other queries are no reason.
    cache = KvCache::growing();
    layer.step(&xs, &mut cache).unwrap();
    let query = layer.projection(ProjectionKind::Query).unwrap();
    let query = query.with_low_rank(&a, &random.tensor(&[64, 2], DType::F32), 1.0).unwrap();
    layer.with_projection(ProjectionKind::Query, query).unwrap().step(&xs, &mut cache).unwrap();
}

#[test]
fn what_does_not_fit_is_named() {
    let mut random = Random::new(425);
    let layer = random_layer(&config(), 0.3, &mut random);
    let xs = random.tensor(&[2, 5, 64], DType::F32);
    let with = |module: fn(&Tensor) -> candle_core::Result<Tensor>| layer.with_module(ProjectionKind::Key, module);
    says(with(|xs| Ok(xs.clone())), &["the output of k_proj, a module of the caller", "[1, 1, 64]", "[1, 1, 32]"]);
    let half = with(|xs| xs.narrow(2, 0, 32)?.to_dtype(DType::F16));
    says(half, &["the output of k_proj, a module of the caller", "f16", "f32"]);
    says(with(|_| candle_core::bail!("no luck")), &["no luck"]);
    // A module that is wrong for more than one token shows at the first call.
    let first = with(|xs| xs.narrow(1, 0, 1)?.narrow(2, 0, 32)).unwrap();
    let shape = first.forward_t(&xs, false);
    assert!(matches!(&shape, Err(Error::Shape { .. })));
    says(shape, &["k_proj", "[2, 1, 32]", "[2, 5, 32] for an input [2, 5, 64]"]);
    // No gradient is lost: candle's product has no backward pass.
    let [quantized, _] = quantized(&mut random);
    let variable = Var::from_tensor(&xs).unwrap();
    says(quantized.forward_t(&variable, true), &["q_proj", "without a gradient", "detached"]);
    quantized.forward_t(&variable.detach(), true).unwrap();

    says(quantized.weights().map(|_| ()), &["q_proj is a module of the caller", "written", "pruned"]);
    says(quantized.prune_heads(&[0]).map(|_| ()), &["q_proj is a module of the caller"]);
    says(layer.projection(ProjectionKind::Gate), &["gate_proj is none", "a gate"]);
    let query = layer.projection(ProjectionKind::Query).unwrap();
    says(layer.with_projection(ProjectionKind::Key, query.clone()), &["k_proj has shape [64, 64]", "[32, 64]"]);
    says(query.with_low_rank(&xs.get(0).unwrap(), &xs.get(0).unwrap(), 1.0), &["B of a low-rank change", "[64, 5]"]);
}

/// Training over weights in few bits is training over the same weights in f32.
#[test]
fn gradients_over_weights_of_few_bits_are_those_of_dequantized_ones() {
    let mut random = Random::new(426);
    let layer = random_layer(&config(), 0.3, &mut random);
    let xs = Var::from_tensor(&random.tensor(&[2, 5, 64], DType::F32)).unwrap();
    let mut variable = |dims: [usize; 2]| Var::from_tensor(&(random.tensor(&dims, DType::F32) * 0.2).unwrap()).unwrap();
    let pairs = [64, 32, 32, 64].map(|out| [variable([3, 64]), variable([out, 3])]);
    let mask = AttentionMask::causal();
    for format in [Quantization::Int8, Quantization::Q8_0, Quantization::Q4_0] {
        let quantized = layer.quantized(format).unwrap();
        let dequantized = MultiHeadAttention::from_weights(&config(), quantized.weights().unwrap()).unwrap();
        let adapted = |base: &MultiHeadAttention| {
            FOUR.into_iter().zip(&pairs).fold(base.clone(), |layer, (kind, [a, b])| {
                let projection = layer.projection(kind).unwrap().with_low_rank(a, b, 0.5).unwrap();
                layer.with_projection(kind, projection).unwrap()
            })
        };
        let gradients = |layer: &MultiHeadAttention| {
            let ys = attend(layer, &xs, &mask);
            let store = ys.sqr().unwrap().sum_all().unwrap().backward().unwrap();
            let of = |variable: &Var| store.get(variable).unwrap().clone();
            (ys, pairs.iter().flatten().chain([&xs]).map(of).collect::<Vec<_>>())
        };
        let own = adapted(&quantized);
        assert_eq!(own.quantization(), Some(format));
        let ((got_output, got), (output, want)) = (gradients(&own), gradients(&adapted(&dequantized)));
        assert_close("output", &got_output, &output, LAYER);
        for (got, want) in got.iter().zip(&want) {
            assert_close(&format!("{format}: gradient"), got, want, 1e-4);
        }
        // A frozen copy keeps the few bits; without a gradient, inputs are rounded too.
        let frozen = own.frozen().unwrap();
        assert_eq!(frozen.quantization(), Some(format));
        let coarse = if format == Quantization::Q4_0 { 0.2 } else { 0.05 };
        assert_close("frozen", &attend(&frozen, &xs.detach(), &mask), &output, coarse);
    }
}

/// Adapters beside one quantized layer hold its packed weights once.
#[test]
fn layers_with_changes_beside_equal_weights_share_them() {
    let mut random = Random::new(427);
    let layer = random_layer(&config(), 0.3, &mut random);
    let [base, again] = [(); 2].map(|()| layer.quantized(Quantization::Int8).unwrap());
    let (a, b) = (random.tensor(&[2, 64], DType::F32), random.tensor(&[64, 2], DType::F32));
    let query = again.projection(ProjectionKind::Query).unwrap().with_low_rank(&a, &b, 1.0).unwrap();
    let mut adapted = again.with_projection(ProjectionKind::Query, query).unwrap();
    let xs = random.tensor(&[1, 5, 64], DType::F32);
    let before = attend(&adapted, &xs, &AttentionMask::full());
    let [own, of_base] = [&adapted, &base].map(|layer| layer.projection(ProjectionKind::Key).unwrap());
    assert!(!std::ptr::eq(own.packed().unwrap(), of_base.packed().unwrap()));
    adapted.share_weights(&base).unwrap();
    let own = adapted.projection(ProjectionKind::Key).unwrap();
    assert!(std::ptr::eq(own.packed().unwrap(), of_base.packed().unwrap()));
    assert_close("shared", &attend(&adapted, &xs, &AttentionMask::full()), &before, 0.0);
}
