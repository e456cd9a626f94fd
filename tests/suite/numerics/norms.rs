//! The norms that train: values and gradients against PyTorch (`tests/golden/norms.py`), and what is refused.

use std::collections::HashMap;

use candle_attention::norm::{self, Norm};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Error, HeadNorm, MultiHeadAttention, NormKind,
    NormOver, ProjectionBias,
};
use candle_core::{DType, Device, Module, Tensor, Var};
use candle_nn::{LayerNormConfig, VarBuilder, VarMap};

use crate::common::{Golden, Random, SEED, assert_close, assert_within, max_diff, numbers, says};

const CPU: Device = Device::Cpu;
const EPS: f64 = 1e-5;
/// Rounding in f32 of numbers up to 10, whose mean is far from zero.
const F32: f64 = 5e-6;
const CASES: [&str; 4] = ["layer", "layer_no_bias", "rms", "rms_offset"];

/// The norm of a case, of these parameters.
fn of_case(case: &str, weight: Tensor, bias: Option<Tensor>) -> Norm {
    let kind = match case {
        "rms" => NormKind::Rms,
        "rms_offset" => NormKind::RmsOffset,
        _ => NormKind::Layer,
    };
    assert_eq!(bias.is_some(), case == "layer");
    Norm::new(kind, weight, bias, EPS).unwrap()
}

#[test]
fn values_and_gradients_equal_those_of_pytorch() {
    let golden = Golden::open("norms.safetensors");
    for case in CASES {
        let get = |name: &str| golden.try_get(&format!("{case}.{name}"));
        let variable = |name: &str| get(name).map(|tensor| Var::from_tensor(&tensor).unwrap());
        let (xs, weight, bias) = (variable("xs").unwrap(), variable("weight").unwrap(), variable("bias"));
        let tensor = |variable: &Var| variable.as_tensor().clone();
        let norm = of_case(case, tensor(&weight), bias.as_ref().map(tensor));
        let ys = norm.forward(&xs).unwrap();
        assert_within(case, &ys, &get("ys").unwrap(), F32);
        let grads = (ys * get("factors").unwrap()).unwrap().sum_all().unwrap().backward().unwrap();
        for (name, variable) in [("grad_xs", Some(&xs)), ("grad_weight", Some(&weight)), ("grad_bias", bias.as_ref())] {
            let Some(variable) = variable else { continue };
            let grad = grads.get(variable).unwrap_or_else(|| panic!("{case}: {name} is lost"));
            assert_within(&format!("{case} {name}"), grad, &get(name).unwrap(), F32);
        }

        // Without variables a fused kernel runs. It rounds a half type once.
        let bias = get("bias");
        let frozen = of_case(case, get("weight").unwrap(), bias.clone());
        assert_within(case, &frozen.forward(&xs.as_detached_tensor()).unwrap(), &get("ys").unwrap(), F32);
        for (dtype, unit) in [(DType::F16, 1e-3), (DType::BF16, 8e-3)] {
            let cast = |tensor: Tensor| tensor.to_dtype(dtype).unwrap();
            let half = of_case(case, cast(get("weight").unwrap()), bias.clone().map(cast));
            let wide = |tensor: Tensor| cast(tensor).to_dtype(DType::F64).unwrap();
            let exact = of_case(case, wide(get("weight").unwrap()), bias.clone().map(wide));
            let want = exact.forward(&wide(get("xs").unwrap())).unwrap();
            for input in
                [cast(get("xs").unwrap()), Var::from_tensor(&cast(get("xs").unwrap())).unwrap().as_tensor().clone()]
            {
                let ys = half.forward(&input).unwrap();
                assert_eq!(ys.dtype(), dtype);
                assert_close(&format!("{case} in {dtype:?}"), &ys, &want, unit);
            }
        }
    }
}

