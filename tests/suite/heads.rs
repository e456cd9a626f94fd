//! Heads seen, masked and removed.

use candle_attention::checkpoint::Checkpoint;
use candle_attention::encoder::{BertConfig, BertModel, EncodeOptions, ImportanceBy, SentenceEncoder, write_pruned};
use candle_attention::heads::PrunedHeads;
use candle_attention::position::{Alibi, Disentangled, RelativeBuckets, Rotary};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Backend, KvCache, MultiHeadAttention, NormKind,
    NormOver, Observe, Position, QkNorm, Scoring,
};
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};

use crate::common::{Random, assert_close, assert_within, fixture, numbers, says};

const CPU: Device = Device::Cpu;

/// A layer of fixed random weights: what runs on the fused kernel.
fn layer(config: &AttentionConfig, seed: u64) -> MultiHeadAttention {
    let map = VarMap::new();
    MultiHeadAttention::new(config, VarBuilder::from_varmap(&map, DType::F32, &CPU)).unwrap();
    let mut random = Random::new(seed);
    let data = map.data().lock().unwrap();
    let mut names: Vec<&String> = data.keys().collect();
    names.sort();
    let fixed = names.iter().map(|name| {
        // Large enough for heads to look in different directions.
        let numbers = (random.tensor(data[*name].dims(), DType::F32) * 0.8).unwrap();
        ((*name).clone(), numbers)
    });
    MultiHeadAttention::load(config, VarBuilder::from_tensors(fixed.collect(), DType::F32, &CPU)).unwrap()
}

fn masks(b: usize, s_q: usize, s_kv: usize) -> Vec<AttentionMask> {
    let mut random = Random::new(4);
    let ids = |s: usize| Tensor::from_vec((0..b * s).map(|i| (i / 3 % 2) as u32).collect(), (b, s), &CPU).unwrap();
    let mut masks = vec![
        AttentionMask::none(),
        AttentionMask::causal(),
        AttentionMask::window(Some(2), Some(1)).and(AttentionMask::lengths(&vec![s_kv - 1; b])),
        AttentionMask::keep(&random.booleans(&[b, 6, s_q, s_kv], 0.7)).unwrap(),
        AttentionMask::drop(&random.booleans(&[1, s_q, s_kv], 0.3)).unwrap(),
        AttentionMask::additive(&random.tensor(&[6, s_q, s_kv], DType::F32)).unwrap(),
        AttentionMask::additive(&random.tensor(&[s_kv], DType::F32)).unwrap(),
        AttentionMask::query_lengths(&vec![(0..s_q).map(|i| i % s_kv).collect::<Vec<_>>(); b]),
        AttentionMask::segments(&ids(s_q), &ids(s_kv)).unwrap(),
        AttentionMask::distances(vec![0.5, 0.25, 1.0, 0.1, 0.0, 2.0], true),
    ];
    if s_q == s_kv {
        masks.push(AttentionMask::padding(&vec![s_kv - 2; b]));
    }
    masks
}

