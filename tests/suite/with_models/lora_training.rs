//! Training LoRA adapters: gradients against PyTorch (`tests/golden/lora.py`), and the folder that is written.

use std::collections::BTreeMap;

use candle_attention::checkpoint::{Checkpoint, CheckpointSource, WeightSource};
use candle_attention::lora::{LoraAdapter, LoraBias, LoraConfig, LoraTraining, TargetModules};
use candle_attention::{AttentionConfig, AttentionMask, MultiHeadAttention, Quantization};
use candle_attention_text::{EncodeOptions, SentenceEncoder, TextModel, TextModelConfig, write_int8};
use candle_core::{D, DType, Device, Module, Tensor};
use candle_nn::{AdamW, Optimizer, SGD, VarBuilder};

use crate::common::{Golden, Random, assert_close, fixture, max_diff, numbers, says};

const CPU: Device = Device::Cpu;

fn base() -> CheckpointSource {
    Checkpoint::open(fixture("tiny-bert")).unwrap().at("", DType::F32, &CPU)
}

fn config() -> TextModelConfig {
    TextModelConfig::from_file(fixture("tiny-bert/config.json")).unwrap()
}

/// Token ids and lengths of the fixture, and the mask (b, s, 1) of its tokens.
fn batch() -> (Tensor, Vec<usize>, Tensor) {
    let golden = Golden::open("lora/bert_query_value/golden.safetensors");
    let lengths: Vec<usize> = golden.get("lengths").to_vec1::<i64>().unwrap().iter().map(|&n| n as usize).collect();
    let ids = golden.get("ids").to_dtype(DType::U32).unwrap();
    let (b, s) = ids.dims2().unwrap();
    let mask = lengths.iter().flat_map(|&length| (0..s).map(move |j| f32::from(u8::from(j < length))));
    let mask = Tensor::from_iter(mask, &CPU).unwrap().reshape((b, s, 1)).unwrap();
    (ids, lengths, mask)
}

fn hidden(model: &TextModel) -> Tensor {
    let (ids, lengths, mask) = batch();
    let hidden = model.forward(&ids, None, &AttentionMask::lengths(&lengths)).unwrap();
    hidden.broadcast_mul(&mask).unwrap()
}

#[test]
fn gradients_of_an_adapter_equal_those_of_pytorch() {
    let adapter = LoraAdapter::open(fixture("lora/bert_query_value")).unwrap();
    let training = LoraTraining::from_adapter(&adapter, base()).unwrap();
    equal_those_of_pytorch(&training, &TextModel::load(&config(), training.source().unwrap()).unwrap());
    equal_those_of_pytorch(&training, &TextModel::load(&config(), training.source_beside().unwrap()).unwrap());
}

fn equal_those_of_pytorch(training: &LoraTraining<CheckpointSource>, model: &TextModel) {
    let golden = Golden::open("lora/gradients.safetensors");
    let loss = ((hidden(model) * golden.get("weights")).unwrap().sum_all().unwrap() / 10.0).unwrap();
    let gradients = loss.backward().unwrap();
    let names: Vec<&str> = golden.0.names().filter(|name| name.contains("lora_")).collect();
    let variables = training.variables();
    assert_eq!(names.len(), variables.len());
    let mut worst = 0f64;
    for (name, variable) in names.into_iter().zip(&variables) {
        let (got, want) = (gradients.get(variable).unwrap(), golden.get(name));
        assert_close(name, got, &want, 2e-5);
        worst = worst.max(max_diff(got, &want));
    }
    eprintln!("gradients: {worst:.1e}");
}

