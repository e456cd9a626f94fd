//! Multi-head latent attention: against a loop in f64, in both forms, with a cache that holds latents.

use candle_attention::checkpoint::{Layout, config_from_json, layouts};
use candle_attention::position::{Rotary, RotaryStyle};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Error, KvCache, LatentAttention,
    MultiHeadAttention, ObserveOptions,
};
use candle_core::{DType, Device, Module, Tensor};
use candle_nn::{VarBuilder, VarMap};
use serde_json::json;

use crate::common::everywhere::Everywhere;
use crate::common::{Random, assert_close, numbers};

const CPU: Device = Device::Cpu;
const HIDDEN: usize = 14;
const H: usize = 3;
const RANK: usize = 11;
const NOPE: usize = 5;
const ROPE: usize = 4;
const VALUE: usize = 7;

fn rotary() -> Rotary {
    Rotary::default().with_style(RotaryStyle::Interleaved).with_theta(100.0)
}

fn config(latent: LatentAttention) -> AttentionConfig {
    AttentionConfig::new(HIDDEN, H).with_latent(latent).with_position(rotary()).with_mask(AttentionMask::causal())
}

fn latent() -> LatentAttention {
    LatentAttention::new(RANK, NOPE, ROPE, VALUE)
}

/// A layer with fixed random weights in f32.
fn layer(config: &AttentionConfig, seed: u64) -> MultiHeadAttention {
    let map = VarMap::new();
    MultiHeadAttention::new(config, VarBuilder::from_varmap(&map, DType::F32, &CPU)).unwrap();
    let mut random = Random::new(seed);
    let mut names: Vec<String> = map.data().lock().unwrap().keys().cloned().collect();
    names.sort();
    let tensors = names.into_iter().map(|name| {
        let dims = map.data().lock().unwrap()[&name].dims().to_vec();
        let center = if name.contains("layernorm") { 1.0 } else { 0.0 };
        let value = random.tensor(&dims, DType::F32).affine(0.5, center).unwrap();
        (name, value)
    });
    MultiHeadAttention::load(config, VarBuilder::from_tensors(tensors.collect(), DType::F32, &CPU)).unwrap()
}

#[test]
fn every_way_to_run_a_layer_gives_the_same() {
    Everywhere::new(config(latent())).in_layout("deepseek-lite").check(1);
    let scaled = latent().with_q_lora_rank(6).with_q_lora_scale(1.3).with_kv_lora_scale(0.7);
    Everywhere::new(config(scaled)).in_layout("deepseek").check(2);
    // Nothing is rotated.
    let plain = AttentionConfig::new(HIDDEN, H).with_mask(AttentionMask::causal());
    Everywhere::new(plain.clone().with_latent(latent())).in_layout("deepseek-lite").check(3);
    Everywhere::new(plain.with_latent(LatentAttention::new(RANK, NOPE, 0, VALUE))).in_layout("deepseek-lite").check(4);
}

/// `y = x Wᵀ + b` of one token.
fn linear(weights: &candle_attention::weights::LinearWeights, x: &[f64]) -> Vec<f64> {
    let (w, b) = (numbers(&weights.weight), weights.bias.as_ref().map(numbers));
    let row = |(i, row): (usize, &[f64])| {
        row.iter().zip(x).map(|(w, x)| w * x).sum::<f64>() + b.as_ref().map_or(0.0, |b| b[i])
    };
    w.chunks(x.len()).enumerate().map(row).collect()
}

fn rms(norm: &candle_attention::weights::NormWeights, x: &[f64], eps: f64) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    x.iter().zip(numbers(&norm.weight)).map(|(x, w)| x / (mean + eps).sqrt() * w).collect()
}

/// Pairs of neighbors rotated by `position · 100^(-2 i / ROPE)`.
fn rotated(x: &[f64], position: usize) -> Vec<f64> {
    let pair = |(i, pair): (usize, &[f64])| {
        let (sin, cos) = (position as f64 * 100f64.powf(-2.0 * i as f64 / ROPE as f64)).sin_cos();
        [pair[0] * cos - pair[1] * sin, pair[1] * cos + pair[0] * sin]
    };
    x.chunks(2).enumerate().flat_map(pair).collect()
}