/// What is observed of some heads and queries is what the plain path's weights say, and the output stays what it was.
#[test]
fn observed_is_what_the_weights_say() {
    let grouped = AttentionConfig::new(24, 6).with_num_key_value_heads(2);
    let configs = [
        AttentionConfig::new(24, 6),
        grouped.clone().with_add_zero_attn(true).with_add_bias_kv(true),
        AttentionConfig::new(24, 6).with_scoring(Scoring::Additive),
        grouped.clone().with_position(Position::Rotary(Rotary::default())).with_softcap(0.7),
        AttentionConfig::new(24, 6).with_position(Position::Alibi(Alibi::default())),
        AttentionConfig::new(24, 6).with_position(Position::RelativeBuckets(RelativeBuckets::new(8, 20, true))),
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
                let weights = layer.attend_with(&inputs, &options.with_weights(true)).unwrap().weights.unwrap();
                let ask = Observe::default()
                    .with_heads(&heads)
                    .with_queries(&queries)
                    .with_weights(true)
                    .with_entropy(true)
                    .with_mean_distance(true)
                    .with_top_k(2);
                let observed = layer.observe(&inputs, &options, &ask).unwrap();
                assert_within(&what, &observed.output, &plain, 0.0);
                let index = |of: &[usize]| Tensor::new(of.iter().map(|&i| i as u32).collect::<Vec<_>>(), &CPU).unwrap();
                let want = weights.index_select(&index(&heads), 1).unwrap().index_select(&index(&queries), 2).unwrap();
                assert_close(&what, observed.weights.as_ref().unwrap(), &want, 1e-6);

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
                let (places, largest) = (numbers(&top.keys), numbers(&top.weights));
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

/// Where the weights of all queries would not fit a block, they are looked at some at a time.
#[test]
fn long_inputs_are_observed_in_blocks() {
    let layer = layer(&AttentionConfig::new(16, 2), 5);
    let xs = Random::new(6).tensor(&[1, 1500, 16], DType::F32);
    let mask = AttentionMask::causal();
    let inputs = AttentionInputs::self_attention(&xs, &mask);
    let options = AttentionOptions::default();
    let ask = Observe::default().with_entropy(true).with_top_k(3);
    let all = layer.observe(&inputs, &options, &ask).unwrap();
    let (entropy, top) = (all.entropy.unwrap(), all.top_keys.unwrap());
    assert_eq!((entropy.dims(), top.keys.dims()), (&[1, 2, 1500][..], &[1, 2, 1500, 3][..]));
    let weights = layer.attend_with(&inputs, &options.with_weights(true)).unwrap().weights.unwrap();
    let logs = (weights.clone() + 1e-30).unwrap().log().unwrap();
    let want = (&weights * logs).unwrap().sum(3).unwrap().neg().unwrap();
    assert_close("entropy", &entropy, &want, 1e-5);
    // The first query sees one key.
    assert_eq!(numbers(&entropy)[0], 0.0);
}

#[test]
fn what_cannot_be_observed_is_named() {
    let layer = layer(&AttentionConfig::new(16, 2), 5);
    let xs = Random::new(6).tensor(&[1, 4, 16], DType::F32);
    let mask = AttentionMask::none();
    let inputs = AttentionInputs::self_attention(&xs, &mask);
    let options = AttentionOptions::default();
    let observe = |what: Observe| layer.observe(&inputs, &options, &what);
    says(observe(Observe::default().with_heads(&[0, 2])), &["a head to observe is 2", "less than 2"]);
    says(observe(Observe::default().with_queries(&[4])), &["a query to observe is 4", "less than 4"]);
    says(observe(Observe::default().with_top_k(5)), &["top_k = 5", "1 to 4"]);
    says(observe(Observe::default().with_top_k(0)), &["top_k = 0"]);
    let nothing = observe(Observe::default().with_heads(&[]).with_entropy(true)).unwrap();
    assert_eq!(nothing.entropy.unwrap().dims(), [1, 0, 4]);
    let short = Tensor::zeros(3, DType::F32, &CPU).unwrap();
    says(layer.attend_with(&inputs, &options.with_head_mask(&short)), &["head_mask has shape [3]", "[2] or [1, 2]"]);
    let whole = Tensor::zeros(2, DType::U8, &CPU).unwrap();
    says(layer.attend_with(&inputs, &options.with_head_mask(&whole)), &["head_mask", "a floating dtype"]);
}

/// A masked head adds nothing, on every path, and the mask gets the gradient that says what the head is worth.
#[test]
fn heads_are_masked_on_every_path() {
    let config = AttentionConfig::new(24, 6).with_num_key_value_heads(3);
    let layer = layer(&config, 8);
    let xs = Random::new(9).tensor(&[2, 7, 24], DType::F32);
    let head_mask = Tensor::new(&[1f32, 0., 0.5, 1., 0., 2.], &CPU).unwrap();
    let mask = AttentionMask::padding(&[7, 4]).and(AttentionMask::causal());
    let inputs = AttentionInputs::self_attention(&xs, &mask);
    let options = AttentionOptions::default().with_head_mask(&head_mask);
    let fused = layer.attend_with(&inputs, &options).unwrap().output;
    let eager = layer.attend_with(&inputs, &options.with_backend(Backend::Eager)).unwrap().output;
    assert_close("eager", &fused, &eager, 1e-6);
    let rows = Tensor::stack(&[&head_mask, &head_mask], 0).unwrap();
    let by_row = layer.attend_with(&inputs, &AttentionOptions::default().with_head_mask(&rows)).unwrap().output;
    assert_close("by row", &by_row, &fused, 0.0);
    let observed = layer.observe(&inputs, &options, &Observe::default()).unwrap().output;
    assert_close("observed", &observed, &fused, 1e-6);
    let causal = AttentionMask::causal();
    let one = xs.narrow(0, 0, 1).unwrap();
    let whole = layer.attend_with(&AttentionInputs::self_attention(&one, &causal), &options).unwrap().output;
    let mut cache = KvCache::growing();
    let step = |i: usize, cache: &mut KvCache| {
        let xs = one.narrow(1, i, 1).unwrap();
        layer.attend_cached(&AttentionInputs::self_attention(&xs, &causal), cache, &options).unwrap().output
    };
    let steps: Vec<Tensor> = (0..7).map(|i| step(i, &mut cache)).collect();
    assert_close("cached", &Tensor::cat(&steps, 1).unwrap(), &whole, 1e-6);

    let variable = Var::from_tensor(&head_mask).unwrap();
    let loss = |mask: &Tensor| {
        let options = AttentionOptions::default().with_head_mask(mask);
        layer.attend_with(&inputs, &options).unwrap().output.sqr().unwrap().sum_all().unwrap()
    };
    let grads = loss(&variable).backward().unwrap();
    let grad = numbers(grads.get(&variable).unwrap());
    for (head, got) in grad.iter().enumerate() {
        let at = |step: f32| {
            let mut mask = head_mask.to_vec1::<f32>().unwrap();
            mask[head] += step;
            f64::from(loss(&Tensor::new(mask, &CPU).unwrap()).to_scalar::<f32>().unwrap())
        };
        let want = (at(0.05) - at(-0.05)) / 0.1;
        assert!((got - want).abs() < 1e-2 * (1.0 + want.abs()), "head {head}: {got}, want {want}");
    }
}

/// A layer without some heads gives what the layer gives with these heads masked.
#[test]
fn pruned_equals_masked() {
    let plain = AttentionConfig::new(24, 6);
    let grouped = plain.clone().with_num_key_value_heads(2);
    let norm = QkNorm { kind: NormKind::Rms, over: NormOver::Head, eps: 1e-5 };
    let configs = [
        plain.clone(),
        grouped.clone().with_qk_norm(norm).with_position(Position::Rotary(Rotary::default())),
        grouped.with_add_bias_kv(true).with_value_head_dim(3),
        plain.clone().with_scoring(Scoring::Additive),
        plain.clone().with_position(Position::Alibi(Alibi::default())),
        plain.clone().with_position(Position::RelativeBuckets(RelativeBuckets::new(8, 20, true))),
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
            assert_eq!(smaller.config().scale(), config.scale());
            let got = smaller.attend_with(&inputs, &options).unwrap().output;
            assert_within(&what, &got, &want, 1e-6);
            if i < 2 {
                let flat = Tensor::cat(&[xs.get(0).unwrap(), xs.get(1).unwrap().narrow(0, 0, 6).unwrap()], 0).unwrap();
                let ragged = smaller.attend_ragged(&flat, &[9, 6], &AttentionMask::none()).unwrap();
                assert_within(&what, &ragged.narrow(0, 0, 9).unwrap(), &want.get(0).unwrap(), 1e-6);
            }
            let parameters = |layer: &MultiHeadAttention| {
                let fused =
                    candle_attention::checkpoint::LAYOUTS.iter().find(|l| l.name == "candle-attention").unwrap();
                let tensors = layer.weights().unwrap().to_layout(layer.config(), fused).unwrap();
                tensors.values().map(Tensor::elem_count).sum::<usize>()
            };
            // Of uneven groups some keys and values are there twice.
            if config.num_key_value_heads() == 6 || pruned.len() % 3 == 0 {
                assert_eq!(parameters(&smaller) < parameters(&layer), !pruned.is_empty(), "{what}");
            }
        }
    }
    says(layer(&configs[0], 1).prune_heads(&[6]), &["a head to prune is 6", "less than 6"]);
    let over_all = QkNorm { kind: NormKind::Rms, over: NormOver::AllHeads, eps: 1e-5 };
    says(layer(&configs[0].clone().with_qk_norm(over_all), 1).prune_heads(&[1]), &["every head is in it"]);
}

/// A pruned layer is one of its own: training the whole one on does not reach it.
#[test]
fn a_pruned_layer_shares_nothing() {
    let norm = QkNorm { kind: NormKind::Layer, over: NormOver::Head, eps: 1e-5 };
    let disentangled = Position::Disentangled(Disentangled::new(4).with_norm_eps(1e-5));
    for config in
        [AttentionConfig::new(24, 6).with_qk_norm(norm), AttentionConfig::new(24, 6).with_position(disentangled)]
    {
        let map = VarMap::new();
        let whole = MultiHeadAttention::new(&config, VarBuilder::from_varmap(&map, DType::F32, &CPU)).unwrap();
        let pruned = whole.prune_heads(&[2]).unwrap();
        let xs = Random::new(7).tensor(&[1, 5, 24], DType::F32);
        let run = || pruned.attend(&xs, &xs, &xs, &AttentionMask::none()).unwrap();
        let before = run();
        assert!(!before.track_op());
        for variable in map.all_vars() {
            variable.set(&(variable.as_tensor() + 1.0).unwrap()).unwrap();
        }
        assert_within("after a step", &run(), &before, 0.0);
    }
}

/// The tiny sentence encoder of the fixtures.
fn encoder(folder: &std::path::Path) -> SentenceEncoder {
    SentenceEncoder::from_folder(folder, DType::F32, &CPU).unwrap()
}

const TEXTS: [&str; 5] = ["a cat sat", "the dog ran to the mat", "on", "the cat and the dog sat on the mat", "a dog"];

/// A pruned model in memory, masked, and written and read again, is the same; what it lacks is in its config.json.
#[test]
fn a_pruned_model_is_written_and_read() {
    let folder = fixture("tiny-bert");
    let whole = encoder(&folder);
    let heads = whole.heads();
    let options = EncodeOptions::default();
    let target = tempfile::tempdir().unwrap();
    // One; all of a layer; all of all.
    let all: Vec<(usize, usize)> = (0..heads.len()).flat_map(|l| (0..heads[l]).map(move |h| (l, h))).collect();
    let of_last: Vec<(usize, usize)> = all.iter().copied().filter(|(layer, _)| *layer == heads.len() - 1).collect();
    for (i, pruned) in [vec![(0, 1)], of_last, all.clone()].into_iter().enumerate() {
        let pruned: PrunedHeads = pruned.into_iter().collect();
        let in_memory = whole.prune_heads(&pruned).unwrap();
        let want = in_memory.encode(&TEXTS, &options).unwrap();
        let path = target.path().join(format!("pruned{i}"));
        assert_eq!(write_pruned(&folder, &path, &pruned).unwrap(), pruned);
        let read = encoder(&path);
        assert_eq!(read.heads(), in_memory.heads());
        assert_within("read again", &read.encode(&TEXTS, &options).unwrap(), &want, 1e-6);
        let config = BertConfig::from_file(path.join("config.json")).unwrap();
        assert_eq!(config.pruned_heads, pruned);
        let size = |folder: &std::path::Path| std::fs::metadata(folder.join("model.safetensors")).unwrap().len();
        assert!(size(&path) < size(&folder));
        // The layers alone are read by the same keys.
        let json = serde_json::from_str(&std::fs::read_to_string(path.join("config.json")).unwrap()).unwrap();
        for layer in Checkpoint::open(&path).unwrap().attention_layers(Some(&json)) {
            assert_eq!(layer.problem, None, "{layer:?}");
        }
    }
    // Pruning goes on from what is left, and counts as in the unpruned model.
    let once = target.path().join("once");
    write_pruned(&folder, &once, &[(0, 0)].into_iter().collect()).unwrap();
    let twice = write_pruned(&once, target.path().join("twice"), &[(0, 0)].into_iter().collect()).unwrap();
    assert_eq!(twice, [(0, 0), (0, 1)].into_iter().collect());
    let want = whole.prune_heads(&twice).unwrap().encode(&TEXTS, &options).unwrap();
    let got = encoder(&target.path().join("twice")).encode(&TEXTS, &options).unwrap();
    assert_within("twice", &got, &want, 1e-6);
    assert_eq!(
        encoder(&once).prune_heads(&[(0, 0)].into_iter().collect()).unwrap().heads(),
        whole.prune_heads(&twice).unwrap().heads()
    );

    says(write_pruned(&folder, &once, &PrunedHeads::default()), &["once", "exists already"]);
    let none = [(0, 99)].into_iter().collect();
    says(write_pruned(&folder, target.path().join("none"), &none), &["a pruned head of layer 0 is 99"]);
    says(whole.prune_heads(&[(9, 0)].into_iter().collect()), &["a layer of pruned_heads is 9"]);
    let left: Vec<String> = std::fs::read_dir(target.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().to_string())
        .collect();
    assert!(left.iter().all(|name| !name.ends_with(".part") && name != "none"), "{left:?}");
}

/// Fused projections, and a table that layers share, of layers that have lost some or all of their heads.
#[test]
fn pruned_models_of_other_families() {
    let target = tempfile::tempdir().unwrap();
    for name in ["mpnet", "nomic_bert", "modernbert"] {
        let folder = fixture(&format!("encoders/{name}"));
        let load = |folder: &std::path::Path| {
            let config = BertConfig::from_file(folder.join("config.json")).unwrap();
            BertModel::load(&config, &Checkpoint::open(folder).unwrap().at("", DType::F32, &CPU)).unwrap()
        };
        let whole = load(&folder);
        let first = (0..whole.heads()[0]).map(|head| (0, head));
        let heads: PrunedHeads = first.chain([(1, 1)]).collect();
        let path = target.path().join(name);
        write_pruned(&folder, &path, &heads).unwrap();
        let ids = Tensor::new(&[[5u32, 9, 7, 11, 6]], &CPU).unwrap();
        let run = |model: &BertModel| model.forward(&ids, None, &AttentionMask::none()).unwrap();
        assert_within(name, &run(&load(&path)), &run(&whole.prune_heads(&heads).unwrap()), 1e-6);
        let json = serde_json::from_str(&std::fs::read_to_string(path.join("config.json")).unwrap()).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        let layers = checkpoint.attention_layers(Some(&json));
        assert!(layers.len() > 1, "{name}");
        for layer in layers {
            assert_eq!(layer.problem, None, "{name} {layer:?}");
            let loaded = checkpoint.attention(&layer.prefix, &json, DType::F32, &CPU).unwrap().layer;
            assert_eq!(Some(loaded.config().num_attention_heads), layer.num_attention_heads);
        }
    }
}

/// Each measure finds the head that matters not at all, and ablation is what it says.
#[test]
fn importance_by_each_measure() {
    let whole = encoder(&fixture("tiny-bert"));
    let options = EncodeOptions::default().with_batch_size(2);
    let done = std::cell::Cell::new(0);
    let on_progress = |count: usize, all: usize| {
        assert!(count > done.get() && all == 5);
        done.set(count);
    };
    let by_ablation =
        whole.head_importance(&TEXTS, ImportanceBy::Ablation, &options.with_progress(&on_progress)).unwrap();
    assert_eq!(done.get(), 5);
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
    assert_eq!(by_ablation.least(2).count(), 2);

    // The same whatever the batch: texts do not cancel each other.
    let by_gradient = |batch_size: usize| {
        let options = EncodeOptions::default().with_batch_size(batch_size);
        whole.head_importance(&TEXTS[..1], ImportanceBy::Gradient, &options).unwrap()
    };
    assert_eq!(by_gradient(1), by_gradient(8));
    assert!(by_gradient(1).scores().iter().flatten().all(|score| *score > 0.0));
    let by_entropy = whole.head_importance(&TEXTS, ImportanceBy::Entropy, &options).unwrap();
    assert!(by_entropy.scores().iter().flatten().all(|score| (0.0..1.0).contains(score)));
    let lengths: Vec<f64> =
        by_entropy.normalised_by_layer().scores().iter().map(|s| s.iter().map(|x| x * x).sum()).collect();
    assert!(lengths.iter().all(|length| (length - 1.0).abs() < 1e-9));
    says(whole.head_importance(&[], ImportanceBy::Entropy, &options), &["texts", "at least one"]);
    let asked = options.with_prompt_name("no such prompt");
    says(whole.head_importance(&TEXTS, ImportanceBy::Entropy, &asked), &["prompt_name", "no such prompt"]);

    // A head whose values are nothing is worth nothing, by gradient and by ablation.
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
    let lame = encoder(folder.path());
    for by in [ImportanceBy::Gradient, ImportanceBy::Ablation] {
        let ranking = lame.head_importance(&TEXTS, by, &options).unwrap().ranking();
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
