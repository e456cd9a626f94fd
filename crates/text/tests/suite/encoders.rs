//! Families related to BERT, as whole models, against transformers (`tests/golden/encoders.py`).

use std::path::Path;

use candle_attention::checkpoint::Checkpoint;
use candle_attention::{AttentionMask, Error};
use candle_attention_text::{TextModel, TextModelConfig};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use serde_json::{Value, json};

use crate::common::{Random, assert_close, fixture, max_diff, numbers, says};

const CPU: Device = Device::Cpu;
/// Two layers, each to 1e-5.
const MODEL: f64 = 2e-5;

pub fn load(folder: &Path) -> Result<TextModel, Error> {
    let config = TextModelConfig::from_file(folder.join("config.json"))?;
    TextModel::load(&config, Checkpoint::open(folder)?.at("", DType::F32, &CPU))
}

/// What a family's golden file holds.
pub struct Case {
    ids: Tensor,
    types: Option<Tensor>,
    lengths: Vec<usize>,
    want: Tensor,
}

impl Case {
    fn new(folder: &Path) -> Self {
        Self::read(folder, "hidden")
    }

    /// The case whose hidden states have this name.
    pub fn read(folder: &Path, name: &str) -> Self {
        let golden = Checkpoint::open(folder.join("golden.safetensors")).unwrap();
        let get = |name: &str, dtype| golden.tensor(name, &CPU).unwrap().to_dtype(dtype).unwrap();
        let lengths = get("lengths", DType::I64).to_vec1::<i64>().unwrap();
        Self {
            ids: get("ids", DType::U32),
            types: golden.contains("types").then(|| get("types", DType::U32)),
            lengths: lengths.iter().map(|&n| n as usize).collect(),
            want: get(name, DType::F32),
        }
    }

    /// A row without its padding.
    fn tokens(&self, t: &Tensor, row: usize) -> Tensor {
        t.get(row).unwrap().narrow(0, 0, self.lengths[row]).unwrap()
    }

    fn flat(&self, t: &Tensor) -> Tensor {
        Tensor::cat(&(0..self.lengths.len()).map(|row| self.tokens(t, row)).collect::<Vec<_>>(), 0).unwrap()
    }

    pub fn check(&self, name: &str, model: &TextModel) {
        let mask = AttentionMask::lengths(&self.lengths);
        let got = model.forward(&self.ids, self.types.as_ref(), &mask).unwrap();
        assert_close(name, &self.flat(&got), &self.flat(&self.want), MODEL);
    }

    /// Without padding: the same, and a text's hidden states are bitwise those that it has alone.
    pub fn check_ragged(&self, name: &str, model: &TextModel) {
        assert!(model.supports_ragged(), "{name}");
        let numbers = |t: &Tensor| t.to_vec1::<u32>().unwrap();
        let ids = numbers(&self.flat(&self.ids));
        let types = self.types.as_ref().map_or_else(|| vec![0; ids.len()], |types| numbers(&self.flat(types)));
        let got = model.forward_ragged(&ids, &types, &self.lengths).unwrap();
        assert_close(&format!("{name}, ragged"), &got, &self.flat(&self.want), MODEL);
        let mut start = 0;
        for &length in &self.lengths {
            let own = start..start + length;
            let alone = model.forward_ragged(&ids[own.clone()], &types[own], &[length]).unwrap();
            assert_eq!(max_diff(&alone, &got.narrow(0, start, length).unwrap()), 0.0, "{name}");
            start += length;
        }
    }
}

pub fn encoder(name: &str) {
    let folder = fixture(&format!("encoders/{name}"));
    let (model, case) = (load(&folder).unwrap(), Case::new(&folder));
    case.check(name, &model);
    case.check_ragged(name, &model);
    let too_long = Tensor::ones((1, model.config().max_tokens() + 1), DType::U32, &CPU).unwrap();
    says(model.forward(&too_long, None, &AttentionMask::full()), &["ids has shape", "by max_position_embeddings"]);
}

/// A copy of a family's folder with some keys of the configuration removed and others put in.
pub fn changed(name: &str, without: &[&str], with: Value) -> tempfile::TempDir {
    let (from, to) = (fixture(&format!("encoders/{name}")), tempfile::tempdir().unwrap());
    std::fs::copy(from.join("model.safetensors"), to.path().join("model.safetensors")).unwrap();
    let text = std::fs::read_to_string(from.join("config.json")).unwrap();
    let Value::Object(mut keys) = serde_json::from_str(&text).unwrap() else { panic!("no object") };
    keys.retain(|key, _| !without.contains(&key.as_str()));
    keys.extend(with.as_object().unwrap().clone());
    std::fs::write(to.path().join("config.json"), Value::Object(keys).to_string()).unwrap();
    to
}

