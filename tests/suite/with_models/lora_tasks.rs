//! Task adapters inside a checkpoint, as Jina embeddings v3 has them (`tests/golden/jina_tasks.py`): `lora/jina_tasks`.

use candle_attention::checkpoint::{Checkpoint, CheckpointSource, WeightSource};
use candle_attention::lora::{LoraConfig, LoraTasks, LoraTraining};
use candle_attention::{AttentionConfig, AttentionMask, MultiHeadAttention};
use candle_attention_text::{EncodeOptions, SentenceEncoder, Task, TextModel, TextModelConfig};
use candle_core::{DType, Device};
use serde_json::{Value, json};

use crate::common::programs::copy_folder;
use crate::common::{Golden, Random, assert_close, fixture, max_diff, numbers, says};

const CPU: Device = Device::Cpu;
const MODEL: f64 = 2e-5;
const TASKS: [&str; 3] = ["retrieval.query", "separation", "text-matching"];

fn golden() -> Golden {
    Golden::open("lora/jina_tasks/golden.safetensors")
}

fn source() -> CheckpointSource {
    Checkpoint::open(fixture("lora/jina_tasks")).unwrap().at("", DType::F32, &CPU)
}

fn config() -> TextModelConfig {
    TextModelConfig::from_file(fixture("lora/jina_tasks/config.json")).unwrap()
}

fn encoder() -> SentenceEncoder {
    SentenceEncoder::from_folder(fixture("lora/jina_tasks"), DType::F32, &CPU).unwrap()
}

fn json_config() -> Value {
    serde_json::from_slice(&std::fs::read(fixture("lora/jina_tasks/config.json")).unwrap()).unwrap()
}

#[test]
fn models_of_tasks_equal_the_published_formula() {
    let (golden, config) = (golden(), config());
    let tasks = config.tasks().unwrap().unwrap();
    assert_eq!(tasks.names().collect::<Vec<_>>(), TASKS);
    let ids = golden.get("ids").to_dtype(DType::U32).unwrap();
    let lengths: Vec<usize> = golden.get("lengths").to_vec1::<i64>().unwrap().iter().map(|&n| n as usize).collect();
    for task in [None, Some(TASKS[0]), Some(TASKS[1]), Some(TASKS[2])] {
        let name = task.unwrap_or("base");
        let model = match task {
            None => TextModel::load(&config, source()).unwrap(),
            Some(_) => TextModel::load(&config, tasks.apply(source(), task).unwrap()).unwrap(),
        };
        let hidden = model.forward(&ids, None, &AttentionMask::lengths(&lengths)).unwrap();
        let want = golden.get(&format!("hidden.{name}"));
        let mut worst = 0f64;
        for (row, &length) in lengths.iter().enumerate() {
            let [got, want] = [&hidden, &want].map(|t| t.get(row).unwrap().narrow(0, 0, length).unwrap());
            assert_close(name, &got, &want, MODEL);
            worst = worst.max(max_diff(&got, &want));
            let alone = ids.narrow(0, row, 1).unwrap().narrow(1, 0, length).unwrap();
            let alone = model.forward(&alone, None, &AttentionMask::full()).unwrap().squeeze(0).unwrap();
            assert_eq!(numbers(&alone), numbers(&got), "{name}: text {row} alone");
        }
        eprintln!("hidden, {name}: {worst:.1e}");
    }
}

#[test]
fn vectors_of_tasks_have_their_instruction() {
    let texts: Vec<String> = serde_json::from_slice(&std::fs::read(fixture("tiny_sentences.json")).unwrap()).unwrap();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let (golden, encoder, options) = (golden(), encoder(), EncodeOptions::default());
    assert_eq!(encoder.tasks().collect::<Vec<_>>(), TASKS);
    let base = encoder.encode(&texts, &options).unwrap();
    assert_close("base", &base, &golden.get("vectors.base"), MODEL);
    for task in TASKS {
        let got = encoder.encode(&texts, &options.with_task(Task::Named(task))).unwrap();
        let want = golden.get(&format!("vectors.{task}"));
        assert_close(task, &got, &want, MODEL);
        eprintln!("vectors, {task}: {:.1e}", max_diff(&got, &want));
    }
    // Another prompt takes the place of the instruction.
    let named = options.with_task(Task::Named(TASKS[0])).with_prompt_name(TASKS[0]);
    let [with_name, without, empty] = [
        named,
        options.with_task(Task::Named(TASKS[0])),
        options.with_task(Task::Named(TASKS[0])).with_prompt_name("separation"),
    ]
    .map(|options| encoder.encode(&texts, &options).unwrap());
    assert_eq!(numbers(&with_name), numbers(&without));
    assert!(max_diff(&empty, &without) > 1e-3);
    assert_eq!(numbers(&encoder.encode(&texts, &options).unwrap()), numbers(&base), "the base stays as it is");
    // Threads that ask for one task at the same time.
    let encoder = self::encoder();
    let run = || numbers(&encoder.encode(&texts, &options_of(TASKS[1])).unwrap());
    let want = run();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(run)).collect();
        threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), want));
    });
}

