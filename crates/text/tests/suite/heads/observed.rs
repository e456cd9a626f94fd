//! What is told of attention weights beside a call.

use candle_attention::position::{Alibi, Disentangled, Rotary, T5RelativeBias};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, ObserveOptions, Position, Scoring,
};
use candle_core::{DType, Tensor};

use super::{CPU, layer};
use crate::common::{Random, assert_close, assert_within, numbers, says};

fn masks(b: usize, s_q: usize, s_kv: usize) -> Vec<AttentionMask> {
    let mut random = Random::new(4);
    let ids = |s: usize| Tensor::from_vec((0..b * s).map(|i| (i / 3 % 2) as u32).collect(), (b, s), &CPU).unwrap();
    let mut masks = vec![
        AttentionMask::full(),
        AttentionMask::causal(),
        AttentionMask::window(Some(2), Some(1)).and(AttentionMask::lengths(&vec![s_kv - 1; b])),
        AttentionMask::keep(&random.booleans(&[b, 6, s_q, s_kv], 0.7)).unwrap(),
        AttentionMask::exclude(&random.booleans(&[1, 1, s_q, s_kv], 0.3)).unwrap(),
        AttentionMask::additive(&random.tensor(&[1, 6, s_q, s_kv], DType::F32)).unwrap(),
        AttentionMask::additive_keys(&random.tensor(&[1, s_kv], DType::F32)).unwrap(),
        AttentionMask::query_lengths(&vec![(0..s_q).map(|i| i % s_kv).collect::<Vec<_>>(); b]),
        AttentionMask::segments(&ids(s_q), &ids(s_kv)).unwrap(),
        AttentionMask::distances(vec![0.5, 0.25, 1.0, 0.1, 0.0, 2.0], true),
    ];
    if s_q == s_kv {
        masks.push(AttentionMask::padding(&vec![s_kv - 2; b]));
    }
    masks
}

/// Statistics of some heads and queries equal those computed from the eager backend's attention weights, and the output
/// is unchanged.
#[test]
fn observed_statistics_match_the_attention_weights() {
    let grouped = AttentionConfig::new(24, 6).with_num_key_value_heads(2);
    let configs = [
        AttentionConfig::new(24, 6),
        grouped.clone().with_add_zero_attn(true).with_add_bias_kv(true),
        AttentionConfig::new(24, 6).with_scoring(Scoring::Additive),
        grouped.clone().with_position(Position::Rotary(Rotary::default())).with_softcap(0.7),
        AttentionConfig::new(24, 6).with_position(Position::Alibi(Alibi::default())),
        AttentionConfig::new(24, 6).with_position(Position::T5RelativeBias(T5RelativeBias::new(8, 20, true))),
        AttentionConfig::new(24, 6).with_position(Position::Disentangled(Disentangled::new(6))),
    ];
    let (heads, queries) = ([4, 1], [5, 6, 0, 2]);
    for (i, config) in configs.iter().enumerate() {
        let layer = layer(config, 20 + i as u64);
        for (s_q, s_kv) in [(8, 8), (7, 11), (9, 5)] {
            let xs = Random::new(2).tensor(&[2, s_q, 24], DType::F32);
            let memory = if s_q == s_kv { xs.clone() } else { Random::new(3).tensor(&[2, s_kv, 24], DType::F32) };
            for mask in masks(2, s_q, s_kv) {
                let what = format!("configuration {i}, {s_q} x {s_kv}, {mask}");
                let inputs = AttentionInputs::cross_attention(&xs, &memory, &mask);
                let options = AttentionOptions::default();
                let plain = layer.attend_with(&inputs, &options).unwrap().output;
                let weights = layer
                    .attend_with(&inputs, &options.with_return_attention_weights(true))
                    .unwrap()
                    .attention_weights
                    .unwrap();
                let ask = ObserveOptions::default()
                    .with_heads(&heads)
                    .with_queries(&queries)
                    .with_attention_weights(true)
                    .with_entropy(true)
                    .with_mean_distance(true)
                    .with_top_k(2);
                let observed = layer.observe(&inputs, &options, &ask).unwrap();
                assert_within(&what, &observed.output, &plain, 0.0);
                let index = |of: &[usize]| Tensor::new(of.iter().map(|&i| i as u32).collect::<Vec<_>>(), &CPU).unwrap();
                let want = weights.index_select(&index(&heads), 1).unwrap().index_select(&index(&queries), 2).unwrap();
                assert_close(&what, observed.attention_weights.as_ref().unwrap(), &want, 1e-6);

                let rows = numbers(&want);
                let keys = want.dims()[3];
                let row_of = |row: usize| queries[row % queries.len()];
                let entropy: Vec<f64> = rows
                    .chunks(keys)
                    .map(|row| -row.iter().filter(|w| **w > 0.0).map(|w| w * w.ln()).sum::<f64>())
                    .collect();
                let distance = |(row, weights): (usize, &[f64])| {
                    let position = row_of(row) as f64 + s_kv as f64 - s_q as f64;
                    weights[..s_kv].iter().enumerate().map(|(j, w)| w * (position - j as f64).abs()).sum::<f64>()
                };
                let distances: Vec<f64> = rows.chunks(keys).enumerate().map(distance).collect();
                for (name, got, want) in [
                    ("entropy", observed.entropy.unwrap(), entropy),
                    ("mean distance", observed.mean_distance.unwrap(), distances),
                ] {
                    let want = Tensor::from_vec(want, got.dims(), &CPU).unwrap();
                    assert_close(&format!("{name}, {what}"), &got, &want, 1e-5);
                }
                let top = observed.top_keys.unwrap();
                let (places, largest) = (numbers(&top.keys), numbers(&top.attention_weights));
                for (row, weights) in rows.chunks(keys).enumerate() {
                    let mut sorted = weights.to_vec();
                    sorted.sort_by(|a, b| b.total_cmp(a));
                    for k in 0..2 {
                        assert!((largest[row * 2 + k] - sorted[k]).abs() < 1e-6, "{what}");
                        let place = places[row * 2 + k] as usize;
                        assert!((weights[place] - sorted[k]).abs() < 1e-6, "{what}");
                    }
                }
            }
        }
    }
}

