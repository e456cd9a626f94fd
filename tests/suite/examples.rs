//! The examples as programs: input, output, and errors.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use candle_core::{DType, Device, Tensor};

use crate::common::{Golden, LAYER, SEED, assert_close, assert_within, fixture};
use crate::programs::{example, fails, succeeds};

/// A golden case as the input and the checkpoint of `attend`, in a folder of their own.
struct Case {
    folder: tempfile::TempDir,
    file: &'static str,
    name: &'static str,
}

impl Case {
    fn new(file: &'static str, name: &'static str, renamed: &[(&str, &str)]) -> Self {
        let golden = Golden::open(file);
        let case = Self { folder: tempfile::tempdir().unwrap(), file, name };
        let names = [("query", "query"), ("key", "key"), ("value", "value"), ("lengths", "lengths")];
        let tensors = names
            .iter()
            .chain(renamed)
            .filter_map(|(from, to)| golden.try_get(&format!("{name}.{from}")).map(|tensor| (to.to_string(), tensor)));
        case.write(&tensors.collect());
        case
    }

    fn write(&self, tensors: &HashMap<String, Tensor>) {
        candle_core::safetensors::save(tensors, self.path("in.safetensors")).unwrap();
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        self.command_to("out.safetensors", arguments)
    }

    fn command_to(&self, output: &str, arguments: &[&str]) -> Command {
        let mut command = example("attend");
        command.arg("--checkpoint").arg(fixture(self.file)).args(["--prefix", &format!("{}.layer", self.name)]);
        command.arg("--input").arg(self.path("in.safetensors")).arg("--output").arg(self.path(output));
        command.args(arguments);
        command
    }

    fn output(&self, name: &str) -> Option<Tensor> {
        candle_core::safetensors::load(self.path("out.safetensors"), &Device::Cpu).unwrap().remove(name)
    }

    fn want(&self, name: &str) -> Tensor {
        Golden::open(self.file).get(&format!("{}.{name}", self.name))
    }
}

#[test]
fn attend_reproduces_the_golden_outputs() {
    let toy = Case::new("d2l_torch.safetensors", "toy", &[]);
    let said = succeeds(&mut toy.command(&["--heads", "5", "--weights"]));
    assert_eq!(said, "layout d2l, 5 heads of 20, 5 key-value heads, mask lengths(2 rows): output [2, 4, 100]\n");
    assert_within("toy", &toy.output("output").unwrap(), &toy.want("output"), SEED);
    assert_within("toy weights", &toy.output("weights").unwrap(), &toy.want("weights"), SEED);

    // A length for each query, in u32; without --weights there are none.
    let case = Case::new("d2l_jax.safetensors", "lens2d", &[]);
    let mut tensors = candle_core::safetensors::load(case.path("in.safetensors"), &Device::Cpu).unwrap();
    tensors.insert("lengths".to_string(), tensors["lengths"].to_dtype(DType::U32).unwrap());
    case.write(&tensors);
    succeeds(&mut case.command(&["--heads", "5"]));
    assert_within("lens2d", &case.output("output").unwrap(), &case.want("output"), SEED);
    assert!(case.output("weights").is_none());

    let causal = Case::new("torch_mha.safetensors", "causal", &[]);
    let said = succeeds(&mut causal.command(&["--heads", "4", "--causal", "--plan"]));
    assert!(said.starts_with("backend "), "{said}");
    assert_within("causal", &causal.output("output").unwrap(), &causal.want("output"), SEED);

    let additive = Case::new("torch_mha.safetensors", "additive", &[("additive", "additive")]);
    succeeds(&mut additive.command(&["--heads", "4"]));
    assert_within("additive", &additive.output("output").unwrap(), &additive.want("output"), SEED);

    let bart = Golden::open("layouts.safetensors");
    let folder = tempfile::tempdir().unwrap();
    let path = |file: &str| folder.path().join(file);
    let tensors = [("query", "bart.input"), ("attention_mask", "bart.mask")];
    let tensors = tensors.map(|(to, from)| (to, bart.get(from)));
    candle_core::safetensors::save(&HashMap::from(tensors), path("in.safetensors")).unwrap();
    std::fs::write(
        path("config.json"),
        r#"{"model_type": "bart", "encoder_attention_heads": 5, "num_attention_heads": 1}"#,
    )
    .unwrap();
    let mut command = example("attend");
    command
        .arg("--checkpoint")
        .arg(fixture("layouts.safetensors"))
        .args(["--prefix", "bart.encoder.layers.0.self_attn"]);
    command.arg("--config").arg(path("config.json")).arg("--input").arg(path("in.safetensors"));
    succeeds(command.arg("--output").arg(path("out.safetensors")));
    let got = candle_core::safetensors::load(path("out.safetensors"), &Device::Cpu).unwrap();
    assert_close("bart", &got["output"], &bart.get("bart.output"), LAYER);
}

