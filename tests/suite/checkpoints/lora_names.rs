//! LoRA adapters: the modules that a configuration names, their ranks and factors, and names of tensors, as PEFT has
//! them. `tests/suite/with_models/lora.rs` compares whole models.

use std::collections::BTreeMap;

use candle_attention::Result;
use candle_attention::checkpoint::{Checkpoint, WeightSource};
use candle_attention::io::write_tensors;
use candle_attention::lora::{LoraAdapter, LoraBias, LoraConfig, LoraTasks, TargetModules};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;

use crate::common::{numbers, says};

const QUERY: &str = "encoder.layer.1.attention.self.query";
/// Inputs and outputs of each module.
const SIZE: usize = 6;

fn ones(dims: &[usize]) -> Tensor {
    Tensor::ones(dims, DType::F32, &Device::Cpu).unwrap()
}

fn checkpoint(tensors: &[(&str, &[usize])]) -> Checkpoint {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    write_tensors(&path, tensors.iter().map(|(name, dims)| (*name, ones(dims))), Default::default()).unwrap();
    Checkpoint::from_bytes(std::fs::read(path).unwrap()).unwrap()
}

/// An adapter whose `A` and `B` are ones, so that each element of a change is `scale · rank`.
fn adapter(config: &LoraConfig, modules: &[(&str, usize)]) -> Result<LoraAdapter> {
    let named = |(module, rank): &(&str, usize)| {
        let name = |part: &str| format!("base_model.model.{module}.lora_{part}.weight");
        [(name("A"), [*rank, SIZE]), (name("B"), [SIZE, *rank])]
    };
    let tensors: Vec<_> = modules.iter().flat_map(named).collect();
    let tensors: Vec<_> = tensors.iter().map(|(name, dims)| (name.as_str(), &dims[..])).collect();
    LoraAdapter::new(config.clone(), &checkpoint(&tensors))
}

/// A weight of zeros, with an adapter merged.
fn merged(adapter: &LoraAdapter, weight: &str, dims: &[usize]) -> Vec<f64> {
    let zeros = Tensor::zeros(dims, DType::F32, &Device::Cpu).unwrap();
    let base = VarBuilder::from_tensors([(weight.to_string(), zeros)].into(), DType::F32, &Device::Cpu);
    numbers(&adapter.apply(base).unwrap().get(weight, dims).unwrap())
}

fn named(names: &[&str]) -> LoraConfig {
    LoraConfig::new(4, 8.0, names)
}

#[test]
fn modules_are_named_as_by_peft() {
    let targets = |config: &LoraConfig| match adapter(config, &[(QUERY, 4)]) {
        Ok(_) => true,
        Err(error) => {
            assert!(error.to_string().contains("a module that `target_modules` does not name"), "{error}");
            false
        }
    };
    let pattern = |pattern: &str| named(&[]).with_target_modules(TargetModules::Pattern(pattern.to_string()));
    assert!(targets(&named(&["key", "query"])) && targets(&named(&["self.query"])) && targets(&named(&[QUERY])));
    assert!(!targets(&named(&["uery"])) && !targets(&named(&["self"])));
    assert!(targets(&pattern("all-linear")) && targets(&pattern(r".*\.\d\.attention\.self\.(query|value)")));
    assert!(!targets(&pattern("query")) && !targets(&pattern(r".*\.0\..*query")));
    let layers = |indices: &[usize]| named(&["query"]).with_layers_to_transform(indices.to_vec());
    assert!(targets(&layers(&[0, 1])) && !targets(&layers(&[0])));
    let by_name = |name: &str| {
        let mut config = layers(&[1]);
        config.layers_pattern = vec![name.to_string()];
        config
    };
    assert!(targets(&by_name("layer")) && !targets(&by_name("layers")));
    let mut excluded = named(&["query"]);
    excluded.exclude_modules = Some(TargetModules::Names(vec!["query".to_string()]));
    assert!(!targets(&excluded));
    let mut saved = named(&["query"]);
    saved.modules_to_save = vec!["attention".to_string()];
    assert!(!targets(&saved));
}

