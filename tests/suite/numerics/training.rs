//! Training on the fused CPU kernel in f32: outputs and gradients against candle's operations in f64.

use std::collections::HashMap;

use candle_attention::position::{Alibi, Rotary, T5RelativeBias};
use candle_attention::sdpa::{SdpaOptions, attend_bshd, plan_for};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Backend, HeadNorm, MultiHeadAttention, NormKind,
    NormOver, ProjectionBias, Step, Steps,
};
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};

use crate::common::{Random, assert_close, numbers};
use crate::numerics::gradients::{B, S_KV, S_Q, forms, masks};

/// Gradients of f32 are compared with those of f64.
const GRADIENT: f64 = 3e-5;

/// The same random tensors as variables in f32, and in f64.
fn variables(random: &mut Random, tensors: &[(&str, &[usize])]) -> [VarMap; 2] {
    let maps = [VarMap::new(), VarMap::new()];
    for (name, dims) in tensors {
        let tensor = random.tensor(dims, DType::F32);
        for (map, dtype) in maps.iter().zip([DType::F32, DType::F64]) {
            let variable = Var::from_tensor(&tensor.to_dtype(dtype).unwrap()).unwrap();
            map.data().lock().unwrap().insert(name.to_string(), variable);
        }
    }
    maps
}

/// Output and gradients by name of a loss that weights every output differently.
type Gradients = (Tensor, HashMap<String, Tensor>);

fn gradients(output: Tensor, variables: &HashMap<String, Var>) -> Gradients {
    let weighting = Random::new(5).tensor(output.dims(), DType::F32).to_dtype(output.dtype()).unwrap();
    let grads = (&output * weighting).unwrap().sum_all().unwrap().backward().unwrap();
    let of = |(name, variable): (&String, &Var)| (name.clone(), grads.get(variable).expect(name).clone());
    (output, variables.iter().map(of).collect())
}

fn compare(what: &str, got: &Gradients, want: &Gradients) {
    assert_close(what, &got.0, &want.0, 1e-5);
    assert_eq!(got.1.len(), want.1.len());
    for (name, gradient) in &got.1 {
        assert_close(&format!("{what}: gradient of {name}"), gradient, &want.1[name], GRADIENT);
    }
}

/// The gradients of all variables of a layer and of its input.
fn of_layer(
    layer: &MultiHeadAttention,
    map: &VarMap,
    xs: &Var,
    inputs: &AttentionInputs,
    options: &AttentionOptions,
) -> Gradients {
    let mut all = map.data().lock().unwrap().clone();
    all.insert("xs".to_string(), xs.clone());
    gradients(layer.attend_with(inputs, options).unwrap().output, &all)
}

fn load(config: &AttentionConfig, maps: &[VarMap; 2]) -> [MultiHeadAttention; 2] {
    [(&maps[0], DType::F32), (&maps[1], DType::F64)].map(|(map, dtype)| {
        MultiHeadAttention::load(config, VarBuilder::from_varmap(map, dtype, &Device::Cpu)).unwrap()
    })
}

fn inputs(random: &mut Random, dims: &[usize]) -> [Var; 2] {
    let tensor = random.tensor(dims, DType::F32);
    [DType::F32, DType::F64].map(|dtype| Var::from_tensor(&tensor.to_dtype(dtype).unwrap()).unwrap())
}

#[test]
fn every_mask_and_projection_has_the_gradients_of_f64() {
    let mut random = Random::new(41);
    for (form, config, tensors) in forms() {
        let maps = variables(&mut random, &tensors);
        let [fused, eager] = load(&config, &maps);
        for mask in masks(&mut random) {
            let (query, memory) = (inputs(&mut random, &[B, S_Q, 6]), inputs(&mut random, &[B, S_KV, 6]));
            let options = AttentionOptions::default();
            let [got, want] = [0, 1].map(|i| {
                let layer = [&fused, &eager][i];
                let inputs = AttentionInputs::cross_attention(&query[i], &memory[i], &mask);
                let backend = layer.plan(&inputs, &options).unwrap().backend;
                assert_eq!(backend, [Backend::Cpu, Backend::Eager][i]);
                of_layer(layer, &maps[i], &query[i], &inputs, &options)
            });
            compare(&format!("{form}, {mask}"), &got, &want);
        }
    }
}