/// An adapter of a single layer learns what another layer computes, and is the same after writing and reading.
#[test]
fn an_adapter_learns_while_the_base_stays() {
    let attention = AttentionConfig::new(24, 4);
    let prefix = "encoder.layer.0.attention";
    for dora in [false, true] {
        let lora = LoraConfig::new(3, 6.0, &["self.query", "self.value", "attention.output.dense"]).with_use_dora(dora);
        let lora = lora.with_layers_to_transform(vec![0]).with_task_type("FEATURE_EXTRACTION".to_string());
        let training = LoraTraining::new(&lora, base()).unwrap();
        let load = |source| MultiHeadAttention::load(&attention, source).unwrap();
        let at_first = load(base().child(prefix));
        let layer = || MultiHeadAttention::load(&attention, training.source().unwrap().child(prefix)).unwrap();
        // `A` is drawn anew for each adapter: one from a fixed seed in its place, so that every run is the same.
        let mut random = Random::new(1);
        for a in training.variables().iter().filter(|variable| variable.dims() == [3, 24]) {
            a.set(&(random.tensor(&[3, 24], DType::F32) / 24f64.sqrt()).unwrap()).unwrap();
        }
        let xs = (random.tensor(&[2, 5, 24], DType::F32) * 2.0).unwrap();
        let plain = at_first.forward(&xs).unwrap();
        assert!(max_diff(&layer().forward(&xs).unwrap(), &plain) < 1e-5, "an adapter begins without effect");
        let goal = load(base().child("encoder.layer.1.attention")).forward(&xs).unwrap();
        let mut optimizer = SGD::new(training.variables(), 0.05).unwrap();
        let mut losses = Vec::new();
        for _step in 0..30 {
            let loss = (layer().forward(&xs).unwrap() - &goal).unwrap().sqr().unwrap().mean_all().unwrap();
            losses.push(loss.to_scalar::<f32>().unwrap());
            optimizer.backward_step(&loss).unwrap();
        }
        assert!(losses[29] < 0.9 * losses[0], "{losses:?}");
        let again = load(base().child(prefix)).forward(&xs).unwrap();
        assert_eq!(numbers(&again), numbers(&plain), "the base has not changed");

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("adapter");
        let adapter = training.adapter().unwrap();
        adapter.write(&path).unwrap();
        says(adapter.write(&path), &["exists already"]);
        let read = LoraAdapter::open(&path).unwrap();
        assert_eq!((read.config(), read.modules().count()), (&lora, 3));
        let [written, read] =
            [&adapter, &read].map(|adapter| load_adapted(adapter, &attention, prefix).forward(&xs).unwrap());
        assert_eq!(numbers(&written), numbers(&read));
        assert!(max_diff(&written, &layer().forward(&xs).unwrap()) < 1e-5);
        assert!(max_diff(&written, &plain) > 1e-2);
    }
}

fn load_adapted(adapter: &LoraAdapter, config: &AttentionConfig, prefix: &str) -> MultiHeadAttention {
    MultiHeadAttention::load(config, adapter.apply(base()).unwrap().child(prefix)).unwrap()
}

