//! Frozen copies: what a layer or model of variables is now, packed once, and made anew only when a weight has changed.

use candle_attention::checkpoint::Checkpoint;
use candle_attention::position::{Rotary, T5RelativeBias};
use candle_attention::pruning::PrunedHeads;
use candle_attention::weights::{AttentionWeights, FusedOrder, LinearWeights, QkvWeights};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Backend, HeadNorm, MultiHeadAttention, NormKind,
    NormOver, Scoring,
};
use candle_attention_text::{MaskedLm, SequenceClassifier, TextModel, TextModelConfig};
use candle_core::{DType, Device, Module, Tensor, Var};
use candle_nn::{Optimizer, VarBuilder, VarMap};

use crate::common::{Random, assert_close, fixture, max_diff};

const CPU: Device = Device::Cpu;

fn trainable(config: &AttentionConfig, dtype: DType) -> (MultiHeadAttention, VarMap) {
    let map = VarMap::new();
    let layer = MultiHeadAttention::new(config, VarBuilder::from_varmap(&map, dtype, &CPU)).unwrap();
    (layer, map)
}

fn is_packed(layer: &MultiHeadAttention) -> bool {
    format!("{layer:?}").contains("packed: true")
}

/// A training loop that evaluates: each evaluation has the weights of its epoch. Training and evaluation run the fused
/// kernel.
#[test]
fn a_frozen_layer_has_the_weights_of_the_moment() {
    let (layer, map) = trainable(&AttentionConfig::new(12, 3).with_mask(AttentionMask::causal()), DType::F32);
    let mut optimizer = candle_nn::SGD::new(map.all_vars(), 0.5).unwrap();
    let xs = Random::new(80).tensor(&[2, 5, 12], DType::F32);
    let inputs = AttentionInputs::self_attention(&xs, AttentionMask::full());
    let mut earlier = Vec::new();
    for epoch in 0..4 {
        let frozen = layer.frozen().unwrap();
        let got = frozen.forward(&xs).unwrap();
        assert_close(&format!("epoch {epoch}"), &got, &layer.forward(&xs).unwrap(), 1e-5);
        assert_eq!(frozen.plan(&inputs, &AttentionOptions::default()).unwrap().backend, Backend::Cpu);
        assert_eq!(layer.plan(&inputs, &AttentionOptions::default()).unwrap().backend, Backend::Cpu);
        assert!(!got.track_op());
        earlier.push((frozen, got));
        let loss = layer.forward_t(&xs, true).unwrap().sqr().unwrap().mean_all().unwrap();
        optimizer.backward_step(&loss).unwrap();
    }
    // A copy does not follow the variables, whenever it is run.
    for (frozen, want) in &earlier {
        assert_eq!(max_diff(&frozen.forward(&xs).unwrap(), want), 0.0);
    }
    assert!(max_diff(&earlier[0].1, &earlier[3].1) > 1e-3, "the weights have changed");
}

#[test]
fn a_frozen_layer_is_made_anew_only_after_a_change() {
    for dtype in [DType::F32, DType::BF16, DType::F16, DType::F64] {
        let (layer, map) = trainable(&AttentionConfig::new(12, 3), dtype);
        let xs = Random::new(81).tensor(&[1, 4, 12], dtype);
        let first = layer.frozen().unwrap();
        first.forward(&xs).unwrap();
        // A cache is accepted by the layer that made it and by its clones only.
        let cache = first.cross_cache(&xs, &xs).unwrap();
        let same = |other: &MultiHeadAttention| {
            let options = AttentionOptions::default();
            other.attend_with(&AttentionInputs::cross_cached(&xs, &cache, AttentionMask::full()), &options).is_ok()
        };
        assert_eq!(is_packed(&first), dtype != DType::F64);
        for again in [layer.frozen().unwrap(), layer.clone().frozen().unwrap(), first.frozen().unwrap()] {
            assert!(same(&again), "{dtype:?}");
            assert_eq!(is_packed(&again), is_packed(&first), "packed once");
        }
        // Every weight counts, and every element of it: the last one, by the least that can be told apart.
        for (name, variable) in map.data().lock().unwrap().iter() {
            let before = variable.as_tensor().copy().unwrap();
            let elements = before.elem_count();
            let mut numbers = before.flatten_all().unwrap().to_dtype(DType::F64).unwrap().to_vec1::<f64>().unwrap();
            numbers[elements - 1] += 2e-2;
            let after = Tensor::from_vec(numbers, before.dims(), &CPU).unwrap().to_dtype(dtype).unwrap();
            variable.set(&after).unwrap();
            let changed = layer.frozen().unwrap();
            assert!(!same(&changed), "{name} has changed");
            assert_close(name, &changed.forward(&xs).unwrap(), &layer.forward(&xs).unwrap(), 2e-2);
            variable.set(&before).unwrap();
            // The first copy is not the last one any more.
            assert!(!same(&layer.frozen().unwrap()));
            assert_eq!(max_diff(&layer.frozen().unwrap().forward(&xs).unwrap(), &first.forward(&xs).unwrap()), 0.0);
        }
    }
}

