//! Every parameter learns: analytic gradients against finite differences in f64, for each scoring, kind of mask and
//! form of the projections.

use std::collections::HashMap;

use candle_attention::position::{Disentangled, Position, RelativeBias2d, Rotary2d};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Factor, HeadNorm, MultiHeadAttention, NormKind,
    NormOver, ProjectionBias, Scoring, Step, Steps,
};
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};

use crate::common::{Random, numbers};

pub const B: usize = 2;
pub const S_Q: usize = 3;
pub const S_KV: usize = 5;

/// The parameters of a layer as variables.
fn variables(random: &mut Random, tensors: &[(&str, &[usize])]) -> VarMap {
    let map = VarMap::new();
    let mut data = map.data().lock().unwrap();
    for (name, dims) in tensors {
        data.insert(name.to_string(), Var::from_tensor(&random.tensor(dims, DType::F64)).unwrap());
    }
    drop(data);
    map
}

/// Name, configuration and tensors of a layer.
pub type Form = (&'static str, AttentionConfig, Vec<(&'static str, &'static [usize])>);

/// The projections of a layer of 4 query heads of 3 and 2 key-value heads of 3 and 2, in each stored form.
pub fn forms() -> Vec<Form> {
    let grouped = AttentionConfig::new(6, 4)
        .with_num_key_value_heads(2)
        .with_head_dim(3)
        .with_value_head_dim(2)
        .with_output_size(5);
    let square = AttentionConfig::new(6, 2);
    vec![
        (
            "split",
            grouped.clone(),
            vec![
                ("q_proj.weight", &[12, 6]),
                ("q_proj.bias", &[12]),
                ("k_proj.weight", &[6, 6]),
                ("k_proj.bias", &[6]),
                ("v_proj.weight", &[4, 6]),
                ("v_proj.bias", &[4]),
                ("o_proj.weight", &[5, 8]),
                ("o_proj.bias", &[5]),
            ],
        ),
        (
            "packed, with a learned and a zero key",
            square.clone().with_add_zero_attn(true),
            vec![
                ("in_proj_weight", &[18, 6]),
                ("in_proj_bias", &[18]),
                ("out_proj.weight", &[6, 6]),
                ("out_proj.bias", &[6]),
                ("bias_k", &[1, 1, 6]),
                ("bias_v", &[1, 1, 6]),
            ],
        ),
        (
            "split with a fused bias",
            square.clone(),
            vec![
                ("q_proj_weight", &[6, 6]),
                ("k_proj_weight", &[6, 6]),
                ("v_proj_weight", &[6, 6]),
                ("in_proj_bias", &[18]),
                ("out_proj.weight", &[6, 6]),
                ("out_proj.bias", &[6]),
            ],
        ),
        (
            "kernels",
            grouped.with_bias(ProjectionBias::NONE),
            vec![("W_q.kernel", &[6, 12]), ("W_k.kernel", &[6, 6]), ("W_v.kernel", &[6, 4]), ("W_o.kernel", &[8, 5])],
        ),
        (
            "kernels by head",
            square,
            vec![
                ("query.kernel", &[6, 2, 3]),
                ("query.bias", &[2, 3]),
                ("key.kernel", &[6, 2, 3]),
                ("key.bias", &[2, 3]),
                ("value.kernel", &[6, 2, 3]),
                ("value.bias", &[2, 3]),
                ("out.kernel", &[2, 3, 6]),
                ("out.bias", &[6]),
            ],
        ),
    ]
}

pub fn masks(random: &mut Random) -> Vec<AttentionMask> {
    let segments =
        |s: usize| Tensor::from_vec((0..B * s).map(|i| (i % 2) as u32).collect(), (B, s), &Device::Cpu).unwrap();
    vec![
        AttentionMask::full(),
        AttentionMask::keep(&random.booleans(&[B, 1, S_Q, S_KV], 0.6)).unwrap(),
        AttentionMask::exclude_keys(&random.booleans(&[B, S_KV], 0.3)).unwrap(),
        AttentionMask::additive_pattern(&random.tensor(&[S_Q, S_KV], DType::F64)).unwrap(),
        // The first row of the batch sees nothing.
        AttentionMask::lengths(&[0, 4]),
        AttentionMask::query_lengths(&[[0, 2, 5], [1, 3, 0]]),
        AttentionMask::causal(),
        AttentionMask::window(Some(1), Some(1)),
        AttentionMask::segments(&segments(S_Q), &segments(S_KV)).unwrap(),
        AttentionMask::causal().and(AttentionMask::lengths(&[5, 3])),
    ]
}

/// Σ output · fixed random numbers: a scalar whose gradient exercises every output differently.
fn loss(layer: &MultiHeadAttention, inputs: &AttentionInputs, weighting: &Tensor) -> Tensor {
    let output = layer.attend_with(inputs, &AttentionOptions::default()).unwrap().output;
    (output * weighting).unwrap().sum_all().unwrap()
}

/// Compares the gradient of each variable with central differences, at every element.
fn check(what: &str, variables: &HashMap<String, Var>, grads: &GradStore, loss: &dyn Fn() -> Tensor) {
    const STEP: f64 = 1e-5;
    for (name, variable) in variables {
        let grad = grads.get(variable).unwrap_or_else(|| panic!("{what}: `{name}` has no gradient"));
        let (grad, start) = (numbers(grad), variable.copy().unwrap());
        let values = numbers(&start);
        for i in 0..values.len() {
            let moved = |by: f64| {
                let mut values = values.clone();
                values[i] += by;
                variable.set(&Tensor::from_vec(values, start.dims(), &Device::Cpu).unwrap()).unwrap();
                loss().to_scalar::<f64>().unwrap()
            };
            let difference = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
            let error = (grad[i] - difference).abs();
            assert!(error <= 1e-7 + 1e-6 * difference.abs(), "{what}: `{name}`[{i}]: {} against {difference}", grad[i]);
        }
        variable.set(&start).unwrap();
    }
}

#[test]
fn finite_differences_for_each_scoring_mask_and_projection() {
    let mut random = Random::new(7);
    for scoring in [Scoring::ScaledDotProduct, Scoring::Additive] {
        for (form, config, mut tensors) in forms() {
            let config = config.with_scoring(scoring);
            let score = [config.num_attention_heads, config.resolved_head_dim()];
            if scoring == Scoring::Additive {
                tensors.push(("score.weight", &score));
            }
            let map = variables(&mut random, &tensors);
            let vb = VarBuilder::from_varmap(&map, DType::F64, &Device::Cpu);
            let layer = MultiHeadAttention::load(&config, vb).unwrap();
            for mask in masks(&mut random) {
                let what = format!("{scoring:?}, {form}, {mask}");
                let query = Var::from_tensor(&random.tensor(&[B, S_Q, 6], DType::F64)).unwrap();
                let memory = Var::from_tensor(&random.tensor(&[B, S_KV, 6], DType::F64)).unwrap();
                let weighting = random.tensor(&[B, S_Q, config.resolved_output_size()], DType::F64);
                let inputs = AttentionInputs::cross_attention(&query, &memory, &mask);
                let loss = || loss(&layer, &inputs, &weighting);
                let grads = loss().backward().unwrap();
                let mut all = map.data().lock().unwrap().clone();
                all.insert("query".to_string(), query.clone());
                all.insert("memory".to_string(), memory.clone());
                check(&what, &all, &grads, &loss);
            }
        }
    }
}

/// Self-attention with a packed weight is a separate path: one product, whose result is split.
#[test]
fn packed_self_attention_has_finite_difference_gradients() {
    let mut random = Random::new(11);
    let (_, config, tensors) = forms().swap_remove(1);
    let map = variables(&mut random, &tensors);
    let layer = MultiHeadAttention::load(&config, VarBuilder::from_varmap(&map, DType::F64, &Device::Cpu)).unwrap();
    let xs = Var::from_tensor(&random.tensor(&[B, S_Q, 6], DType::F64)).unwrap();
    let weighting = random.tensor(&[B, S_Q, 6], DType::F64);
    let mask = AttentionMask::causal();
    let inputs = AttentionInputs::self_attention(&xs, &mask);
    let loss = || loss(&layer, &inputs, &weighting);
    let grads = loss().backward().unwrap();
    let mut all = map.data().lock().unwrap().clone();
    all.insert("xs".to_string(), xs.clone());
    check("packed self-attention", &all, &grads, &loss);
}

/// Attention between channels, of pooled queries, and of cosines with a factor per head and a bias that a network makes.
#[test]
fn reshaped_and_cosine_attention_have_finite_difference_gradients() {
    let mut random = Random::new(13);
    let cosine = || HeadNorm::new(NormKind::Rms, NormOver::Head, 1e-24).with_weighted(false);
    let steps = Steps::default()
        .with_queries(vec![Step::Norm(cosine()), Step::Factor(Factor::Exp { max: 4.6 })])
        .with_keys(vec![Step::Norm(cosine())]);
    let computed = RelativeBias2d::new([2, 2], false).with_computed([3, 3]);
    let plain = AttentionConfig::new(6, 2);
    let network: Vec<(&'static str, &'static [usize])> = vec![
        ("logit_scale", &[2, 1, 1]),
        ("cpb_mlp.0.weight", &[512, 2]),
        ("cpb_mlp.0.bias", &[512]),
        ("cpb_mlp.2.weight", &[2, 512]),
    ];
    let forms: [Form; 3] = [
        ("channels", plain.clone().with_between_channels(true), vec![]),
        ("pooled queries", plain.clone().with_query_pool(2), vec![]),
        ("cosines", plain.with_scale(1.0 / 3.0).with_steps(steps).with_position(computed), network),
    ];
    for (what, config, own) in forms {
        let queries = if config.query_pool().is_some() { 1 } else { 4 };
        let parts =
            ["q_proj", "k_proj", "v_proj", "o_proj"].map(|part| [format!("{part}.weight"), format!("{part}.bias")]);
        let projections = parts
            .iter()
            .flat_map(|[weight, bias]| [(weight.as_str(), [6, 6].as_slice()), (bias.as_str(), [6].as_slice())]);
        let map = variables(&mut random, &projections.chain(own.iter().copied()).collect::<Vec<_>>());
        let layer = MultiHeadAttention::load(&config, VarBuilder::from_varmap(&map, DType::F64, &Device::Cpu)).unwrap();
        let xs = Var::from_tensor(&random.tensor(&[B, 4, 6], DType::F64)).unwrap();
        let weighting = random.tensor(&[B, queries, 6], DType::F64);
        let mask = AttentionMask::full();
        let inputs = AttentionInputs::self_attention(&xs, &mask);
        let loss = || loss(&layer, &inputs, &weighting);
        let grads = loss().backward().unwrap();
        let mut all = map.data().lock().unwrap().clone();
        // Of the many numbers of the network, those that a step of theirs does not switch on or off.
        all.retain(|name, variable| !name.starts_with("cpb_mlp.0") || grads.get(variable).is_none());
        all.insert("xs".to_string(), xs.clone());
        check(what, &all, &grads, &loss);
        let causal = AttentionMask::causal();
        let masked = AttentionInputs::self_attention(&xs, &causal);
        let masked = layer.attend_with(&masked, &AttentionOptions::default());
        assert_eq!(masked.is_err(), own.is_empty(), "{what}");
    }
}

/// The weights of position schemes get gradients, and so do the projections; also if the rows of a fused weight are
/// reordered at each call.
#[test]
fn position_weights_have_finite_difference_gradients() {
    let mut random = Random::new(12);
    let table = Position::RelativeBias2d(RelativeBias2d::new([1, 2], true));
    let forms: [Form; 4] = [
        (
            "disentangled, fused by head",
            AttentionConfig::new(6, 2).with_position(Position::Disentangled(Disentangled::new(2))),
            vec![
                ("self.in_proj.weight", &[18, 6]),
                ("self.q_bias", &[6]),
                ("self.v_bias", &[6]),
                ("self.pos_proj.weight", &[6, 6]),
                ("self.pos_q_proj.weight", &[6, 6]),
                ("self.pos_q_proj.bias", &[6]),
                ("rel_embeddings.weight", &[4, 6]),
                ("output.dense.weight", &[6, 6]),
                ("output.dense.bias", &[6]),
            ],
        ),
        (
            "disentangled, by the layer's own projections",
            AttentionConfig::new(6, 2).with_position(Position::Disentangled(
                Disentangled::new(5).with_position_buckets(2).with_share_att_key(true).with_norm_eps(0.01),
            )),
            vec![
                ("self.query_proj.weight", &[6, 6]),
                ("self.query_proj.bias", &[6]),
                ("self.key_proj.weight", &[6, 6]),
                ("self.key_proj.bias", &[6]),
                ("self.value_proj.weight", &[6, 6]),
                ("self.value_proj.bias", &[6]),
                ("rel_embeddings.weight", &[4, 6]),
                ("rel_embeddings.LayerNorm.weight", &[6]),
                ("rel_embeddings.LayerNorm.bias", &[6]),
                ("output.dense.weight", &[6, 6]),
                ("output.dense.bias", &[6]),
            ],
        ),
        (
            "a table of offsets",
            AttentionConfig::new(6, 2).with_position(table),
            vec![
                ("qkv.weight", &[18, 6]),
                ("q_bias", &[6]),
                ("v_bias", &[6]),
                ("proj.weight", &[6, 6]),
                ("proj.bias", &[6]),
                ("relative_position_bias_table", &[6, 2]),
            ],
        ),
        (
            "rotations of patches",
            AttentionConfig::new(8, 2).with_position(Position::Rotary2d(Rotary2d::new(20.0).with_grid([1, 2]))),
            vec![
                ("q_proj.weight", &[8, 8]),
                ("k_proj.weight", &[8, 8]),
                ("v_proj.weight", &[8, 8]),
                ("o_proj.weight", &[8, 8]),
            ],
        ),
    ];
    for (what, config, tensors) in forms {
        let map = variables(&mut random, &tensors);
        let vb = VarBuilder::from_varmap(&map, DType::F64, &Device::Cpu);
        let layer = MultiHeadAttention::load(&config, vb).unwrap();
        let width = config.hidden_size;
        let xs = Var::from_tensor(&random.tensor(&[B, S_Q, width], DType::F64)).unwrap();
        let weighting = random.tensor(&[B, S_Q, width], DType::F64);
        let mask = AttentionMask::full();
        let inputs = AttentionInputs::self_attention(&xs, &mask);
        let loss = || loss(&layer, &inputs, &weighting);
        let grads = loss().backward().unwrap();
        let mut all = map.data().lock().unwrap().clone();
        all.insert("xs".to_string(), xs.clone());
        check(what, &all, &grads, &loss);
    }
}

/// An additive mask can be trained, such as a relative position bias.
#[test]
fn additive_masks_get_gradients() {
    let mut random = Random::new(8);
    let map = VarMap::new();
    let vb = VarBuilder::from_varmap(&map, DType::F64, &Device::Cpu);
    let layer = MultiHeadAttention::new(&AttentionConfig::new(6, 2), vb).unwrap();
    let bias = Var::from_tensor(&random.tensor(&[1, 2, S_Q, S_Q], DType::F64)).unwrap();
    let mask = AttentionMask::causal().and(AttentionMask::additive(&bias).unwrap());
    let (xs, weighting) = (random.tensor(&[B, S_Q, 6], DType::F64), random.tensor(&[B, S_Q, 6], DType::F64));
    let inputs = AttentionInputs::self_attention(&xs, &mask);
    let loss = || loss(&layer, &inputs, &weighting);
    let grads = loss().backward().unwrap();
    check("learned bias", &HashMap::from([("bias".to_string(), bias.clone())]), &grads, &loss);
}

/// A query with all keys masked gives zeros and zero gradients in every dtype, never NaN.
#[test]
fn fully_masked_rows_have_zero_gradients() {
    let mut random = Random::new(9);
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        for scoring in [Scoring::ScaledDotProduct, Scoring::Additive] {
            let map = VarMap::new();
            let vb = VarBuilder::from_varmap(&map, dtype, &Device::Cpu);
            let config = AttentionConfig::new(8, 2).with_scoring(scoring).with_bias(ProjectionBias::NONE);
            let layer = MultiHeadAttention::new(&config, vb).unwrap();
            let xs = Var::from_tensor(&random.tensor(&[2, 4, 8], dtype)).unwrap();
            let mask = AttentionMask::lengths(&[0, 3]);
            let output = layer.attend(&xs, &xs, &xs, &mask).unwrap();
            assert!(numbers(&output.narrow(0, 0, 1).unwrap()).iter().all(|n| *n == 0.0));
            let grads = output.sqr().unwrap().sum_all().unwrap().backward().unwrap();
            let grad = grads.get(&xs).unwrap();
            assert!(numbers(&grad.narrow(0, 0, 1).unwrap()).iter().all(|n| *n == 0.0));
            assert!(numbers(&grad.narrow(0, 1, 1).unwrap()).iter().any(|n| *n != 0.0));
            for (name, variable) in map.data().lock().unwrap().iter() {
                let grad = numbers(grads.get(variable).unwrap());
                assert!(grad.iter().all(|n| n.is_finite()), "{name} {dtype:?}");
                assert!(grad.iter().any(|n| *n != 0.0), "{name} {dtype:?}");
            }
        }
    }
}

