//! The command `inspect`: what it lists, and what it says about weights that it cannot check.

use candle_core::{DType, Device, Tensor};

use crate::common::fixture;
use crate::programs::{fails, program, succeeds};

#[test]
fn inspect_lists_the_attention_layers() {
    let inspect = || {
        let mut command = program("inspect");
        command.arg(fixture("tiny-bert"));
        command
    };
    let said = succeeds(&mut inspect());
    assert!(said.starts_with("2 attention layers, "), "{said}");
    assert!(
        said.contains("encoder.layer.1.attention  bert  F32") && said.contains("position none  mask none"),
        "{said}"
    );
    let lines = succeeds(inspect().arg("--json"));
    let lines: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0]["prefix"], "encoder.layer.0.attention");
    assert_eq!((&lines[0]["layout"], &lines[0]["problem"]), (&"bert".into(), &serde_json::Value::Null));
    succeeds(inspect().arg("--check"));
    fails(inspect().args(["--config", "no.json"]), "no.json: No such file");
    fails(program("inspect").arg("/no/such/folder"), "/no/such/folder: No such file");
}

/// Quantized layers are listed by their format, and checked by their stored numbers.
#[test]
fn inspect_names_quantized_formats() {
    let said = succeeds(program("inspect").arg(fixture("quantized/awq.safetensors")).arg("--check"));
    assert!(said.contains("layer  candle-attention  AWQ, 4 bits in groups of 16  8192 parameters"), "{said}");
    // Its zero points are not known without a config.json.
    let said = succeeds(program("inspect").arg(fixture("quantized/gptq.safetensors")));
    assert!(said.contains("GPTQ") && said.contains("no config.json with a `quantization_config`"), "{said}");
}

/// Names of a file that would set the title of a terminal or turn the direction of writing.
#[test]
fn inspect_prints_names_as_text() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let names = ["q_proj", "k_proj", "v_proj", "o_proj", "other"];
    let number = Tensor::full(f32::NAN, (1, 1), &Device::Cpu).unwrap();
    let named = |name| (format!("\u{1b}]0;\u{202e}\u{9b}größe\n.{name}.weight"), number.clone());
    candle_core::safetensors::save(&names.map(named).into(), &path).unwrap();
    let plain = succeeds(program("inspect").arg(&path));
    assert!(plain.contains(r"\u{1b}]0;\u{202e}\u{9b}größe\n  candle-attention"), "{plain}");
    let json = succeeds(program("inspect").arg(&path).arg("--json"));
    assert!(json.contains(r"\u001b]0;\u202e\u009bgr\u00f6\u00dfe\n"), "{json}");
    let parsed: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(parsed["prefix"], "\u{1b}]0;\u{202e}\u{9b}größe\n");
    for said in [plain, json] {
        assert!(!said.contains(['\u{1b}', '\u{202e}', '\u{9b}']) && said.lines().count() < 3, "{said}");
    }
    let output = program("inspect").arg(&path).arg("--check").output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains(r"NaN or infinities in \u{1b}]0;\u{202e}"), "{stderr}");
}

/// The tiny BERT with one tensor replaced, and this number of layers in its config.json.
fn changed(name: &str, tensor: Tensor, layers: usize) -> tempfile::TempDir {
    let (from, to) = (fixture("tiny-bert"), tempfile::tempdir().unwrap());
    let mut tensors = candle_core::safetensors::load(from.join("model.safetensors"), &Device::Cpu).unwrap();
    tensors.insert(name.to_string(), tensor);
    candle_core::safetensors::save(&tensors, to.path().join("model.safetensors")).unwrap();
    let config = std::fs::read_to_string(from.join("config.json")).unwrap();
    let config = config.replace("\"num_hidden_layers\": 2", &format!("\"num_hidden_layers\": {layers}"));
    std::fs::write(to.path().join("config.json"), config).unwrap();
    to
}

/// Exit code 0, what is on standard error.
fn notes(folder: &std::path::Path, arguments: &[&str]) -> String {
    let output = program("inspect").arg(folder).args(arguments).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    stderr
}

#[test]
fn inspect_says_what_it_could_not_check() {
    let query = "encoder.layer.1.attention.self.query.weight";
    let integers = Tensor::zeros((24, 24), DType::U8, &Device::Cpu).unwrap();
    let folder = changed(query, integers, 2);
    let said = succeeds(program("inspect").arg(folder.path()));
    assert!(said.contains(&format!("(tensor `{query}` has dtype U8, expected f16, bf16, f32 or f64)")), "{said}");
    let said = notes(folder.path(), &["--check"]);
    assert!(said.contains("1 of 2 layers cannot be loaded") && said.contains(query), "{said}");
    assert!(!said.contains("every weight is finite"), "{said}");
    // Without a configuration too.
    std::fs::remove_file(folder.path().join("config.json")).unwrap();
    assert!(notes(folder.path(), &["--check"]).contains("has dtype U8"));
    assert_eq!(notes(&fixture("tiny-bert"), &["--check"]), "every weight is finite\n");
}

#[test]
fn inspect_says_that_layers_are_missing() {
    let bias = Tensor::zeros(24, DType::F32, &Device::Cpu).unwrap();
    let folder = changed("encoder.layer.1.attention.self.query.bias", bias, 12);
    let said = notes(folder.path(), &["--json"]);
    assert!(said.contains("config.json: `num_hidden_layers` is 12, but the checkpoint has 2 layers"), "{said}");
    assert_eq!(notes(&fixture("tiny-bert"), &[]), "");
    for name in ["albert", "modernbert", "roberta", "distilbert", "mpnet"] {
        assert_eq!(notes(&fixture(&format!("encoders/{name}")), &[]), "", "{name}");
    }
    assert_eq!(notes(&fixture("compose/t5"), &[]), "");
}

/// A name that is none of a folder is said to be none, before the hub is asked.
#[test]
fn inspect_names_what_is_not_there() {
    fails(program("inspect").arg("./nope"), "./nope: No such file");
    fails(program("inspect").arg("nope.safetensors"), "nope.safetensors: No such file");
    let said = "nope: no such folder; ";
    let cache = tempfile::tempdir().unwrap();
    fails(program("inspect").env("HF_HUB_OFFLINE", "1").env("HF_HOME", cache.path()).arg("nope"), said);
    let broken = tempfile::tempdir().unwrap();
    std::fs::copy(fixture("half.safetensors"), broken.path().join("model.safetensors")).unwrap();
    std::fs::write(broken.path().join("config.json"), "{\"model_type\": ").unwrap();
    fails(program("inspect").arg(broken.path()), "config.json: EOF while parsing");
}

#[cfg(unix)]
#[test]
fn inspect_survives_a_reader_that_leaves_and_a_full_disk() {
    use crate::programs::{fails_on_a_full_disk, reader_leaves};
    for arguments in [&[][..], &["--json"], &["--check"]] {
        reader_leaves(program("inspect").arg(fixture("tiny-bert")).args(arguments));
        fails_on_a_full_disk(program("inspect").arg(fixture("tiny-bert")).args(arguments));
    }
}
