//! Layers with biases and embeddings by distance: the CPU kernel against the eager backend, in every kind of call.

use candle_attention::position::{Disentangled, Position, T5RelativeBias};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Backend, KvCache, MultiHeadAttention,
};
use candle_core::{DType, Device, Tensor};
use candle_nn::{VarBuilder, VarMap};

use crate::common::{LAYER, Random, assert_close, attend_ragged, random_layer};

/// Schemes whose last distance or bucket comes early, late, and never.
fn schemes() -> Vec<Position> {
    let buckets = Disentangled::new(40).with_position_buckets(8);
    vec![
        Position::T5RelativeBias(T5RelativeBias::new(8, 12, true)),
        Position::T5RelativeBias(T5RelativeBias::new(32, 128, false)),
        Position::Disentangled(Disentangled::new(4)),
        Position::Disentangled(Disentangled::new(500).with_p2c(false)),
        Position::Disentangled(buckets.clone().with_c2p(false).with_norm_eps(1e-5)),
        Position::Disentangled(buckets.with_share_att_key(true)),
    ]
}

fn layer(position: Position) -> MultiHeadAttention {
    random_layer(&AttentionConfig::new(24, 3).with_position(position), 0.4, &mut Random::new(21))
}

fn attend(layer: &MultiHeadAttention, inputs: &AttentionInputs, backend: Backend) -> Tensor {
    layer.attend_with(inputs, &AttentionOptions::default().with_backend(backend)).unwrap().output
}

#[test]
fn the_kernel_agrees_with_the_eager_backend() {
    let mut random = Random::new(22);
    for position in schemes() {
        let layer = layer(position.clone());
        for (s_q, s_kv) in [(1, 1), (7, 7), (3, 250), (200, 200), (65, 193)] {
            let (xs, memory) = (random.tensor(&[2, s_q, 24], DType::F32), random.tensor(&[2, s_kv, 24], DType::F32));
            let mut masks = vec![
                AttentionMask::full(),
                AttentionMask::causal(),
                AttentionMask::window(Some(3), Some(70)),
                AttentionMask::lengths(&[s_kv, s_kv / 2]),
            ];
            let memory = if s_q == s_kv {
                masks.push(AttentionMask::padding(&[s_kv / 3, s_kv]));
                &xs
            } else {
                &memory
            };
            for mask in masks {
                let inputs = AttentionInputs::new(&xs, memory, memory, &mask);
                let [got, want] = [Backend::Cpu, Backend::Eager].map(|backend| attend(&layer, &inputs, backend));
                assert_close(&format!("{position}, {s_q} and {s_kv}, {mask}"), &got, &want, LAYER);
                let weights = AttentionOptions::default().with_return_attention_weights(true);
                let weighted = layer.attend_with(&inputs, &weights).unwrap().output;
                assert_close(&format!("{position}, with attention weights"), &weighted, &want, LAYER);
            }
        }
    }
}

/// A sequence has the same bits alone, padded, and in a ragged batch, which needs no padding.
#[test]
fn ragged_batches_agree_with_each_sequence() {
    let mut random = Random::new(23);
    let lengths = [70, 1, 0, 193];
    for position in schemes() {
        let layer = layer(position.clone());
        let xs = random.tensor(&[264, 24], DType::F32);
        for mask in [AttentionMask::full(), AttentionMask::causal()] {
            let got = attend_ragged(&layer, &xs, &lengths, &mask).unwrap();
            let plan =
                layer.plan(&AttentionInputs::ragged(&xs, &lengths, &mask), &AttentionOptions::default()).unwrap();
            assert_eq!(plan.backend, Backend::Cpu);
            let mut start = 0;
            for length in lengths.into_iter().filter(|length| *length > 0) {
                let alone = xs.narrow(0, start, length).unwrap();
                let inputs = alone.unsqueeze(0).unwrap();
                let inputs = AttentionInputs::self_attention(&inputs, &mask);
                let what = format!("{position}, {mask}, {length} tokens");
                let got = got.narrow(0, start, length).unwrap().unsqueeze(0).unwrap();
                assert_close(&what, &got, &attend(&layer, &inputs, Backend::Eager), LAYER);
                let ragged = attend_ragged(&layer, &alone, &[length], &mask).unwrap().unsqueeze(0).unwrap();
                assert_close(&what, &got, &ragged, 0.0);
                start += length;
            }
        }
    }
}

/// Chunks of unequal length, each sequence continuing at its own end.
#[test]
fn cached_steps_agree_with_one_call() {
    let layer = layer(Position::T5RelativeBias(T5RelativeBias::new(8, 12, true)));
    let xs = Random::new(24).tensor(&[2, 90, 24], DType::F32);
    let causal = AttentionMask::causal();
    let want = attend(&layer, &AttentionInputs::self_attention(&xs, &causal), Backend::Eager);
    let mut cache = KvCache::growing();
    let mut held = [0, 0];
    for counts in [[70, 33], [1, 1], [1, 1], [2, 4]] {
        let width = counts[0].max(counts[1]);
        let rows = [0, 1].map(|b| {
            let new = xs.get(b).unwrap().narrow(0, held[b], counts[b]).unwrap();
            new.pad_with_zeros(0, 0, width - counts[b]).unwrap()
        });
        let chunk = Tensor::stack(&rows, 0).unwrap();
        let inputs = AttentionInputs::self_attention(&chunk, &causal);
        let options = AttentionOptions::default().with_backend(Backend::Cpu);
        let got = layer.attend_with(&inputs.with_cache_lengths(&mut cache, &counts), &options).unwrap().output;
        for b in [0, 1] {
            let part = |t: &Tensor, start: usize| t.get(b).unwrap().narrow(0, start, counts[b]).unwrap();
            assert_close(&format!("{counts:?}"), &part(&got, 0), &part(&want, held[b]), LAYER);
            held[b] += counts[b];
        }
    }
}

#[test]
fn half_types_are_within_tolerance() {
    let xs = Random::new(25).tensor(&[2, 130, 24], DType::F32);
    let mask = AttentionMask::lengths(&[130, 40]);
    for position in schemes() {
        let config = AttentionConfig::new(24, 3).with_position(position.clone());
        let map = VarMap::new();
        MultiHeadAttention::new(&config, VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu)).unwrap();
        let run = |dtype: DType, backend: Backend| {
            let data = map.data().lock().unwrap();
            let fixed = data.iter().map(|(name, var)| (name.clone(), var.as_detached_tensor())).collect();
            let vb = VarBuilder::from_tensors(fixed, dtype, &Device::Cpu);
            let (layer, xs) = (MultiHeadAttention::load(&config, vb).unwrap(), xs.to_dtype(dtype).unwrap());
            attend(&layer, &AttentionInputs::self_attention(&xs, &mask), backend).to_dtype(DType::F32).unwrap()
        };
        let want = run(DType::F32, Backend::Eager);
        for (dtype, tolerance) in [(DType::F16, 4e-3), (DType::BF16, 3e-2)] {
            assert_close(&format!("{position} in {dtype:?}"), &run(dtype, Backend::Cpu), &want, tolerance);
        }
    }
}
