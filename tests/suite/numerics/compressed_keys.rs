//! Latents that all heads share as one key and value, keys of blocks of tokens beside them, and groups of heads before
//! the output projection: on every path, with caches, and where they cannot be. Their formula is in the fixtures of
//! DeepSeek V4.

use candle_attention::checkpoint::{config_from_json, layouts};
use candle_attention::position::{Rotary, RotaryScaling, RotaryStyle};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, HeadNorm, KeyCompression, KvCache,
    LatentAttention, MultiHeadAttention, NormKind, NormOver, ObserveOptions, OutputGroups, Position, ProjectionBias,
    ProjectionKind, Step, Steps,
};
use candle_core::{DType, Device, Tensor};
use candle_nn::{VarBuilder, VarMap};
use serde_json::{Value, json};

use crate::common::everywhere::Everywhere;
use crate::common::{Random, assert_close, numbers, says};

const CPU: Device = Device::Cpu;

/// Four heads of 10 elements, of which 4 are rotated, in two groups.
fn config(compression: Option<KeyCompression>) -> AttentionConfig {
    let latent = LatentAttention::new_multi_query(6, 4).with_q_lora_rank(5);
    let norm = HeadNorm::new(NormKind::Rms, NormOver::Head, 1e-6).with_weighted(false);
    AttentionConfig::new(12, 4)
        .with_latent(latent)
        .with_key_compression(compression)
        .with_position(Rotary::default().with_style(RotaryStyle::Interleaved).with_theta(100.0))
        .with_steps(Steps::default().with_queries(vec![Step::Norm(norm), Step::Rotate]))
        .with_mask(AttentionMask::window(Some(2), Some(0)))
        .with_output_groups(OutputGroups::new(2, 3))
}

fn layer(config: &AttentionConfig) -> MultiHeadAttention {
    let map = VarMap::new();
    MultiHeadAttention::new(config, VarBuilder::from_varmap(&map, DType::F32, &CPU)).unwrap();
    let data = map.data().lock().unwrap();
    let tensors = data.iter().map(|(name, var)| (name.clone(), var.as_detached_tensor())).collect();
    MultiHeadAttention::load(config, VarBuilder::from_tensors(tensors, DType::F32, &CPU)).unwrap()
}

#[test]
fn every_way_to_run_a_layer_gives_the_same() {
    let check = |compression, seed| {
        Everywhere::new(config(compression)).in_layout("deepseek-v4").without_pruning().check(seed);
    };
    check(None, 1);
    check(Some(KeyCompression::new(3, false)), 2);
    check(Some(KeyCompression::new(2, true)), 3);
    // Nothing is rotated.
    let plain = config(None).with_position(Position::None).with_steps(Steps::default());
    Everywhere::new(plain).in_layout("deepseek-v4").without_pruning().check(4);
}

#[test]
fn tokens_that_fill_no_block_are_those_of_a_layer_without_blocks() {
    let layer = layer(&config(Some(KeyCompression::new(8, true))));
    let mut weights = layer.weights().unwrap();
    let names: Vec<String> = weights.parameters.iter().map(|(name, _)| name.to_string()).collect();
    let of_blocks = names.iter().filter(|name| name.starts_with("compressor"));
    assert_eq!(of_blocks.filter_map(|name| weights.parameters.remove(name)).count(), 4);
    let without = MultiHeadAttention::from_weights(&config(None), weights).unwrap();
    let xs = Random::new(6).tensor(&[2, 8, 12], DType::F32);
    let [seven, eight] = [7, 8].map(|tokens| xs.narrow(1, 0, tokens).unwrap());
    let difference = |xs: &Tensor| {
        let [a, b] = [&layer, &without].map(|layer| layer.attend(xs, xs, xs, None).unwrap());
        (a - b).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap()
    };
    assert!(difference(&seven) < 1e-6 && difference(&eight) > 1e-4);
}

