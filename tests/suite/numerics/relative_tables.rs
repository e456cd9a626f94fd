//! Queries compared with tables of relative positions, and gated biases: every way to run such a layer, and the
//! formulas as loops in f64.

use candle_attention::checkpoint::layouts;
use candle_attention::position::{
    GatedRelativeBias, Position, RelativeKey, RelativeKey2d, RelativeKeyValue, RelativeSinusoids,
};
use candle_attention::weights::{AttentionWeights, LinearWeights, Parameters, QkvWeights};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Backend, KvCache, MultiHeadAttention,
    ObserveOptions, ProjectionBias,
};
use candle_core::{D, DType, Device, Module, Tensor};

use crate::common::everywhere::Everywhere;
use crate::common::naive::{Score, attend};
use crate::common::{Random, assert_close, numbers, says};

#[test]
fn relative_positions_are_the_same_everywhere() {
    let config = AttentionConfig::new(12, 4);
    let grouped = config.clone().with_num_key_value_heads(2).with_head_dim(5);
    let windowed = AttentionMask::window(Some(3), Some(1));
    let sinusoids = grouped.clone().with_position(RelativeSinusoids::default());
    Everywhere::new(sinusoids.clone()).without_cache().check(1);
    Everywhere::new(sinusoids.with_mask(windowed.clone())).without_cache().with_tokens(70).check(2);
    let segments = grouped.clone().with_position(RelativeSinusoids::default().with_segments(true));
    Everywhere::new(segments.clone()).with_token_types().without_cache().check(13);
    Everywhere::new(segments.with_mask(windowed.clone())).with_token_types().without_cache().with_tokens(70).check(14);
    let halves = RelativeSinusoids::default().with_in_halves(true);
    let local = AttentionMask::window(Some(3), Some(0));
    let capped = config.clone().with_position(halves).with_mask(local).with_softcap(0.7);
    Everywhere::new(capped.clone()).without_cache().check(10);
    Everywhere::new(capped).in_layout("candle-attention").without_cache().with_tokens(70).check(11);
    let keys = grouped.with_position(RelativeKey::new(4, 2)).with_mask(windowed);
    Everywhere::new(keys.clone().with_softcap(1.5)).without_cache().check(12);
    Everywhere::new(keys).without_cache().check(3);
    let reversed = RelativeKey::new(0, 20).with_reversed(true).with_block(9);
    Everywhere::new(config.clone().with_position(reversed)).without_cache().check(4);
    let grid = Position::from(RelativeKey2d::new([3, 4]));
    Everywhere::new(config.clone().with_position(grid)).without_cache().with_tokens(12).check(5);
    let gated = config.clone().with_position(GatedRelativeBias::new(8, 6));
    Everywhere::new(gated.clone()).without_cache().with_tokens(12).check(6);
    Everywhere::new(gated).in_layout("bart").without_cache().check(7);
    let near = config.with_position(RelativeKeyValue::new(2)).with_value_head_dim(2);
    Everywhere::new(near).without_cache().check(8);
}

/// In the layouts of their families.
#[test]
fn relative_positions_are_written_as_their_families_name_them() {
    let config = AttentionConfig::new(12, 4);
    let only_out = ProjectionBias::NONE.with_o(true);
    let reversed = RelativeKey::new(5, 5).with_reversed(true);
    for (layout, config) in [
        ("conformer", config.clone().with_position(RelativeSinusoids::default())),
        ("conformer", config.clone().with_position(RelativeKey::new(4, 2))),
        ("granite-speech", config.clone().with_position(reversed).with_bias(only_out)),
        ("timm", config.clone().with_position(RelativeKey2d::new([3, 3]))),
        ("bart", config.with_position(RelativeKeyValue::new(2))),
    ] {
        Everywhere::new(config).in_layout(layout).without_cache().check(9);
    }
    let segments = RelativeSinusoids::default().with_segments(true);
    let xlnet = AttentionConfig::new(12, 4).with_position(segments).with_bias(ProjectionBias::NONE);
    Everywhere::new(xlnet).in_layout("xlnet").with_token_types().without_cache().check(15);
}

const HEADS: usize = 2;
const SIZE: usize = 4;
const WIDTH: usize = HEADS * SIZE;