/// In f64, where finite differences are exact enough to hold every gradient.
#[test]
fn gradients_equal_finite_differences() {
    let mut random = Random::new(3);
    for case in CASES {
        let mut variable = |dims: &[usize]| Var::from_tensor(&random.tensor(dims, DType::F64)).unwrap();
        let (xs, weight, bias) = (variable(&[2, 3, 5]), variable(&[5]), variable(&[5]));
        let with_bias = case == "layer";
        let norm = of_case(case, weight.as_tensor().clone(), with_bias.then(|| bias.as_tensor().clone()));
        let factors = random.tensor(&[2, 3, 5], DType::F64);
        let loss = || (norm.forward(&xs).unwrap() * &factors).unwrap().sum_all().unwrap();
        let grads = loss().backward().unwrap();
        for variable in [&xs, &weight, &bias].into_iter().take(if with_bias { 3 } else { 2 }) {
            let (start, grad) = (variable.copy().unwrap(), numbers(grads.get(variable).unwrap()));
            for (i, grad) in grad.iter().enumerate() {
                let moved = |by: f64| {
                    let mut values = numbers(&start);
                    values[i] += by;
                    variable.set(&Tensor::from_vec(values, start.dims(), &CPU).unwrap()).unwrap();
                    loss().to_scalar::<f64>().unwrap()
                };
                let difference = (moved(1e-5) - moved(-1e-5)) / 2e-5;
                variable.set(&start).unwrap();
                assert!((grad - difference).abs() < 1e-7 + 1e-6 * grad.abs(), "{case}[{i}]: {grad}, {difference}");
            }
        }
    }
}

#[test]
fn layer_norm_keeps_gradients_and_precision() {
    let var = |numbers: &[f64]| Var::new(numbers, &CPU).unwrap();
    let (weight, bias) = (var(&[1.0, 2.0, 0.5]), var(&[0.0, 1.0, -1.0]));
    let layer_norm =
        |weight: &Tensor, bias: &Tensor, eps| Norm::new(NormKind::Layer, weight.clone(), Some(bias.clone()), eps);
    let norm = layer_norm(&weight, &bias, 0.0).unwrap();
    let xs = Var::new(&[[1f64, 2.0, 6.0]], &CPU).unwrap();
    let ys = norm.forward(&xs).unwrap();
    // By hand: mean 3, centered -2 -1 3, variance 14/3.
    let sd = (14f64 / 3.0).sqrt();
    let want = Tensor::new(&[[-2.0 / sd, -2.0 / sd + 1.0, 1.5 / sd - 1.0]], &CPU).unwrap();
    assert_close("layer norm", &ys, &want, 1e-14);
    let grads = ys.sum_all().unwrap().backward().unwrap();
    assert_eq!(numbers(grads.get(&bias).unwrap()), [1.0, 1.0, 1.0]);
    assert!(grads.get(&weight).is_some() && grads.get(&xs).is_some());
    // A mean that is large against the spread: a variance by difference of squares would be lost in f32.
    let [ones, zeros] = [Tensor::ones(4, DType::F32, &CPU), Tensor::zeros(4, DType::F32, &CPU)].map(Result::unwrap);
    let norm = layer_norm(&ones, &zeros, 1e-12);
    let ys = norm.unwrap().forward(&Tensor::new(&[[10000f32, 10001.0, 10002.0, 10003.0]], &CPU).unwrap()).unwrap();
    let want = Tensor::new(&[[-1.3416407f32, -0.4472136, 0.4472136, 1.3416407]], &CPU).unwrap();
    assert_close("offset", &ys, &want, 1e-6);
    let narrow = Tensor::zeros((2, 1), DType::F64, &CPU).unwrap();
    let norm = layer_norm(&weight, &bias, 0.0).unwrap();
    says(norm.forward(&narrow), &["the input of layer norm has shape [2, 1]", "(…, 3)"]);
    says(layer_norm(&xs, &bias, 1e-5), &["layer norm weight has shape [1, 3]"]);
}