#[test]
fn a_layer_is_the_formula() {
    let latent = latent().with_q_lora_rank(6).with_q_lora_scale(1.5).with_kv_lora_scale(2.0).with_eps(0.1);
    let (s, layer) = (7, layer(&config(latent), 5));
    let weights = layer.weights().unwrap();
    let candle_attention::weights::QkvWeights::Latent(of) = &weights.qkv else { panic!("{weights:?}") };
    let (q_a, q_norm) = of.q_a.as_ref().unwrap();
    let xs = Random::new(6).tensor(&[1, s, HIDDEN], DType::F32);
    let rows: Vec<Vec<f64>> = numbers(&xs).chunks(HIDDEN).map(<[f64]>::to_vec).collect();
    let (mut q, mut k, mut v) = (Vec::new(), Vec::new(), Vec::new());
    for (t, x) in rows.iter().enumerate() {
        let of_q: Vec<f64> = rms(q_norm, &linear(q_a, x), 0.1).iter().map(|x| x * 1.5).collect();
        let heads = linear(&of.q, &of_q);
        let head = |head: &[f64]| [head[..NOPE].to_vec(), rotated(&head[NOPE..], t)].concat();
        q.push(heads.chunks(NOPE + ROPE).map(head).collect::<Vec<_>>());
        let both = linear(&of.kv_a, x);
        let c: Vec<f64> = rms(&of.kv_a_norm, &both[..RANK], 0.1).iter().map(|x| x * 2.0).collect();
        let (shared, heads) = (rotated(&both[RANK..], t), linear(of.kv_b.as_ref().unwrap(), &c));
        k.push(heads.chunks(NOPE + VALUE).map(|head| [&head[..NOPE], &shared].concat()).collect::<Vec<_>>());
        v.push(heads.chunks(NOPE + VALUE).map(|head| head[NOPE..].to_vec()).collect::<Vec<_>>());
    }
    let mut want = Vec::new();
    for (t, q) in q.iter().enumerate() {
        let mut context = Vec::new();
        for (h, q) in q.iter().enumerate() {
            let score = |u: usize| q.iter().zip(&k[u][h]).map(|(a, b)| a * b).sum::<f64>() / 3.0;
            let weights: Vec<f64> = (0..=t).map(|u| score(u).exp()).collect();
            let sum: f64 = weights.iter().sum();
            context.extend((0..VALUE).map(|i| (0..=t).map(|u| weights[u] / sum * v[u][h][i]).sum::<f64>()));
        }
        want.extend(linear(&weights.o, &context));
    }
    let want = Tensor::from_vec(want, (1, s, HIDDEN), &CPU).unwrap();
    assert_close("the formula", &layer.forward(&xs).unwrap(), &want, 1e-5);
    let mut cache = KvCache::growing();
    let steps: Vec<Tensor> = (0..s).map(|t| layer.step(&xs.narrow(1, t, 1).unwrap(), &mut cache).unwrap()).collect();
    assert_close("one token after the other", &Tensor::cat(&steps, 1).unwrap(), &want, 1e-5);
}

