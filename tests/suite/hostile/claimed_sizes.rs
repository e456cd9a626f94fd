//! Sizes from files and configurations that would cost time or memory out of proportion, and layers without heads.

use std::collections::{BTreeMap, HashMap};

use candle_attention::checkpoint::{Checkpoint, ModelConfig, layouts, write_layers};
use candle_attention::position::T5RelativeBias;
use candle_attention::{AttentionConfig, MultiHeadAttention};
use candle_core::{DType, Device, Module, Tensor};
use serde_json::{Value, json};

use crate::checkpoints::inspect::sparse;
use crate::common::{Random, numbers, says};

const CPU: Device = Device::Cpu;

fn problem(tensors: &[(String, Vec<usize>)], json: &Value) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    sparse(&path, tensors);
    let layers = Checkpoint::open(&path).unwrap().attention_layers(Some(ModelConfig::new(json)));
    assert_eq!(layers.len(), 1, "{layers:?}");
    layers[0].problem.clone()
}

fn named(tensors: &[(&str, &[usize])]) -> Vec<(String, Vec<usize>)> {
    tensors.iter().map(|(name, shape)| (name.to_string(), shape.to_vec())).collect()
}

/// Kernels, biases and norms of 8 to 64 GiB of holes: what a reshape or a stack would copy.
#[test]
fn layers_of_holes_are_inspected_without_their_memory() {
    const N: usize = 1 << 16;
    let json = json!({"model_type": "bert", "num_attention_heads": 16});
    let (into, out, wide): (&[usize], &[usize], &[usize]) = (&[N, 16, N / 16], &[16, N / 16, N], &[16, N / 16]);
    for (names, o, kernel, o_kernel, bias) in [
        (["query", "key", "value"], "out", into, out, wide),
        (["query", "key", "value"], "attention_output", into, out, wide),
        (["self.query", "self.key", "self.value"], "output.dense", &[N, N], &[N, N], &[N]),
        (["W_q", "W_k", "W_v"], "W_o", &[N, N], &[N, N], &[N]),
    ] {
        let mut tensors = Vec::new();
        for name in names {
            tensors.extend(named(&[(&format!("l.{name}.kernel"), kernel), (&format!("l.{name}.bias"), bias)]));
        }
        tensors.extend(named(&[(&format!("l.{o}.kernel"), o_kernel), (&format!("l.{o}.bias"), &[N])]));
        // The others are layouts of libraries, which no family has.
        match problem(&tensors, &json) {
            None => assert_eq!(o, "output.dense"),
            Some(problem) => assert!(o != "output.dense" && problem.contains("the layout of"), "{problem}"),
        }
    }
    // XLNet's, whose projection of positions is a kernel, too.
    let xlnet: [(&str, &[usize]); 9] = [
        ("l.q", into),
        ("l.k", into),
        ("l.v", into),
        ("l.o", into),
        ("l.r", into),
        ("l.r_w_bias", wide),
        ("l.r_r_bias", wide),
        ("l.r_s_bias", wide),
        ("l.seg_embed", &[2, 16, N / 16]),
    ];
    assert_eq!(problem(&named(&xlnet), &json!({"model_type": "xlnet", "n_head": 16})), None);
    // A bias of 2^33 elements beside weights of as many rows.
    const ROWS: usize = 1 << 33;
    let torch = named(&[
        ("l.in_proj_weight", &[3 << 23, 1]),
        ("l.out_proj.weight", &[1, 1 << 23]),
        ("l.bias_k", &[1, 1, ROWS]),
        ("l.bias_v", &[1, 1, ROWS]),
    ]);
    let wrong = problem(&torch, &json!({"model_type": "clip_vision_model", "num_attention_heads": 16})).unwrap();
    assert!(wrong.contains("l.bias_k") || wrong.contains("bias"), "{wrong}");
    // One norm per head: 2 heads of 2^23 elements are copied, 4 are too many.
    for (heads, said) in [(2, None), (4, Some("at most 16777216 elements"))] {
        let d = 1 << 23;
        let json = json!({"model_type": "stablelm", "num_attention_heads": heads, "qk_layernorm": true,
            "rope_parameters": {"partial_rotary_factor": 1e-6, "rope_theta": 1e4}});
        let mut tensors = named(&[
            ("layers.0.self_attn.q_proj.weight", &[heads * d, 1]),
            ("layers.0.self_attn.k_proj.weight", &[heads * d, 1]),
            ("layers.0.self_attn.v_proj.weight", &[heads * d, 1]),
            ("layers.0.self_attn.o_proj.weight", &[1, heads * d]),
        ]);
        for (head, of) in (0..heads).flat_map(|head| ["q", "k"].map(|of| (head, of))) {
            tensors.push((format!("layers.0.self_attn.{of}_layernorm.norms.{head}.weight"), vec![d]));
        }
        let got = problem(&tensors, &json);
        assert_eq!(got.is_none(), said.is_none(), "{got:?}");
        assert!(said.is_none_or(|said| got.as_ref().unwrap().contains(said)), "{got:?}");
    }
}

