//! Masks that are an `or`, on every backend of this machine, in chunks with a cache, and against transformers.

use std::rc::Rc;

use candle_attention::checkpoint::ModelAttention;
use candle_attention::sdpa::{Backend, SdpaOptions, attend_bshd, plan_for};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, KvCache, MultiHeadAttention, ObserveOptions,
    ProjectionKind,
};
use candle_core::{DType, Device, Tensor, Var};

use crate::common::naive::{self, Score};
use crate::common::{Golden, LAYER, Random, assert_close, attend_ragged, max_diff, numbers, random_layer, says};

const CPU: Device = Device::Cpu;

/// Whether a query of sequence and head sees a key.
type Visible = Rc<dyn Fn(usize, usize, usize, usize) -> bool>;

#[derive(Debug, Clone, Copy)]
struct Sizes {
    b: usize,
    h: usize,
    s_q: usize,
    s_kv: usize,
}

/// A number below `n`.
fn below(random: &mut Random, n: usize) -> usize {
    (random.uniform() * n as f64) as usize
}

/// A random mask without `and` and `or`, with the rule that means the same.
fn leaf(random: &mut Random, Sizes { b, h, s_q, s_kv }: Sizes) -> (AttentionMask, Visible) {
    let ahead = move |i: usize, j: usize| j as i64 - (i + s_kv) as i64 + s_q as i64;
    match below(random, 8) {
        0 => (AttentionMask::causal(), Rc::new(move |_, _, i, j| ahead(i, j) <= 0)),
        1 => {
            let (left, right) = (below(random, 3), below(random, 3));
            let near = move |i, j| (-(left as i64)..=right as i64).contains(&ahead(i, j));
            (AttentionMask::window(Some(left), Some(right)), Rc::new(move |_, _, i, j| near(i, j)))
        }
        2 => {
            let lengths: Vec<usize> = (0..b).map(|_| below(random, s_kv + 1)).collect();
            (AttentionMask::lengths(&lengths), Rc::new(move |b, _, _, j| j < lengths[b]))
        }
        3 => {
            let mut row = || (0..s_q).map(|_| below(random, s_kv + 1)).collect::<Vec<_>>();
            let lengths: Vec<Vec<usize>> = (0..b).map(|_| row()).collect();
            (AttentionMask::query_lengths(&lengths), Rc::new(move |b, _, i, j| j < lengths[b][i]))
        }
        4 => {
            let mut ids = |s: usize| (0..b * s).map(|_| below(random, 4) as i64).collect::<Vec<_>>();
            let (queries, keys) = (ids(s_q), ids(s_kv));
            let tensor = |ids: &[i64], s: usize| Tensor::from_slice(ids, (b, s), &CPU).unwrap();
            let mask = AttentionMask::segments(&tensor(&queries, s_q), &tensor(&keys, s_kv)).unwrap();
            (mask, Rc::new(move |b, _, i, j| queries[b * s_q + i] == keys[b * s_kv + j]))
        }
        5 => {
            let dims = [[b, h, s_q, s_kv], [1, h, 1, s_kv], [b, 1, s_q, 1]][below(random, 3)];
            let tensor = random.booleans(&dims, 0.4);
            let at = lookup(&tensor, dims);
            (AttentionMask::keep(&tensor).unwrap(), Rc::new(move |b, h, i, j| at([b, h, i, j])))
        }
        6 => {
            let tensor = random.booleans(&[b, s_kv], 0.4);
            let at = lookup(&tensor, [b, 1, 1, s_kv]);
            (AttentionMask::exclude_keys(&tensor).unwrap(), Rc::new(move |b, h, i, j| !at([b, h, i, j])))
        }
        _ => (AttentionMask::full(), Rc::new(|_, _, _, _| true)),
    }
}

/// A lookup in a tensor of booleans that, with dimensions `dims`, broadcasts to the scores.
fn lookup(tensor: &Tensor, dims: [usize; 4]) -> impl Fn([usize; 4]) -> bool + use<> {
    let elements = numbers(tensor);
    move |places| {
        let place = |at: usize, (i, n): (usize, usize)| at * n + if n == 1 { 0 } else { i };
        elements[places.into_iter().zip(dims).fold(0, place)] != 0.0
    }
}

