//! Steps between projection and scores, in any order; keys that are values; keys and values of another layer.

use candle_attention::checkpoint::{ModelAttention, VarMapSource};
use candle_attention::position::{Rotary, RotaryScaling, RotaryStyle};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, CallInput, Factor, HeadNorm, KeyValueSource,
    KeyValues, KvCache, MultiHeadAttention, NormKind, NormOver, ProjectionBias, Step, Steps,
};
use candle_core::{DType, Device, Module, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};

use crate::common::everywhere::Everywhere;
use crate::common::{Random, assert_close, numbers, says};

const CPU: Device = Device::Cpu;
const ROTATE: Step = Step::Rotate;

fn decoder() -> AttentionConfig {
    AttentionConfig::new(12, 4).with_num_key_value_heads(2).with_head_dim(6).with_mask(AttentionMask::causal())
}

fn rotated() -> AttentionConfig {
    decoder().with_position(Rotary::default().with_theta(50.0))
}

fn norm(kind: NormKind) -> Step {
    Step::Norm(HeadNorm::new(kind, NormOver::Head, 1e-5))
}

fn weightless() -> Step {
    Step::Norm(HeadNorm::new(NormKind::Rms, NormOver::Head, 1e-5).with_weighted(false))
}

/// Late tokens of the tests below have another factor than early ones.
fn by_position(offset: usize) -> Step {
    Step::Factor(Factor::LogPosition { beta: 0.4, length: 3, offset })
}

#[test]
fn steps_in_any_order_give_the_same_everywhere() {
    let both = |steps: &[Step]| Steps::default().with_queries(steps.to_vec()).with_keys(steps.to_vec());
    // HunYuan.
    Everywhere::new(rotated().with_steps(both(&[ROTATE, norm(NormKind::Rms)]))).check(1);
    // Llama 4 and nanochat.
    Everywhere::new(rotated().with_steps(both(&[ROTATE, weightless()]))).check(2);
    // Gemma 4: norms of all three, that of the values without a weight.
    let steps = both(&[norm(NormKind::Rms), ROTATE]).with_values(vec![weightless()]);
    Everywhere::new(rotated().with_steps(steps).with_scale(1.0).with_value_head_dim(5)).check(3);
    // Ministral 3; Llama 4 without rotation.
    Everywhere::new(rotated().with_steps(Steps::default().with_queries(vec![ROTATE, by_position(0)]))).check(4);
    let steps = Steps::default().with_queries(vec![ROTATE, by_position(1)]);
    Everywhere::new(decoder().with_steps(steps.clone())).check(5);
    let window = AttentionMask::window(Some(3), Some(0));
    Everywhere::new(rotated().with_steps(steps).with_mask(window)).check(6);
    // TimesFM 2.5: a learned factor after a norm after the rotation.
    let softplus = Step::Factor(Factor::Softplus { scale: 0.6 });
    let steps = both(&[ROTATE, norm(NormKind::Rms)]).with_queries(vec![ROTATE, norm(NormKind::Rms), softplus]);
    Everywhere::new(rotated().with_steps(steps).with_scale(1.0)).check(7);
    // MiMo-V2-Flash.
    let steps = Steps::default().with_values(vec![Step::Factor(Factor::Constant(0.707))]);
    Everywhere::new(rotated().with_steps(steps).with_value_head_dim(4)).check(8);
    // CLVP: values are rotated, too.
    let steps = Steps::default().with_values(vec![weightless(), ROTATE, Step::Factor(Factor::Constant(0.5))]);
    Everywhere::new(rotated().with_steps(steps)).check(10);
    // Qwen2.5-Omni's DiT: one head is rotated.
    let first = AttentionConfig::new(12, 3).with_mask(AttentionMask::causal());
    let first = first.with_position(Rotary::default().with_heads(1).with_style(RotaryStyle::Interleaved));
    Everywhere::new(first.clone()).check(11);
    says(first.with_num_key_value_heads(1).validate(), &["num_key_value_heads = 1", "a part of the heads"]);
    // Anything, on every side.
    let all = Step::Norm(HeadNorm::new(NormKind::Layer, NormOver::AllHeads, 1e-5));
    let steps = Steps::default()
        .with_queries(vec![weightless(), by_position(2), ROTATE, all])
        .with_keys(vec![Step::Factor(Factor::Constant(-0.5)), ROTATE, softplus, weightless()])
        .with_values(vec![norm(NormKind::RmsOffset), by_position(0), softplus, weightless()]);
    Everywhere::new(rotated().with_steps(steps).with_clip_qkv(1.5)).without_pruning().check(9);
}