/// A layer of tensors that share memory with a variable counts as fixed; its frozen copies are right all the same.
#[test]
fn a_frozen_layer_sees_changes_through_detached_tensors() {
    let (layer, map) = trainable(&AttentionConfig::new(8, 2), DType::F32);
    let tensors = map.data().lock().unwrap().iter().map(|(name, v)| (name.clone(), v.as_detached_tensor())).collect();
    let vb = VarBuilder::from_tensors(tensors, DType::F32, &CPU);
    let detached = MultiHeadAttention::load(&AttentionConfig::new(8, 2), vb).unwrap();
    let xs = Random::new(82).tensor(&[1, 4, 8], DType::F32);
    detached.frozen().unwrap().forward(&xs).unwrap();
    for variable in map.all_vars() {
        variable.set(&Random::new(83).tensor(variable.dims(), DType::F32)).unwrap();
    }
    let got = detached.frozen().unwrap().forward(&xs).unwrap();
    assert_close("frozen", &got, &layer.forward(&xs).unwrap(), 1e-5);
}

/// Whatever weights a layer has, and in whatever order they are stored.
#[test]
fn layers_of_every_kind_can_be_frozen() {
    let plain = || AttentionConfig::new(12, 4);
    let norm = HeadNorm::new(NormKind::Layer, NormOver::Head, 1e-6);
    let configs = [
        plain().with_add_bias_kv(true).with_add_zero_attn(true),
        plain().with_scoring(Scoring::Additive),
        plain().with_head_dim(4).with_num_key_value_heads(2).with_qk_norm(norm).with_position(Rotary::default()),
        plain().with_position(T5RelativeBias::new(32, 128, true)),
    ];
    let xs = Random::new(84).tensor(&[2, 5, 12], DType::F32);
    for config in configs {
        let (layer, map) = trainable(&config, DType::F32);
        for _ in 0..2 {
            for (seed, variable) in map.all_vars().into_iter().enumerate() {
                variable.set(&Random::new(85 + seed as u64).tensor(variable.dims(), DType::F32)).unwrap();
            }
            let frozen = layer.frozen().unwrap();
            assert_eq!(frozen.config(), layer.config());
            assert_close("frozen", &frozen.forward(&xs).unwrap(), &layer.forward(&xs).unwrap(), 2e-5);
        }
    }
    // Rows in the order of a checkpoint, which are reordered per call as long as they may change; sinks; weights that
    // are computed from variables, as with adapters.
    let mut random = Random::new(86);
    let fused = Var::from_tensor(&random.tensor(&[36, 12], DType::F32)).unwrap();
    let factor = Var::from_tensor(&random.tensor(&[12, 1], DType::F32)).unwrap();
    let o = random.tensor(&[12, 12], DType::F32);
    let layer = || {
        let qkv = QkvWeights::Ordered(LinearWeights::new(fused.as_tensor().clone(), None), FusedOrder::Grouped);
        let o = LinearWeights::new(o.broadcast_mul(&factor).unwrap(), None);
        let weights = AttentionWeights::new(qkv, o).with_parameter("sinks", random_sinks());
        MultiHeadAttention::from_weights(&plain(), weights).unwrap()
    };
    let first = layer();
    let frozen = first.frozen().unwrap();
    assert_close("fused", &frozen.forward(&xs).unwrap(), &first.forward(&xs).unwrap(), 2e-5);
    fused.set(&random.tensor(&[36, 12], DType::F32)).unwrap();
    let frozen = first.frozen().unwrap();
    assert_close("fused, set", &frozen.forward(&xs).unwrap(), &first.forward(&xs).unwrap(), 2e-5);

    let pruned = frozen.prune_heads(&[0, 1, 2, 3]).unwrap();
    assert_eq!(max_diff(&pruned.frozen().unwrap().forward(&xs).unwrap(), &pruned.forward(&xs).unwrap()), 0.0);
}

fn random_sinks() -> Tensor {
    Random::new(87).tensor(&[4], DType::F32)
}