/// QLoRA: one int8 model for all steps, whose adapter is the same for every other loader of it.
#[test]
fn an_adapter_learns_over_int8() {
    let int8 = || Checkpoint::open(fixture("tiny-bert")).unwrap().at("", Quantization::Int8, &CPU);
    let lora = LoraConfig::new(3, 6.0, &[]).with_target_modules(TargetModules::Pattern("all-linear".to_string()));
    let training = LoraTraining::new(&lora, int8()).unwrap();
    let mut random = Random::new(3);
    for a in training.variables().iter().step_by(2) {
        a.set(&(random.tensor(a.dims(), DType::F32) / 24f64.sqrt()).unwrap()).unwrap();
    }
    let plain = TextModel::load(&config(), int8()).unwrap();
    let model = TextModel::load(&config(), training.source_beside().unwrap()).unwrap();
    assert_eq!(model.quantization(), Some(Quantization::Int8));
    let goal = LoraAdapter::open(fixture("lora/bert_layers")).unwrap().apply(base()).unwrap();
    let goal = hidden(&TextModel::load(&config(), goal).unwrap());
    let mut optimizer = AdamW::new_lr(training.variables(), 1e-2).unwrap();
    let mut losses = Vec::new();
    for _step in 0..30 {
        let loss = (hidden(&model) - &goal).unwrap().sqr().unwrap().mean_all().unwrap();
        losses.push(loss.to_scalar::<f32>().unwrap());
        optimizer.backward_step(&loss).unwrap();
    }
    assert!(losses[29] < 0.8 * losses[0], "{losses:?}");

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("adapter");
    training.adapter().unwrap().write(&path).unwrap();
    let adapter = LoraAdapter::open(&path).unwrap();
    let beside = TextModel::load(&config(), adapter.beside(int8()).unwrap()).unwrap();
    let frozen = hidden(&model.frozen().unwrap());
    assert_eq!(numbers(&hidden(&beside)), numbers(&frozen), "what was trained is what is loaded");
    assert!(max_diff(&frozen, &hidden(&plain)) > 0.1);
    assert!(max_diff(&frozen, &hidden(&model)) < 0.1, "inputs that are rounded, too, in a call without gradients");
    // A sentence encoder keeps it beside its weights, and is the base without it.
    let mut encoder = SentenceEncoder::from_folder(fixture("tiny-bert"), Quantization::Int8, &CPU).unwrap();
    let (texts, options) = (["a cat sleeps", "the dog barks at the cat"], EncodeOptions::default());
    let before = encoder.encode(&texts, &options).unwrap();
    encoder.add_adapter("own", &adapter).unwrap();
    let adapted = encoder.encode(&texts, &options.with_adapter("own")).unwrap();
    let alone = encoder.encode(&texts[1..], &options.with_adapter("own")).unwrap();
    assert_eq!(numbers(&alone), numbers(&adapted.narrow(0, 1, 1).unwrap()));
    assert!(max_diff(&adapted, &before) > 1e-2);
    assert_eq!(numbers(&encoder.encode(&texts, &options).unwrap()), numbers(&before));
}

/// Whatever the adapter changes: the function whose gradient follows, and no mixture with the one that is served.
#[test]
fn training_over_int8_multiplies_with_the_dequantized_weights() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("int8");
    write_int8(fixture("tiny-bert"), &path, |_| true).unwrap();
    let config = TextModelConfig::from_file(path.join("config.json")).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let mut random = Random::new(5);
    for (modules, layers) in
        [(["query", "value"], None), (["query", "key"], Some(vec![1])), (["output.dense", "x"], None)]
    {
        let modules: Vec<&str> = modules.into_iter().filter(|name| *name != "x").collect();
        let mut lora = LoraConfig::new(3, 6.0, &modules);
        if let Some(layers) = layers {
            lora = lora.with_layers_to_transform(layers);
        }
        let training = LoraTraining::new(&lora, checkpoint.at("", Quantization::Int8, &CPU)).unwrap();
        for variable in training.variables() {
            variable.set(&(random.tensor(variable.dims(), DType::F32) * 0.3).unwrap()).unwrap();
        }
        let dequantized = training.adapter().unwrap().apply(checkpoint.at("", DType::F32, &CPU)).unwrap();
        let want = hidden(&TextModel::load(&config, dequantized).unwrap());
        let model = TextModel::load(&config, training.source_beside().unwrap()).unwrap();
        assert_eq!(model.quantization(), Some(Quantization::Int8));
        assert_close(&format!("{modules:?}"), &hidden(&model), &want, 2e-5);
        assert!(max_diff(&hidden(&model.frozen().unwrap()), &want) > 1e-3, "served, inputs are rounded");
    }
}

/// What cannot follow the variables without being loaded anew is refused, and named.
#[test]
fn what_stays_beside_no_weight_is_not_trained_there() {
    let lora = LoraConfig::new(2, 2.0, &["self.query"]).with_use_dora(true);
    let training = LoraTraining::new(&lora, base()).unwrap();
    let model = TextModel::load(&config(), training.source_beside().unwrap());
    says(model, &["encoder.layer.0.attention.self.query.weight", "does not follow", "LoraTraining::source"]);
}