#[test]
fn new_norms_have_a_factor_of_one_and_the_names_of_candle() {
    let map = VarMap::new();
    let vb = VarBuilder::from_varmap(&map, DType::F32, &CPU);
    let xs = Random::new(4).tensor(&[2, 6], DType::F32);
    let layer = norm::layer_norm(6, EPS, vb.pp("layer")).unwrap();
    let mean_free = layer.forward(&xs).unwrap();
    assert_within(
        "layer",
        &mean_free,
        &norm::layer_norm_no_bias(6, EPS, vb.pp("no_bias")).unwrap().forward(&xs).unwrap(),
        0.0,
    );
    let rms = norm::rms_norm(6, EPS, vb.pp("rms")).unwrap().forward(&xs).unwrap();
    let offset = norm::rms_norm_offset(6, EPS, vb.pp("offset")).unwrap();
    assert_within("offset", &offset.forward(&xs).unwrap(), &rms, 0.0);
    // What candle's configuration says besides eps.
    let config = LayerNormConfig { remove_mean: false, affine: false, eps: EPS };
    let like_rms = norm::layer_norm(6, config, vb.pp("plain")).unwrap();
    assert!(like_rms.bias().is_none());
    assert_within("without the mean", &like_rms.forward(&xs).unwrap(), &rms, 0.0);
    let mut names: Vec<String> = map.data().lock().unwrap().keys().cloned().collect();
    names.sort();
    let all = ["layer.bias", "layer.weight", "no_bias.weight", "offset.weight", "plain.weight", "rms.weight"];
    assert_eq!(names, all);

    // Early checkpoints, by both ways of loading.
    let early = [("gamma", 2f32), ("beta", 1.0)].map(|(name, x)| (name.to_string(), Tensor::full(x, 6, &CPU).unwrap()));
    let vb = VarBuilder::from_tensors(early.into_iter().collect(), DType::F32, &CPU);
    let want = ((mean_free * 2.0).unwrap() + 1.0).unwrap();
    for norm in [Norm::load(NormKind::Layer, true, 6, EPS, &vb).unwrap(), norm::layer_norm(6, EPS, vb.clone()).unwrap()]
    {
        assert_within("gamma and beta", &norm.forward(&xs).unwrap(), &want, SEED);
    }
}

/// As frozen layers, they are snapshots.
#[test]
fn frozen_norms_track_nothing_and_stay_as_they_are() {
    let map = VarMap::new();
    let vb = VarBuilder::from_varmap(&map, DType::F32, &CPU);
    let layer = norm::layer_norm(6, EPS, vb.pp("layer")).unwrap();
    let rms = norm::rms_norm(6, EPS, vb.pp("rms")).unwrap();
    let (frozen_layer, frozen_rms) = (layer.frozen().unwrap(), rms.frozen().unwrap());
    let xs = Random::new(5).tensor(&[2, 6], DType::F32);
    let pairs: [(&dyn Module, &dyn Module); 2] = [(&frozen_layer, &layer), (&frozen_rms, &rms)];
    let before = pairs.map(|(frozen, learning)| {
        let (ys, want) = (frozen.forward(&xs).unwrap(), learning.forward(&xs).unwrap());
        assert!(!ys.track_op() && want.track_op());
        assert_within("frozen", &ys, &want, SEED);
        ys
    });
    for variable in map.all_vars() {
        variable.set(&Tensor::full(3f32, 6, &CPU).unwrap()).unwrap();
    }
    for ((frozen, learning), before) in pairs.into_iter().zip(before) {
        assert_within("frozen", &frozen.forward(&xs).unwrap(), &before, 0.0);
        assert!(max_diff(&learning.forward(&xs).unwrap(), &before) > 0.5);
    }
}

