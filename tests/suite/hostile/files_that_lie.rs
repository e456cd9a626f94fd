//! Checkpoints and configurations that lie: an error that names the tensor or the key, or the right answer. What the
//! fuzz targets (`fuzz/`) found is here as small cases.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

use candle_attention::checkpoint::{Checkpoint, ModelConfig};
use candle_attention::position::{Alibi, AlibiSlopes, Disentangled};
use candle_attention::weights::NormWeights;
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Error, HeadNorm, KvCache, MultiHeadAttention,
    NormKind, NormOver, Position,
};
use candle_core::{DType, Device, Module, Tensor};
use candle_nn::{VarBuilder, VarMap};
use serde_json::{Value, json};

use crate::common::{Random, family, family_config, says};

const CPU: Device = Device::Cpu;

/// Writes a file of this header and `data` bytes.
fn write(path: &Path, header: &str, data: &[u8]) {
    std::fs::write(path, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()).unwrap();
}

/// Opens a file of this header and as many zeros.
fn open(header: &str, data: usize) -> candle_attention::Result<Checkpoint> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    write(&path, header, &vec![0; data]);
    Checkpoint::open(path)
}

#[test]
fn inconsistent_header_error_names_the_tensor() {
    let entry = |name: &str, dtype: &str, shape: &str, from: usize, to: usize| {
        format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{from},{to}]}}"#)
    };
    let file = |entries: &[String], data: usize| open(&format!("{{{}}}", entries.join(",")), data);
    let a = entry("a", "F32", "[2,2]", 0, 16);
    let b = |from: usize, to: usize| entry("b", "F32", "[2]", from, to);
    assert_eq!(file(&[b(16, 24), a.clone()], 24).unwrap().names().collect::<Vec<_>>(), ["a", "b"]);
    let says = |entries: &[String], parts: &[&str]| {
        let named = ["model.safetensors: not a valid safetensors file"];
        says(file(entries, 24), &[&named, parts].concat());
    };
    says(&[a.clone(), b(8, 16)], &["`b`", "offset"]); // they overlap
    says(&[a.clone(), b(20, 24)], &["`b`", "its data goes from 20 to 24, but F32 [2] has 64 bits"]);
    says(&[a.clone(), b(24, 16)], &["`b`", "from 24 to 16"]);
    says(&[a.clone(), b(1 << 40, (1 << 40) + 8)], &["`b`", "ends at 1099511627784, the file's at 24"]);
    says(&[a.clone(), entry("b", "Q7", "[2]", 16, 24)], &["tensor `b`", "unknown variant `Q7`"]);
    says(&[a.clone(), entry("b", "F32", "[-2]", 16, 24)], &["tensor `b`", "`-2`"]);
    says(&[a.clone(), entry("b", "F32", "[4294967296,4294967296]", 16, 24)], &["`b`", "larger than any memory"]);
    // No numbers, but their strides overflow.
    says(&[a.clone(), entry("b", "F32", "[0,4294967296,4294967296]", 16, 16)], &["`b`", "larger than any memory"]);
    says(&[a.clone(), a.clone()], &["tensor `a` is listed twice"]);
    says(&[a.clone(), entry("a", "F32", "[4,1]", 0, 16)], &["tensor `a` is listed twice"]);
    let empty = file(&[a, entry("b", "F32", "[0,3]", 16, 16)], 16).unwrap();
    assert_eq!(empty.tensor("b", &CPU).unwrap().dims(), [0, 3]);
}

#[test]
fn null_metadata_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    write(&path, r#"{"__metadata__":null}"#, &[]);
    let checkpoint = Checkpoint::open(path).unwrap();
    assert_eq!((checkpoint.names().count(), checkpoint.metadata().len()), (0, 0));
}