#[test]
fn keys_that_are_values_give_the_same_everywhere() {
    let source = KeyValueSource::KeysAsValues;
    let plain = decoder().with_key_value_source(source);
    Everywhere::new(plain.clone()).in_layout("keys-as-values").check(1);
    let steps = Steps::default()
        .with_queries(vec![norm(NormKind::Rms), ROTATE])
        .with_keys(vec![norm(NormKind::Rms), ROTATE])
        .with_values(vec![weightless()]);
    let gemma = rotated().with_key_value_source(source).with_steps(steps).with_bias(ProjectionBias::NONE);
    Everywhere::new(gemma).in_layout("keys-as-values").check(2);
    let none = plain.with_value_head_dim(3);
    says(none.validate(), &["value_head_dim = 3", "6: values are the keys"]);
}

/// The steps of one head in f64, by the formulas.
fn stepped(steps: &[Step], mut x: Vec<f64>, weight: &[f64], position: usize, theta: f64) -> Vec<f64> {
    let d = x.len();
    for step in steps {
        x = match *step {
            Step::Norm(HeadNorm { eps, weighted, .. }) => {
                let mean = x.iter().map(|x| x * x).sum::<f64>() / d as f64;
                let of = |i: usize| if weighted { weight[i] } else { 1.0 };
                x.iter().enumerate().map(|(i, x)| x / (mean + eps).sqrt() * of(i)).collect()
            }
            Step::Rotate => (0..d)
                .map(|i| {
                    let pair = i % (d / 2);
                    let angle = position as f64 * theta.powf(-2.0 * pair as f64 / d as f64);
                    let other = if i < d / 2 { -x[i + d / 2] } else { x[i - d / 2] };
                    x[i] * angle.cos() + other * angle.sin()
                })
                .collect(),
            Step::Factor(Factor::LogPosition { beta, length, offset }) => {
                let factor = 1.0 + beta * (1.0 + ((position + offset) as f64 / length as f64).floor()).ln();
                x.iter().map(|x| x * factor).collect()
            }
            _ => unreachable!("not in the test below"),
        };
    }
    x
}

