//! LoRA adapters against PEFT (`tests/golden/lora.py`): the folders of `lora`, and `gpt2`.

use candle_attention::checkpoint::{Checkpoint, CheckpointSource, WeightSource};
use candle_attention::lora::{AdaptedSource, LoraAdapter, LoraBias, LoraConfig, LoraTraining, TargetModules};
use candle_attention::{AttentionConfig, AttentionMask, Error, MultiHeadAttention};
use candle_attention_text::{MaskedLm, SequenceClassifier, TextModel, TextModelConfig};
use candle_core::{DType, Device, Module, Tensor};

use crate::common::{Golden, Random, assert_close, fixture, max_diff, numbers, says};

const CPU: Device = Device::Cpu;
/// Whole models of two or three layers in f32.
const MODEL: f64 = 2e-5;

const ADAPTERS: [(&str, &str); 12] = [
    ("tiny-bert", "bert_query_value"),
    ("tiny-bert", "bert_all_linear"),
    ("tiny-bert", "bert_dora"),
    ("tiny-bert", "bert_patterns"),
    ("tiny-bert", "bert_layers"),
    ("tiny-bert", "bert_embeddings"),
    ("tiny-bert", "bert_tokens"),
    ("encoders/distilbert", "distilbert_query_value"),
    ("encoders/distilbert", "distilbert_all_linear"),
    ("encoders/nomic_bert", "nomic_bert_all_linear"),
    ("encoders/jina_embeddings_v3", "jina_v3_query_dora"),
    ("encoders/modernbert", "modernbert_all_linear"),
];

fn base(name: &str, dtype: DType) -> CheckpointSource {
    Checkpoint::open(fixture(name)).unwrap().at("", dtype, &CPU)
}

fn adapter(name: &str) -> Result<LoraAdapter, Error> {
    LoraAdapter::open(fixture(&format!("lora/{name}")))
}

struct Case {
    config: TextModelConfig,
    ids: Tensor,
    lengths: Vec<usize>,
    golden: Golden,
}

impl Case {
    fn new(base: &str, name: &str) -> Self {
        let golden = Golden::open(&format!("lora/{name}/golden.safetensors"));
        let lengths = golden.get("lengths").to_vec1::<i64>().unwrap();
        Self {
            config: TextModelConfig::from_file(fixture(base).join("config.json")).unwrap(),
            ids: golden.get("ids").to_dtype(DType::U32).unwrap(),
            lengths: lengths.iter().map(|&n| n as usize).collect(),
            golden,
        }
    }

    /// The tokens of all texts, one after another.
    fn flat(&self, hidden: &Tensor) -> Tensor {
        let row = |(i, &length): (usize, &usize)| hidden.get(i).unwrap().narrow(0, 0, length).unwrap();
        Tensor::cat(&self.lengths.iter().enumerate().map(row).collect::<Vec<_>>(), 0).unwrap()
    }

    fn padded(&self, model: &TextModel) -> Tensor {
        self.flat(&model.forward(&self.ids, None, &AttentionMask::lengths(&self.lengths)).unwrap())
    }

    fn ragged(&self, model: &TextModel, row: usize) -> Tensor {
        let ids = self.ids.get(row).unwrap().narrow(0, 0, self.lengths[row]).unwrap().unsqueeze(0).unwrap();
        model.forward(&ids, None, &AttentionMask::full()).unwrap().squeeze(0).unwrap()
    }

    fn check(&self, what: &str, model: &TextModel, keys: &[&str]) {
        let got = self.padded(model);
        for key in keys {
            if let Some(want) = self.golden.try_get(key) {
                let want = self.flat(&want);
                assert_close(&format!("{what}, {key}"), &got, &want, MODEL);
                eprintln!("{what}, {key}: {:.1e}", max_diff(&got, &want));
            }
        }
        let mut start = 0;
        for (row, &length) in self.lengths.iter().enumerate() {
            let alone = numbers(&self.ragged(model, row));
            assert_eq!(alone, numbers(&got.narrow(0, start, length).unwrap()), "{what}: text {row} alone");
            start += length;
        }
    }
}