/// As transformers wrote it before its fifth version, and as it is published.
#[test]
fn modernbert_with_older_config_keys_gives_the_same_states() {
    let earlier = json!({
        "global_attn_every_n_layers": 2, "global_rope_theta": 400.0, "local_rope_theta": 40.0,
        "layer_norm_eps": 1e-3, "position_embedding_type": "absolute",
    });
    let folder = changed("modernbert", &["layer_types", "rope_parameters"], earlier);
    let (model, case) = (load(folder.path()).unwrap(), Case::new(&fixture("encoders/modernbert")));
    case.check("earlier", &model);
    case.check_ragged("earlier", &model);

    let short = changed("modernbert", &[], json!({"layer_types": ["full_attention"]}));
    says(load(short.path()), &["layer_types = 1 kinds", "one for each of 3 layers"]);
}

/// Keys that the config class does not have are ignored, as in transformers; not where the file names code of its own.
#[test]
fn keys_that_no_config_class_knows_give_the_same_states() {
    let strange = json!({"num_key_value_heads": 1, "head_dim": 77, "sliding_window": 2});
    let case = Case::new(&fixture("encoders/electra"));
    case.check("ignored", &load(changed("electra", &[], strange.clone()).path()).unwrap());
    let mut own_code = strange;
    own_code["auto_map"] = json!({"AutoModel": "modeling_own.OwnModel"});
    assert!(load(changed("electra", &[], own_code).path()).is_err());
}

/// The keys of Nomic's own code, as nomic-embed-text has them.
#[test]
fn nomic_with_its_own_config_keys_gives_the_same_states() {
    let theirs = [
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "layer_norm_eps",
        "hidden_act",
        "rope_parameters",
        "head_dim",
        "pad_token_id",
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
    ];
    let own = json!({
        "n_embd": 16, "n_layer": 2, "n_head": 4, "n_inner": 22, "n_positions": 40, "max_position_embeddings": 20,
        "layer_norm_epsilon": 1e-3, "activation_function": "swiglu", "rotary_emb_base": 50, "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": false, "rotary_emb_scale_base": null, "rotary_scaling_factor": null, "prenorm": false,
        "causal": false, "parallel_block": false, "use_rms_norm": false, "qkv_proj_bias": false, "mlp_fc1_bias": false,
        "mlp_fc2_bias": false, "resid_pdrop": 0.0, "attn_pdrop": 0.0, "pad_token_id": null,
    });
    let case = Case::new(&fixture("encoders/nomic_bert"));
    let with = |key: &str, value: Value| {
        let mut own = own.clone();
        own[key] = value;
        changed("nomic_bert", &theirs, own)
    };
    let model = load(with("causal", json!(false)).path()).unwrap();
    assert_eq!(model.config().max_tokens(), 40);
    case.check("own words", &model);
    case.check_ragged("own words", &model);
    // Texts no longer than those of the training are as without scaling; longer ones are not.
    case.check_ragged("short", &load(with("rotary_scaling_factor", json!(2)).path()).unwrap());
    let mut scaled = own.clone();
    (scaled["rotary_scaling_factor"], scaled["max_trained_positions"]) = (json!(2), json!(5));
    let folder = changed("nomic_bert", &theirs, scaled);
    let (scaled, ids) = (load(folder.path()).unwrap(), vec![3, 9, 5, 7, 8, 6]);
    let run = |model: &TextModel, length| model.forward_ragged(&ids[..length], &vec![0; length], &[length]).unwrap();
    assert_eq!(max_diff(&run(&scaled, 5), &run(&model, 5)), 0.0);
    assert!(max_diff(&run(&scaled, 6), &run(&model, 6)) > 1e-3);

    for (key, value) in [("prenorm", json!(true)), ("causal", json!(true)), ("rotary_emb_scale_base", json!(512.0))] {
        says(load(with(key, value).path()), &[&format!("{key} = "), "expected false, or absent"]);
    }
    says(load(with("moe_every_n_layers", json!(2)).path()), &["moe_every_n_layers = 2"]);
    says(load(with("activation_function", json!("relu")).path()), &["activation_function = relu", "swiglu or geglu"]);
    // Nomic's models without gates have other tensors.
    says(load(with("activation_function", json!("gelu")).path()), &["encoder.layers.0.mlp.fc1"]);
}

/// Gated, pre-norm and rotary models learn, too: each parameter gets a gradient.
#[test]
fn every_parameter_gets_a_gradient() {
    for name in [
        "modernbert",
        "nomic_bert",
        "gte",
        "mpnet",
        "deberta",
        "deberta_v2",
        "qwen3",
        "gemma3_text",
        "embedding_gemma2_text",
        "lfm2",
        "t5",
    ] {
        every_parameter_learns(name);
    }
}