/// A random tree of `and` and `or`.
fn tree(random: &mut Random, sizes: Sizes, depth: usize) -> (AttentionMask, Visible) {
    if depth == 0 || random.uniform() < 0.2 {
        return leaf(random, sizes);
    }
    let ((a, sees_a), (b, sees_b)) = (tree(random, sizes, depth - 1), tree(random, sizes, depth - 1));
    if random.uniform() < 0.6 {
        (a.or(b).unwrap(), Rc::new(move |b, h, i, j| sees_a(b, h, i, j) || sees_b(b, h, i, j)))
    } else {
        (a.and(b), Rc::new(move |b, h, i, j| sees_a(b, h, i, j) && sees_b(b, h, i, j)))
    }
}

#[test]
fn random_trees_equal_the_reference() {
    let mut random = Random::new(81);
    let all = [
        Sizes { b: 2, h: 2, s_q: 5, s_kv: 7 },
        Sizes { b: 3, h: 1, s_q: 7, s_kv: 7 },
        Sizes { b: 1, h: 4, s_q: 7, s_kv: 3 },
        Sizes { b: 2, h: 2, s_q: 67, s_kv: 131 },
    ];
    for case in 0..160 {
        let sizes = all[case % 4];
        let Sizes { b, h, s_q, s_kv } = sizes;
        let (mask, sees) = tree(&mut random, sizes, 3);
        let bias = random.tensor(&[1, h, s_q, s_kv], DType::F32);
        let added = numbers(&bias);
        // Biases are joined to the whole.
        let (mask, biased) = match case % 3 {
            0 => (mask.and(AttentionMask::additive(&bias).unwrap()), true),
            _ => (mask, false),
        };
        let entry = |b: usize, h: usize, i: usize, j: usize| {
            let bias = if biased { added[(h * s_q + i) * s_kv + j] } else { 0.0 };
            sees(b, h, i, j).then_some(bias)
        };
        let qkv = [[b, s_q, h, 8], [b, s_kv, 1, 8], [b, s_kv, 1, 8]].map(|dims| random.tensor(&dims, DType::F32));
        let [q, k, v] = &qkv;
        let (want, _) = naive::attend(q, k, v, &Score::Dot(2.0), &entry);
        let options = SdpaOptions::new(&mask).with_scale(2.0);
        for backend in [Backend::Cpu, Backend::Eager] {
            let got = attend_bshd(q, k, v, &options.clone().with_backend(backend)).unwrap().output;
            assert_close(&format!("{mask} on {backend}, {sizes:?}"), &got, &want, 2e-6);
        }
        // Gradients are those of the mask as a tensor of booleans.
        if s_q * s_kv < 100 && !biased {
            let places = (0..b * h * s_q * s_kv)
                .map(|at| [at / s_kv / s_q / h, at / s_kv / s_q % h, at / s_kv % s_q, at % s_kv]);
            let keep: Vec<u8> = places.map(|[b, h, i, j]| u8::from(sees(b, h, i, j))).collect();
            let keep = AttentionMask::keep(&Tensor::from_vec(keep, (b, h, s_q, s_kv), &CPU).unwrap()).unwrap();
            let [got, want] = [&mask, &keep].map(|mask| {
                let q = Var::from_tensor(q).unwrap();
                let output = attend_bshd(&q, k, v, &SdpaOptions::new(mask)).unwrap().output;
                output.sqr().unwrap().sum_all().unwrap().backward().unwrap().remove(&q).unwrap()
            });
            assert_close(&format!("the gradient under {mask}"), &got, &want, 1e-6);
        }
    }
}

