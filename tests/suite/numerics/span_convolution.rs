//! A convolution beside the heads: by its formula, on every path, and where it cannot be.

use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, KvCache, MultiHeadAttention, ProjectionKind,
};
use candle_core::{DType, Device, Module, Tensor};

use crate::common::everywhere::Everywhere;
use crate::common::{Random, assert_close, numbers, random_layer, says};

fn config() -> AttentionConfig {
    AttentionConfig::new(12, 3).with_span_convolution(5)
}

#[test]
fn it_is_the_same_everywhere() {
    Everywhere::new(config()).without_pruning().without_cache().check(131);
}

/// The second heads of a token are sums of its neighbors' values, computed here one number after the other.
#[test]
fn the_formula_holds_and_padding_changes_nothing() {
    let layer = random_layer(&config(), 0.4, &mut Random::new(7));
    let xs = Random::new(8).tensor(&[1, 6, 12], DType::F32);
    let weights = layer.weights().unwrap();
    let tensor = |name: &str| numbers(weights.parameters.get(name).unwrap());
    let [q, ..] = weights.qkv.split([12, 12, 12], 3).unwrap();
    let project = |weight: &[f64], bias: &[f64], xs: &[f64]| -> Vec<f64> {
        let rows = weight.chunks(xs.len()).zip(bias);
        rows.map(|(row, bias)| row.iter().zip(xs).map(|(w, x)| w * x).sum::<f64>() + bias).collect()
    };
    let input = numbers(&xs);
    let token = |t: usize| &input[t * 12..(t + 1) * 12];
    let neighbors = |t: usize| (0..5).filter_map(move |i| (t + i).checked_sub(2).filter(|s| *s < 4).map(|s| (i, s)));
    let (depthwise, pointwise) =
        (tensor("key_conv_attn_layer.depthwise.weight"), tensor("key_conv_attn_layer.pointwise.weight"));
    let mut second = Vec::new();
    for t in 0..4 {
        let mut around = vec![0.0; 12];
        for (i, s) in neighbors(t) {
            (0..12).for_each(|c| around[c] += depthwise[c * 5 + i] * token(s)[c]);
        }
        let spans = project(&pointwise, &tensor("key_conv_attn_layer.bias"), &around);
        let queries = project(&numbers(&q.weight), &numbers(q.bias.as_ref().unwrap()), token(t));
        let products: Vec<f64> = spans.iter().zip(&queries).map(|(a, b)| a * b).collect();
        let kernels = project(&tensor("conv_kernel_layer.weight"), &tensor("conv_kernel_layer.bias"), &products);
        for (head, kernel) in kernels.chunks(5).enumerate() {
            let total: f64 = kernel.iter().map(|k| k.exp()).sum();
            let mut sum = vec![0.0; 4];
            for (i, s) in neighbors(t) {
                let values = project(&tensor("conv_out_layer.weight"), &tensor("conv_out_layer.bias"), token(s));
                (0..4).for_each(|e| sum[e] += kernel[i].exp() / total * values[head * 4 + e]);
            }
            second.extend(sum);
        }
    }
    // A plain layer with the first half of the output projection has the rest of the output.
    let mut plain = weights.clone();
    for name in weights.parameters.iter().map(|(name, _)| name.to_string()) {
        plain.parameters.remove(&name);
    }
    plain.o.weight = weights.o.weight.narrow(1, 0, 12).unwrap();
    let plain = MultiHeadAttention::from_weights(&AttentionConfig::new(12, 3), plain).unwrap();
    let second = Tensor::from_vec(second, (1, 4, 12), &Device::Cpu).unwrap().to_dtype(DType::F32).unwrap();
    let half = weights.o.weight.narrow(1, 12, 12).unwrap().t().unwrap().contiguous().unwrap();
    let added = second.broadcast_matmul(&half).unwrap();
    let mask = AttentionMask::lengths(&[4]);
    let attend =
        |layer: &MultiHeadAttention, xs: &Tensor| layer.attend(xs, xs, xs, &mask).unwrap().narrow(1, 0, 4).unwrap();
    let want = (attend(&plain, &xs) + added).unwrap();
    assert_close("attention and convolution", &attend(&layer, &xs), &want, 1e-5);
    let spoiled = Tensor::full(f32::NAN, (1, 2, 12), &Device::Cpu).unwrap();
    let spoiled = Tensor::cat(&[xs.narrow(1, 0, 4).unwrap(), spoiled], 1).unwrap();
    assert_close("padding that is not finite", &attend(&layer, &spoiled), &want, 1e-5);
}

/// The output projection has the inputs of both halves, also where a caller replaces it.
#[test]
fn the_output_projection_can_be_replaced() {
    let layer = random_layer(&config(), 0.4, &mut Random::new(10));
    let xs = Random::new(11).tensor(&[2, 5, 12], DType::F32);
    let output = layer.projection(ProjectionKind::Output).unwrap();
    let replaced = layer.with_projection(ProjectionKind::Output, output).unwrap();
    assert_close("its own projection", &replaced.forward(&xs).unwrap(), &layer.forward(&xs).unwrap(), 0.0);
}

#[test]
fn what_it_does_not_go_with_is_an_error() {
    let layer = random_layer(&config(), 0.4, &mut Random::new(9));
    let xs = Random::new(6).tensor(&[1, 5, 12], DType::F32);
    let mut cache = KvCache::growing();
    let inputs = AttentionInputs::self_attention(&xs, AttentionMask::full()).with_cache(&mut cache);
    says(layer.attend_with(&inputs, &AttentionOptions::default()), &["a convolution beside its heads is a cache"]);
    says(layer.prune_heads(&[0]), &["a layer to prune", "a convolution beside"]);
    for (config, found) in [
        (config().with_span_convolution(4), "span_convolution = 4 is not allowed: expected an odd number"),
        (config().with_span_convolution(1 << 21), "from 1 to 1023"),
        (config().with_value_head_dim(2), "value_head_dim = 2"),
        (config().with_add_zero_attn(true), "expected none beside"),
        (config().with_global_tokens(true), "expected none beside"),
    ] {
        says(config.validate(), &[found]);
    }
}