/// The absorbed form is what a step without a gradient runs; the expanded one is what statistics run.
#[test]
fn the_absorbed_form_is_the_expanded_one() {
    let layer = layer(&config(latent().with_q_lora_rank(6)), 7);
    let xs = Random::new(8).tensor(&[2, 12, HIDDEN], DType::F32);
    for frozen in [layer.clone(), layer.frozen().unwrap()] {
        let (mut absorbed, mut expanded) = (KvCache::growing(), KvCache::growing());
        let prompt = xs.narrow(1, 0, 9).unwrap();
        frozen.step(&prompt, &mut absorbed).unwrap();
        frozen.step(&prompt, &mut expanded).unwrap();
        for t in 9..12 {
            let next = xs.narrow(1, t, 1).unwrap();
            let inputs = AttentionInputs::self_attention(&next, AttentionMask::full());
            // The absorbed form has one key-value head with keys of RANK + ROPE elements.
            let plan = frozen.plan(&inputs.with_cache(&mut absorbed), &AttentionOptions::default()).unwrap();
            let fresh = frozen.plan(&inputs, &AttentionOptions::default()).unwrap();
            assert_ne!(plan.scratch_bytes, fresh.scratch_bytes);
            let a = frozen.step(&next, &mut absorbed).unwrap();
            let options = ObserveOptions::default();
            let stats =
                frozen.observe(&inputs.with_cache(&mut expanded), &AttentionOptions::default(), &options).unwrap();
            assert_close("the absorbed form", &a, &stats.output, 1e-5);
        }
        let next = xs.narrow(1, 0, 1).unwrap();
        let inputs = AttentionInputs::self_attention(&next, AttentionMask::full());
        let weights = AttentionOptions::default().with_return_attention_weights(true);
        let returned = frozen.attend_with(&inputs.with_cache(&mut absorbed), &weights).unwrap();
        let returned = returned.attention_weights.unwrap();
        assert_eq!(returned.dims(), [2, H, 1, 13]);
        assert_close(
            "they sum to 1",
            &returned.sum(3).unwrap(),
            &Tensor::ones((2, H, 1), DType::F32, &CPU).unwrap(),
            1e-6,
        );
    }
}

/// Sequences that join, leave, are cut and continue in chunks of unequal length give what they give alone.
#[test]
fn a_batch_in_a_cache_of_latents_is_its_sequences_alone() {
    let layer = layer(&config(latent()), 9);
    let xs = Random::new(10).tensor(&[3, 10, HIDDEN], DType::F32);
    let of = |i: usize, start: usize, len: usize| xs.narrow(0, i, 1).unwrap().narrow(1, start, len).unwrap();
    let want: Vec<Tensor> = (0..3).map(|i| layer.forward(&of(i, 0, 10)).unwrap()).collect();
    for kind in [KvCache::growing, || KvCache::fixed(16)] {
        let (mut batch, mut other) = (kind(), kind());
        layer.step(&of(0, 0, 4), &mut batch).unwrap();
        layer.step(&of(1, 0, 7), &mut other).unwrap();
        batch.append_sequences(&other).unwrap();
        assert_eq!(batch.lengths(), [4, 7]);
        // Three tokens of the first sequence, one of the second, and padding.
        let pad = Tensor::cat(&[of(1, 7, 1), of(2, 0, 2)], 1).unwrap();
        let chunk = Tensor::cat(&[of(0, 4, 3), pad], 0).unwrap();
        let inputs = AttentionInputs::self_attention(&chunk, AttentionMask::full());
        let inputs = inputs.with_cache_lengths(&mut batch, &[3, 1]);
        let ys = layer.attend_with(&inputs, &AttentionOptions::default()).unwrap().output;
        assert_close("sequence 0", &ys.narrow(0, 0, 1).unwrap(), &want[0].narrow(1, 4, 3).unwrap(), 1e-5);
        let second = ys.narrow(0, 1, 1).unwrap().narrow(1, 0, 1).unwrap();
        assert_close("sequence 1", &second, &want[1].narrow(1, 7, 1).unwrap(), 1e-5);
        // What is cached of a token is its latent and the key that all heads share, whatever the number of heads.
        let error = layer.step(&xs, &mut batch).unwrap_err().to_string();
        assert!(error.contains(&format!("a batch of 2 with latents of {} elements", RANK + ROPE)), "{error}");
        // A rejected draft.
        batch.truncate_sequences(&[6, 8]).unwrap();
        batch.select_sequences(&[1, 0]).unwrap();
        batch.try_clone().unwrap().select_tokens(0, &[0, 2, 3]).unwrap();
        let next = Tensor::cat(&[of(1, 8, 1), of(0, 6, 1)], 0).unwrap();
        let ys = layer.step(&next, &mut batch).unwrap();
        let next = Tensor::cat(&[want[1].narrow(1, 8, 1).unwrap(), want[0].narrow(1, 6, 1).unwrap()], 0).unwrap();
        assert_close("after leaving", &ys, &next, 1e-5);
    }
}