#[test]
fn errors_and_names() {
    let segments = |s: usize| {
        let ids = Tensor::zeros((2, s), DType::U8, &CPU).unwrap();
        AttentionMask::segments(&ids, &ids).unwrap()
    };
    let bias = AttentionMask::additive_pattern(&Tensor::zeros((5, 5), DType::F32, &CPU).unwrap()).unwrap();
    for biased in [bias.clone(), AttentionMask::causal().and(bias), AttentionMask::distances(vec![0.5], false)] {
        let parts = ["a mask under `or` is", "one that only hides keys", "by `and`"];
        says(biased.clone().or(AttentionMask::causal()), &parts);
        says(AttentionMask::full().or(biased), &parts);
    }
    let mask = AttentionMask::causal().or(segments(5)).unwrap().and(AttentionMask::lengths(&[5, 3]));
    assert_eq!(mask.to_string(), "(causal or segments([2, 5], [2, 5])) and lengths(2 rows)");
    assert_eq!(AttentionMask::prefix_lm(&[3, 2]).to_string(), "(causal or lengths(2 rows))");
    assert!(AttentionMask::causal().or(AttentionMask::full()).unwrap().is_full());
    // What does not fit the call is found inside of an `or`.
    let layer = random_layer(&AttentionConfig::new(8, 2), 0.5, &mut Random::new(82));
    let xs = Tensor::zeros((2, 6, 8), DType::F32, &CPU).unwrap();
    says(layer.attend(&xs, &xs, &xs, &mask), &["segments of queries", "[2, 5]", "[2, 6]"]);
    says(layer.attend(&xs, &xs, &xs, AttentionMask::prefix_lm(&[7, 2])), &["lengths[0] is 7", "at most 6"]);
    says(
        layer.with_mask(AttentionMask::prefix_lm(&[2, 2])),
        &["mask = (causal or", "full, causal, a window, chunks or functions"],
    );
    let tokens = xs.flatten(0, 1).unwrap();
    let ragged = attend_ragged(&layer, &tokens, &[6, 6], &AttentionMask::prefix_lm(&[2, 2]));
    says(ragged, &["the mask of a ragged batch is (causal or", "full, causal or a window"]);
    let inputs = AttentionInputs::self_attention(&xs, AttentionMask::prefix_lm(&[2, 2]));
    let plan = layer.plan(&inputs, &AttentionOptions::default()).unwrap();
    assert_eq!(plan.backend, Backend::Cpu);
    let xs = Tensor::zeros((1, 5, 2, 4), DType::F32, &CPU).unwrap();
    let mask = AttentionMask::causal().or(AttentionMask::lengths(&[2])).unwrap();
    assert_eq!(plan_for(&xs, &xs, &xs, &SdpaOptions::new(&mask)).unwrap().backend, Backend::Cpu);
}

/// A tensor `(b, s)` of segments, of which the negative ones belong to no segment.
fn segments(queries: &Tensor, keys: &Tensor) -> AttentionMask {
    let none = (keys.zeros_like().unwrap() - 100.0).unwrap();
    let keys = keys.ge(0i64).unwrap().where_cond(keys, &none).unwrap();
    AttentionMask::segments(queries, &keys).unwrap()
}

/// Chunks of any size give the result of one call, at equal and at unequal places of the sequences, as long as what
/// sees forward is in one chunk.
#[test]
fn chunks_with_a_cache_equal_one_call() {
    let mut random = Random::new(83);
    let config = AttentionConfig::new(12, 3).with_num_key_value_heads(1).with_mask(AttentionMask::causal());
    let layer = random_layer(&config, 0.5, &mut random);
    let free = layer.with_mask(AttentionMask::full()).unwrap();
    let xs = random.tensor(&[2, 9, 12], DType::F32);
    let ids = Tensor::new(&[[-1i64, 4, 4, 4, -1, -1, 5, 5, -1], [-1, -1, 6, 6, -1, 7, 7, 7, -1]], &CPU).unwrap();
    let whole = AttentionMask::causal().or(segments(&ids, &ids)).unwrap();
    let want = free.attend(&xs, &xs, &xs, &whole).unwrap();
    let options = AttentionOptions::default();
    for chunks in [&[9][..], &[4, 1, 3, 1], &[5, 4]] {
        let (mut cache, mut start) = (KvCache::growing(), 0);
        for &n in chunks {
            let of = |tensor: &Tensor, from: usize, n: usize| tensor.narrow(1, from, n).unwrap();
            let mask = segments(&of(&ids, start, n), &of(&ids, 0, start + n));
            let mask = AttentionMask::causal().or(mask).unwrap();
            let xs = of(&xs, start, n);
            let inputs = AttentionInputs::self_attention(&xs, mask);
            let got = free.attend_with(&inputs.with_cache(&mut cache), &options).unwrap().output;
            assert_close(&format!("{chunks:?} from {start}"), &got, &of(&want, start, n), LAYER);
            start += n;
        }
    }

    // A prompt of 4 and of 2 tokens, then one token of each, and the layer's own mask for it.
    let prefix = AttentionMask::prefix_lm(&[4, 2]);
    let want = free.attend(&xs, &xs, &xs, &prefix).unwrap();
    let mut cache = KvCache::growing();
    let first = xs.narrow(1, 0, 4).unwrap();
    let inputs = AttentionInputs::self_attention(&first, &prefix);
    let got = free.attend_with(&inputs.with_cache_lengths(&mut cache, &[4, 3]), &options).unwrap().output;
    for (row, n) in [(0, 4), (1, 3)] {
        let rows = |tensor: &Tensor| tensor.get(row).unwrap().narrow(0, 0, n).unwrap();
        assert_close("the prompt", &rows(&got), &rows(&want), LAYER);
    }
    for step in 0..5 {
        let rows = |tensor: &Tensor| {
            let row = |row: usize| tensor.narrow(0, row, 1).unwrap().narrow(1, [4, 3][row] + step, 1).unwrap();
            Tensor::cat(&[row(0), row(1)], 0).unwrap()
        };
        let next = rows(&xs);
        // The caches of one are those of the other.
        let (layer, mask) = if step % 2 == 0 { (&free, prefix.clone()) } else { (&layer, AttentionMask::full()) };
        let inputs = AttentionInputs::self_attention(&next, mask);
        let got = layer.attend_with(&inputs.with_cache(&mut cache), &options).unwrap().output;
        assert_close(&format!("step {step}"), &got, &rows(&want), LAYER);
    }
    // All of the prompt is needed for its first token.
    let first = xs.narrow(1, 0, 2).unwrap();
    let inputs = AttentionInputs::self_attention(&first, &prefix);
    says(free.attend_with(&inputs.with_cache(&mut KvCache::growing()), &options), &["lengths[0] is 4", "at most 2"]);
}