#[test]
fn attention_weights_have_columns_for_blocks() {
    let (layer, xs) =
        (layer(&config(Some(KeyCompression::new(2, true)))), Random::new(7).tensor(&[2, 7, 12], DType::F32));
    let inputs = AttentionInputs::self_attention(&xs, AttentionMask::full());
    let options = AttentionOptions::default().with_return_attention_weights(true);
    let weights = layer.attend_with(&inputs, &options).unwrap().attention_weights.unwrap();
    assert_eq!(weights.dims(), [2, 4, 7, 7 + 3]);
    let rows = numbers(&weights);
    for (row, weights) in rows.chunks(10).enumerate() {
        let query = row % 7;
        for (column, weight) in weights.iter().enumerate() {
            let seen = if column < 7 { column <= query && column + 2 >= query } else { 2 * (column - 6) <= query + 1 };
            assert_eq!(*weight > 0.0, seen, "query {query}, column {column}");
        }
    }
    let what = ObserveOptions::default().with_entropy(true);
    let stats = layer.observe(&inputs, &AttentionOptions::default(), &what).unwrap();
    assert_close("observed", &stats.output, &layer.attend(&xs, &xs, &xs, None).unwrap(), 1e-5);
    assert_eq!(stats.entropy.unwrap().dims(), [2, 4, 7]);
    let what = ObserveOptions::default().with_mean_distance(true);
    says(layer.observe(&inputs, &AttentionOptions::default(), &what), &["mean_distance", "keys of blocks"]);
}

#[test]
fn what_blocks_do_not_go_with_is_an_error() {
    let (layer, xs) =
        (layer(&config(Some(KeyCompression::new(2, false)))), Random::new(8).tensor(&[2, 5, 12], DType::F32));
    let memory = xs.narrow(1, 0, 3).unwrap();
    says(layer.attend(&xs, &memory, &memory, None), &["a call of a layer with keys of blocks"]);
    let inputs = || AttentionInputs::self_attention(&xs, AttentionMask::full());
    let positions = Tensor::arange(1u32, 6, &CPU).unwrap();
    let moved = AttentionOptions::default().with_positions(&positions);
    says(layer.attend_with(&inputs(), &moved), &["keys of blocks is positions"]);
    says(layer.attend_sharing(&inputs(), &AttentionOptions::default()), &["a key that is its value, too"]);
    let mut cache = KvCache::growing();
    let given = inputs();
    let unequal = given.with_cache_lengths(&mut cache, &[5, 3]);
    says(layer.attend_with(&unequal, &AttentionOptions::default()), &["as many of each sequence"]);
    let mut rotating = KvCache::rotating(4);
    layer.step(&xs.narrow(1, 0, 4).unwrap(), &mut rotating).unwrap();
    // It forgets a token after this step.
    layer.step(&xs.narrow(1, 4, 1).unwrap(), &mut rotating).unwrap();
    says(layer.step(&xs.narrow(1, 4, 1).unwrap(), &mut rotating), &["a cache that keeps all tokens"]);
    let most = layer.config().clone().with_max_keys(4);
    let limited = MultiHeadAttention::from_weights(&most, layer.weights().unwrap()).unwrap();
    says(limited.attend(&xs, &xs, &xs, None), &["the number of keys is 5", "`max_keys` = 4"]);
    let latent = |change: fn(&mut LatentAttention)| {
        let mut config = config(Some(KeyCompression::new(2, false)));
        change(config.latent.as_mut().unwrap());
        config.validate()
    };
    says(latent(|latent| latent.multi_query = false), &["compression = 2", "`multi_query`"]);
    let whole = |rate| config(None).with_key_compression(KeyCompression::new(rate, true));
    says(whole(0).validate(), &["compression = 0"]);
    says(latent(|latent| latent.kv_lora_rank = 7), &["kv_lora_rank = 7", "expected 6 with `multi_query`"]);
    says(latent(|latent| latent.v_head_dim = 6), &["v_head_dim = 6", "expected 10"]);
    says(latent(|latent| latent.kv_lora_scale = 2.0), &["kv_lora_scale"]);
    says(config(None).with_num_key_value_heads(4).validate(), &["num_key_value_heads = 4"]);
    says(config(None).with_output_groups(OutputGroups::new(3, 3)).validate(), &["output_groups", "a divisor of"]);
    says(config(None).with_output_groups(OutputGroups::new(2, 0)).validate(), &["output_groups", "a rank from 1"]);
}

