//! `encode --json` of models that make sparse vectors, or a vector per token.

use std::process::Command;

use candle_core::Device;
use serde_json::Value;

use crate::common::{Golden, fixture};
use crate::programs::{fails, program, succeeds};

fn encode(model: &str, arguments: &[&str]) -> Command {
    let mut command = program("encode");
    command.arg("--model").arg(fixture(model)).args(arguments);
    command
}

fn lines(printed: &str) -> Vec<Value> {
    printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn numbers(list: &Value) -> Vec<f64> {
    list.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

fn close(got: &[f64], want: &[f64]) -> bool {
    got.len() == want.len() && got.iter().zip(want).all(|(got, want)| (got - want).abs() < 2e-5)
}

#[test]
fn sparse_vectors_are_printed() {
    let want = std::fs::read_to_string(fixture("sparse/inference_free.json")).unwrap();
    let want: Value = serde_json::from_str(&want).unwrap();
    let text = want["texts"][0].as_str().unwrap();
    for (arguments, task) in [
        (&["--json"][..], "document"),
        (&["--json", "--as", "query"], "query"),
        (&["--json", "--as", "document"], "document"),
    ] {
        let said = lines(&succeeds(encode("sparse/inference_free", arguments).args([text, "a"])));
        assert_eq!((said.len(), &said[0]["text"]), (2, &text.into()));
        assert_eq!(said[0]["indices"], want[task][0]["indices"]);
        assert!(close(&numbers(&said[0]["values"]), &numbers(&want[task][0]["values"])), "{task}");
    }
    fails(&mut encode("sparse/splade", &["a"]), "the model makes sparse vectors, which are printed with --json only");
    let precision = ["--json", "--precision", "int8", "a"];
    fails(&mut encode("sparse/splade", &precision), "--precision is not for this model: it makes sparse vectors");
    fails(&mut encode("sparse/splade", &["--json", "--prompt-name", "x", "a"]), "prompt_name is x");
}

#[test]
fn vectors_of_tokens_are_printed() {
    let golden = Golden::open("multi_vector/modern.safetensors");
    let text = "the cat sat on the mat";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("texts.txt");
    std::fs::write(&file, format!("{text}\n\na\n")).unwrap();
    let file = file.to_str().unwrap();
    for (arguments, name) in [
        (&["--json", text, "a"][..], "document"),
        (&["--json", "--as", "query", text, "a"], "query"),
        (&["--json", "--as", "document", "--file", file], "document"),
    ] {
        let said = lines(&succeeds(&mut encode("multi_vector/modern", arguments)));
        assert_eq!((said.len(), &said[0]["text"]), (2, &text.into()));
        let want = golden.get(&format!("{name}.0")).to_device(&Device::Cpu).unwrap().to_vec2::<f32>().unwrap();
        let got = said[0]["embeddings"].as_array().unwrap();
        assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(want) {
            let want: Vec<f64> = want.into_iter().map(f64::from).collect();
            assert!(close(&numbers(got), &want), "{name}");
        }
    }
    let said = "the model makes a vector per token, which are printed with --json only";
    fails(&mut encode("multi_vector/modern", &["a", "b"]), said);
    let normalized = ["--json", "--normalize", "a"];
    fails(&mut encode("multi_vector/modern", &normalized), "--normalize is not for this model");
}
