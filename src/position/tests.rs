//! A scheme that implements only the required methods works everywhere: a learned penalty per head and token of
//! distance.

use candle_core::{DType, Device, Tensor};
use candle_nn::{Init, VarBuilder, VarMap};

use super::scheme::{BiasCall, LayerSizes, PositionScheme};
use crate::error::Result;
use crate::mask::AttentionMask;
use crate::tensor::random::Random;
use crate::weights::{Parameter, Parameters};
use crate::{AttentionConfig, AttentionInputs, AttentionOptions, Backend, KvCache, MultiHeadAttention};

const SLOPE: &str = "slope.weight";

#[derive(Debug, Clone, PartialEq)]
pub struct LearnedSlope;

impl PositionScheme for LearnedSlope {
    fn parameters(&self, sizes: &LayerSizes) -> Vec<Parameter> {
        let init = Init::Uniform { lo: 0.1, up: 1.0 };
        vec![Parameter::new(SLOPE, [sizes.num_attention_heads], init).with_head_axis(0)]
    }

    fn bias(&self, call: &BiasCall) -> Result<Option<AttentionMask>> {
        let slopes = call.state.weights.require(SLOPE)?;
        let end = [call.s_kv - call.s_q];
        Ok(Some(AttentionMask::additive(&penalty(slopes, call.starts.unwrap_or(&end), call.s_q, call.s_kv)?)?))
    }

    fn describe(&self) -> String {
        "learned slope".to_string()
    }
}

/// `(sequences, h, s_q, s_kv)` of slopes `(h)`.
fn penalty(slopes: &Tensor, starts: &[usize], s_q: usize, s_kv: usize) -> Result<Tensor> {
    let query_row = |at: usize| (0..s_kv).map(move |j| -(at.abs_diff(j) as f32));
    let distances = starts.iter().flat_map(|start| (0..s_q).flat_map(move |i| query_row(start + i)));
    let distances = Tensor::from_iter(distances, slopes.device())?.reshape((starts.len(), 1, s_q, s_kv))?;
    Ok(distances.broadcast_mul(&slopes.reshape((1, (), 1, 1))?)?)
}

/// The layer with fixed weights, which fused kernels run, and the same layer without positions.
fn layers() -> (MultiHeadAttention, MultiHeadAttention, Tensor) {
    let config = AttentionConfig::new(12, 4).with_num_key_value_heads(2).with_position(LearnedSlope);
    let map = VarMap::new();
    MultiHeadAttention::new(&config, VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu)).unwrap();
    let fixed = map.data().lock().unwrap().iter().map(|(name, var)| (name.clone(), var.as_detached_tensor())).collect();
    let layer = MultiHeadAttention::new(&config, VarBuilder::from_tensors(fixed, DType::F32, &Device::Cpu)).unwrap();
    let mut weights = layer.weights().unwrap();
    let slopes = weights.position.get(SLOPE).unwrap().clone();
    weights.position = Parameters::default();
    let config = AttentionConfig::new(12, 4).with_num_key_value_heads(2);
    (layer, MultiHeadAttention::from_weights(&config, weights).unwrap(), slopes)
}

fn assert_close(what: &str, got: &Tensor, want: &Tensor) {
    assert_eq!(got.dims(), want.dims(), "{what}");
    let worst: f32 = (got - want).unwrap().abs().unwrap().max_all().unwrap().to_scalar().unwrap();
    assert!(worst < 1e-5, "{what}: {worst}");
}

fn attend(layer: &MultiHeadAttention, xs: &Tensor, mask: &AttentionMask, options: &AttentionOptions) -> Tensor {
    layer.attend_with(&AttentionInputs::self_attention(xs, mask), options).unwrap().output
}

#[test]
fn required_methods_are_enough_on_every_backend() {
    let (layer, bare, slopes) = layers();
    let xs = Random(1).tensor(&[2, 7, 12]);
    let causal = AttentionMask::causal();
    let bias = AttentionMask::additive(&penalty(&slopes, &[0], 7, 7).unwrap()).unwrap();
    let options = AttentionOptions::default();
    let want = attend(&bare, &xs, &causal.clone().and(bias), &options.with_backend(Backend::Eager));
    for backend in [None, Some(Backend::Eager), Some(Backend::Cpu)] {
        assert_close(&format!("{backend:?}"), &attend(&layer, &xs, &causal, &options.with_backend(backend)), &want);
    }

    // Sequences of 7 and 3 tokens, without padding.
    let ragged = Tensor::cat(&[xs.get(0).unwrap(), xs.get(1).unwrap().narrow(0, 0, 3).unwrap()], 0).unwrap();
    let got = layer
        .attend_with(&AttentionInputs::ragged(&ragged, &[7, 3], &causal), &AttentionOptions::default())
        .unwrap()
        .output;
    assert_close("ragged, first", &got.narrow(0, 0, 7).unwrap(), &want.get(0).unwrap());
    assert_close("ragged, second", &got.narrow(0, 7, 3).unwrap(), &want.get(1).unwrap().narrow(0, 0, 3).unwrap());

    // Chunks of 4 and 3 tokens with a cache.
    let mut cache = KvCache::growing();
    for (start, length) in [(0, 4), (4, 3)] {
        let chunk = xs.narrow(1, start, length).unwrap();
        let inputs = AttentionInputs::self_attention(&chunk, &causal);
        let got = layer.attend_with(&inputs.with_cache(&mut cache), &options).unwrap().output;
        assert_close("cached", &got, &want.narrow(1, start, length).unwrap());
    }

    // Without heads 0 and 1, which are a whole group.
    let head_mask = Tensor::new(&[0f32, 0.0, 1.0, 1.0], &Device::Cpu).unwrap();
    let want = attend(&layer, &xs, &causal, &options.with_head_mask(&head_mask));
    assert_close("pruned", &attend(&layer.prune_heads(&[0, 1]).unwrap(), &xs, &causal, &options), &want);
}