/// Statistics are computed for some queries at a time.
#[test]
fn observed_weights_are_those_of_the_mask() {
    let layer = random_layer(&AttentionConfig::new(12, 3), 0.5, &mut Random::new(84));
    let xs = Random::new(85).tensor(&[1, 7, 12], DType::F32);
    let inputs = AttentionInputs::self_attention(&xs, AttentionMask::prefix_lm(&[3]));
    let what = ObserveOptions::default().with_attention_weights(true);
    let weights = layer.observe(&inputs, &AttentionOptions::default(), &what).unwrap().attention_weights.unwrap();
    for (at, weight) in numbers(&weights).into_iter().enumerate() {
        let (i, j) = (at / 7 % 7, at % 7);
        assert_eq!(weight > 0.0, j <= i || j < 3, "query {i}, key {j}");
    }
}

/// A copy with another mask shares the weights; a frozen copy of it has its own mask.
#[test]
fn a_layer_with_another_mask_is_the_same_otherwise() {
    let causal = AttentionConfig::new(12, 3).with_mask(AttentionMask::causal());
    let layer = random_layer(&causal, 0.5, &mut Random::new(86));
    let xs = Random::new(87).tensor(&[2, 7, 12], DType::F32);
    let attend = |layer: &MultiHeadAttention, mask: AttentionMask| layer.attend(&xs, &xs, &xs, &mask).unwrap();
    let want = attend(&layer, AttentionMask::full());
    for layer in [layer.clone(), layer.frozen().unwrap()] {
        let free = layer.with_mask(AttentionMask::full()).unwrap();
        assert_eq!(free.config(), &AttentionConfig::new(12, 3));
        assert_eq!(free.is_frozen(), layer.is_frozen());
        for kind in [ProjectionKind::Query, ProjectionKind::Output] {
            let [own, shared] = [&free, &layer].map(|layer| layer.projection(kind).unwrap());
            assert!(std::ptr::eq(own.packed().unwrap(), shared.packed().unwrap()), "{kind:?}");
        }
        for free in [free.clone(), free.frozen().unwrap()] {
            assert!(max_diff(&attend(&free, AttentionMask::full()), &want) > 1e-3);
            assert_eq!(max_diff(&attend(&free, AttentionMask::causal()), &want), 0.0);
        }
        assert_eq!(max_diff(&attend(&layer.frozen().unwrap(), AttentionMask::full()), &want), 0.0);
    }
}