/// A layer with random weights, whose output is its context; its queries, keys and values of `xs`, `(b, s, h, d)`; and
/// the weights of its positions.
struct Case {
    layer: MultiHeadAttention,
    xs: Tensor,
    qkv: [Tensor; 3],
    position: Parameters,
}

impl Case {
    fn new(position: impl Into<Position>, tensors: &[(&str, &[usize])], tokens: usize, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let config = AttentionConfig::new(WIDTH, HEADS).with_bias(ProjectionBias::NONE).with_position(position);
        let mut weights = Parameters::default();
        for (name, dims) in tensors {
            weights.insert(*name, random.tensor(dims, DType::F32));
        }
        let parts = [0, 1, 2].map(|_| random.tensor(&[WIDTH, WIDTH], DType::F32));
        let xs = random.tensor(&[2, tokens, WIDTH], DType::F32);
        let project = |w: &Tensor| {
            let wide = |t: &Tensor| t.to_dtype(DType::F64).unwrap();
            let ys = wide(&xs).broadcast_matmul(&wide(w).t().unwrap()).unwrap();
            ys.reshape((2, tokens, HEADS, SIZE)).unwrap()
        };
        let qkv = parts.each_ref().map(project);
        let identity = LinearWeights::new(Tensor::eye(WIDTH, DType::F32, &Device::Cpu).unwrap(), None);
        let split = QkvWeights::Split(Box::new(parts.map(|weight| LinearWeights::new(weight, None))));
        let all = AttentionWeights::new(split, identity).with_position(weights.clone());
        let layer = MultiHeadAttention::from_weights(&config, all).unwrap();
        Self { layer, xs, qkv, position: weights }
    }

    fn weight(&self, name: &str) -> Vec<f64> {
        numbers(self.position.get(name).unwrap())
    }

    /// Compares the layer with attention of queries `q`, to whose scores `term(b, head, i, j)` is added.
    fn check(&self, q: &Tensor, term: &dyn Fn(usize, usize, usize, usize) -> f64, options: &AttentionOptions) {
        let score = Score::Dot((SIZE as f64).powf(-0.5));
        let (want, _) = attend(q, &self.qkv[1], &self.qkv[2], &score, &|b, h, i, j| Some(term(b, h, i, j)));
        let inputs = AttentionInputs::self_attention(&self.xs, AttentionMask::full());
        let got = self.layer.attend_with(&inputs, options).unwrap().output;
        assert_close("a layer", &got, &want.flatten_from(2).unwrap(), 2e-5);
    }