/// One head of a decoder by loops in f64.
#[test]
fn steps_equal_their_formulas() {
    let d = 6;
    let queries = vec![norm(NormKind::Rms), ROTATE, weightless(), by_position(1)];
    let (keys, values) = (vec![ROTATE, norm(NormKind::Rms)], vec![weightless()]);
    let steps = Steps::default().with_queries(queries.clone()).with_keys(keys.clone()).with_values(values.clone());
    let config = AttentionConfig::new(5, 1)
        .with_head_dim(d)
        .with_bias(ProjectionBias::NONE)
        .with_mask(AttentionMask::causal())
        .with_position(Rotary::default().with_theta(50.0))
        .with_steps(steps);
    let (map, mut random) = (VarMap::new(), Random::new(3));
    let vb = VarBuilder::from_varmap(&map, DType::F64, &CPU);
    let layer = MultiHeadAttention::new(&config, vb).unwrap();
    for var in map.all_vars() {
        var.set(&random.tensor(var.dims(), DType::F64)).unwrap();
    }
    let xs = random.tensor(&[1, 8, 5], DType::F64);
    let got = numbers(&layer.forward(&xs).unwrap());
    let of = |name: &str| numbers(map.data().lock().unwrap()[name].as_tensor());
    let xs = numbers(&xs);
    let project = |weight: &[f64], x: &[f64]| -> Vec<f64> {
        weight.chunks(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
    };
    let side = |steps: &[Step], name: &str, norm: &[f64]| -> Vec<Vec<f64>> {
        let weight = of(name);
        let of_token = |(i, x): (usize, &[f64])| stepped(steps, project(&weight, x), norm, i, 50.0);
        xs.chunks(5).enumerate().map(of_token).collect()
    };
    let q = side(&queries, "q_proj.weight", &of("q_norm.weight"));
    let k = side(&keys, "k_proj.weight", &of("k_norm.weight"));
    let v = side(&values, "v_proj.weight", &[]);
    for i in 0..8 {
        let scores: Vec<f64> = (0..=i).map(|j| project(&k[j], &q[i])[0] / (d as f64).sqrt()).collect();
        let weights: Vec<f64> = scores.iter().map(|score| score.exp()).collect();
        let sum: f64 = weights.iter().sum();
        let context: Vec<f64> = (0..d).map(|e| (0..=i).map(|j| weights[j] / sum * v[j][e]).sum()).collect();
        for (e, want) in project(&of("o_proj.weight"), &context).iter().enumerate() {
            assert!((got[i * 5 + e] - want).abs() < 1e-12, "token {i}");
        }
    }
}

/// Positions of a call and of a cache reach factors as they reach rotations.
#[test]
fn positions_of_a_call_reach_factors() {
    let config = decoder().with_steps(Steps::default().with_queries(vec![ROTATE, by_position(0)]));
    let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &CPU);
    let layer = MultiHeadAttention::new(&config, vb).unwrap().frozen().unwrap();
    let xs = Random::new(1).tensor(&[2, 5, 12], DType::F32);
    let at = |positions: &[[u32; 5]]| {
        let positions = Tensor::new(positions.concat(), &CPU).unwrap().reshape(((), 5)).unwrap();
        let inputs = AttentionInputs::self_attention(&xs, AttentionMask::full());
        layer.attend_with(&inputs, &AttentionOptions::default().with_positions(&positions)).unwrap().output
    };
    let usual = layer.forward(&xs).unwrap();
    assert_close("the usual positions", &at(&[[0, 1, 2, 3, 4]]), &usual, 1e-6);
    // The first three tokens share a factor.
    let moved = at(&[[0, 2, 1, 3, 5], [0, 1, 2, 9, 9]]);
    assert_close("the same factors", &moved.get(0).unwrap(), &usual.get(0).unwrap(), 1e-6);
    let [moved, usual] = [&moved, &usual].map(|ys| numbers(&ys.get(1).unwrap()));
    assert!(moved[3 * 12..].iter().zip(&usual[3 * 12..]).any(|(a, b)| (a - b).abs() > 1e-3));
    assert!(moved[..3 * 12].iter().zip(&usual).all(|(a, b)| (a - b).abs() < 1e-6));
    // A cache that continues elsewhere.
    let mut cache = KvCache::growing();
    let positions = Tensor::new(&[0u32, 1, 2, 9], &CPU).unwrap();
    let first = xs.narrow(1, 0, 4).unwrap();
    let inputs = AttentionInputs::self_attention(&first, AttentionMask::full());
    layer.attend_with(&inputs.with_cache(&mut cache), &AttentionOptions::default().with_positions(&positions)).unwrap();
    let next = layer.step(&xs.narrow(1, 4, 1).unwrap(), &mut cache).unwrap();
    assert_close("the position after the last one", &next, &at(&[[0, 1, 2, 9, 10]]).narrow(1, 4, 1).unwrap(), 1e-5);
    let memory = xs.narrow(1, 0, 3).unwrap();
    says(layer.cross_cache(&memory, &memory), &["a factor by position", "cache for cross-attention"]);
}

/// A layer, and one of the same weights that has the keys and values of the first.
fn sharing(config: &AttentionConfig, dtype: DType) -> (MultiHeadAttention, MultiHeadAttention) {
    let vb = VarBuilder::from_varmap(&VarMap::new(), dtype, &CPU);
    let own = MultiHeadAttention::new(config, vb).unwrap();
    (own.clone(), without_keys(&own))
}

/// The layer without its keys and values.
fn without_keys(own: &MultiHeadAttention) -> MultiHeadAttention {
    let config = own.config();
    let steps = Steps::default().with_queries(config.steps.queries.clone());
    let source = KeyValueSource::Shared { layer: Some(7) };
    let shared = config.clone().with_steps(steps).with_key_value_source(source);
    let mut weights = own.weights().unwrap();
    let [q, ..] = weights.qkv.split([24, 12, 12], 2).unwrap();
    weights.qkv = candle_attention::weights::QkvWeights::Query(q);
    ["k_norm.weight", "k_norm.bias", "k_scaling"].into_iter().for_each(|name| _ = weights.parameters.remove(name));
    MultiHeadAttention::from_weights(&shared, weights).unwrap()
}