#[test]
fn index_with_duplicates_or_without_end_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let index = folder.path().join("model.safetensors.index.json");
    std::fs::write(&index, r#"{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}"#).unwrap();
    says(Checkpoint::open(folder.path()), &["not an index", "tensor `a` is listed twice"]);
    // In an index this is a name like others.
    write(&folder.path().join("x.safetensors"), "{}", &[]);
    std::fs::write(&index, r#"{"weight_map": {"__metadata__": "x.safetensors"}}"#).unwrap();
    says(Checkpoint::open(folder.path()), &["tensor `__metadata__`", "`x.safetensors`", "does not hold it"]);
    std::fs::write(&index, "[".repeat(100_000)).unwrap();
    says(Checkpoint::open(folder.path()), &["not an index", "line 1"]);
    File::create(&index).unwrap().set_len(1 << 40).unwrap();
    says(
        Checkpoint::open(folder.path()),
        &["index.json: the file has 1099511627776 bytes, expected at most 100000000"],
    );
}

/// Every format in which a file can hold NaN, one number of each.
#[test]
fn nan_is_reported_in_every_float_format() {
    let numbers: [(&str, &[u8], &[u8]); 9] = [
        ("F64", &1e300f64.to_le_bytes(), &f64::NAN.to_le_bytes()),
        ("F32", &f32::MAX.to_le_bytes(), &f32::INFINITY.to_le_bytes()),
        ("F16", &[0xff, 0x7b], &[0x00, 0x7c]),
        ("BF16", &[0x7f, 0x7f], &[0x80, 0xff]),
        ("F8_E5M2", &[0x7b], &[0xfd]),
        ("F8_E4M3", &[0x7e], &[0xff]),
        ("F8_E8M0", &[0xfe], &[0xff]),
        ("F8_E4M3FNUZ", &[0x7f], &[0x80]),
        ("I32", &[0, 0, 0x80, 0x7f], &[]),
    ];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    for (dtype, finite, not) in numbers {
        for (data, found) in [(finite, &[] as &[&str]), (not, &["a.w"])] {
            if data.is_empty() {
                continue;
            }
            let info = json!({"dtype": dtype, "shape": [1], "data_offsets": [0, data.len()]});
            write(&path, &json!({"a.w": info}).to_string(), data);
            assert_eq!(Checkpoint::open(&path).unwrap().non_finite("a").unwrap(), found, "{dtype}");
        }
    }
}

fn projections(number: f32) -> HashMap<String, Tensor> {
    let names = ["q_proj", "k_proj", "v_proj", "o_proj"];
    names.map(|name| (format!("{name}.weight"), Tensor::full(number, (8, 8), &CPU).unwrap())).into()
}

fn saved(tensors: &HashMap<String, Tensor>, prefix: &str) -> (tempfile::TempDir, Checkpoint) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let named: HashMap<String, Tensor> =
        tensors.iter().map(|(name, tensor)| (format!("{prefix}.{name}"), tensor.clone())).collect();
    candle_core::safetensors::save(&named, &path).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    (folder, checkpoint)
}

/// NaN is a number like others to the layer: it is loaded, and shows in the output.
#[test]
fn nan_weights_load_and_give_nan() {
    let (_folder, checkpoint) = saved(&projections(f32::NAN), "layer");
    let layer =
        MultiHeadAttention::load(&AttentionConfig::new(8, 2), checkpoint.at("layer", DType::F32, &CPU)).unwrap();
    let output = layer.forward(&Tensor::ones((1, 3, 8), DType::F32, &CPU).unwrap()).unwrap();
    assert!(output.flatten_all().unwrap().to_vec1::<f32>().unwrap().iter().all(|number| number.is_nan()));
    assert_eq!(checkpoint.non_finite("layer").unwrap().len(), 4);
}