#[test]
fn adapted_models_equal_those_of_peft() {
    for (base_name, name) in ADAPTERS {
        let case = Case::new(base_name, name);
        let source = base(base_name, DType::F32);
        let model = TextModel::load(&case.config, source.clone()).unwrap();
        case.check(name, &model, &["base", "unmerged"]);
        let adapter = adapter(name).unwrap();
        let adapted = TextModel::load(&case.config, adapter.apply(source.clone()).unwrap()).unwrap();
        case.check(name, &adapted, &["adapted", "merged"]);
        let beside = TextModel::load(&case.config, adapter.beside(source.clone()).unwrap()).unwrap();
        case.check(&format!("{name} beside"), &beside, &["adapted", "merged"]);
        assert_close("frozen", &case.padded(&beside.frozen().unwrap()), &case.padded(&beside), MODEL);
        // The base is what it was, bit for bit.
        let again = TextModel::load(&case.config, source).unwrap();
        assert_eq!(numbers(&case.padded(&again)), numbers(&case.padded(&model)), "{name}");
    }
}

/// A checkpoint whose names have a prefix that those of the adapter lack.
#[test]
fn a_prefix_of_the_checkpoint_is_found() {
    let case = Case::new("tiny-bert", "bert_query_value");
    let source = base("tiny_bert_prefixed.safetensors", DType::F32);
    let adapted = adapter("bert_query_value").unwrap().apply(source).unwrap();
    case.check("prefixed", &TextModel::load(&case.config, adapted).unwrap(), &["adapted"]);
}

/// Rows of a table are those of the adapter, also in the decoder that is tied to it, be it stored or not.
#[test]
fn rows_of_tied_weights_are_replaced() {
    let case = Case::new("encoders/bert_mlm", "bert_mlm_tokens");
    let source = base("encoders/bert_mlm", DType::F32);
    let adapter = adapter("bert_mlm_tokens").unwrap();
    let (words, decoder) = ("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight");
    let names: Vec<String> = source.names().unwrap();
    let get = |name: &str| source.get(name, &source.shape(name).unwrap().unwrap()).unwrap();
    let mut tensors: Vec<(String, Tensor)> = names.iter().map(|name| (name.clone(), get(name))).collect();
    tensors.retain(|(name, _)| name != decoder);
    let open = |name: &str, tensors: &[(String, Tensor)]| {
        let path = std::env::temp_dir().join(format!("{}-{name}", std::process::id()));
        candle_attention::io::write_tensors(&path, tensors.to_vec(), Default::default()).unwrap();
        let opened = Checkpoint::open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        opened.at("", DType::F32, &CPU)
    };
    let tied = open("tied.safetensors", &tensors);
    tensors.push((decoder.to_string(), get(words)));
    let stored = open("stored.safetensors", &tensors);
    let width = case.config.hidden_size;
    for source in [tied, stored.clone()] {
        for adapted in [adapter.apply(source.clone()).unwrap(), adapter.beside(source).unwrap()] {
            let model = MaskedLm::load(&case.config, adapted).unwrap();
            let logits = model.forward(&case.ids, None, &AttentionMask::lengths(&case.lengths)).unwrap();
            assert_close("logits", &case.flat(&logits), &case.flat(&case.golden.get("merged")), MODEL);
        }
    }
    let adapted = adapter.apply(stored).unwrap();
    let rows = |name: &str| numbers(&adapted.get(name, &[case.config.vocab_size, width]).unwrap());
    assert_eq!(rows(words), rows(decoder));

    // Written and read again.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new");
    adapter.write(&path).unwrap();
    let again = LoraAdapter::open(&path).unwrap();
    assert_eq!(again.config(), adapter.config());
    let again = again.apply(base("encoders/bert_mlm", DType::F32)).unwrap();
    assert_eq!(numbers(&again.get(words, &[case.config.vocab_size, width]).unwrap()), rows(words));

    // Rows that the table lacks, or the adapter; a table of another width; training.
    let folder = fixture("lora/bert_mlm_tokens/adapter_model.safetensors");
    let with = |rows: &[usize], table: &str| {
        let mut config = adapter.config().clone();
        config.trainable_token_indices = [(table.to_string(), rows.to_vec())].into();
        LoraAdapter::new(config, &Checkpoint::open(&folder).unwrap())
    };
    let far = with(&[5, 2, 29, 7], "").unwrap();
    says(far.apply(base("encoders/bert_mlm", DType::F32)), &["`trainable_token_indices` is 29", "less than 29"]);
    says(with(&[5, 2], "word_embeddings"), &["token_adapter.trainable_tokens_delta", "[4, 16]", "[2, width]"]);
    says(with(&[5, 2, 1, 7], "other"), &["token_adapter.trainable_tokens_delta", "names 0 times"]);
    let other =
        with(&[5, 2, 1, 7], "word_embeddings").unwrap().apply(base("tiny_bert_prefixed.safetensors", DType::F32));
    says(other, &["has shape"]);
    let mut config = LoraConfig::new(2, 4.0, &["query"]);
    config.trainable_token_indices = adapter.config().trainable_token_indices.clone();
    says(
        LoraTraining::new(&config, base("encoders/bert_mlm", DType::F32)),
        &["trainable_token_indices", "low-rank changes"],
    );
}