#[test]
fn attend_rejects_wrong_input_and_writes_nothing() {
    let case = Case::new("d2l_torch.safetensors", "toy", &[]);
    fails(&mut case.command(&["--heads", "7"]), "num_attention_heads = 7");
    fails(&mut case.command(&[]), "--heads");
    let mut other_isa = case.command(&["--heads", "5"]);
    fails(other_isa.env("CANDLE_ATTENTION_ISA", "sse9"), "CANDLE_ATTENTION_ISA is sse9, expected ");
    #[cfg(unix)]
    {
        let no_text = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"\xff");
        let mut other_isa = case.command(&["--heads", "5"]);
        fails(other_isa.env("CANDLE_ATTENTION_ISA", no_text), "CANDLE_ATTENTION_ISA is \u{fffd}, expected ");
    }
    fails(&mut case.command(&["--heads", "5", "--config", "config.json"]), "cannot be used with");
    fails(&mut case.command(&["--config", "no.json"]), "no.json: No such file");
    fails(&mut case.command(&["--heads", "5", "--dtype", "i8"]), "expected f32, f64, f16 or bf16");
    let good = candle_core::safetensors::load(case.path("in.safetensors"), &Device::Cpu).unwrap();
    let with = |name: &str, tensor: Option<Tensor>| {
        let mut tensors = good.clone();
        match tensor {
            Some(tensor) => drop(tensors.insert(name.to_string(), tensor)),
            None => drop(tensors.remove(name)),
        }
        case.write(&tensors);
        case.command(&["--heads", "5"])
    };
    let zeros = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, &Device::Cpu).unwrap();
    fails(&mut with("mask", Some(zeros(&[2, 6], DType::U8))), "unknown tensor `mask`");
    fails(&mut with("query", None), "tensor `query` is missing");
    fails(&mut with("key", None), "tensor `key` is missing");
    fails(&mut with("query", Some(zeros(&[2, 4, 99], DType::F32))), "query has shape [2, 4, 99]");
    fails(&mut with("query", Some(zeros(&[2, 4, 100], DType::U8))), "`query` has dtype u8");
    fails(&mut with("lengths", Some(zeros(&[3], DType::I64))), "the number of rows in lengths is 3");
    fails(&mut with("attention_mask", Some(zeros(&[2, 1, 6], DType::U8))), "expected 2 dimensions (b, s_kv)");
    fails(&mut with("additive", Some(zeros(&[4, 6], DType::F32))), "`additive`: additive mask has shape [4, 6]");
    // The value may be left out: it is the key.
    succeeds(&mut with("value", None));
    std::fs::remove_file(case.path("out.safetensors")).unwrap();
    case.write(&good);
    fails(
        &mut case.command_to("no/out.safetensors", &["--heads", "5"]),
        "no/out.safetensors: its folder does not exist",
    );
    let left: Vec<_> = std::fs::read_dir(case.folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["in.safetensors"]);
}

#[test]
fn inspect_lists_the_attention_layers() {
    let inspect = || {
        let mut command = example("inspect");
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
    fails(example("inspect").arg("/no/such/folder"), "/no/such/folder: No such file");
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
    let plain = succeeds(example("inspect").arg(&path));
    assert!(plain.contains(r"\u{1b}]0;\u{202e}\u{9b}größe\n  candle-attention"), "{plain}");
    let json = succeeds(example("inspect").arg(&path).arg("--json"));
    assert!(json.contains(r"\u001b]0;\u202e\u009bgr\u00f6\u00dfe\n"), "{json}");
    let parsed: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(parsed["prefix"], "\u{1b}]0;\u{202e}\u{9b}größe\n");
    for said in [plain, json] {
        assert!(!said.contains(['\u{1b}', '\u{202e}', '\u{9b}']) && said.lines().count() < 3, "{said}");
    }
    let output = example("inspect").arg(&path).arg("--check").output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains(r"NaN or infinities in \u{1b}]0;\u{202e}"), "{stderr}");
}

