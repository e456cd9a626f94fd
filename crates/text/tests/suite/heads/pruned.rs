//! Layers without some of their heads.

use candle_attention::position::{Alibi, Disentangled, Rotary, T5RelativeBias};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, HeadNorm, MultiHeadAttention, NormKind,
    NormOver, Position, Scoring,
};
use candle_core::{DType, Tensor};
use candle_nn::{VarBuilder, VarMap};

use super::{CPU, layer};
use crate::common::{Random, assert_within, attend_ragged, says};

/// A layer without some heads has the output of the layer with these heads masked.
#[test]
fn pruned_layer_equals_masked_layer() {
    let plain = AttentionConfig::new(24, 6);
    let grouped = plain.clone().with_num_key_value_heads(2);
    let norm = HeadNorm::new(NormKind::Rms, NormOver::Head, 1e-5);
    let configs = [
        plain.clone(),
        grouped.clone().with_qk_norm(norm).with_position(Position::Rotary(Rotary::default())),
        grouped.with_add_bias_kv(true).with_value_head_dim(3),
        plain.clone().with_scoring(Scoring::Additive),
        plain.clone().with_position(Position::Alibi(Alibi::default())),
        plain.clone().with_position(Position::T5RelativeBias(T5RelativeBias::new(8, 20, true))),
        plain.clone().with_position(Position::Disentangled(Disentangled::new(6))),
        plain.with_position(Position::Disentangled(Disentangled::new(6).with_share_att_key(true))),
    ];
    let xs = Random::new(3).tensor(&[2, 9, 24], DType::F32);
    let mask = AttentionMask::lengths(&[9, 6]);
    let inputs = AttentionInputs::self_attention(&xs, &mask);
    for (i, config) in configs.iter().enumerate() {
        let layer = layer(config, 30 + i as u64);
        // None; one; a whole group; one of each group, which leaves it even; unevenly; all.
        for pruned in [vec![], vec![3], vec![0, 1, 2], vec![1, 4], vec![0, 1, 3], vec![2], vec![5, 0, 1, 2, 3, 4]] {
            let what = format!("configuration {i} without {pruned:?}");
            let ones: Vec<f32> = (0..6).map(|head| if pruned.contains(&head) { 0.0 } else { 1.0 }).collect();
            let head_mask = Tensor::new(ones, &CPU).unwrap();
            let options = AttentionOptions::default();
            let want = layer.attend_with(&inputs, &options.with_head_mask(&head_mask)).unwrap().output;
            let smaller = layer.prune_heads(&pruned).unwrap();
            assert_eq!(smaller.config().num_attention_heads, 6 - pruned.len());
            assert_eq!(smaller.config().resolved_scale(), config.resolved_scale());
            assert_eq!(smaller.prune_heads(&[]).unwrap().config(), smaller.config());
            let got = smaller.attend_with(&inputs, &options).unwrap().output;
            assert_within(&what, &got, &want, 1e-6);
            if i < 2 {
                let flat = Tensor::cat(&[xs.get(0).unwrap(), xs.get(1).unwrap().narrow(0, 0, 6).unwrap()], 0).unwrap();
                let ragged = attend_ragged(&smaller, &flat, &[9, 6], &AttentionMask::full()).unwrap();
                assert_within(&what, &ragged.narrow(0, 0, 9).unwrap(), &want.get(0).unwrap(), 1e-6);
            }
            let parameters = |layer: &MultiHeadAttention| {
                let fused = candle_attention::checkpoint::layouts().find(|l| l.name() == "candle-attention").unwrap();
                let tensors = layer.weights().unwrap().to_layout(layer.config(), fused).unwrap();
                tensors.values().map(Tensor::elem_count).sum::<usize>()
            };
            // Of uneven groups some keys and values are there twice.
            if config.resolved_num_key_value_heads() == 6 || pruned.len() % 3 == 0 {
                assert_eq!(parameters(&smaller) < parameters(&layer), !pruned.is_empty(), "{what}");
            }
        }
    }
    says(layer(&configs[0], 1).prune_heads(&[6]), &["a head to prune is 6", "less than 6"]);
    let over_all = HeadNorm::new(NormKind::Rms, NormOver::AllHeads, 1e-5);
    says(
        layer(&configs[0].clone().with_qk_norm(over_all), 1).prune_heads(&[1]),
        &["a norm over all heads depends on each"],
    );
}

/// Training the original layer does not change the pruned one.
#[test]
fn pruned_layer_shares_no_weights() {
    let norm = HeadNorm::new(NormKind::Layer, NormOver::Head, 1e-5);
    let disentangled = Position::Disentangled(Disentangled::new(4).with_norm_eps(1e-5));
    for config in
        [AttentionConfig::new(24, 6).with_qk_norm(norm), AttentionConfig::new(24, 6).with_position(disentangled)]
    {
        let map = VarMap::new();
        let whole = MultiHeadAttention::new(&config, VarBuilder::from_varmap(&map, DType::F32, &CPU)).unwrap();
        let pruned = whole.prune_heads(&[2]).unwrap();
        let xs = Random::new(7).tensor(&[1, 5, 24], DType::F32);
        let run = || pruned.attend(&xs, &xs, &xs, AttentionMask::full()).unwrap();
        let before = run();
        assert!(!before.track_op());
        for variable in map.all_vars() {
            variable.set(&(variable.as_tensor() + 1.0).unwrap()).unwrap();
        }
        assert_within("after a step", &run(), &before, 0.0);
    }
}