/// A cache in a half type: rounded latents, in both forms.
#[test]
fn a_cache_holds_latents_in_the_dtype_of_the_layer() {
    let of = config(latent().with_q_lora_rank(6));
    let wide = layer(&of, 18);
    let xs = Random::new(19).tensor(&[2, 9, HIDDEN], DType::F32);
    let want = wide.forward(&xs).unwrap();
    for (dtype, tolerance) in [(DType::F16, 0.02), (DType::BF16, 0.15)] {
        let tensors = wide.weights().unwrap().to_layout(wide.config(), layout("deepseek")).unwrap();
        let tensors = tensors.into_iter().map(|(name, tensor)| (name, tensor.to_dtype(dtype).unwrap())).collect();
        let half = MultiHeadAttention::load(&of, VarBuilder::from_tensors(tensors, dtype, &CPU)).unwrap();
        for half in [half.clone(), half.frozen().unwrap()] {
            let (mut cache, xs) = (KvCache::growing(), xs.to_dtype(dtype).unwrap());
            let chunks = [(0, 5), (5, 1), (6, 2), (8, 1)];
            let step = |(start, len)| half.step(&xs.narrow(1, start, len).unwrap(), &mut cache).unwrap();
            let ys: Vec<Tensor> = chunks.into_iter().map(step).collect();
            let ys = Tensor::cat(&ys, 1).unwrap();
            assert_eq!(ys.dtype(), dtype);
            assert_close(&format!("{dtype:?}"), &ys, &want, tolerance);
        }
    }
}

fn layout(name: &str) -> &'static Layout {
    layouts().find(|layout| layout.name() == name).unwrap()
}

#[test]
fn a_rotating_cache_keeps_the_window() {
    let config = config(latent()).with_mask(AttentionMask::window(Some(3), Some(0)));
    let layer = layer(&config, 11);
    let xs = Random::new(12).tensor(&[2, 90, HIDDEN], DType::F32);
    let mut cache = KvCache::rotating(4);
    let ys: Vec<Tensor> = (0..90).map(|t| layer.step(&xs.narrow(1, t, 1).unwrap(), &mut cache).unwrap()).collect();
    assert_close("a window", &Tensor::cat(&ys, 1).unwrap(), &layer.forward(&xs).unwrap(), 1e-5);
}

/// A query attends to all keys as long as there are no more than the indexer would choose.
#[test]
fn more_keys_than_an_indexer_chooses_are_an_error() {
    let layer = layer(&config(latent().with_q_lora_rank(6).with_index_topk(5)), 13);
    let xs = Random::new(14).tensor(&[1, 6, HIDDEN], DType::F32);
    let five = xs.narrow(1, 0, 5).unwrap();
    layer.forward(&five).unwrap();
    let says = |error: Error| {
        let error = error.to_string();
        assert!(error.contains("index_topk") && error.contains('6') && error.contains('5'), "{error}");
    };
    let inputs = AttentionInputs::self_attention(&xs, AttentionMask::full());
    says(layer.attend_with(&inputs, &AttentionOptions::default()).unwrap_err());
    let rows = xs.squeeze(0).unwrap();
    let ragged = AttentionInputs::ragged(&rows, &[6], AttentionMask::full());
    says(layer.attend_with(&ragged, &AttentionOptions::default()).unwrap_err());
    let mut cache = KvCache::growing();
    layer.step(&five, &mut cache).unwrap();
    says(layer.step(&xs.narrow(1, 5, 1).unwrap(), &mut cache).unwrap_err());
    assert_eq!(cache.len(), 5);
}