/// A head that only the adapter holds, whose names have a prefix that those of the checkpoint lack.
#[test]
fn a_head_of_the_adapter_is_loaded() {
    let case = Case::new("tiny-bert", "bert_classifier");
    let adapted = adapter("bert_classifier").unwrap().apply(base("tiny-bert", DType::F32)).unwrap();
    let classifier = SequenceClassifier::load(&case.config, adapted).unwrap();
    let logits = classifier.forward(&case.ids, None, &case.lengths).unwrap();
    assert_close("logits", &logits, &case.golden.get("adapted"), MODEL);
    eprintln!("bert_classifier: {:.1e}", max_diff(&logits, &case.golden.get("adapted")));
}

/// GPT-2 stores its weights (in, out).
#[test]
fn transposed_weights_are_merged_as_they_are_stored() {
    let golden = Golden::open("lora/gpt2.safetensors");
    let tensors: Vec<_> = golden.0.names().filter(|name| name.contains("lora_")).collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("adapter.safetensors");
    let tensors = tensors.iter().map(|name| (name.to_string(), golden.get(name)));
    candle_attention::io::write_tensors(&path, tensors, Default::default()).unwrap();
    let mut config = LoraConfig::new(3, 5.0, &["c_attn", "c_proj"]);
    config.fan_in_fan_out = true;
    let adapter = LoraAdapter::new(config, &Checkpoint::open(&path).unwrap()).unwrap();
    let merged = adapter.apply(golden.0.at("", DType::F32, &CPU)).unwrap();
    for name in ["h.0.attn.c_attn.weight", "h.0.attn.c_proj.weight"] {
        let want = golden.get(&format!("merged.{name}"));
        assert_close(name, &merged.get(name, want.dims()).unwrap(), &want, 1e-6);
    }
}