/// If the attention weights of all queries exceed a block, they are computed a block of queries at a time.
#[test]
fn long_inputs_are_observed_in_blocks() {
    let layer = layer(&AttentionConfig::new(16, 2), 5);
    let xs = Random::new(6).tensor(&[1, 1500, 16], DType::F32);
    let mask = AttentionMask::causal();
    let inputs = AttentionInputs::self_attention(&xs, &mask);
    let options = AttentionOptions::default();
    let ask = ObserveOptions::default().with_entropy(true).with_top_k(3);
    let all = layer.observe(&inputs, &options, &ask).unwrap();
    let (entropy, top) = (all.entropy.unwrap(), all.top_keys.unwrap());
    assert_eq!((entropy.dims(), top.keys.dims()), (&[1, 2, 1500][..], &[1, 2, 1500, 3][..]));
    let weights =
        layer.attend_with(&inputs, &options.with_return_attention_weights(true)).unwrap().attention_weights.unwrap();
    let logs = (weights.clone() + 1e-30).unwrap().log().unwrap();
    let want = (&weights * logs).unwrap().sum(3).unwrap().neg().unwrap();
    assert_close("entropy", &entropy, &want, 1e-5);
    // The first query sees one key.
    assert_eq!(numbers(&entropy)[0], 0.0);
}

#[test]
fn invalid_requests_are_named_in_the_error() {
    let layer = layer(&AttentionConfig::new(16, 2), 5);
    let xs = Random::new(6).tensor(&[1, 4, 16], DType::F32);
    let mask = AttentionMask::full();
    let inputs = AttentionInputs::self_attention(&xs, &mask);
    let options = AttentionOptions::default();
    let observe = |what: ObserveOptions| layer.observe(&inputs, &options, &what);
    says(observe(ObserveOptions::default().with_heads(&[0, 2])), &["a head to observe is 2", "less than 2"]);
    says(observe(ObserveOptions::default().with_queries(&[4])), &["a query to observe is 4", "less than 4"]);
    says(observe(ObserveOptions::default().with_top_k(5)), &["top_k = 5", "1 to 4"]);
    says(observe(ObserveOptions::default().with_top_k(0)), &["top_k = 0"]);
    let nothing = observe(ObserveOptions::default().with_heads(&[]).with_entropy(true)).unwrap();
    assert_eq!(nothing.entropy.unwrap().dims(), [1, 0, 4]);
    let short = Tensor::zeros(3, DType::F32, &CPU).unwrap();
    says(layer.attend_with(&inputs, &options.with_head_mask(&short)), &["head_mask has shape [3]", "[2] or [1, 2]"]);
    let whole = Tensor::zeros(2, DType::U8, &CPU).unwrap();
    says(layer.attend_with(&inputs, &options.with_head_mask(&whole)), &["head_mask", "a floating dtype"]);
}