/// Blocks of queries and keys, rotations, norms, biases by distance, softcaps, grouped heads, and dropout by a seed.
#[test]
fn longer_sequences_have_the_gradients_of_f64() {
    let mut random = Random::new(42);
    let base = AttentionConfig::new(24, 4).with_num_key_value_heads(2).with_dropout(0.25);
    let norm = Step::Norm(HeadNorm::new(NormKind::Rms, NormOver::Head, 1e-6).with_weighted(false));
    let steps = Steps::default().with_queries(vec![norm, Step::Rotate]).with_keys(vec![norm, Step::Rotate]);
    let configs = [
        base.clone().with_position(Rotary::default()).with_steps(steps),
        base.clone().with_position(Alibi::default()),
        base.clone().with_softcap(1.5),
        base.clone().with_mask(AttentionMask::window(Some(30), Some(0))),
    ];
    let weights: [(&str, &[usize]); 4] = [
        ("q_proj.weight", &[24, 24]),
        ("k_proj.weight", &[12, 24]),
        ("v_proj.weight", &[12, 24]),
        ("o_proj.weight", &[24, 24]),
    ];
    for config in configs {
        let config = config.with_bias(ProjectionBias::NONE);
        let maps = variables(&mut random, &weights);
        for map in &maps {
            for variable in map.all_vars() {
                variable.set(&(variable.as_tensor() * 0.3).unwrap()).unwrap();
            }
        }
        let layers = load(&config, &maps);
        let xs = inputs(&mut random, &[2, 230, 24]);
        for mask in [AttentionMask::causal(), AttentionMask::padding(&[230, 70])] {
            for options in
                [AttentionOptions::default(), AttentionOptions::default().with_train(true).with_dropout_seed(7)]
            {
                let [got, want] = [0, 1].map(|i| {
                    let inputs = AttentionInputs::self_attention(&xs[i], &mask);
                    of_layer(&layers[i], &maps[i], &xs[i], &inputs, &options)
                });
                compare(&format!("{config:?}, {mask}, train {}", options.train), &got, &want);
            }
        }
    }
}

#[test]
fn a_ragged_batch_has_the_gradients_of_its_sequences() {
    let mut random = Random::new(43);
    let lengths = [5, 1, 0, 40];
    for config in [
        AttentionConfig::new(12, 3),
        AttentionConfig::new(12, 3).with_position(Rotary::default()).with_mask(AttentionMask::causal()),
        AttentionConfig::new(12, 3).with_position(Alibi::default()),
    ] {
        let map = VarMap::new();
        let vb = VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
        let layer = MultiHeadAttention::new(&config, vb).unwrap();
        let xs = Var::from_tensor(&random.tensor(&[46, 12], DType::F32)).unwrap();
        let options = AttentionOptions::default();
        let ragged = AttentionInputs::ragged(&xs, &lengths, AttentionMask::full());
        let plan = layer.plan(&ragged, &options).unwrap();
        assert_eq!(plan.backend, Backend::Cpu);
        let got = of_layer(&layer, &map, &xs, &ragged, &options);
        let mut start = 0;
        let mut outputs = Vec::new();
        for length in lengths.into_iter().filter(|length| *length > 0) {
            let sequence = xs.narrow(0, start, length).unwrap().unsqueeze(0).unwrap();
            outputs.push(layer.forward_t(&sequence, false).unwrap().squeeze(0).unwrap());
            start += length;
        }
        let mut all = map.data().lock().unwrap().clone();
        all.insert("xs".to_string(), xs.clone());
        compare(&format!("{config:?}"), &got, &gradients(Tensor::cat(&outputs, 0).unwrap(), &all));
    }
}

/// Half types are computed in f32: their gradients are those of f64, rounded.
#[test]
fn half_types_have_gradients() {
    let mut random = Random::new(44);
    for (dtype, tolerance) in [(DType::F16, 2e-3), (DType::BF16, 1.6e-2)] {
        let tensors = [(); 3].map(|()| random.tensor(&[2, 9, 2, 8], dtype));
        let [got, want] = [dtype, DType::F64].map(|dtype| {
            let [q, k, v] = [0, 1, 2].map(|i| Var::from_tensor(&tensors[i].to_dtype(dtype).unwrap()).unwrap());
            let output = attend_bshd(&q, &k, &v, &SdpaOptions::new(AttentionMask::causal())).unwrap().output;
            let names = ["q", "k", "v"].map(str::to_string);
            gradients(output, &names.into_iter().zip([q, k, v]).collect())
        });
        assert_close("output", &got.0, &want.0, tolerance);
        for (name, gradient) in &got.1 {
            assert_eq!(gradient.dtype(), dtype);
            assert_close(name, gradient, &want.1[name], tolerance);
        }
    }
}