/// GPT-2's fused queries, keys and values, stored (in, out), and GPT-NeoX's, in another order.
#[test]
fn changes_beside_fused_weights_are_those_of_merged_ones() {
    let mut random = Random::new(2);
    let mut tensor = |dims: &[usize]| (random.tensor(dims, DType::F32) * 0.4).unwrap();
    let gpt2 = [("c_attn", [24, 72]), ("c_proj", [24, 24])];
    let neox = [("query_key_value", [72, 24]), ("dense", [24, 24])];
    for (modules, prefix, transposed) in [(gpt2, "h.0.attn", true), (neox, "gpt_neox.layers.0.attention", false)] {
        let (mut base, mut low_rank) = (Vec::new(), Vec::new());
        for (name, shape) in modules {
            let [input, out] = if transposed { shape } else { [shape[1], shape[0]] };
            base.push((format!("{prefix}.{name}.weight"), tensor(&shape)));
            base.push((format!("{prefix}.{name}.bias"), tensor(&[out])));
            low_rank.push((format!("base_model.model.{prefix}.{name}.lora_A.weight"), tensor(&[3, input])));
            low_rank.push((format!("base_model.model.{prefix}.{name}.lora_B.weight"), tensor(&[out, 3])));
        }
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = |name: &str, tensors: Vec<(String, Tensor)>| {
            let path = folder.path().join(name);
            candle_attention::io::write_tensors(&path, tensors, Default::default()).unwrap();
            Checkpoint::open(&path).unwrap()
        };
        let base = checkpoint("base.safetensors", base).at("", DType::F32, &CPU);
        let names: Vec<&str> = modules.iter().map(|(name, _)| *name).collect();
        let mut config = LoraConfig::new(3, 6.0, &names);
        config.fan_in_fan_out = transposed;
        let adapter = LoraAdapter::new(config, &checkpoint("adapter.safetensors", low_rank)).unwrap();
        let training = LoraTraining::from_adapter(&adapter, base.clone()).unwrap();
        let layer = |source: &AdaptedSource<CheckpointSource>| {
            MultiHeadAttention::load(&AttentionConfig::new(24, 4), source.child(prefix)).unwrap()
        };
        let xs = tensor(&[2, 5, 24]);
        let merged = layer(&adapter.apply(base.clone()).unwrap());
        let want = merged.forward(&xs).unwrap();
        let [beside, trained] =
            [adapter.beside(base.clone()), training.source_beside()].map(|source| layer(&source.unwrap()));
        assert_close("beside", &beside.forward(&xs).unwrap(), &want, MODEL);
        assert_close("trained", &trained.forward(&xs).unwrap(), &want, MODEL);
        // The same model follows the variables, whose gradients are those of merged weights.
        let gradients = |layer: MultiHeadAttention| {
            let store = layer.forward(&xs).unwrap().sqr().unwrap().sum_all().unwrap().backward().unwrap();
            let of = |variable: &candle_core::Var| store.get(variable).unwrap().clone();
            training.variables().iter().map(of).collect::<Vec<_>>()
        };
        let source = training.source().unwrap().child(prefix);
        let of_merged = gradients(MultiHeadAttention::load(&AttentionConfig::new(24, 4), source).unwrap());
        for (got, want) in gradients(trained.clone()).iter().zip(&of_merged) {
            assert_close(prefix, got, want, 1e-4);
        }
        for variable in training.variables() {
            variable.set(&tensor(variable.dims())).unwrap();
        }
        let want = layer(&training.adapter().unwrap().apply(base).unwrap());
        assert_close("follows", &trained.forward(&xs).unwrap(), &want.forward(&xs).unwrap(), MODEL);
    }
}

/// DeBERTa projects its distances in each layer: no product of the layer has a place beside them.
#[test]
fn changes_of_position_weights_are_merged() {
    let source = base("encoders/deberta", DType::F32);
    let config = TextModelConfig::from_file(fixture("encoders/deberta/config.json")).unwrap();
    let ids = Tensor::new(&[[5u32, 9, 7, 6, 8, 4]], &CPU).unwrap();
    let forward = |model: TextModel| model.forward(&ids, None, &AttentionMask::full()).unwrap();
    let plain = forward(TextModel::load(&config, source.clone()).unwrap());
    for modules in [&["pos_proj", "pos_q_proj"][..], &["in_proj", "pos_proj", "pos_q_proj", "dense"]] {
        let training = LoraTraining::new(&LoraConfig::new(3, 6.0, modules), source.clone()).unwrap();
        let mut random = Random::new(5);
        for variable in training.variables() {
            variable.set(&(random.tensor(variable.dims(), DType::F32) * 0.3).unwrap()).unwrap();
        }
        let adapter = training.adapter().unwrap();
        let merged = forward(TextModel::load(&config, adapter.apply(source.clone()).unwrap()).unwrap());
        let beside = forward(TextModel::load(&config, adapter.beside(source.clone()).unwrap()).unwrap());
        assert_close("beside", &beside, &merged, MODEL);
        assert!(max_diff(&merged, &plain) > 1e-3);
        let learns = TextModel::load(&config, training.source_beside().unwrap());
        says(learns, &["attention.self.pos_", "does not follow the variables"]);
    }
}