#[test]
fn ranks_and_factors_follow_patterns() {
    let ranks = BTreeMap::from([("query".to_string(), 2)]);
    let alphas = BTreeMap::from([(r"^encoder\.layer\.1\..*".to_string(), 12.0)]);
    let config = named(&["query", "key"]).with_rank_pattern(ranks).with_alpha_pattern(alphas);
    let change = |config: &LoraConfig, module: &str, rank: usize| {
        let adapter = adapter(config, &[(module, rank)]).unwrap();
        merged(&adapter, &format!("{module}.weight"), &[SIZE, SIZE])
    };
    assert_eq!(change(&config, QUERY, 2), [12.0; SIZE * SIZE]);
    let [first, second] = [0, 1].map(|layer| format!("encoder.layer.{layer}.attention.self.key"));
    assert_eq!(change(&config, &first, 4), [8.0; SIZE * SIZE]);
    assert_eq!(change(&config.with_use_rslora(true), &second, 4), [24.0; SIZE * SIZE]);
}

#[test]
fn patterns_that_cannot_be_right_are_errors() {
    let two = BTreeMap::from([("query".to_string(), 2), ("self.query".to_string(), 3)]);
    let config = named(&["query"]).with_rank_pattern(two);
    says(adapter(&config, &[(QUERY, 2)]), &["rank_pattern = two values for `encoder.layer.1"]);
    let config = named(&[]).with_target_modules(TargetModules::Pattern("(query".to_string()));
    says(adapter(&config, &[(QUERY, 4)]), &["target_modules", "a regular expression"]);
    let [names, modules] = [4096, 2049].map(|count| (0..count).map(|i| format!("m.{i}")).collect::<Vec<String>>());
    let config = named(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let modules: Vec<_> = modules.iter().map(|module| (module.as_str(), 1)).collect();
    says(adapter(&config, &modules), &["the number of names and patterns"]);
}

/// Each class of all letters is an automaton of some 90 KB, so that little text would take gigabytes.
#[test]
fn patterns_are_weighed_before_they_are_compiled() {
    let pattern = |pattern: String| named(&[]).with_target_modules(TargetModules::Pattern(pattern));
    for many in [r"\w".repeat(300_000), "a".repeat(10_000_000)] {
        let error = "bytes of a pattern of `target_modules`";
        says(adapter(&pattern(many), &[(QUERY, 4)]), &[error, "expected at most 4096"]);
    }
    let work = "repeated ones counted as often";
    let of_4_kb = r"(?!\w{20})".repeat(370) + ".*";
    says(adapter(&pattern(of_4_kb), &[(QUERY, 4)]), &[work, "`target_modules`", "at most 65536"]);
    let many = |end: &str| (0..1000).map(|i| (format!("{end}x{i:04}"), 4)).collect::<BTreeMap<String, usize>>();
    let config = named(&["query"]);
    says(adapter(&config.clone().with_rank_pattern(many(r"\w{20}")), &[(QUERY, 4)]), &[work, "`rank_pattern`"]);
    // Names, of which adapters may have thousands, are not compiled.
    let mut names = many("encoder.layer.0.self_attn.");
    names.insert("r.1.attention.self.query".to_string(), 5);
    names.extend([("1.attention.self.query".to_string(), 3), ("layer.1_attention.self.query".to_string(), 5)]);
    adapter(&config.with_rank_pattern(names), &[(QUERY, 3)]).unwrap();
}

#[test]
fn names_are_those_of_peft() {
    let mut config = named(&["x", "y"]);
    config.r = 2;
    let linear = |prefix: &str, names: [&str; 3]| {
        let names = names.map(|name| format!("{prefix}x.{name}"));
        let dims: [&[usize]; 3] = [&[2, SIZE], &[SIZE, 2], &[SIZE]];
        let tensors: Vec<_> = names.iter().map(String::as_str).zip(dims).collect();
        LoraAdapter::new(config.clone().with_use_dora(true), &checkpoint(&tensors)).unwrap()
    };
    let table = [("y.lora_embedding_A", &[2, 9][..]), ("y.lora_embedding_B", &[SIZE, 2])];
    let table = LoraAdapter::new(config.clone(), &checkpoint(&table)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let written = |adapter: &LoraAdapter, to: &str| {
        adapter.write(folder.path().join(to)).unwrap();
        assert!(LoraAdapter::open(folder.path().join(to)).unwrap().modules().eq(adapter.modules()));
        let file = Checkpoint::open(folder.path().join(to).join("adapter_model.safetensors")).unwrap();
        file.names().map(str::to_string).collect::<Vec<_>>()
    };
    let all = ["lora_A.weight", "lora_B.weight", "lora_magnitude_vector"];
    let want = all.map(|name| format!("base_model.model.x.{name}"));
    assert_eq!(written(&linear("base_model.model.", all), "linear"), want);
    let all = ["lora_A.weight", "lora_B.weight", "lora_magnitude_vector.weight"];
    assert_eq!(written(&linear("", all), "without a prefix"), want);
    let want = ["A", "B"].map(|part| format!("base_model.model.y.lora_embedding_{part}"));
    assert_eq!(written(&table, "table"), want);

    let with = |name: &str, dims: &[usize]| {
        let mut config = config.clone();
        config.bias = LoraBias::All;
        let change = [("x.lora_A.weight", &[2, SIZE][..]), ("x.lora_B.weight", &[SIZE, 2])];
        LoraAdapter::new(config, &checkpoint(&[change[0], change[1], (name, dims)]))
    };
    for name in ["x.base_layer.bias", "x.modules_to_save.bias", "x.bias"] {
        let adapter = with(&format!("base_model.model.{name}"), &[SIZE]).unwrap();
        let zeros = |dims: &[usize]| Tensor::zeros(dims, DType::F32, &Device::Cpu).unwrap();
        let base = [("x.weight", zeros(&[SIZE, SIZE])), ("x.bias", zeros(&[SIZE]))];
        let base = base.map(|(name, tensor)| (name.to_string(), tensor)).into();
        let adapted = adapter.apply(VarBuilder::from_tensors(base, DType::F32, &Device::Cpu)).unwrap();
        assert_eq!(numbers(&adapted.get("x.bias", &[SIZE]).unwrap()), [1.0; SIZE], "{name}");
    }
    for name in ["x.lora_B.bias", "x.lora_A.default.weight"] {
        says(with(name, &[SIZE]), &[name, "is not a tensor that this version applies"]);
    }
}

/// transformers names modules of NomicBERT and Jina embeddings v3 otherwise than their checkpoints.
#[test]
fn changes_are_found_under_the_names_of_checkpoints() {
    let change = |module: &str, weight: &str, rows: usize| {
        let adapter = adapter(&named(&[module]), &[(module, 4)]).unwrap();
        merged(&adapter, &format!("{weight}.weight"), &[rows, SIZE])
    };
    let whole = [8.0; SIZE * SIZE];
    assert_eq!(change("encoder.layer.0.output.dense", "encoder.layer.0.output.dense", SIZE), whole);
    assert_eq!(change("layers.0.mlp.fc1", "layers.0.mlp.fc1", SIZE), whole);
    assert_eq!(change("layers.0.mlp.fc1", "encoder.layers.0.mlp.fc1", SIZE), whole);
    let keys = change("roberta.layers.1.self_attn.k_proj", "roberta.encoder.layers.1.mixer.Wqkv", 3 * SIZE);
    let zeros = [0.0; SIZE * SIZE];
    assert_eq!(keys, [zeros, whole, zeros].concat());
}

#[test]
fn parametrized_weights_have_their_plain_names() {
    let tasks = serde_json::json!({"lora_adaptations": ["a"], "lora_rank": 2});
    let tasks = LoraTasks::from_config(&tasks).unwrap().unwrap();
    let names = [
        "a.b.parametrizations.weight.original",
        "a.b.parametrizations.weight.0.lora_A",
        "parametrizations.weight.original",
        "a.b.bias",
    ];
    let checkpoint = checkpoint(&names.map(|name| (name, &[SIZE][..])));
    let source = tasks.apply(checkpoint.at("", DType::F32, &Device::Cpu), None).unwrap();
    let mut names = source.names().unwrap();
    names.sort();
    assert_eq!(names, ["a.b.bias", "a.b.weight", "weight"]);
    assert!(source.contains("a.b.weight") && source.contains("weight") && !source.contains("a.weight"));
    assert_eq!(source.get("a.b.weight", &[SIZE]).unwrap().dims(), [SIZE]);
}