/// Numbers that no model can have are refused by the name of their key.
#[test]
fn extreme_configuration_values_are_errors() {
    let (_folder, checkpoint) = saved(&projections(0.1), "layers.0.self_attn");
    let load = |json: &Value| checkpoint.attention_with("layers.0.self_attn", json, DType::F32, &CPU);
    let llama = |key: &str, value: Value| {
        // A family that reads the key.
        let model_type = match key {
            "query_pre_attn_scalar" | "attn_logit_softcapping" => "gemma2",
            "attention_multiplier" => "granite",
            "clip_qkv" => "olmo",
            "rotary_dim" => "gptj",
            _ => "llama",
        };
        let mut json = json!({"model_type": model_type, "num_attention_heads": 2, "max_position_embeddings": 64});
        json[key] = value;
        json
    };
    assert!(load(&llama("rope_theta", json!(1.0))).is_ok());
    for (key, value, part) in [
        ("num_attention_heads", json!(1u64 << 60), "num_attention_heads = 1152921504606846976"),
        ("num_attention_heads", json!(0), "num_attention_heads = 0"),
        ("num_key_value_heads", json!(u64::MAX), "num_key_value_heads = 18446744073709551615"),
        ("head_dim", json!(1u64 << 63), "head_dim = 9223372036854775808"),
        ("hidden_size", json!(1e30), "config key `hidden_size`"),
        ("rope_theta", json!(0), "rope_theta = 0"),
        ("rope_theta", json!(1e-300), "rope_theta"),
        ("rope_theta", json!(-1e4), "rope_theta = -10000"),
        ("rotary_dim", json!(u64::MAX), "rotary dim = 18446744073709551615"),
        ("rotary_dim", json!(2.5), "config key `rotary_dim` is 2.5, expected a whole number"),
        ("query_pre_attn_scalar", json!(0), "scale = inf"),
        ("query_pre_attn_scalar", json!(-1), "scale = NaN"),
        ("attention_multiplier", json!(1e300), "scale ="),
        ("attn_logit_softcapping", json!(-1), "softcap = -1"),
        ("attn_logit_softcapping", json!(1e-300), "softcap = "),
        ("clip_qkv", json!(0), "clip_qkv = 0"),
        ("rope_scaling", json!({"rope_type": "linear", "factor": 0}), "rope_scaling factor = 0"),
        ("rope_scaling", json!({"rope_type": "linear", "factor": 1e-300}), "rope_scaling = "),
        ("rope_scaling", json!({"rope_type": "linear", "factor": -2}), "rope_scaling factor = -2"),
        ("rope_scaling", json!({"rope_type": "yarn", "factor": 2, "beta_slow": -1}), "rope_scaling beta_slow = -1"),
        ("rope_scaling", json!({"rope_type": "yarn", "factor": 2, "attention_factor": 1e300}), "attention_factor"),
        (
            "rope_scaling",
            json!({"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}),
            "rope_scaling low_freq_factor = 4 is not allowed: expected from 0 to 4, high_freq_factor",
        ),
        ("rope_scaling", json!({"rope_type": "?"}), "config key `rope_type` is ?"),
    ] {
        says(load(&llama(key, value)), &[part]);
    }
    let mpt = json!({"model_type": "mpt", "num_attention_heads": 2, "attn_config": {"alibi_bias_max": -1e300}});
    says(load(&mpt), &["config key `attn_config.alibi_bias_max` is -1e+300"]);
    let shared = Position::Disentangled(Disentangled::new(4).with_share_att_key(true));
    let narrow = AttentionConfig::new(8, 2).with_key_size(6).with_position(shared.clone());
    says(narrow.validate(), &["key_size = 6", "hidden_size = 8 if share_att_key is set"]);
    let grouped = AttentionConfig::new(8, 2).with_num_key_value_heads(1).with_position(shared);
    says(grouped.validate(), &["num_key_value_heads = 1", "disentangled"]);
    let slopes = Alibi::default().with_slopes(AlibiSlopes::Given(vec![0.5, f64::NAN]));
    says(AttentionConfig::new(8, 2).with_position(Position::Alibi(slopes)).validate(), &["a slope of NaN"]);
    // Sizes of images that make tables and grids of them overflow.
    let huge = |model: &str| {
        json!({"model_type": model, "num_attention_heads": 2, "image_size": u64::MAX, "patch_size": 1,
        "num_register_tokens": u64::MAX})
    };
    let (mut beit, mut dino) = (huge("beit"), huge("dinov3_vit"));
    beit["use_shared_relative_position_bias"] = json!(true);
    dino["rope_theta"] = json!(1e-300);
    beit["num_attention_heads"] = family_config(&family("vit"))["num_attention_heads"].clone();
    let beit = family("vit").attention_with("encoder.layer.0.attention", &beit, DType::F32, &CPU);
    says(beit, &["the grid of patches = 18446744073709551615"]);
    says(load(&dino), &["rope_theta"]);
    for json in [json!(null), json!([]), json!("llama"), json!({"text_config": 3}), json!({"num_attention_heads": {}})]
    {
        says(load(&json), &["model_type"]);
    }
}

/// A configuration that is large in a way that none is costs no more time than reading it.
#[test]
fn many_sections_and_long_names_are_errors() {
    let (_folder, checkpoint) = saved(&projections(0.1), "layers.0.self_attn");
    let load = |json: &Value| checkpoint.attention_with("layers.0.self_attn", json, DType::F32, &CPU);
    let section = json!({"model_type": "llama", "num_attention_heads": 2});
    let many: serde_json::Map<String, Value> =
        (0..100_000).map(|i| (format!("part{i}_config"), section.clone())).collect();
    says(load(&Value::Object(many)), &["100000 sections", "at most 64"]);
    let long = "llama".repeat(1 << 20);
    match load(&json!({"model_type": long, "num_attention_heads": 2})) {
        Err(Error::UnknownFamily { model_type: Some(name), near }) => assert!(name == long && near.is_empty()),
        other => panic!("{:?}", other.map(drop)),
    }
}

/// What keeps a layer from being loaded is found without reading its data.
#[test]
fn inspect_reports_the_error_that_loading_gives() {
    // Of a later version, whose classes are not known, so that a bias is no contradiction.
    let json = json!({"model_type": "llama", "num_attention_heads": 2, "transformers_version": "6.0.0"});
    for (name, tensor) in [
        ("v_proj.weight", Tensor::zeros((8, 8), DType::I64, &CPU).unwrap()),
        ("o_proj.bias", Tensor::zeros(7, DType::F32, &CPU).unwrap()),
        ("sinks", Tensor::zeros(3, DType::F32, &CPU).unwrap()),
    ] {
        let mut tensors = projections(0.1);
        tensors.insert(name.to_string(), tensor);
        let (_folder, checkpoint) = saved(&tensors, "layer");
        let error = checkpoint.attention_with("layer", &json, DType::F32, &CPU).map(drop).unwrap_err().to_string();
        assert!(error.contains(&format!("tensor `layer.{name}`")), "{error}");
        assert_eq!(checkpoint.attention_layers(Some(ModelConfig::new(&json)))[0].problem.as_ref(), Some(&error));
    }
    let (_folder, checkpoint) = saved(&projections(0.1), "layer");
    assert_eq!(checkpoint.attention_layers(Some(ModelConfig::new(&json)))[0].problem, None);
    let mpnet = json!({"model_type": "mpnet", "num_attention_heads": 2, "transformers_version": "6.0.0"});
    let problem = checkpoint.attention_layers(Some(ModelConfig::new(&mpnet)))[0].problem.clone().unwrap();
    assert!(problem.contains("relative_attention_bias.weight` is missing"), "{problem}");
}

/// The largest sizes of windows, and layer numbers beyond any, mean what they say.
#[test]
fn largest_windows_and_layer_numbers_do_not_overflow() {
    let json = |model: &str| json!({"model_type": model, "num_attention_heads": 2, "sliding_window": u64::MAX, "transformers_version": "6.0"});
    let xs = Random::new(80).tensor(&[1, 3, 8], DType::F32);
    for (prefix, model) in [
        ("layers.0.self_attn", "mistral"),
        ("layers.18446744073709551615.self_attn", "gemma2"),
        ("layers.4294967295.self_attn", "gemma3_text"),
    ] {
        let (_folder, checkpoint) = saved(&projections(0.1), prefix);
        let model = checkpoint.attention_with(prefix, &json(model), DType::F32, &CPU).unwrap();
        let got = model.layer.attend(&xs, &xs, &xs, model.mask()).unwrap();
        let want = model.layer.attend(&xs, &xs, &xs, AttentionMask::causal()).unwrap();
        assert_eq!(got.to_vec3::<f32>().unwrap(), want.to_vec3::<f32>().unwrap(), "{prefix}");
        assert_eq!(checkpoint.attention_layers(Some(ModelConfig::new(&json!({})))).len(), 1);
    }
}

#[test]
fn norms_of_wrong_shape_are_errors() {
    let norm = |over| HeadNorm::new(NormKind::Rms, over, 1e-6);
    let config = AttentionConfig::new(8, 4).with_num_key_value_heads(2);
    let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &CPU);
    let weights = MultiHeadAttention::new(&config, vb).unwrap().weights().unwrap();
    let ones = |dims: &[usize]| Tensor::ones(dims, DType::F32, &CPU).unwrap();
    let make = |over, q: Tensor, k: Tensor, bias: Option<Tensor>| {
        let weights = weights.clone().with_norm("q_norm", NormWeights::new(q, bias));
        let weights = weights.with_norm("k_norm", NormWeights::new(k, None));
        MultiHeadAttention::from_weights(&config.clone().with_qk_norm(norm(over)), weights)
    };
    let (head, all) = (NormOver::Head, NormOver::AllHeads);
    assert!(make(head, ones(&[2]), ones(&[2]), Some(ones(&[2]))).is_ok());
    assert!(make(head, ones(&[4, 2]), ones(&[2, 2]), None).is_ok());
    assert!(make(all, ones(&[8]), ones(&[4]), None).is_ok());
    says(make(head, ones(&[1]), ones(&[2]), None), &["q_norm.weight has shape [1], expected [2] or [4, 2]"]);
    says(make(head, ones(&[4, 2]), ones(&[4, 2]), None), &["k_norm.weight has shape [4, 2], expected [2] or [2, 2]"]);
    says(make(head, ones(&[2]), ones(&[2]), Some(ones(&[3]))), &["q_norm.bias has shape [3], expected [2] or [4, 2]"]);
    says(make(all, ones(&[8]), ones(&[8]), None), &["k_norm.weight has shape [8], expected [4]"]);
    let half = ones(&[2]).to_dtype(DType::F16).unwrap();
    says(make(head, half, ones(&[2]), None), &["q_norm.weight has dtype f16, expected f32"]);
    for eps in [-1e-5, f64::NAN, f64::INFINITY] {
        let norm = HeadNorm::new(NormKind::Rms, head, eps);
        says(config.clone().with_qk_norm(norm).validate(), &["steps of queries: eps", "a finite number from 0"]);
    }
}

#[test]
fn rotating_cache_of_window_zero_is_an_error() {
    let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &CPU);
    let layer = MultiHeadAttention::new(&AttentionConfig::new(8, 2), vb).unwrap();
    let xs = Tensor::ones((1, 3, 8), DType::F32, &CPU).unwrap();
    let mask = AttentionMask::full();
    let inputs = AttentionInputs::self_attention(&xs, &mask);
    let called = layer.attend_with(&inputs.with_cache(&mut KvCache::rotating(0)), &AttentionOptions::default());
    says(called, &["the window of a rotating cache is 0, expected at least 1"]);
}