fn options_of(task: &str) -> EncodeOptions<'_> {
    EncodeOptions::default().with_task(Task::Named(task))
}

#[test]
fn a_layer_of_a_task_is_loaded_alone() {
    let tasks = config().tasks().unwrap().unwrap();
    let attention = AttentionConfig::new(16, 4);
    let xs = Random::new(1).tensor(&[1, 5, 16], DType::F32);
    let [base, adapted] = [None, Some(TASKS[1])].map(|task| {
        let source = tasks.apply(source(), task).unwrap().child("roberta.encoder.layers.1.mixer");
        MultiHeadAttention::load(&attention, source).unwrap().forward_t(&xs, false).unwrap()
    });
    assert!(max_diff(&base, &adapted) > 0.05);
}

/// An adapter of one's own on top of a task.
#[test]
fn an_adapter_is_trained_on_a_task() {
    let tasks = config().tasks().unwrap().unwrap();
    let lora = LoraConfig::new(2, 4.0, &["Wqkv"]);
    let training = LoraTraining::new(&lora, tasks.apply(source(), Some(TASKS[0])).unwrap()).unwrap();
    assert_eq!(training.variables().len(), 4);
    let model = TextModel::load(&config(), training.source().unwrap()).unwrap();
    let ids = golden().get("ids").to_dtype(DType::U32).unwrap().narrow(0, 0, 1).unwrap();
    let got = model.forward(&ids, None, &AttentionMask::full()).unwrap();
    let want = golden().get("hidden.retrieval.query").narrow(0, 0, 1).unwrap();
    assert_close("an adapter begins without effect", &got, &want, MODEL);
}

#[test]
fn tasks_that_are_not_there_are_errors() {
    let (encoder, options) = (encoder(), EncodeOptions::default());
    let known = "retrieval.query or separation or text-matching";
    says(encoder.encode(&["x"], &options.with_task(Task::Query)), &["task is query", known]);
    says(
        encoder.encode(&["x"], &options.with_task(Task::Named(TASKS[0])).with_adapter("a")),
        &["adapter is a", "none beside a task"],
    );
    says(
        encoder.encode(&["x"], &options.with_task(Task::Named(TASKS[0])).with_adapters(&[None])),
        &["task of all texts is retrieval.query"],
    );
    let plain = SentenceEncoder::embedded(DType::F32, &CPU).unwrap();
    says(plain.encode(&["x"], &options.with_task(Task::Named("x"))), &["task is x", "holds no adapters"]);
}

#[test]
fn configurations_of_tasks_are_checked() {
    let with = |key: &str, value: Value| {
        let mut json = json_config();
        json[key] = value;
        LoraTasks::from_config(&json)
    };
    assert!(with("load_trained_adapters", false.into()).unwrap().is_none());
    assert!(with("lora_adaptations", Value::Null).unwrap().is_none());
    says(with("lora_adaptations", json!([])), &["lora_adaptations = []", "1 to 256 names"]);
    says(with("lora_adaptations", json!(vec!["x"; 300])), &["a list of 300"]);
    says(with("lora_adaptations", json!(["x", "x"])), &["lora_adaptations = x", "once"]);
    says(with("lora_rank", 0.into()), &["lora_rank = 0"]);
    says(with("lora_alpha", "1".into()), &["lora_alpha = \"1\"", "finite"]);
    says(with("task_instructions", json!({"separation": ""})), &["task_instructions", "no text for `retrieval.query`"]);
    let long = json!({"retrieval.query": "x".repeat(20_000), "separation": "", "text-matching": ""});
    says(with("task_instructions", long), &["20000 bytes", "at most 16384"]);

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jina");
    copy_folder(&fixture("lora/jina_tasks"), &path);
    let load_with = |key: &str, value: Value| {
        let mut json = json_config();
        json[key] = value;
        std::fs::write(path.join("config.json"), json.to_string()).unwrap();
        SentenceEncoder::from_folder(&path, DType::F32, &CPU)
    };
    let encode = |encoder: SentenceEncoder| encoder.encode(&["x"], &options_of("separation"));
    says(
        load_with("lora_rank", 5.into()).and_then(encode),
        &["word_embeddings.parametrizations.weight.0.lora_B", "[3, 3, 16]", "5]"],
    );
    let more = load_with("lora_adaptations", json!(["separation"])).and_then(encode);
    says(more, &["lora_B", "[3, 3, 16]", "[1, "]);
    says(load_with("load_trained_adapters", false.into()), &["word_embeddings.weight` is missing"]);
}