/// Threads that freeze, run and train one layer.
#[test]
fn threads_share_a_layer_and_its_frozen_copies() {
    let (layer, map) = trainable(&AttentionConfig::new(12, 3), DType::F32);
    let xs = Random::new(88).tensor(&[1, 4, 12], DType::F32);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let frozen = layer.frozen().unwrap();
                    let [a, b] = [frozen.forward(&xs).unwrap(), frozen.forward(&xs).unwrap()];
                    assert_eq!(max_diff(&a, &b), 0.0);
                }
            });
        }
        scope.spawn(|| {
            for (seed, variable) in map.all_vars().into_iter().cycle().take(60).enumerate() {
                variable.set(&Random::new(seed as u64).tensor(variable.dims(), DType::F32)).unwrap();
            }
        });
    });
    assert_close("at the end", &layer.frozen().unwrap().forward(&xs).unwrap(), &layer.forward(&xs).unwrap(), 2e-5);
}

/// A model of a fixture on variables, and its inputs.
fn variables_of(name: &str) -> (TextModelConfig, VarMap, Tensor) {
    let folder = fixture(&format!("encoders/{name}"));
    let config = TextModelConfig::from_file(folder.join("config.json")).unwrap();
    let map = Checkpoint::open(&folder).unwrap().to_varmap("", DType::F32, &CPU).unwrap();
    (config, map, Tensor::new(&[[5u32, 6, 7, 8], [9, 5, 6, 7]], &CPU).unwrap())
}

fn change(map: &VarMap) {
    for (i, variable) in map.all_vars().iter().enumerate() {
        let noise = (Random::new(900 + i as u64).tensor(variable.dims(), DType::F32) * 0.1).unwrap();
        variable.set(&(variable.as_detached_tensor() + noise).unwrap()).unwrap();
    }
}

/// Whole models: plain, with layers that share their weights, with a gated feed-forward in two halves or apart, with a
/// table of positions that all layers share.
#[test]
fn encoders_can_be_frozen() {
    for name in ["xlm_roberta", "albert", "modernbert", "nomic_bert", "mpnet"] {
        let (config, map, ids) = variables_of(name);
        let model = TextModel::load(&config, VarBuilder::from_varmap(&map, DType::F32, &CPU)).unwrap();
        let run = |model: &TextModel| model.forward(&ids, None, &AttentionMask::full()).unwrap();
        let mut copies = Vec::new();
        for _ in 0..2 {
            let frozen = model.frozen().unwrap();
            assert!(run(&model).track_op() && !run(&frozen).track_op());
            assert_close(name, &run(&frozen), &run(&model), 1e-5);
            assert!(frozen.supports_ragged() && !model.supports_ragged());
            assert_eq!(max_diff(&run(&model.frozen().unwrap()), &run(&frozen)), 0.0);
            copies.push((run(&frozen), frozen));
            change(&map);
        }
        for (want, copy) in &copies {
            assert_eq!(max_diff(&run(copy), want), 0.0, "a snapshot");
        }
        assert!(max_diff(&copies[0].0, &copies[1].0) > 1e-3);
        let mut heads = PrunedHeads::default();
        heads.insert(0, 0);
        if let Ok(pruned) = copies[1].1.prune_heads(&heads) {
            assert_eq!(max_diff(&run(&pruned.frozen().unwrap()), &run(&pruned)), 0.0, "of a pruned copy");
        }
    }
}

#[test]
fn heads_on_a_model_can_be_frozen() {
    for name in ["roberta_classifier", "modernbert_classifier"] {
        let (config, map, ids) = variables_of(name);
        let head = SequenceClassifier::load(&config, VarBuilder::from_varmap(&map, DType::F32, &CPU)).unwrap();
        let run = |head: &SequenceClassifier| head.forward(&ids, None, &[4, 3]).unwrap();
        for _ in 0..2 {
            let frozen = head.frozen().unwrap();
            assert!(run(&head).track_op() && !run(&frozen).track_op());
            assert_close(name, &run(&frozen), &run(&head), 1e-5);
            assert_eq!(frozen.labels(), head.labels());
            change(&map);
        }
        assert!(format!("{head:?}").len() < 500);
    }
    for name in ["bert_mlm", "albert_mlm"] {
        let (config, map, ids) = variables_of(name);
        let head = MaskedLm::load(&config, VarBuilder::from_varmap(&map, DType::F32, &CPU)).unwrap();
        let run = |head: &MaskedLm| head.forward(&ids, None, &AttentionMask::full()).unwrap();
        for _ in 0..2 {
            let frozen = head.frozen().unwrap();
            assert!(run(&head).track_op() && !run(&frozen).track_op());
            assert_close(name, &run(&frozen), &run(&head), 1e-5);
            change(&map);
        }
        assert!(format!("{head:?}").len() < 500);
    }
}