#[test]
fn one_layer_has_the_adapter_merged() {
    let prefix = "encoder.layer.0.attention";
    let source = base("tiny-bert", DType::F32);
    let config = AttentionConfig::new(24, 4);
    let adapted = adapter("bert_query_value").unwrap().apply(source.clone()).unwrap();
    let [plain, adapted] = [
        MultiHeadAttention::load(&config, source.child(prefix)),
        MultiHeadAttention::load(&config, adapted.child(prefix)),
    ];
    let xs = Random::new(1).tensor(&[2, 5, 24], DType::F32);
    let [plain, adapted] = [plain, adapted].map(|layer| layer.unwrap().forward(&xs).unwrap());
    assert!(max_diff(&plain, &adapted) > 0.05);
}

/// Half types: merged in f32, rounded once.
#[test]
fn half_types_are_rounded_once() {
    let name = "encoder.layer.0.attention.self.query.weight";
    let [wide, half] = [DType::F32, DType::BF16].map(|dtype| {
        let adapted = adapter("bert_query_value").unwrap().apply(base("tiny-bert", dtype)).unwrap();
        adapted.get(name, &[24, 24]).unwrap()
    });
    assert_eq!(half.dtype(), DType::BF16);
    let weight = base("tiny-bert", DType::F32).get(name, &[24, 24]).unwrap();
    let rounded = weight.to_dtype(DType::BF16).unwrap().to_dtype(DType::F32).unwrap();
    let want = ((wide - weight).unwrap() + rounded).unwrap().to_dtype(DType::BF16).unwrap();
    assert!(max_diff(&half, &want) < 8e-3, "at most a step of bf16 by the order of sums");
}

