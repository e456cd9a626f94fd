//! `encode` with an adapter or a task.

use candle_attention_text::{EncodeOptions, SentenceEncoder, Task};
use candle_core::{DType, Device};
use serde_json::Value;

use super::Scratch;
use crate::common::fixture;
use crate::programs::{copy_folder, fails, succeeds};

/// The embedding of a line of `--json`.
fn embedding(line: &str) -> Vec<f32> {
    let line: Value = serde_json::from_str(line).unwrap();
    line["embedding"].as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
}

#[test]
fn encode_uses_an_adapter() {
    let scratch = Scratch::new();
    copy_folder(&fixture("lora/bert_query_value"), &scratch.path("adapter"));
    copy_folder(&fixture("lora/distilbert_query_value"), &scratch.path("other"));
    let run = |more: &[&str]| {
        let arguments = [&["encode", "--json", "--model", "all-MiniLM-L6-v2", "hello world"], more].concat();
        scratch.run(&arguments)
    };
    let base = embedding(&succeeds(&mut run(&[])));
    let adapted = embedding(&succeeds(&mut run(&["--adapter", "adapter"])));
    let mut encoder = SentenceEncoder::from_folder(fixture("tiny-bert"), DType::F32, &Device::Cpu).unwrap();
    let adapter = candle_attention::lora::LoraAdapter::open(scratch.path("adapter")).unwrap();
    encoder.add_adapter("a", &adapter).unwrap();
    let want = encoder.encode(&["hello world"], &EncodeOptions::default().with_adapter("a")).unwrap();
    assert_eq!(adapted, want.get(0).unwrap().to_vec1::<f32>().unwrap());
    assert_ne!(adapted, base);
    fails(&mut run(&["--adapter", "absent"]), "absent/adapter_config.json");
    fails(&mut run(&["--adapter", "other"]), "q_lin.weight` is missing");
    fails(&mut run(&["--adapter", "adapter", "--task", "x"]), "--task");
    fails(&mut run(&["--task", "retrieval.query"]), "task is retrieval.query");
}

#[test]
fn encode_uses_a_task() {
    let scratch = Scratch::new();
    copy_folder(&fixture("lora/jina_tasks"), &scratch.path("jina"));
    let run = |more: &[&str]| scratch.run(&[&["encode", "--json", "--model", "jina", "hello world"], more].concat());
    let got = embedding(&succeeds(&mut run(&["--task", "separation"])));
    let encoder = SentenceEncoder::from_folder(scratch.path("jina"), DType::F32, &Device::Cpu).unwrap();
    let want =
        encoder.encode(&["hello world"], &EncodeOptions::default().with_task(Task::Named("separation"))).unwrap();
    assert_eq!(got, want.get(0).unwrap().to_vec1::<f32>().unwrap());
    assert_ne!(got, embedding(&succeeds(&mut run(&[]))));
    fails(&mut run(&["--task", "search"]), "retrieval.query or separation or text-matching");
}