fn gemma() -> AttentionConfig {
    let steps = Steps::default()
        .with_queries(vec![norm(NormKind::Rms), ROTATE, by_position(0)])
        .with_keys(vec![norm(NormKind::Rms), ROTATE])
        .with_values(vec![weightless()]);
    rotated().with_steps(steps)
}

/// With the queries and the input of the layer that made the keys, the output is that layer's.
#[test]
fn keys_of_another_layer_are_those_that_it_attended_to() {
    let options = AttentionOptions::default();
    let window = AttentionMask::window(Some(2), Some(0));
    for (config, kind) in
        [(gemma(), KvCache::growing as fn() -> KvCache), (gemma().with_mask(window), || KvCache::rotating(3))]
    {
        let (own, shared) = sharing(&config, DType::F32);
        let xs = Random::new(5).tensor(&[2, 7, 12], DType::F32);
        // Without a cache, and for the last tokens alone.
        let mask = AttentionMask::lengths(&[7, 4]);
        let inputs = AttentionInputs::self_attention(&xs, &mask);
        let (attended, key_values) = own.attend_sharing(&inputs, &options).unwrap();
        assert_close("shares", &attended.output, &own.attend_with(&inputs, &options).unwrap().output, 1e-5);
        assert_eq!((key_values.len(), key_values.tensors()[0].dims()), (7, [2, 7, 2, 6].as_slice()));
        let got = shared.attend_with(&AttentionInputs::shared(&xs, &key_values, &mask), &options).unwrap().output;
        assert_close("without a cache", &got, &attended.output, 1e-6);
        let last = xs.narrow(1, 5, 2).unwrap();
        let got = shared.attend_with(&AttentionInputs::shared(&last, &key_values, &mask), &options).unwrap().output;
        assert_close("the last tokens", &got, &attended.output.narrow(1, 5, 2).unwrap(), 1e-6);
        let inputs = AttentionInputs::shared(&last, &key_values, &mask);
        shared.plan(&inputs, &options).unwrap();
        // Rotated for the length of each sequence.
        let scaling = RotaryScaling::Dynamic { factor: 2.0, original_max_position_embeddings: 3 };
        let scaled = config.clone().with_position(Rotary::default().with_theta(50.0).with_scaling(scaling));
        let (makes, scaled) = sharing(&scaled, DType::F32);
        let mask = AttentionMask::padding(&[7, 4]);
        let inputs = AttentionInputs::self_attention(&xs, &mask);
        let (attended, key_values) = makes.attend_sharing(&inputs, &options).unwrap();
        let got = scaled.attend_with(&AttentionInputs::shared(&xs, &key_values, &mask), &options).unwrap().output;
        assert_close("scaled for the length", &got, &attended.output, 1e-6);
        // In chunks, of equal and of unequal sequences.
        let lengths: [&[[usize; 2]]; 2] = [&[[3, 3], [1, 1], [3, 3]], &[[3, 1], [2, 2], [0, 2], [1, 1]]];
        for (case, lengths) in lengths.into_iter().enumerate() {
            let mut cache = kind();
            for of_chunk in lengths {
                let s = of_chunk[0].max(of_chunk[1]);
                let xs = Random::new(s as u64).tensor(&[2, s, 12], DType::F32);
                let inputs = AttentionInputs::self_attention(&xs, AttentionMask::full());
                let inputs = inputs.with_cache_lengths(&mut cache, of_chunk);
                let (attended, key_values) = own.attend_sharing(&inputs, &options).unwrap();
                drop(inputs);
                let inputs = AttentionInputs::shared(&xs, &key_values, AttentionMask::full());
                let got = shared.attend_with(&inputs, &options).unwrap().output;
                for (sequence, &count) in of_chunk.iter().enumerate() {
                    let new = |ys: &Tensor| ys.get(sequence).unwrap().narrow(0, 0, count).unwrap();
                    if count > 0 {
                        assert_close(&format!("chunks {case}"), &new(&got), &new(&attended.output), 1e-6);
                    }
                }
            }
        }
    }
}