pub fn every_parameter_learns(name: &str) {
    let (folder, case) = (fixture(&format!("encoders/{name}")), Case::new(&fixture(&format!("encoders/{name}"))));
    let config = TextModelConfig::from_file(folder.join("config.json")).unwrap();
    let map = Checkpoint::open(&folder).unwrap().to_varmap("", DType::F64, &CPU).unwrap();
    let model = TextModel::load(&config, VarBuilder::from_varmap(&map, DType::F64, &CPU)).unwrap();
    assert!(!model.supports_ragged(), "{name}");
    let mask = AttentionMask::lengths(&case.lengths);
    let hidden = model.forward(&case.ids, case.types.as_ref(), &mask).unwrap();
    let weighting = Random::new(41).tensor(hidden.dims(), DType::F64);
    let grads = (hidden * weighting).unwrap().sum_all().unwrap().backward().unwrap();
    for (name, variable) in map.data().lock().unwrap().iter().filter(|(name, _)| !name.starts_with("pooler")) {
        let grad = numbers(grads.get(variable).unwrap_or_else(|| panic!("`{name}` has no gradient")));
        // The bias of a key moves all scores of a query alike.
        assert!(name.ends_with("k.bias") || grad.iter().any(|n| n.abs() > 1e-6), "`{name}` has a zero gradient");
    }
}

/// What this version does not run of DeBERTa and of GTE's own code is refused.
#[test]
fn other_deberta_and_gte_models_are_refused() {
    let with = |name: &str, key: &str, value: Value| load(changed(name, &[], json!({ key: value })).path());
    says(with("deberta_v2", "conv_kernel_size", json!(3)), &["conv_kernel_size = 3", "expected false, or absent"]);
    says(with("deberta", "embedding_size", json!(4)), &["embedding_size = 4", "expected hidden_size = 8"]);
    says(with("deberta", "position_biased_input", json!(3)), &["position_biased_input = 3", "true or false"]);
    says(with("deberta_v2", "position_biased_input", json!(true)), &["embeddings.position_embeddings.weight"]);
    says(with("deberta_v2", "position_buckets", json!(8)), &["encoder.rel_embeddings.weight", "[16, 8]"]);
    says(with("new", "layer_norm_type", json!("rms_norm")), &["layer_norm_type", "rms_norm"]);
    says(with("new", "position_embedding_type", json!("absolute")), &["position_embedding_type", "absolute"]);
    says(with("new", "logn_attention_scale", json!(true)), &["logn_attention_scale = true"]);
    says(with("new_ntk", "rope_scaling", json!({"type": "ntk"})), &["factor"]);
    says(with("new_ntk", "rope_scaling", json!({"type": "ntk", "factor": -1.0})), &["rope_scaling factor = -1"]);
    says(with("new_ntk", "rope_scaling", json!({"type": "ntk", "factor": 2.0, "mixed_b": 1e308})), &["rope_scaling"]);
    // Only GTE's own code has this scaling.
    says(with("gte", "rope_parameters", json!({"rope_type": "ntk", "factor": 2.0})), &["rope_type", "ntk"]);
}

/// Padding inside a text: it has the padding's position, and the tokens after it count on.
#[test]
fn padding_inside_a_text_keeps_the_padding_position() {
    let model = load(&fixture("encoders/roberta")).unwrap();
    let ids = [3u32, 1, 5, 7];
    let padded = model.forward(&Tensor::new(&[ids], &CPU).unwrap(), None, &AttentionMask::full()).unwrap();
    let ragged = model.forward_ragged(&ids, &[0; 4], &[4]).unwrap();
    assert_close("both ways", &padded.get(0).unwrap(), &ragged, MODEL);
    let want = [
        [-0.3889194f32, 0.1243723, -0.4650373, 0.6397806],
        [-0.8262174, -0.1129375, -0.374878, 0.7956419],
        [0.5587558, 0.4159004, -0.1735985, 0.001876733],
        [-1.76456, 0.2700588, -0.4384697, 0.3950292],
    ];
    assert_close("transformers", &ragged.narrow(1, 0, 4).unwrap(), &Tensor::new(&want, &CPU).unwrap(), MODEL);
}

macro_rules! encoders {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            encoder(stringify!($name));
        }
    )*};
}

encoders! {
    roberta
    xlm_roberta
    electra
    distilbert
    mpnet
    albert
    modernbert
    nomic_bert
    jina_embeddings_v3
    gte
    new
    new_ntk
    new_mixed_ntk
    deberta
    deberta_v2
    qwen3
    qwen2
    mistral
    llama
    gemma3_text
    embedding_gemma2_text
    eurobert
    lfm2
    t5
    t5_gated
    mt5
    umt5
}