    /// The query of head `h` at token `i` of sequence `b`.
    fn query(&self, b: usize, h: usize, i: usize) -> Vec<f64> {
        numbers(&self.qkv[0].get(b).unwrap().get(i).unwrap().get(h).unwrap())
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn plus(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

/// Transformer-XL: `((q + u) · k + (q + v) · W r(i - j)) / √d`.
#[test]
fn relative_sinusoids_are_those_of_transformer_xl() {
    let tensors: [(&str, &[usize]); 3] =
        [("relative_k_proj.weight", &[WIDTH, WIDTH]), ("bias_u", &[HEADS, SIZE]), ("bias_v", &[HEADS, SIZE])];
    let case = Case::new(RelativeSinusoids::default(), &tensors, 11, 1);
    let (w, v) = (case.weight("relative_k_proj.weight"), case.weight("bias_v"));
    let u = case.position.get("bias_u").unwrap().to_dtype(DType::F64).unwrap();
    let term = |b: usize, h: usize, i: usize, j: usize| {
        let wave = |c: usize| (i as f64 - j as f64) / 10_000f64.powf((c / 2 * 2) as f64 / WIDTH as f64);
        let r: Vec<f64> = (0..WIDTH).map(|c| if c % 2 == 0 { wave(c).sin() } else { wave(c).cos() }).collect();
        let projected: Vec<f64> = (h * SIZE..(h + 1) * SIZE).map(|row| dot(&w[row * WIDTH..][..WIDTH], &r)).collect();
        dot(&plus(&case.query(b, h, i), &v[h * SIZE..][..SIZE]), &projected) * (SIZE as f64).powf(-0.5)
    };
    case.check(&case.qkv[0].broadcast_add(&u).unwrap(), &term, &AttentionOptions::default());
}

const XLNET: [(&str, &[usize]); 5] = [
    ("relative_k_proj.weight", &[WIDTH, WIDTH]),
    ("bias_u", &[HEADS, SIZE]),
    ("bias_v", &[HEADS, SIZE]),
    ("segment_embeddings", &[2, HEADS, SIZE]),
    ("segment_bias", &[HEADS, SIZE]),
];

/// XLNet: `((q + u) · k + (q + v) · W r(i - j) + (q + s) · e) / √d`, where all sines come first and `e` is one of two
/// vectors, by whether the types of query and key are one.
#[test]
fn segments_are_those_of_xlnet() {
    let segments = RelativeSinusoids::default().with_segments(true);
    let case = Case::new(segments, &XLNET, 11, 8);
    let [w, u, v, e, s] = XLNET.map(|(name, _)| case.weight(name));
    let of_head = |xs: &[f64], h: usize| xs[h * SIZE..][..SIZE].to_vec();
    let u = Tensor::from_vec(u, (HEADS, SIZE), &Device::Cpu).unwrap();
    let term = |b: usize, h: usize, i: usize, j: usize, types: Option<&[Vec<i64>]>| {
        let wave = |c: usize| (i as f64 - j as f64) / 10_000f64.powf((c % 4 * 2) as f64 / WIDTH as f64);
        let r: Vec<f64> = (0..WIDTH).map(|c| if c < 4 { wave(c).sin() } else { wave(c).cos() }).collect();
        let projected: Vec<f64> = (h * SIZE..(h + 1) * SIZE).map(|row| dot(&w[row * WIDTH..][..WIDTH], &r)).collect();
        let query = case.query(b, h, i);
        let of_segments = types.map_or(0.0, |types| {
            let types = &types[b.min(types.len() - 1)];
            let embedding = of_head(&e[if types[i] == types[j] { 0 } else { WIDTH }..], h);
            dot(&plus(&query, &of_head(&s, h)), &embedding)
        });
        (dot(&plus(&query, &of_head(&v, h)), &projected) + of_segments) * (SIZE as f64).powf(-0.5)
    };
    let q = case.qkv[0].broadcast_add(&u).unwrap();
    let one = vec![vec![0, 0, 0, 1, 1, 0, 1, 1, 1, 2, 5]];
    let two = vec![one[0].clone(), vec![3, 1, 1, 1, 1, 0, 3, 3, 3, -1, 1]];
    for backend in [Backend::Cpu, Backend::Eager] {
        let options = AttentionOptions::default().with_backend(backend);
        case.check(&q, &|b, h, i, j| term(b, h, i, j, None), &options);
        for (types, dtype) in [(&one, DType::U8), (&two, DType::I64), (&two, DType::I32)] {
            let given = Tensor::new(types.clone(), &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
            case.check(&q, &|b, h, i, j| term(b, h, i, j, Some(types)), &options.with_token_types(&given));
        }
    }
}

/// The last queries of a sequence alone are those of the whole: XLNet's memory comes before them.
#[test]
fn last_queries_have_the_last_types() {
    let case = Case::new(RelativeSinusoids::default().with_segments(true), &XLNET, 11, 9);
    let types = Tensor::new(&[[0u32, 0, 1, 1, 0, 1, 2, 1, 0, 1, 2]], &Device::Cpu).unwrap();
    let options = AttentionOptions::default().with_token_types(&types);
    let attend = |first: usize| {
        let queries = case.xs.narrow(1, first, 11 - first).unwrap();
        let inputs = AttentionInputs::new(&queries, &case.xs, &case.xs, AttentionMask::full());
        case.layer.attend_with(&inputs, &options).unwrap().output
    };
    assert_close("the last queries", &attend(7), &attend(0).narrow(1, 7, 4).unwrap(), 1e-6);

    let xs = &case.xs;
    let inputs = AttentionInputs::self_attention(xs, AttentionMask::full());
    let stats = case.layer.observe(&inputs, &options, &ObserveOptions::default().with_attention_weights(true)).unwrap();
    assert_close("observed", &stats.output, &attend(0), 1e-6);
    let returned = case.layer.attend_with(&inputs, &options.with_return_attention_weights(true)).unwrap();
    let weights = returned.attention_weights.unwrap();
    assert_close("attention weights", &stats.attention_weights.unwrap(), &weights, 1e-6);
    let untyped = AttentionOptions::default().with_return_attention_weights(true);
    let untyped = case.layer.attend_with(&inputs, &untyped).unwrap().attention_weights.unwrap();
    let off = numbers(&(untyped - weights).unwrap().abs().unwrap().max_all().unwrap());
    assert!(off[0] > 0.01, "types change the weights by {off:?}");
    let says_of = |types: &Tensor, parts: &[&str]| {
        let inputs = AttentionInputs::self_attention(xs, AttentionMask::full());
        says(case.layer.attend_with(&inputs, &AttentionOptions::default().with_token_types(types)), parts);
    };
    says_of(&types.to_dtype(DType::F32).unwrap(), &["token_types", "f32", "integer"]);
    for wrong in [types.narrow(1, 1, 10).unwrap(), types.squeeze(0).unwrap(), types.repeat((3, 1)).unwrap()] {
        says_of(&wrong, &["token_types", "(2 or 1, 11)"]);
    }
    let few = xs.narrow(1, 0, 4).unwrap();
    let inputs = AttentionInputs::new(xs, &few, &few, AttentionMask::full());
    let given = AttentionOptions::default().with_token_types(&types);
    says(case.layer.attend_with(&inputs, &given), &["token_types", "(2 or 1, 4)"]);
    let short = types.narrow(1, 0, 4).unwrap();
    let given = AttentionOptions::default().with_token_types(&short);
    says(case.layer.attend_with(&inputs, &given), &["the 11 queries are the last"]);
    let rows = xs.flatten_to(1).unwrap();
    let inputs = AttentionInputs::ragged(&rows, &[11, 11], AttentionMask::full());
    says(case.layer.attend_with(&inputs, &options), &["`token_types` of a ragged batch", "AttentionMask::padding"]);
    let plain = Case::new(RelativeSinusoids::default(), &XLNET[..3], 11, 9);
    let inputs = AttentionInputs::self_attention(&plain.xs, AttentionMask::full());
    says(plain.layer.attend_with(&inputs, &options), &["token_types", "the layer's positions are relative sinusoids"]);
    let both = RelativeSinusoids::default().with_segments(true).with_in_halves(true);
    says(AttentionConfig::new(8, 2).with_position(both).validate(), &["in_halves = true", "segments"]);
}

/// The Universal Speech Model: `cap · tanh((q · k + q · W r(i - j)) / √d / cap)`, where all sines come first.
#[test]
fn capped_scores_include_their_products_with_sinusoids() {
    let (cap, scale) = (0.5, (SIZE as f64).powf(-0.5));
    let halves = RelativeSinusoids::default().with_in_halves(true);
    let case = Case::new(halves, &[("relative_k_proj.weight", &[WIDTH, WIDTH])], 11, 7);
    let weights = case.layer.weights().unwrap();
    let layer = MultiHeadAttention::from_weights(&case.layer.config().clone().with_softcap(cap), weights).unwrap();
    let w = case.weight("relative_k_proj.weight");
    let [_, keys, values] = &case.qkv;
    let key = |b: usize, h: usize, j: usize| numbers(&keys.get(b).unwrap().get(j).unwrap().get(h).unwrap());
    let score = |b: usize, h: usize, i: usize, j: usize| {
        let wave = |c: usize| (i as f64 - j as f64) / 10_000f64.powf((c % 4) as f64 / 3.0);
        let r: Vec<f64> = (0..WIDTH).map(|c| if c < 4 { wave(c).sin() } else { wave(c).cos() }).collect();
        let projected: Vec<f64> = (h * SIZE..(h + 1) * SIZE).map(|row| dot(&w[row * WIDTH..][..WIDTH], &r)).collect();
        let query = case.query(b, h, i);
        cap * ((dot(&query, &key(b, h, j)) + dot(&query, &projected)) * scale / cap).tanh()
    };
    let nothing = case.qkv[0].zeros_like().unwrap();
    let (want, _) = attend(&nothing, keys, values, &Score::Dot(scale), &|b, h, i, j| Some(score(b, h, i, j)));
    let inputs = AttentionInputs::self_attention(&case.xs, AttentionMask::full());
    let plan = layer.plan(&inputs, &AttentionOptions::default()).unwrap().to_string();
    assert!(plan.starts_with("backend cpu"), "{plan}");
    let got = layer.forward(&case.xs).unwrap();
    for backend in [Backend::Cpu, Backend::Eager] {
        let got = layer.attend_with(&inputs, &AttentionOptions::default().with_backend(backend)).unwrap().output;
        assert_close("a layer", &got, &want.flatten_from(2).unwrap(), 2e-5);
    }
    // With a mask of each kind, on both backends.
    let lengths = AttentionMask::lengths(&[11, 7]).and(AttentionMask::window(Some(2), Some(4)));
    for mask in [lengths, AttentionMask::from_score_fn(|score, _, _, q, k| score - q.abs_diff(k) as f32)] {
        let inputs = AttentionInputs::self_attention(&case.xs, &mask);
        let of = |backend| layer.attend_with(&inputs, &AttentionOptions::default().with_backend(backend)).unwrap();
        assert_close(&mask.to_string(), &of(Backend::Cpu).output, &of(Backend::Eager).output, 1e-5);
    }
    says(
        AttentionConfig::new(8, 2).with_position(RelativeSinusoids::default()).with_softcap(cap).validate(),
        &["softcap = 0.5", "vectors"],
    );
    // Appended keys have no distance.
    let config = layer.config().clone().with_add_zero_attn(true);
    let more = MultiHeadAttention::from_weights(&config, layer.weights().unwrap()).unwrap();
    assert_eq!(more.forward(&case.xs).unwrap().dims(), got.dims());
}

/// Shaw: `q · (k + e[clip(j - i)]) / √d`; Granite Speech counts the other way.
#[test]
fn relative_keys_are_those_of_shaw() {
    let distance = |i: usize, j: usize| (j as i64 - i as i64).clamp(-3, 2);
    let keys = RelativeKey::new(3, 2);
    let cases: [(_, _, &dyn Fn(i64) -> i64); 2] = [
        (keys, "distance_embedding.weight", &|distance| distance + 3),
        (keys.with_reversed(true), "rel_pos_emb.weight", &|distance| 2 - distance),
    ];
    for (position, name, row) in cases {
        let case = Case::new(position, &[(name, &[6, SIZE])], 9, 2);
        let e = case.weight(name);
        let term = |b: usize, h: usize, i: usize, j: usize| {
            dot(&case.query(b, h, i), &e[row(distance(i, j)) as usize * SIZE..][..SIZE]) * (SIZE as f64).powf(-0.5)
        };
        case.check(&case.qkv[0], &term, &AttentionOptions::default());
    }
    let case = Case::new(keys.with_block(8), &[("distance_embedding.weight", &[6, SIZE])], 9, 2);
    says(case.layer.forward(&case.xs), &["the number of tokens is 9", "at most 8", "blocks"]);
}

/// SAM: `q · k / √d + q · h[y - y'] + q · w[x - x']`.
#[test]
fn relative_keys_of_a_grid_are_those_of_sam() {
    let [rows, columns] = [3, 4];
    let tensors: [(&str, &[usize]); 2] =
        [("rel_pos_h", &[2 * rows - 1, SIZE]), ("rel_pos_w", &[2 * columns - 1, SIZE])];
    let case = Case::new(RelativeKey2d::new([rows, columns]), &tensors, rows * columns, 3);
    let (of_rows, of_columns) = (case.weight("rel_pos_h"), case.weight("rel_pos_w"));
    let term = |b: usize, h: usize, i: usize, j: usize| {
        let (down, right) = (i / columns + rows - 1 - j / columns, i % columns + columns - 1 - j % columns);
        let q = case.query(b, h, i);
        dot(&q, &of_rows[down * SIZE..][..SIZE]) + dot(&q, &of_columns[right * SIZE..][..SIZE])
    };
    case.check(&case.qkv[0], &term, &AttentionOptions::default());
    let stated = AttentionOptions::default().with_grid([rows, columns]);
    case.check(&case.qkv[0], &term, &stated);
    // Of another grid the tables are resized: from 5 rows to 3, and from 7 to 11.
    let other = AttentionOptions::default().with_grid([2, 6]);
    let inputs = AttentionInputs::self_attention(&case.xs, AttentionMask::full());
    let resized = case.layer.attend_with(&inputs, &other).unwrap().output;
    assert!(resized.to_vec3::<f32>().unwrap().iter().flatten().flatten().all(|x| x.is_finite()));
    let wrong = AttentionOptions::default().with_grid([5, 2]);
    says(case.layer.attend_with(&inputs, &wrong).map(|_| ()), &["the number of tokens is 12", "5 x 2 patches"]);
    let five = case.xs.narrow(1, 0, 5).unwrap();
    says(case.layer.forward(&five), &["the number of tokens is 5", "3 x 4 patches", "AttentionOptions::grid"]);
}

/// WavLM: `q · k / √d + gate(x_i) · bias[bucket(j - i)]`.
#[test]
fn gated_biases_are_those_of_wavlm() {
    let tensors: [(&str, &[usize]); 4] = [
        ("rel_attn_embed.weight", &[8, HEADS]),
        ("gru_rel_pos_linear.weight", &[8, SIZE]),
        ("gru_rel_pos_linear.bias", &[8]),
        ("gru_rel_pos_const", &[1, HEADS, 1, 1]),
    ];
    let case = Case::new(GatedRelativeBias::new(8, 6), &tensors, 10, 4);
    let [table, w, bias, factor] = tensors.map(|(name, _)| case.weight(name));
    let xs = numbers(&case.xs);
    let bucket = |ahead: i64| {
        let far = |distance: f64| 2 + ((distance / 2.0).ln() / 3f64.ln() * 2.0) as usize;
        let near = if ahead.abs() < 2 { ahead.unsigned_abs() as usize } else { far(ahead.abs() as f64).min(3) };
        near + if ahead > 0 { 4 } else { 0 }
    };
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let term = |b: usize, h: usize, i: usize, j: usize| {
        let x = &xs[(b * 10 + i) * WIDTH + h * SIZE..][..SIZE];
        let part = |from: usize| (from..from + 4).map(|row| dot(&w[row * SIZE..][..SIZE], x) + bias[row]).sum::<f64>();
        let gate = sigmoid(part(0)) * (sigmoid(part(4)) * factor[h] - 1.0) + 2.0;
        gate * table[bucket(j as i64 - i as i64) * HEADS + h]
    };
    case.check(&case.qkv[0], &term, &AttentionOptions::default());
}

/// VITS: `q · (k + e[j - i]) / √d`, and values `v + f[j - i]`, for keys in a window.
#[test]
fn relative_keys_and_values_are_those_of_vits() {
    let tensors: [(&str, &[usize]); 2] = [("emb_rel_k", &[1, 5, SIZE]), ("emb_rel_v", &[1, 5, SIZE])];
    let case = Case::new(RelativeKeyValue::new(2), &tensors, 9, 7);
    let [keys, values] = tensors.map(|(name, _)| case.weight(name));
    let row = |i: usize, j: usize| (j + 2).checked_sub(i).filter(|row| *row < 5);
    let scale = (SIZE as f64).powf(-0.5);
    let term = |b: usize, h: usize, i: usize, j: usize| {
        let e = row(i, j).map_or(&[][..], |row| &keys[row * SIZE..][..SIZE]);
        dot(&case.query(b, h, i), e) * scale
    };
    let sees = |b: usize, h: usize, i: usize, j: usize| Some(term(b, h, i, j));
    let (context, weights) = attend(&case.qkv[0], &case.qkv[1], &case.qkv[2], &Score::Dot(scale), &sees);
    let (mut want, weights) = (numbers(&context), numbers(&weights));
    for (at, want) in want.iter_mut().enumerate() {
        let (c, h, i, b) = (at % SIZE, at / SIZE % HEADS, at / WIDTH % 9, at / WIDTH / 9);
        let weight = |j: usize| weights[((b * HEADS + h) * 9 + i) * 9 + j];
        *want += (0..9).filter_map(|j| Some(weight(j) * values[row(i, j)? * SIZE + c])).sum::<f64>();
    }
    let want = Tensor::from_vec(want, (2, 9, WIDTH), &Device::Cpu).unwrap();
    assert_close("VITS", &case.layer.forward(&case.xs).unwrap(), &want, 2e-5);
    let inputs = AttentionInputs::self_attention(&case.xs, AttentionMask::full());
    let plan = case.layer.plan(&inputs, &AttentionOptions::default()).unwrap();
    assert!(plan.to_string().contains("values depend on distances"), "{plan}");
}

#[test]
fn what_does_not_fit_is_one_clear_error() {
    let case = Case::new(RelativeKey::new(3, 2), &[("distance_embedding.weight", &[6, SIZE])], 9, 5);
    let mut cache = KvCache::growing();
    let inputs = AttentionInputs::self_attention(&case.xs, AttentionMask::causal()).with_cache(&mut cache);
    says(
        case.layer.attend_with(&inputs, &AttentionOptions::default()).map(|_| ()),
        &["relative key", "whole sequence"],
    );
    let config = AttentionConfig::new(WIDTH, HEADS);
    for (position, parts) in [
        (Position::from(RelativeKey2d::new([0, 4])), ["the grid of patches", "1 to 1024"]),
        (Position::from(RelativeKey::new(1 << 30, 0)), ["left_max_position_embeddings", "at most"]),
        (Position::from(GatedRelativeBias::new(3, 800)), ["num_buckets = 3", "4 to"]),
        (Position::from(GatedRelativeBias::new(320, 80)), ["max_bucket_distance = 80", "more than a quarter"]),
    ] {
        says(config.clone().with_position(position).validate(), &parts);
    }
    let gated = config.clone().with_position(GatedRelativeBias::new(8, 6)).with_head_dim(3);
    says(gated.validate(), &["query_size = 8", "6, that of 2 heads"]);
    says(
        AttentionConfig::new(9, 3).with_position(RelativeSinusoids::default()).validate(),
        &["hidden_size = 9", "even"],
    );

    // The same name in this crate's layout: of a learned value, and of Transformer-XL's vector.
    let sinusoids = config.with_position(RelativeSinusoids::default());
    let vb = |map: &candle_nn::VarMap| candle_nn::VarBuilder::from_varmap(map, DType::F32, &Device::Cpu);
    let layer = MultiHeadAttention::new(&sinusoids, vb(&candle_nn::VarMap::new())).unwrap();
    let vector = || Tensor::zeros((1, 1, WIDTH), DType::F32, &Device::Cpu).unwrap();
    let both = layer.weights().unwrap().with_parameter("bias_k", vector()).with_parameter("bias_v", vector());
    let own = layouts().find(|layout| layout.name() == "candle-attention").unwrap();
    says(both.to_layout(&sinusoids.with_add_bias_kv(true), own).map(|_| ()), &["relative sinusoids", "otherwise"]);
}

/// No tensor of all pairs: as many bytes of temporary memory as the sequence is long.
#[test]
fn memory_of_the_cpu_kernel_grows_with_the_length() {
    let tensors: [(&str, &[usize]); 3] =
        [("relative_k_proj.weight", &[WIDTH, WIDTH]), ("bias_u", &[HEADS, SIZE]), ("bias_v", &[HEADS, SIZE])];
    let scratch = |tokens: usize| {
        let case = Case::new(RelativeSinusoids::default(), &tensors, tokens, 6);
        let inputs = AttentionInputs::self_attention(&case.xs, AttentionMask::full());
        let plan = case.layer.plan(&inputs, &AttentionOptions::default()).unwrap();
        assert_eq!(plan.backend.to_string(), "cpu");
        assert_eq!(case.layer.forward(&case.xs).unwrap().dim(D::Minus1).unwrap(), WIDTH);
        plan.scratch_bytes
    };
    let (short, long) = (scratch(256), scratch(1024));
    assert!(long < 5 * short, "{short} and {long}");
}