/// A model that drafts for another one (Gemma 4's assistants): its query stands after the keys, where the call says.
#[test]
fn queries_of_a_drafter_stand_where_the_call_says() {
    let (own, shared) = sharing(&gemma(), DType::F32);
    let config = shared.config().clone().with_requires(&[CallInput::Positions]).with_mask(AttentionMask::full());
    let drafter = MultiHeadAttention::from_weights(&config, shared.weights().unwrap()).unwrap();
    let xs = Random::new(5).tensor(&[2, 7, 12], DType::F32);
    let (first, last) = (xs.narrow(1, 0, 6).unwrap(), xs.narrow(1, 6, 1).unwrap());
    let options = AttentionOptions::default();
    // The last token sees the others, and not itself.
    let sees = AttentionMask::from_pattern_fn(|q, k| q < 6 || k < 6);
    let want = own.attend(&xs, &xs, &xs, &sees).unwrap().narrow(1, 6, 1).unwrap();
    let inputs = AttentionInputs::self_attention(&first, None);
    let (_, key_values) = own.attend_sharing(&inputs, &options).unwrap();
    let mut cache = KvCache::growing();
    let (_, cached) = own.attend_sharing(&inputs.with_cache(&mut cache), &options).unwrap();
    let [keys, values] = key_values.tensors();
    let given = KeyValues::new(keys, values).unwrap();
    let places = Tensor::new(&[[6i64]], &CPU).unwrap();
    for key_values in [&key_values, &cached, &given] {
        let inputs = AttentionInputs::shared(&last, key_values, None);
        let got = drafter.attend_with(&inputs, &options.with_positions(&places)).unwrap().output;
        assert_close("a drafter", &got, &want, 1e-5);
        says(drafter.attend_with(&inputs, &options), &["positions"]);
        let wrong = Tensor::new(&[5i64, 6], &CPU).unwrap();
        says(drafter.attend_with(&inputs, &options.with_positions(&wrong)), &["positions", "[2, 1]"]);
        says(shared.attend_with(&inputs, &options.with_positions(&places)), &["those of the call that made the keys"]);
    }
    // Sequences of unequal length, each with its own place.
    let mut cache = KvCache::growing();
    let inputs = AttentionInputs::self_attention(&first, None);
    let (_, unequal) = own.attend_sharing(&inputs.with_cache_lengths(&mut cache, &[6, 4]), &options).unwrap();
    let places = Tensor::new(&[[6u32], [4]], &CPU).unwrap();
    let inputs = AttentionInputs::shared(&last, &unequal, None);
    let got = drafter.attend_with(&inputs, &options.with_positions(&places)).unwrap().output;
    for (i, length) in [6, 4].into_iter().enumerate() {
        let alone = first.narrow(0, i, 1).unwrap().narrow(1, 0, length).unwrap();
        let (_, keys) = own.attend_sharing(&AttentionInputs::self_attention(&alone, None), &options).unwrap();
        let (query, place) = (last.narrow(0, i, 1).unwrap(), Tensor::new(&[length as u32], &CPU).unwrap());
        let inputs = AttentionInputs::shared(&query, &keys, None);
        let want = drafter.attend_with(&inputs, &options.with_positions(&place)).unwrap().output;
        assert_close("unequal", &got.narrow(0, i, 1).unwrap(), &want, 1e-5);
    }
    says(KeyValues::new(keys, &values.narrow(1, 0, 5).unwrap()), &["values", "(2, 6, 2, d_v)"]);
    says(KeyValues::new(&keys.flatten_from(2).unwrap(), values), &["keys", "(b, s_kv, h_kv, d)"]);
    says(KeyValues::new(keys, &values.to_dtype(DType::F64).unwrap()), &["values"]);
}

/// Gradients flow through shared keys into the layer that made them.
#[test]
fn gradients_flow_into_the_layer_that_made_the_keys() {
    let map = VarMap::new();
    let own = MultiHeadAttention::new(&gemma(), VarBuilder::from_varmap(&map, DType::F64, &CPU)).unwrap();
    let shared = without_keys(&own);
    let options = AttentionOptions::default();
    let xs = Random::new(2).tensor(&[1, 5, 12], DType::F64);
    let (first, key_values) =
        own.attend_sharing(&AttentionInputs::self_attention(&xs, AttentionMask::full()), &options).unwrap();
    let inputs = AttentionInputs::shared(&xs, &key_values, AttentionMask::full());
    let got = shared.attend_with(&inputs, &options).unwrap().output;
    // The same function of the same variables.
    let gradient =
        |ys: &Tensor, var: &Var| numbers(ys.sqr().unwrap().sum_all().unwrap().backward().unwrap().get(var).unwrap());
    for (name, var) in map.data().lock().unwrap().iter() {
        let (got, want) = (gradient(&got, var), gradient(&first.output, var));
        assert!(got.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-9), "{name}");
    }
}