#[test]
fn wrong_norms_and_inputs_are_named() {
    let ones = |dims: &[usize]| Tensor::ones(dims, DType::F32, &CPU).unwrap();
    let rms_norm = |weight: Tensor, eps: f64| Norm::new(NormKind::Rms, weight, None, eps);
    says(Norm::new(NormKind::Layer, ones(&[3]), Some(ones(&[4])), EPS), &["layer norm bias has shape [4]", "[3]"]);
    says(rms_norm(ones(&[3, 1]), EPS), &["RMS norm weight has shape [3, 1]", "(size)"]);
    says(rms_norm(ones(&[3]).to_dtype(DType::U8).unwrap(), EPS), &["RMS norm weight has dtype u8"]);
    for eps in [-1e-5, f64::NAN, f64::INFINITY, 1e300] {
        says(rms_norm(ones(&[3]), eps), &["RMS norm eps is", "a finite number from 0"]);
    }
    let norm = rms_norm(ones(&[3]), EPS).unwrap();
    says(norm.forward(&ones(&[2, 4])), &["the input of RMS norm has shape [2, 4]", "(…, 3)"]);
    let failed = norm.forward(&ones(&[2, 3]).to_dtype(DType::U32).unwrap()).unwrap_err();
    assert!(matches!(Error::find_in(&failed), Some(Error::DType { .. })), "{failed}");
    let empty = VarBuilder::from_tensors(Default::default(), DType::F32, &CPU);
    says(Norm::load(NormKind::Layer, true, 3, EPS, &empty.pp("ln_1")), &["tensor `ln_1.weight` is missing"]);
    says(norm::rms_norm(3, EPS, empty.pp("ln_1")), &["ln_1.weight"]);
    for size in [0, 1 << 60] {
        let zeros = VarBuilder::zeros(DType::F32, &CPU);
        says(norm::rms_norm(size, EPS, zeros), &["the size of RMS norm is", "1 to 16777216"]);
    }
    assert_eq!(norm.forward(&ones(&[0, 3])).unwrap().dims(), [0, 3]);
    // A view is normalized like its copy.
    let wide = Random::new(6).tensor(&[3, 8], DType::F32);
    let view = wide.narrow(1, 2, 3).unwrap();
    assert_eq!(max_diff(&norm.forward(&view).unwrap(), &norm.forward(&view.contiguous().unwrap()).unwrap()), 0.0);
}

/// `clip_qkv` limits what the norm of queries and keys gets: with a limit below all of them only their signs are left.
#[test]
fn queries_and_keys_are_clipped_before_their_norms() {
    let mut random = Random::new(31);
    let weight = |random: &mut Random| random.tensor(&[8, 8], DType::F32);
    let weights = ["q", "k", "v", "o"].map(|name| (format!("{name}_proj.weight"), weight(&mut random)));
    let one = Tensor::ones(8, DType::F32, &CPU).unwrap();
    let norms = ["q_norm.weight", "k_norm.weight"].map(|name| (name.to_string(), one.clone()));
    let tensors: HashMap<String, Tensor> = weights.clone().into_iter().chain(norms).collect();
    let norm = HeadNorm::new(NormKind::Rms, NormOver::Head, 1e-15);
    let config = AttentionConfig::new(8, 1).with_bias(ProjectionBias::NONE).with_qk_norm(norm).with_clip_qkv(1e-4);
    let layer = MultiHeadAttention::load(&config, VarBuilder::from_tensors(tensors, DType::F32, &CPU)).unwrap();

    let xs = random.tensor(&[1, 5, 8], DType::F32);
    let signs = |i: usize| {
        let projected = xs.squeeze(0).unwrap().matmul(&weights[i].1.t().unwrap()).unwrap();
        assert!(numbers(&projected).iter().all(|number| number.abs() > 1e-4));
        projected.ge(0.0).unwrap().to_dtype(DType::F32).unwrap().affine(2.0, -1.0).unwrap()
    };
    let scores = (signs(0).matmul(&signs(1).t().unwrap()).unwrap() / 8f64.sqrt()).unwrap();
    let want = candle_nn::ops::softmax_last_dim(&scores).unwrap();
    let options = AttentionOptions::default().with_return_attention_weights(true);
    let inputs = AttentionInputs::self_attention(&xs, AttentionMask::full());
    let got = layer.attend_with(&inputs, &options).unwrap().attention_weights.unwrap();
    assert_close("weights of signs", &got.reshape((5, 5)).unwrap(), &want, 1e-5);
}