#[test]
fn all_linear_layers_are_found_by_their_names() {
    let lora = LoraConfig::new(2, 2.0, &[]).with_target_modules(TargetModules::Pattern("all-linear".to_string()));
    let training = LoraTraining::new(&lora, base()).unwrap();
    let own = training.adapter().unwrap();
    let of_peft = LoraAdapter::open(fixture("lora/bert_all_linear")).unwrap();
    assert_eq!(own.modules().collect::<Vec<_>>(), of_peft.modules().collect::<Vec<_>>());
    let first = training.variables()[0].as_tensor().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
    let bound = 24f32.powf(-0.5);
    assert!(first <= bound && first > 0.5 * bound, "A is uniform, {first} of {bound}");
    let b = training.variables()[1].as_tensor().sum(D::Minus1).unwrap();
    assert!(numbers(&b).iter().all(|x| *x == 0.0));
}

#[test]
fn what_cannot_be_trained_is_refused() {
    let lora = || LoraConfig::new(2, 2.0, &["query"]);
    let new = |config: LoraConfig| LoraTraining::new(&config, base());
    says(new(LoraConfig::new(2, 2.0, &["nothing"])), &["target_modules", "nothing", "linear layers of the base"]);
    says(new(LoraConfig::new(2, 2.0, &["word_embeddings"])), &["embeddings.word_embeddings", "not trained"]);
    says(new(LoraConfig::new(25, 2.0, &["query"])), &["r = 25", "at most 24", "self.query"]);
    let layers = lora().with_layers_to_transform(vec![9]);
    says(new(layers), &["layers_to_transform = [9]", "layers that the base model has"]);
    let mut config = lora();
    config.bias = LoraBias::All;
    says(new(config), &["bias = All", "only low-rank changes are trained"]);
    let mut config = lora();
    config.modules_to_save = vec!["pooler".to_string()];
    says(new(config), &["modules_to_save = pooler"]);
    let tensors = [("query.weight".to_string(), Tensor::zeros((4, 4), DType::F32, &CPU).unwrap())];
    let unlisted = VarBuilder::from_tensors(tensors.into(), DType::F32, &CPU);
    says(LoraTraining::new(&lora(), unlisted), &["does not list its names"]);
}

/// Names are those of the whole model, as PEFT has them, and modules beside the source's prefix are not changed.
#[test]
fn the_prefix_of_the_source_bounds_what_is_trained() {
    let below = base().child("encoder.layer.1");
    let training = LoraTraining::new(&LoraConfig::new(2, 2.0, &["query", "value"]), below).unwrap();
    assert_eq!(training.variables().len(), 4);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("adapter");
    training.adapter().unwrap().write(&path).unwrap();
    let file = Checkpoint::open(path.join("adapter_model.safetensors")).unwrap();
    assert!(file.names().all(|name| name.starts_with("base_model.model.encoder.layer.1.attention.self.")));
}

/// Everything that an adapter of PEFT holds is written as it was.
#[test]
fn adapters_are_written_as_they_were_read() {
    for name in ["bert_all_linear", "bert_dora", "bert_patterns", "bert_layers", "bert_embeddings", "bert_classifier"] {
        let source = fixture(&format!("lora/{name}"));
        let (folder, adapter) = (tempfile::tempdir().unwrap(), LoraAdapter::open(&source).unwrap());
        let path = folder.path().join(name);
        adapter.write(&path).unwrap();
        assert_eq!(LoraAdapter::open(&path).unwrap().config(), adapter.config());
        let tensors = |path: &std::path::Path| -> BTreeMap<String, Vec<f64>> {
            let file = Checkpoint::open(path.join("adapter_model.safetensors")).unwrap();
            file.names().map(|name| (name.to_string(), numbers(&file.tensor(name, &CPU).unwrap()))).collect()
        };
        assert_eq!(tensors(&path), tensors(&source), "{name}");
    }
}