#[test]
fn calls_without_the_keys_that_a_layer_needs_say_so() {
    let (own, shared) = sharing(&gemma(), DType::F32);
    let xs = Random::new(1).tensor(&[2, 4, 12], DType::F32);
    let options = AttentionOptions::default();
    let needs = ["keys and values", "layer 7", "attend_sharing", "AttentionInputs::shared"];
    says(shared.forward_t(&xs, false), &needs);
    says(shared.step(&xs, &mut KvCache::growing()), &needs);
    let rows = xs.flatten(0, 1).unwrap();
    says(shared.attend_with(&AttentionInputs::ragged(&rows, &[5, 3], AttentionMask::full()), &options), &needs);
    says(shared.cross_cache(&xs, &xs), &needs);
    let inputs = AttentionInputs::self_attention(&xs, AttentionMask::full());
    says(shared.attend_sharing(&inputs, &options).map(|_| ()), &needs);
    says(shared.prune_heads(&[1]), &["keys and values of another layer"]);

    let (_, key_values) = own.attend_sharing(&inputs, &options).unwrap();
    let call = |layer: &MultiHeadAttention, xs: &Tensor| {
        layer.attend_with(&AttentionInputs::shared(xs, &key_values, AttentionMask::full()), &options)
    };
    assert!(call(&shared, &xs).is_ok());
    says(call(&own, &xs), &["the layer has its own"]);
    says(call(&shared, &xs.narrow(0, 0, 1).unwrap()), &["the keys of another layer has shape [2, 4, 2, 6]"]);
    let more = Random::new(1).tensor(&[2, 5, 12], DType::F32);
    says(call(&shared, &more), &["the number of queries is 5", "4, the tokens"]);
    let ragged = AttentionInputs::ragged(&rows, &[5, 3], AttentionMask::full());
    says(own.attend_sharing(&ragged, &options).map(|_| ()), &["shares its keys and values", "padded inputs"]);
}

#[test]
fn steps_that_make_no_sense_are_errors() {
    let with = |steps: Steps| rotated().with_steps(steps).validate();
    let plain = Steps::default;
    says(with(plain().with_queries(vec![])), &["steps of queries: rotations is 0", "one where the position scheme"]);
    says(with(plain().with_keys(vec![ROTATE, ROTATE])), &["steps of keys: rotations is 2"]);
    says(with(plain().with_values(vec![ROTATE, ROTATE])), &["steps of values", "none, or one"]);
    let wider = rotated().with_value_head_dim(8).with_steps(plain().with_values(vec![ROTATE]));
    says(wider.validate(), &["value_head_dim = 8", "as keys are"]);
    let twice = vec![norm(NormKind::Rms), norm(NormKind::Layer), ROTATE];
    says(with(plain().with_keys(twice)), &["norms with a weight is 2", "at most 1"]);
    let softplus = Step::Factor(Factor::Softplus { scale: 1.0 });
    says(with(plain().with_values(vec![softplus, softplus])), &["learned factors is 2"]);
    let factor = |factor| with(plain().with_values(vec![Step::Factor(factor)]));
    says(factor(Factor::Constant(f64::NAN)), &["steps of values: factor is NaN", "a finite number"]);
    says(factor(Factor::LogPosition { beta: 1.0, length: 0, offset: 0 }), &["steps of values: length is 0"]);
    says(factor(Factor::LogPosition { beta: f64::INFINITY, length: 1, offset: 0 }), &["steps of values: beta is inf"]);
    says(factor(Factor::Exp { max: 1.0 }), &["steps of values: factors of heads is 1", "at most 1, of queries"]);
    let source = KeyValueSource::Shared { layer: None };
    says(gemma().with_key_value_source(source).validate(), &["without weights: another layer makes the keys"]);
}