/// NaN and infinities in padding change no gradient.
#[test]
fn what_a_mask_hides_has_no_influence_on_gradients() {
    let mut random = Random::new(45);
    let mask = AttentionMask::lengths(&[3, 5]);
    let tensors = [(); 3].map(|()| random.tensor(&[2, 5, 2, 4], DType::F32));
    let spoiled = |tensor: &Tensor, value: f32| {
        let mut all: Vec<f32> = tensor.flatten_all().unwrap().to_vec1().unwrap();
        all[3 * 8..5 * 8].fill(value);
        Tensor::from_vec(all, tensor.dims(), &Device::Cpu).unwrap()
    };
    let run = |value: f32| {
        let [q, k, v] = [0, 1, 2].map(|i| {
            let tensor = if i == 0 { tensors[0].clone() } else { spoiled(&tensors[i], value) };
            Var::from_tensor(&tensor).unwrap()
        });
        let options = SdpaOptions::new(&mask).with_dropout(0.2).with_dropout_seed(3);
        assert_eq!(plan_for(&q, &k, &v, &options).unwrap().backend, Backend::Cpu);
        let output = attend_bshd(&q, &k, &v, &options).unwrap().output;
        let names = ["q", "k", "v"].map(str::to_string);
        gradients(output, &names.into_iter().zip([q, k, v]).collect())
    };
    let want = run(1.0);
    for value in [f32::NAN, f32::INFINITY] {
        compare(&format!("{value} in padding"), &run(value), &want);
    }
}

/// A gradient has the same bits on any number of threads.
#[test]
fn gradients_do_not_depend_on_the_number_of_threads() {
    let mut random = Random::new(46);
    let map = VarMap::new();
    let config = AttentionConfig::new(96, 6).with_num_key_value_heads(2);
    let layer = MultiHeadAttention::new(&config, VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu)).unwrap();
    let xs = Var::from_tensor(&random.tensor(&[3, 150, 96], DType::F32)).unwrap();
    let inputs = AttentionInputs::self_attention(&xs, AttentionMask::causal());
    let on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| of_layer(&layer, &map, &xs, &inputs, &AttentionOptions::default()))
    };
    let (alone, shared) = (on(1), on(4));
    assert_eq!(numbers(&alone.0), numbers(&shared.0));
    for (name, gradient) in &alone.1 {
        assert_eq!(numbers(gradient), numbers(&shared.1[name]), "{name}");
    }
}

/// Without a seed, the backward pass drops what the forward pass has dropped.
#[test]
fn dropout_without_a_seed_has_consistent_gradients() {
    let ones = |dims: [usize; 4]| Var::from_tensor(&Tensor::ones(&dims, DType::F32, &Device::Cpu).unwrap()).unwrap();
    let (q, k, v) = (ones([1, 6, 2, 8]), ones([1, 50, 2, 8]), ones([1, 50, 2, 8]));
    let run = || attend_bshd(&q, &k, &v, &SdpaOptions::new(AttentionMask::full()).with_dropout(0.5)).unwrap().output;
    let output = run();
    let grads = output.sum_all().unwrap().backward().unwrap();
    // The output is linear in the values, which are ones.
    let (sum, gradients) = (numbers(&output).iter().sum::<f64>(), numbers(grads.get(&v).unwrap()).iter().sum::<f64>());
    assert!((sum - gradients).abs() < 1e-3, "{sum} and {gradients}");
    assert!(numbers(&run()) != numbers(&output));
}

/// Scratch memory is linear in the number of tokens.
#[test]
fn memory_is_linear_in_the_length() {
    let scratch = |s: usize| {
        let q = Var::from_tensor(&Tensor::zeros((1, s, 2, 8), DType::F32, &Device::Cpu).unwrap()).unwrap();
        let plan = plan_for(&q, &q, &q, &SdpaOptions::new(AttentionMask::causal())).unwrap();
        assert_eq!(plan.backend, Backend::Cpu);
        plan.scratch_bytes
    };
    assert!(scratch(20_000) < 11 * scratch(2_000));
}

/// The biases by distance of T5 learn, too.
#[test]
fn biases_by_distance_have_the_gradients_of_f64() {
    let mut random = Random::new(47);
    let config =
        AttentionConfig::new(12, 3).with_position(T5RelativeBias::new(32, 128, true)).with_bias(ProjectionBias::NONE);
    let maps = variables(
        &mut random,
        &[
            ("q_proj.weight", &[12, 12]),
            ("k_proj.weight", &[12, 12]),
            ("v_proj.weight", &[12, 12]),
            ("o_proj.weight", &[12, 12]),
            ("relative_attention_bias.weight", &[32, 3]),
        ],
    );
    let layers = load(&config, &maps);
    let xs = inputs(&mut random, &[2, 20, 12]);
    for mask in [AttentionMask::full(), AttentionMask::padding(&[20, 9]).and(AttentionMask::causal())] {
        let options = AttentionOptions::default();
        let [got, want] = [0, 1].map(|i| {
            let inputs = AttentionInputs::self_attention(&xs[i], &mask);
            assert_eq!(layers[i].plan(&inputs, &options).unwrap().backend, [Backend::Cpu, Backend::Eager][i]);
            of_layer(&layers[i], &maps[i], &xs[i], &inputs, &options)
        });
        compare(&mask.to_string(), &got, &want);
    }
}