#[test]
fn what_latents_do_not_have_is_an_error() {
    let wrong = |config: AttentionConfig, field: &str| {
        let error = config.validate().unwrap_err().to_string();
        assert!(error.contains(field), "{error}");
    };
    wrong(config(latent()).with_head_dim(8), "head_dim");
    wrong(config(latent()).with_num_key_value_heads(1), "num_key_value_heads");
    wrong(config(latent()).with_clip_qkv(1.0), "clip_qkv");
    wrong(config(latent()).with_add_zero_attn(true), "add_zero_attn");
    wrong(config(LatentAttention::new(0, NOPE, ROPE, VALUE)), "kv_lora_rank");
    wrong(config(latent().with_kv_lora_scale(f64::NAN)), "kv_lora_scale");
    // Rotary positions need something to rotate.
    wrong(config(LatentAttention::new(RANK, NOPE, 0, VALUE)), "rotary dim");

    let layer = layer(&config(latent()), 15);
    let [xs, ys] = [16, 17].map(|seed| Random::new(seed).tensor(&[1, 3, HIDDEN], DType::F32));
    let error = layer.attend(&xs, &xs, &ys, AttentionMask::full()).unwrap_err().to_string();
    assert!(error.contains("values"), "{error}");
    assert!(layer.cross_cache(&xs, &xs).unwrap_err().to_string().contains("latent"));
    // The weights of one kind in the configuration of another.
    let plain = AttentionConfig::new(HIDDEN, H).with_head_dim(NOPE + ROPE).with_value_head_dim(VALUE);
    let error = MultiHeadAttention::from_weights(&plain, layer.weights().unwrap()).unwrap_err().to_string();
    assert!(error.contains("latent"), "{error}");
}

/// The keys of `config.json` that decide, and sizes that the weights contradict.
#[test]
fn a_configuration_of_deepseek_is_read() {
    let of = config(latent().with_q_lora_rank(6));
    let map = VarMap::new();
    MultiHeadAttention::new(
        &of.with_bias(candle_attention::ProjectionBias::NONE),
        VarBuilder::from_varmap(&map, DType::F32, &CPU),
    )
    .unwrap();
    let source = candle_attention::checkpoint::VarMapSource::new(&map);
    let mut json = json!({
        "model_type": "deepseek_v3", "num_attention_heads": H, "hidden_size": HIDDEN, "kv_lora_rank": RANK,
        "q_lora_rank": 6, "qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE, "v_head_dim": VALUE, "head_dim": ROPE,
        "rope_theta": 500.0, "max_position_embeddings": 64,
        "rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32,
            "beta_slow": 1, "original_max_position_embeddings": 16},
    });
    let read = config_from_json(&json, &source).unwrap().config;
    let mscale = 0.1 * 40f64.ln() + 1.0;
    assert!((read.resolved_scale() - mscale * mscale / 3.0).abs() < 1e-12);
    assert_eq!((read.latent.unwrap().q_lora_rank, read.resolved_head_dim()), (Some(6), NOPE + ROPE));
    assert!(read.position.to_string().contains("interleaved"), "{}", read.position);
    json["rope_interleave"] = json!(false);
    assert!(!config_from_json(&json, &source).unwrap().config.position.to_string().contains("interleaved"));
    json["kv_lora_rank"] = json!(12);
    assert!(config_from_json(&json, &source).unwrap_err().to_string().contains("kv_lora_rank"));
    json["kv_lora_rank"] = json!(RANK);
    // transformers' class of this family does not know the key and ignores it; a file's own code may not.
    json["index_topk"] = json!(4);
    assert_eq!(config_from_json(&json, &source).unwrap().config.latent.unwrap().index_topk, None);
    json["auto_map"] = json!({});
    assert!(config_from_json(&json, &source).unwrap_err().to_string().contains("index_topk"));
    json["model_type"] = json!("deepseek_v32");
    json.as_object_mut().unwrap().remove("rope_interleave");
    assert_eq!(config_from_json(&json, &source).unwrap().config.latent.unwrap().index_topk, Some(4));
}
