//! Importance of heads on texts.

use candle_attention::checkpoint::Checkpoint;
use candle_attention_text::{EncodeOptions, HeadImportance, ImportanceMethod};
use candle_core::Tensor;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::{CPU, TEXTS, encoder};
use crate::common::{fixture, numbers, says};

/// Gradient and ablation find the head without any effect; ablation equals the cosine distance of a pruned model.
#[test]
fn each_method_ranks_heads() {
    let whole = encoder(&fixture("tiny-bert"));
    let options = EncodeOptions::default().with_batch_size(2);
    let done = AtomicUsize::new(0);
    let on_progress = |count: usize, all: usize| {
        assert!(count > done.swap(count, Relaxed) && all == 5);
    };
    let by_ablation =
        whole.head_importance(&TEXTS, ImportanceMethod::Ablation, &options.with_on_progress(&on_progress)).unwrap();
    assert_eq!(done.into_inner(), 5);
    let want = whole.encode(&TEXTS, &options).unwrap();
    for ranked in by_ablation.ranking() {
        let without = whole.prune_heads(&[(ranked.layer, ranked.head)].into_iter().collect()).unwrap();
        let cosines = (without.encode(&TEXTS, &options).unwrap() * &want).unwrap().sum(1).unwrap();
        let lengths = (without.encode(&TEXTS, &options).unwrap().sqr().unwrap().sum(1).unwrap()
            * want.sqr().unwrap().sum(1).unwrap())
        .unwrap()
        .sqrt()
        .unwrap();
        let mean = numbers(&(cosines / lengths).unwrap()).iter().map(|cosine| 1.0 - cosine).sum::<f64>() / 5.0;
        assert!((ranked.score - mean).abs() < 1e-5, "{ranked:?}, want {mean}");
    }
    let ranking = by_ablation.ranking();
    assert!(ranking.windows(2).all(|pair| pair[0].score <= pair[1].score));
    assert_eq!(by_ablation.least_important(2).count(), 2);

    // Independent of the batches: the gradients of different texts do not cancel, and each text has its own signs.
    let all_by_gradient = |options: EncodeOptions| {
        let importance = whole.head_importance(&TEXTS, ImportanceMethod::Gradient, &options).unwrap();
        importance.scores().concat()
    };
    let want = all_by_gradient(EncodeOptions::default());
    for options in [EncodeOptions::default().with_batch_size(2), EncodeOptions::default().with_max_batch_tokens(9)] {
        let near = |(got, want): (&f64, &f64)| (got - want).abs() <= 1e-6 * want;
        let got = all_by_gradient(options);
        assert!(got.iter().zip(&want).all(near), "{got:?}, want {want:?}");
    }
    let by_gradient = |batch_size: usize| {
        let options = EncodeOptions::default().with_batch_size(batch_size);
        whole.head_importance(&TEXTS[..1], ImportanceMethod::Gradient, &options).unwrap()
    };
    assert_eq!(by_gradient(1), by_gradient(8));
    assert!(by_gradient(1).scores().iter().flatten().all(|score| *score > 0.0));
    let by_entropy = whole.head_importance(&TEXTS, ImportanceMethod::Entropy, &options).unwrap();
    assert!(by_entropy.scores().iter().flatten().all(|score| (0.0..1.0).contains(score)));
    let lengths: Vec<f64> =
        by_entropy.normalized_by_layer().scores().iter().map(|s| s.iter().map(|x| x * x).sum()).collect();
    assert!(lengths.iter().all(|length| (length - 1.0).abs() < 1e-9));
    says(whole.head_importance(&[], ImportanceMethod::Entropy, &options), &["texts", "at least one"]);
    let asked = options.with_prompt_name("no such prompt");
    says(whole.head_importance(&TEXTS, ImportanceMethod::Entropy, &asked), &["prompt_name", "no such prompt"]);

    // A head whose output weights are 0 has importance 0 by gradient and by ablation.
    let folder = tempfile::tempdir().unwrap();
    let from = fixture("tiny-bert");
    copy(&from, folder.path());
    let checkpoint = Checkpoint::open(&from).unwrap();
    let mut tensors: std::collections::HashMap<String, Tensor> =
        checkpoint.names().map(|name| (name.to_string(), checkpoint.tensor(name, &CPU).unwrap())).collect();
    let name = tensors.keys().find(|name| name.ends_with("layer.1.attention.output.dense.weight")).unwrap().clone();
    let weight = &tensors[&name];
    let (out, width) = weight.dims2().unwrap();
    let d = width / whole.heads()[1];
    let keep: Vec<f32> = (0..out * width).map(|i| if i % width < d { 0.0 } else { 1.0 }).collect();
    let keep = Tensor::from_vec(keep, (out, width), &CPU).unwrap().to_dtype(weight.dtype()).unwrap();
    tensors.insert(name.clone(), (weight * keep).unwrap());
    candle_core::safetensors::save(&tensors, folder.path().join("model.safetensors")).unwrap();
    let disabled = encoder(folder.path());
    for by in [ImportanceMethod::Gradient, ImportanceMethod::Ablation] {
        let ranking = disabled.head_importance(&TEXTS, by, &options).unwrap().ranking();
        assert_eq!((ranking[0].layer, ranking[0].head), (1, 0), "{by:?} {ranking:?}");
        assert!(ranking[0].score.abs() < 1e-9 && ranking[1].score > 1e-9, "{by:?} {ranking:?}");
    }
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            std::fs::create_dir(&target).unwrap();
            copy(&path, &target);
        } else {
            std::fs::copy(&path, &target).unwrap();
        }
    }
}

#[test]
fn scores_of_any_size_are_normalized() {
    for unit in [1.0, 1e300, 1e-300] {
        let scores = HeadImportance::new(vec![vec![3.0 * unit, 4.0 * unit], vec![0.0, 0.0]]).normalized_by_layer();
        assert!((scores.scores()[0][0] - 0.6).abs() < 1e-12 && (scores.scores()[0][1] - 0.8).abs() < 1e-12);
        assert_eq!(scores.scores()[1], [0.0, 0.0]);
    }
}

#[test]
fn heads_of_equal_scores_stay_in_the_order_of_the_model() {
    let ranking = HeadImportance::new(vec![vec![1.0, 0.0], vec![0.0, 1.0]]).ranking();
    let heads: Vec<(usize, usize)> = ranking.iter().map(|head| (head.layer, head.head)).collect();
    assert_eq!(heads, [(0, 1), (1, 0), (0, 0), (1, 1)]);
}