#[test]
fn heads_and_rotated_elements_have_limits() {
    let projections = |rows: usize| {
        named(&[
            ("layers.0.self_attn.q_proj.weight", &[rows, 1]),
            ("layers.0.self_attn.k_proj.weight", &[rows, 1]),
            ("layers.0.self_attn.v_proj.weight", &[rows, 1]),
            ("layers.0.self_attn.o_proj.weight", &[1, rows]),
        ])
    };
    let llama = |heads: usize| {
        json!({"model_type": "llama", "num_attention_heads": heads,
            "rope_scaling": {"rope_type": "linear", "factor": 2.0}})
    };
    let says = |got: Option<String>, part: &str| assert!(got.as_ref().is_some_and(|got| got.contains(part)), "{got:?}");
    assert_eq!(problem(&projections(4096), &llama(1)), None);
    says(problem(&projections(1 << 24), &llama(1)), "rotary dim = 16777216 is not allowed");
    says(problem(&projections(4098), &llama(1)), "at most 4096");
    assert_eq!(problem(&projections(8192), &llama(4096)), None);
    says(problem(&projections(8194), &llama(4097)), "num_attention_heads = 4097 is not allowed: expected at most 4096");
    let buckets = AttentionConfig::new(8, 2).with_position(T5RelativeBias::new((1 << 20) + 1, 1 << 30, true));
    says(buckets.validate().err().map(|e| e.to_string()), "relative_attention_num_buckets = 1048577");
}

fn projections(rows: usize) -> HashMap<String, Tensor> {
    let names = ["q_proj", "k_proj", "v_proj", "o_proj"];
    names
        .map(|name| {
            (format!("layers.0.self_attn.{name}.weight"), Tensor::ones((rows, rows), DType::F32, &CPU).unwrap())
        })
        .into()
}

fn saved(tensors: &HashMap<String, Tensor>) -> Checkpoint {
    let bytes = safetensors::serialize(tensors.iter().collect::<BTreeMap<_, _>>(), None).unwrap();
    Checkpoint::from_bytes(bytes).unwrap()
}

/// Sets of rotary parameters inside sets: each level was once read twice, 2^100 times in all.
#[test]
fn nested_sets_of_rotary_parameters_are_read_once() {
    let checkpoint = saved(&projections(8));
    for key in ["rope_scaling", "rope_parameters"] {
        let nested = (0..100).fold(json!({"rope_type": "default", "rope_theta": 1e4}), |inner, _| json!({key: inner}));
        let json = json!({"model_type": "llama", "num_attention_heads": 2, key: nested});
        assert!(checkpoint.attention_with("layers.0.self_attn", &json, DType::F32, &CPU).is_ok());
    }
    let wrong = json!({"model_type": "llama", "num_attention_heads": 2, "rope_scaling": {"factor": "2"}});
    says(
        checkpoint.attention_with("layers.0.self_attn", &wrong, DType::F32, &CPU),
        &["config key `factor`", "a number"],
    );
}

#[test]
fn pruned_heads_that_are_no_heads_are_errors() {
    let checkpoint = saved(&projections(8));
    let load = |pruned: Value| {
        let json = json!({"model_type": "jamba", "num_attention_heads": 4, "pruned_heads": {"0": pruned}});
        checkpoint.attention_with("layers.0.self_attn", &json, DType::F32, &CPU)
    };
    assert_eq!(load(json!([3, 1])).unwrap().layer.config().num_attention_heads, 2);
    says(load(json!([1, 1])), &["config key `pruned_heads`", "each head once"]);
    says(load(json!([4])), &["config key `pruned_heads`", "heads below 4"]);
    says(load(json!([-1])), &["config key `pruned_heads`", "heads below 4"]);
    says(load(json!({})), &["config key `pruned_heads`", "a list of heads for each layer"]);
    says(load(json!((0..100_000).collect::<Vec<_>>())), &["config key `pruned_heads`", "more characters"]);
}