/// A layer of Gemma 3n's kind in a checkpoint that holds keys and values for all layers, as the published ones do.
#[test]
fn keys_that_a_model_does_not_read_are_not_read() {
    let json = serde_json::json!({
        "model_type": "gemma3n_text", "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
        "num_hidden_layers": 5, "num_kv_shared_layers": 2, "sliding_window": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention"],
    });
    let (mut random, map) = (Random::new(4), VarMap::new());
    for layer in 0..5 {
        let vb = VarBuilder::from_varmap(&map, DType::F32, &CPU).pp(format!("layers.{layer}.self_attn"));
        MultiHeadAttention::new(&gemma().with_bias(ProjectionBias::NONE), vb).unwrap();
    }
    map.all_vars().iter().for_each(|var| var.set(&random.tensor(var.dims(), DType::F32)).unwrap());
    let load = |layer: usize, json: &serde_json::Value| {
        let source = VarMapSource::new(&map).at(&format!("layers.{layer}.self_attn"));
        ModelAttention::load(json, source)
    };
    let source_of = |layer: usize| load(layer, &json).unwrap().layer.config().key_value_source;
    assert_eq!(source_of(2), KeyValueSource::Projections);
    // The last layer of the same kind before those that share.
    assert_eq!(source_of(3), KeyValueSource::Shared { layer: Some(1) });
    assert_eq!(source_of(4), KeyValueSource::Shared { layer: Some(2) });
    let xs = random.tensor(&[1, 4, 12], DType::F32);
    says(load(3, &json).unwrap().forward(&xs), &["keys and values of a call", "layer 1"]);
    let mut none = json.clone();
    none["num_kv_shared_layers"] = serde_json::json!(4);
    says(load(1, &none).map(|_| ()), &["the projections of layer 1", "a layer of this kind before those"]);
    for (key, value) in [("attention_k_eq_v", serde_json::json!(true)), ("global_head_dim", serde_json::json!(512))] {
        let mut other = json.clone();
        other[key] = value;
        load(0, &other).unwrap(); // transformers' class ignores it, too
        other["auto_map"] = serde_json::json!({});
        says(load(0, &other).map(|_| ()), &[key, "gemma3n_text"]);
    }
}

/// Tokens see the keys of their own chunk, in a cache of all tokens, too.
#[test]
fn chunks_give_the_same_everywhere() {
    let mask = AttentionMask::chunks(4);
    Everywhere::new(rotated().with_mask(AttentionMask::causal().and(mask.clone()))).check(1);
    let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &CPU);
    let layer = MultiHeadAttention::new(&decoder().with_mask(mask.clone()), vb).unwrap().frozen().unwrap();
    let xs = Random::new(1).tensor(&[1, 9, 12], DType::F32);
    let got = layer.forward(&xs).unwrap();
    for (start, len) in [(0, 4), (4, 4), (8, 1)] {
        let alone = layer.forward(&xs.narrow(1, start, len).unwrap()).unwrap();
        assert_close("a chunk alone", &got.narrow(1, start, len).unwrap(), &alone, 1e-6);
    }
    let mut cache = KvCache::streaming(3);
    says(layer.step(&xs, &mut cache), &["a cache that drops tokens", "chunks of 4"]);
    let inputs = AttentionInputs::self_attention(&xs, AttentionMask::chunks(0));
    says(layer.attend_with(&inputs, &AttentionOptions::default()), &["the size of the chunks", "at least 1"]);
}

/// Pairs beyond the share do not turn; the others have the wavelengths of the whole head, backwards if asked for.
#[test]
fn proportional_and_reversed_rotations_equal_their_formulas() {
    let rotary = Rotary::default().with_theta(50.0);
    let scaling = RotaryScaling::Proportional { pairs: 2, factor: 2.0 };
    let (frequencies, factor) = rotary.clone().with_scaling(scaling).frequencies(8, 5).unwrap();
    assert_eq!((frequencies, factor), (vec![0.5, 50f64.powf(-0.25) / 2.0, 0.0, 0.0], 1.0));
    let scaling = RotaryScaling::Proportional { pairs: 5, factor: 1.0 };
    says(rotary.clone().with_scaling(scaling).frequencies(8, 5), &["rope_scaling pairs = 5", "at most 4"]);
    let xs = Random::new(1).tensor(&[1, 3, 2, 8], DType::F64);
    let positions = Tensor::arange(0u32, 3, &CPU).unwrap();
    let there = rotary.apply(&xs, &positions).unwrap();
    let back = rotary.with_reversed(true).apply(&there, &positions).unwrap();
    assert_close("there and back", &back, &xs, 1e-12);
}