/// The layer `i` of a model of `tests/golden/masks_or.py`, what goes into it and what comes out.
fn golden(model: &str, i: usize) -> (ModelAttention, Tensor, Tensor) {
    let golden = Golden::open("masks_or.safetensors");
    let mut json: serde_json::Value = serde_json::from_str(&golden.0.metadata()[model]).unwrap();
    // PaliGemma sets it, for its prompt; Gemma's own layers are causal.
    json["use_bidirectional_attention"] = false.into();
    let prefix = format!("{model}.layers.{i}.self_attn");
    let layer = golden.0.attention_with(&prefix, &json, DType::F32, &CPU).unwrap();
    let [input, output] = ["input", "output"].map(|part| golden.get(&format!("{model}.{i}.{part}")));
    (layer, input, output)
}

/// Causal, but the tokens of one image see each other; in a sliding layer within its window.
#[test]
fn images_in_gemma3_equal_transformers() {
    let types = Golden::open("masks_or.safetensors").get("gemma3.types").to_vec2::<i64>().unwrap();
    let images: Vec<Vec<i64>> = types
        .iter()
        .map(|types| {
            let starts = |at: usize| (0..=at).filter(|at| types[*at] == 1 && (*at == 0 || types[at - 1] == 0)).count();
            (0..types.len()).map(|at| if types[at] == 1 { starts(at) as i64 } else { -1 }).collect()
        })
        .collect();
    let images = Tensor::new(images, &CPU).unwrap();
    let mask = AttentionMask::causal().or(segments(&images, &images)).unwrap();
    // The window of a sliding layer ends at the query no more.
    for (i, own, lifted) in [
        (0, AttentionMask::window(Some(2), Some(0)), AttentionMask::window(Some(2), None)),
        (1, AttentionMask::causal(), AttentionMask::full()),
    ] {
        let (model, xs, want) = golden("gemma3", i);
        assert_eq!(model.mask(), &own);
        assert!(max_diff(&model.layer.attend(&xs, &xs, &xs, &mask).unwrap(), &want) > 1e-2, "a call only hides keys");
        let layer = model.layer.with_mask(lifted).unwrap();
        for backend in [Backend::Cpu, Backend::Eager] {
            let options = AttentionOptions::default().with_backend(backend);
            let inputs = AttentionInputs::self_attention(&xs, &mask);
            let got = layer.attend_with(&inputs, &options).unwrap().output;
            println!("gemma3, layer {i}: output differs by at most {:e}", max_diff(&got, &want));
            assert_close(&format!("layer {i} on {backend}"), &got, &want, LAYER);
        }
    }
}

#[test]
fn the_prompt_of_paligemma_equals_transformers() {
    let types = Golden::open("masks_or.safetensors").get("paligemma.types").to_vec2::<i64>().unwrap();
    let prompts: Vec<usize> = types.iter().map(|row| row.iter().filter(|at| **at == 0).count()).collect();
    let (model, xs, want) = golden("paligemma", 0);
    let layer = model.layer.with_mask(AttentionMask::full()).unwrap();
    let got = layer.attend(&xs, &xs, &xs, AttentionMask::prefix_lm(&prompts)).unwrap();
    println!("paligemma: output differs by at most {:e}", max_diff(&got, &want));
    assert_close("paligemma", &got, &want, LAYER);
}

/// What an `or` shows depends on where the sequences of a call stand, also in two calls of one shape.
#[test]
fn a_mask_that_is_used_again_gives_the_bits_of_a_new_one() {
    let mask = || {
        let rows = AttentionMask::from_pattern_fn(|q, _| q % 3 != 0);
        AttentionMask::causal().and(AttentionMask::window(Some(0), None).or(rows).unwrap())
    };
    let mut random = Random::new(51);
    let layer = random_layer(&AttentionConfig::new(16, 2), 0.5, &mut random);
    let [mut cache, mut fresh] = [KvCache::growing(), KvCache::growing()];
    let kept = mask();
    for (lengths, cut) in [([159, 119], None), ([1, 1], Some([159, 117])), ([1, 1], None)] {
        let xs = random.tensor(&[2, lengths[0], 16], DType::F32);
        let run = |mask: &AttentionMask, cache: &mut KvCache| {
            let inputs = AttentionInputs::self_attention(&xs, mask).with_cache_lengths(cache, &lengths);
            let output = layer.attend_with(&inputs, &AttentionOptions::default()).unwrap().output;
            cut.iter().for_each(|lengths| cache.truncate_sequences(lengths).unwrap());
            numbers(&output)
        };
        assert_eq!(run(&kept, &mut cache), run(&mask(), &mut fresh));
    }
}