/// A layer of a file all of whose heads are pruned, in every order of fused rows.
#[test]
fn layers_of_files_without_heads_load() {
    let (zeros, d) = (|dims: &[usize]| Tensor::zeros(dims, DType::F32, &CPU).unwrap(), 24);
    let bias = Random::new(5).tensor(&[d], DType::F32);
    for (model, qkv, o) in [
        ("gpt_neox", "query_key_value", "dense"),
        ("bloom", "query_key_value", "dense"),
        ("falcon", "query_key_value", "dense"),
        ("codegen", "qkv_proj", "out_proj"),
        ("gpt_bigcode", "c_attn", "c_proj"),
    ] {
        let prefix = "h.0.attention";
        let tensors: HashMap<String, Tensor> = [
            (format!("{prefix}.{qkv}.weight"), zeros(&[0, d])),
            (format!("{prefix}.{qkv}.bias"), zeros(&[0])),
            (format!("{prefix}.{o}.weight"), zeros(&[d, 0])),
            (format!("{prefix}.{o}.bias"), bias.clone()),
        ]
        .into_iter()
        .filter(|(name, _)| model != "codegen" || !name.ends_with("bias"))
        .collect();
        let checkpoint = saved(&tensors);
        let json = json!({"model_type": model, "num_attention_heads": 1, "num_heads": 1, "n_head": 1, "rotary_dim": 8,
            "pruned_heads": {"0": [0]}});
        let json = if model == "codegen" {
            json
        } else {
            let mut json = json;
            json.as_object_mut().unwrap().remove("rotary_dim");
            json
        };
        let said = checkpoint.attention_layers(Some(ModelConfig::new(&json)))[0].problem.clone();
        match checkpoint.attention_with(prefix, &json, DType::F32, &CPU) {
            Ok(model) => {
                assert_eq!(said, None);
                let output = model.forward(&zeros(&[1, 2, d])).unwrap();
                let want = if tensors.len() == 4 { [numbers(&bias), numbers(&bias)].concat() } else { vec![0.0; 48] };
                assert_eq!(numbers(&output), want);
            }
            Err(error) => assert_eq!(said, Some(error.to_string()), "{model}"),
        }
    }
}

/// A layer that lost all its heads, written in every layout that holds it.
#[test]
fn layers_without_heads_are_written_in_every_layout() {
    let folder = tempfile::tempdir().unwrap();
    let mut written = Vec::new();
    for bias in [candle_attention::ProjectionBias::ALL, candle_attention::ProjectionBias::NONE] {
        let config = AttentionConfig::new(8, 2).with_bias(bias);
        let vb = candle_nn::VarBuilder::from_varmap(&candle_nn::VarMap::new(), DType::F32, &CPU);
        let layer = MultiHeadAttention::new(&config, vb).unwrap().prune_heads(&[0, 1]).unwrap();
        let (weights, config) = (layer.weights().unwrap(), layer.config());
        let want = numbers(&layer.forward(&Tensor::ones((1, 3, 8), DType::F32, &CPU).unwrap()).unwrap());
        for layout in layouts() {
            let file = folder.path().join("layer.safetensors");
            if write_layers(&file, &[("some.layer", &weights, config)], layout, HashMap::new()).is_err() {
                continue;
            }
            let read = Checkpoint::open(&file).unwrap();
            let again = MultiHeadAttention::load(config, read.at("some.layer", DType::F32, &CPU)).unwrap();
            let got = numbers(&again.forward(&Tensor::ones((1, 3, 8), DType::F32, &CPU).unwrap()).unwrap());
            assert_eq!(got, want, "{}", layout.name());
            written.push(layout.name());
        }
    }
    for name in ["bert", "flax", "keras", "d2l", "d2l-kernel", "neox", "codegen", "gpt2", "gpt-bigcode", "mpt"] {
        assert!(written.contains(&name), "{name}: {written:?}");
    }
}

/// Its configuration is one of a new layer, too.
#[test]
fn a_new_layer_may_have_no_heads() {
    let vb = || candle_nn::VarBuilder::from_varmap(&candle_nn::VarMap::new(), DType::F32, &CPU);
    let config = AttentionConfig::new(8, 2).with_add_bias_kv(true);
    let pruned = MultiHeadAttention::new(&config, vb()).unwrap().prune_heads(&[0, 1]).unwrap();
    let new = MultiHeadAttention::new(pruned.config(), vb()).unwrap();
    let output = new.forward(&Tensor::ones((1, 3, 8), DType::F32, &CPU).unwrap()).unwrap();
    assert_eq!(numbers(&output), vec![0.0; 24]);
}