/// Training by gradient descent lowers the loss, for a layer loaded from a checkpoint: nothing is cut off, and the
/// layer sees the new values.
#[test]
fn gradient_descent_trains_a_loaded_layer() {
    use candle_nn::Optimizer;
    let checkpoint = crate::common::Golden::open("torch_mha.safetensors").0;
    let map = checkpoint.to_varmap("packed.layer", DType::F32, &Device::Cpu).unwrap();
    assert_eq!(map.all_vars().len(), 4);
    let vb = VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu).pp("packed.layer");
    let layer = MultiHeadAttention::load(&AttentionConfig::new(24, 4), vb).unwrap();
    let mut random = Random::new(10);
    let (xs, target) = (random.tensor(&[3, 5, 24], DType::F32), random.tensor(&[3, 5, 24], DType::F32));
    let loss = || (layer.forward_t(&xs, true).unwrap() - &target).unwrap().sqr().unwrap().mean_all().unwrap();
    let before = loss().to_scalar::<f32>().unwrap();
    let mut optimizer = candle_nn::AdamW::new_lr(map.all_vars(), 0.01).unwrap();
    for _ in 0..60 {
        optimizer.backward_step(&loss()).unwrap();
    }
    let after = loss().to_scalar::<f32>().unwrap();
    assert!(after < before * 0.2, "{before} → {after}");
}