#[test]
fn encode_prints_embeddings_in_input_order() {
    let texts: Vec<String> =
        serde_json::from_str(&std::fs::read_to_string(fixture("tiny_sentences.json")).unwrap()).unwrap();
    let want = Golden::open("tiny_bert.safetensors").get("mean_norm").to_vec2::<f32>().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("texts.txt");
    std::fs::write(&file, texts.join("\n")).unwrap();
    let tiny = || {
        let mut command = example("encode");
        command.arg("--model").arg(fixture("tiny-bert"));
        command
    };
    let by_arguments = succeeds(tiny().args(["--json", "--batch-size", "3", "--"]).args(&texts));
    let by_file = succeeds(tiny().args(["--json", "--file"]).arg(&file));
    for said in [by_arguments, by_file] {
        let lines: Vec<serde_json::Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), texts.len());
        for ((line, text), want) in lines.iter().zip(&texts).zip(&want) {
            assert_eq!(line["text"], **text);
            let embedding = line["embedding"].as_array().unwrap();
            assert_eq!(embedding.len(), want.len());
            for (got, want) in embedding.iter().zip(want) {
                assert!((got.as_f64().unwrap() - f64::from(*want)).abs() < LAYER);
            }
        }
    }
    let table = succeeds(tiny().args(["hello world", "the cat"]));
    assert!(table.contains("2 texts, 24 numbers each") && table.contains("1.000"), "{table}");
    let nearest = succeeds(tiny().args((0..12).map(|i| format!("text {i}"))));
    assert_eq!(nearest.lines().count(), 13);

    let embedded = succeeds(example("encode").args(["a cat", "a kitten"]));
    assert!(embedded.contains("2 texts, 128 numbers each by the embedded model"), "{embedded}");
    fails(example("encode").args(["--revision", "main", "a cat"]), "--model");

    fails(&mut tiny(), "no text");
    fails(tiny().args(["--file", "no.txt"]), "no.txt: No such file");
    fails(tiny().args(["--batch-size", "0", "a"]), "batch_size = 0");
    fails(tiny().args(["--device", "tpu", "a"]), "expected cpu, cuda[:N] or metal[:N]");
    fails(example("encode").args(["--model", "/no/such/folder", "a"]), "a folder that exists, or a hub id");
    #[cfg(not(feature = "hub"))]
    fails(example("encode").args(["--model", "owner/name", "a"]), "`--features hub`");
}

/// The address, the cache and the token of the hub come from the environment; afterwards the model runs offline.
#[cfg(feature = "hub")]
#[test]
fn encode_downloads_from_the_hub_and_then_runs_offline() {
    let hub = crate::hub::Hub::start();
    let cache = tempfile::tempdir().unwrap();
    let encode = || {
        let mut command = example("encode");
        command.env("HF_ENDPOINT", &hub.endpoint).env("HF_HOME", cache.path()).env("HF_TOKEN", "hf_word");
        command.args(["--model", "tiny/bert", "--json", "hello world"]);
        command
    };
    fails(encode().env("HF_HUB_OFFLINE", "1"), "is not in the cache, and offline mode is on");
    assert_eq!(hub.request_count(), 0);
    let online = succeeds(&mut encode());
    assert!(hub.saw_only_token("hf_word"));
    let before = hub.request_count();
    for variable in ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"] {
        for on in ["1", "true", "ON", "Yes"] {
            assert_eq!(succeeds(encode().env(variable, on)), online);
        }
    }
    assert_eq!(hub.request_count(), before);
    assert_eq!(succeeds(encode().env("HF_HUB_OFFLINE", "0")), online);
    assert!(hub.request_count() > before);
    fails(encode().args(["--revision", "dev"]), "no revision `dev`");
}

#[test]
fn prune_ranks_heads_draws_the_cost_and_writes_the_pruned_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(path("texts.txt"), "a cat sat\n\nthe dog ran\nthe cat and the dog\na mat\n").unwrap();
    let prune = |more: &[&str]| {
        let mut command = example("prune");
        command.args(["--model", fixture("tiny-bert").to_str().unwrap(), "--file", &path("texts.txt"), "--runs", "1"]);
        command.args(more);
        command
    };
    for by in ["gradient", "ablation", "entropy"] {
        let (svg, smaller) = (path(&format!("{by}.svg")), path(by));
        let printed = succeeds(&mut prune(&["--by", by, "--plot", &svg, "--output", &smaller, "--share", "0.5"]));
        assert!(printed.contains("least important (layer.head)") && printed.contains("100%"), "{printed}");
        let counts: Vec<&str> = printed
            .lines()
            .filter(|line| line.contains('%'))
            .filter_map(|line| line.split_whitespace().nth(1))
            .collect();
        assert!(counts.windows(2).all(|pair| pair[0] != pair[1]), "each number of heads once: {counts:?}");
        assert!(std::fs::read_to_string(svg).unwrap().contains("heads pruned, %"));
        let config = std::fs::read_to_string(Path::new(&smaller).join("config.json")).unwrap();
        assert!(config.contains("pruned_heads"), "{config}");
        succeeds(example("encode").args(["--model", &smaller, "a cat", "a dog"]));
    }
    fails(&mut prune(&["--output", &path("entropy")]), "exists already");
    fails(&mut prune(&["--plot", &path("no/plot.svg")]), "no/plot.svg: its folder does not exist");
    fails(&mut prune(&["--share", "1.5"]), "--share is 1.5, expected 0 to 1");
    fails(&mut prune(&["--limit", "1"]), "1 texts, expected at least 2");
    fails(example("prune").args(["--file", &path("texts.txt"), "--output", &path("none")]), "--output needs --model");
}