fn json_of(name: &str) -> serde_json::Value {
    let path = fixture(&format!("lora/{name}/adapter_config.json"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn configurations_that_would_change_the_result_are_refused() {
    let with = |key: &str, value: serde_json::Value| {
        let mut json = json_of("bert_query_value");
        json[key] = value;
        LoraConfig::from_json(&json)
    };
    assert!(with("lora_dropout", 0.1.into()).is_ok() && with("init_lora_weights", "gaussian".into()).is_ok());
    says(with("peft_type", "IA3".into()), &["peft_type", "\"IA3\"", "LORA"]);
    says(with("use_qalora", true.into()), &["adapter config key `use_qalora` is true", "does not apply"]);
    says(with("lora_bias", true.into()), &["`lora_bias` is true"]);
    says(with("layer_replication", serde_json::json!([[0, 2]])), &["`layer_replication` is [[0,2]]"]);
    says(with("of_the_future", 1.into()), &["`of_the_future` is 1"]);
    says(with("init_lora_weights", "pissa_niter_4".into()), &["`init_lora_weights` is pissa_niter_4", "base model"]);
    says(with("r", 0.into()), &["r = 0", "1 to 65536"]);
    says(with("r", "8".into()), &["`r` is \"8\"", "a rank"]);
    says(with("lora_alpha", 1e40.into()), &["lora_alpha", "finite"]);
    says(with("bias", "some".into()), &["`bias` is \"some\"", "none, all or lora_only"]);
    says(with("rank_pattern", serde_json::json!({"query": 1 << 30})), &["r = 1073741824"]);
    says(with("target_modules", 3.into()), &["`target_modules` is 3"]);
}

#[test]
fn tensors_that_fit_nothing_are_named() {
    let checkpoint = Checkpoint::open(fixture("lora/bert_query_value/adapter_model.safetensors")).unwrap();
    let new = |config: LoraConfig| LoraAdapter::new(config, &checkpoint);
    let config = || adapter("bert_query_value").unwrap().config().clone();
    let query = "base_model.model.encoder.layer.0.attention.self.query.lora_A.weight";
    let mut other = config();
    other.r = 5;
    says(new(other), &[query, "[4, 24]", "[5, in]"]);
    says(new(config().with_use_dora(true)), &["query.lora_magnitude_vector` is missing"]);
    let others = TargetModules::Names(vec!["value".to_string()]);
    says(new(config().with_target_modules(others)), &[query, "`target_modules` does not name"]);
    let slow = TargetModules::Pattern(r"(([a-z]+|\.|\d)*)*\1x".to_string());
    says(new(config().with_target_modules(slow)), &["a pattern of an adapter"]);

    // One tensor more, less or changed.
    let rebuilt = |change: &dyn Fn(&mut std::collections::BTreeMap<String, Tensor>)| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("adapter_model.safetensors");
        let mut tensors = checkpoint.names().map(|n| (n.to_string(), checkpoint.tensor(n, &CPU).unwrap())).collect();
        change(&mut tensors);
        candle_attention::io::write_tensors(&path, tensors, Default::default()).unwrap();
        LoraAdapter::new(config(), &Checkpoint::open(&path).unwrap())
    };
    let zeros = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, &CPU).unwrap();
    says(rebuilt(&|t| drop(t.remove(query))), &[query, "is missing"]);
    says(rebuilt(&|t| t.clear()), &["the number of low-rank changes of the adapter is 0"]);
    says(rebuilt(&|t| drop(t.insert("x.lora_B.bias".into(), zeros(&[3], DType::F32)))), &["`x.lora_B.bias`"]);
    says(rebuilt(&|t| drop(t.insert("pooler.dense.bias".into(), zeros(&[3], DType::F32)))), &["`modules_to_save`"]);
    says(rebuilt(&|t| drop(t.insert(query.into(), zeros(&[4, 24], DType::U8)))), &[query, "U8"]);
    says(rebuilt(&|t| drop(t.insert(query.into(), zeros(&[4, 24, 1], DType::F32)))), &[query, "[4, 24, 1]"]);

    let wider = rebuilt(&|t| drop(t.insert(query.into(), zeros(&[4, 7], DType::F32)))).unwrap();
    let weight = "encoder.layer.0.attention.self.query.weight";
    says(wider.apply(base("tiny-bert", DType::F32)), &[weight, "[24, 24]", "[24, 7]"]);
    let mut with_bias = config();
    with_bias.bias = LoraBias::All;
    let bias = || ("x.dense.bias".to_string(), zeros(&[24], DType::F32));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("adapter_model.safetensors");
    let tensors = checkpoint.names().map(|n| (n.to_string(), checkpoint.tensor(n, &CPU).unwrap())).chain([bias()]);
    candle_attention::io::write_tensors(&path, tensors, Default::default()).unwrap();
    let with_bias = LoraAdapter::new(with_bias, &Checkpoint::open(&path).unwrap()).unwrap();
    says(with_bias.apply(base("tiny-bert", DType::F32)), &["`x.dense.bias` is missing", "does not hold it"]);

    let new = |name: &str| format!("base_model.model.encoder.layer.7.value.lora_{name}.weight");
    let deeper = rebuilt(&|t| {
        t.insert(new("A"), zeros(&[4, 24], DType::F32));
        t.insert(new("B"), zeros(&[24, 4], DType::F32));
    });
    says(deeper.unwrap().apply(base("tiny-bert", DType::F32)), &["`encoder.layer.7.value.weight` is missing"]);
    says(
        adapter("bert_query_value").unwrap().apply(base("encoders/distilbert", DType::F32)),
        &["encoder.layer.0", "is missing"],
    );
}

#[test]
fn folders_without_an_adapter_are_errors() {
    says(adapter("absent"), &["adapter_config.json"]);
    let folder = tempfile::tempdir().unwrap();
    let config = fixture("lora/bert_query_value/adapter_config.json");
    std::fs::copy(config, folder.path().join("adapter_config.json")).unwrap();
    says(LoraAdapter::open(folder.path()), &["adapter_model.safetensors"]);
    std::fs::write(folder.path().join("adapter_model.bin"), b"x").unwrap();
    says(LoraAdapter::open(folder.path()), &["adapter_model.bin", "converted to safetensors"]);
}