/// The output projection has the inputs of the groups, also where a caller replaces it.
#[test]
fn the_projection_of_groups_can_be_replaced() {
    let layer = layer(&config(None));
    let xs = Random::new(41).tensor(&[1, 5, 12], DType::F32);
    let output = layer.projection(ProjectionKind::Output).unwrap();
    let replaced = layer.with_projection(ProjectionKind::Output, output).unwrap();
    let attend = |layer: &MultiHeadAttention| layer.attend(&xs, &xs, &xs, None).unwrap();
    assert_close("its own projection", &attend(&replaced), &attend(&layer), 0.0);
}

/// DeepSeek's own `config.json` is flat; transformers writes a set of rotary parameters for each kind of layer.
#[test]
fn both_spellings_of_the_configuration_are_read() {
    let yarn = json!({"type": "yarn", "rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
        "original_max_position_embeddings": 64});
    let flat = json!({"model_type": "deepseek_v4", "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 10,
        "q_lora_rank": 5, "qk_rope_head_dim": 4, "rope_theta": 50, "compress_rope_theta": 40, "rope_scaling": yarn,
        "sliding_window": 3, "index_topk": 4, "rms_norm_eps": 1e-6, "compress_ratios": [0, 4]});
    let set = |theta: f64, mut set: Value| {
        set["rope_theta"] = json!(theta);
        set["partial_rotary_factor"] = json!(0.4);
        set
    };
    let mut nested = flat.clone();
    let mut compress = set(40.0, yarn);
    compress["attention_factor"] = json!(1.0);
    nested["rope_parameters"] = json!({"main": set(50.0, json!({"rope_type": "default"})), "compress": compress});
    nested.as_object_mut().unwrap().remove("rope_scaling");
    let layout = layouts().find(|layout| layout.name() == "deepseek-v4").unwrap();
    for (compression, theta) in [(None, 50.0), (Some(KeyCompression::new(4, true)), 40.0)] {
        let layer = layer(&config(compression).with_bias(ProjectionBias::NONE));
        let mut tensors = layer.weights().unwrap().to_layout(layer.config(), layout).unwrap();
        tensors.insert("attn_sink".to_string(), Tensor::zeros(4, DType::F32, &CPU).unwrap());
        if compression.is_some() {
            // It is not read, and limits the keys.
            tensors.insert("indexer.wq_b.weight".to_string(), Tensor::zeros((8, 5), DType::F32, &CPU).unwrap());
        }
        let source = VarBuilder::from_tensors(tensors.into_iter().collect(), DType::F32, &CPU).pp("");
        let mut heads = flat.clone();
        heads["num_attention_heads"] = json!(2);
        says(
            config_from_json(&heads, &source),
            &["wq_b.weight has shape [40, 5]", "heads of as many elements as their key"],
        );
        let [read, other] = [&flat, &nested].map(|json| config_from_json(json, &source).unwrap().config);
        assert_eq!(read, other);
        assert_eq!((read.latent, read.max_keys()), (layer.config().latent, compression.map(|_| 4 * 4 + 3)));
        let Position::Rotary(rotary) = &read.position else { panic!("{}", read.position) };
        assert_eq!((rotary.theta, rotary.dim), (theta, Some(4)));
        let is_scaled = matches!(rotary.scaling, RotaryScaling::Yarn { attention_factor: Some(1.0), .. });
        assert_eq!(is_scaled, compression.is_some());
        for (key, value, found) in [
            ("qk_rope_head_dim", json!(10), "qk_rope_head_dim = 10"),
            ("q_lora_rank", json!(6), "q_lora_rank"),
            ("rope_parameters", json!({"main": {}}), "a set for `main` and `compress`"),
        ] {
            let mut wrong = flat.clone();
            wrong[key] = value;
            wrong.as_object_mut().unwrap().remove(if key == "rope_parameters" { "rope_scaling" } else { "" });
            says(config_from_json(&wrong, &source), &[found]);
        }
    }
}
