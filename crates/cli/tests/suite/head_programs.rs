//! The commands that run models with a task head: `rerank`, `classify` and `fill-mask`.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::common::fixture;
use crate::models::{FOX, folder};
use crate::programs::{fails, program, succeeds};

fn run(command: &str, model: &Path, arguments: &[&str]) -> Command {
    let mut program = program(command);
    program.arg("--model").arg(model).args(arguments);
    program
}

fn example_of(command: &str, model: &Path, arguments: &[&str]) -> Command {
    let mut program = program(command);
    program.arg("--model").arg(model).args(arguments);
    program
}

fn documents_of(hits: &[Value]) -> Vec<&str> {
    hits.iter().map(|hit| hit["document"].as_str().unwrap()).collect()
}

fn lines(printed: &str) -> Vec<Value> {
    printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Exit code 0, what is on standard error.
fn notes(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    stderr
}

/// The scores of a language model, with the prompt of its folder by name and as a text.
#[test]
fn rerank_takes_an_instruction() {
    let model = crate::common::fixture("rerankers/qwen3");
    let pair = ["cats", "The cat sat on the mat.", "--json"];
    let score = |more: &[&str]| {
        let arguments: Vec<&str> = pair.iter().chain(more).copied().collect();
        lines(&succeeds(&mut run("rerank", &model, &arguments)))[0]["score"].as_f64().unwrap()
    };
    let near = |got: f64, want: f64| assert!((got - want).abs() < 1e-4, "{got}, want {want}");
    near(score(&[]), 0.2950);
    near(score(&["--prompt-name", "web"]), 0.2897);
    near(score(&["--prompt", "read the web"]), 0.2897);
    let unknown = ["cats", "mat", "--prompt-name", "nope"];
    fails(&mut run("rerank", &model, &unknown), "prompt_name is nope");
    fails(&mut run("rerank", &model, &["a", "b", "--prompt", "c", "--prompt-name", "web"]), "cannot be used with");
}

/// Rerankers and classifiers in GGUF files; a head does not disturb the embeddings of a file that has them.
#[test]
fn heads_of_gguf_files() {
    let file = |name: &str| fixture(&format!("{name}.gguf"));
    let scores = |name: &str, more: &[&str]| {
        let arguments = [&["Who sleeps?", "The cat sat on the mat.", "--json"], more].concat();
        lines(&succeeds(&mut run("rerank", &file(name), &arguments)))[0]["score"].as_f64().unwrap()
    };
    let near = |got: f64, want: f64| assert!((got - want).abs() < 1e-4, "{got}, want {want}");
    near(scores("gguf_heads/roberta", &[]), 0.492);
    near(scores("gguf_heads/reranker", &[]), 0.7456);
    near(scores("gguf_heads/reranker", &["--prompt", "Find the animal"]), 0.7591);
    let labels = lines(&succeeds(&mut run("classify", &file("gguf_heads/xlm-roberta"), &["hello world", "--json"])));
    assert_eq!(labels[0]["labels"].as_array().unwrap().len(), 3);
    fails(&mut run("rerank", &file("gguf_heads/bert"), &["a", "b"]), "3 labels");
    fails(&mut run("classify", &file("gguf_heads/reranker"), &["a"]), "answers `yes` and `no`");
    fails(&mut run("encode", &file("gguf_heads/reranker"), &["a"]), "has no embeddings");
    succeeds(&mut run("encode", &file("gguf_heads/roberta"), &["a"]));
    assert!(notes(&mut run("encode", &file("gguf/llama"), &["a"])).contains("does not state `add_eos_token`"));
    assert!(!notes(&mut run("encode", &file("gguf/qwen3"), &["a"])).contains("add_eos_token"));
}

#[test]
fn rerank_sorts_documents() {
    let model = folder(1, json!({"id2label": {"0": "LABEL_0"}}));
    let documents = ["the cat sat", "on the mat", "hello", "a dog runs"];
    let printed = succeeds(&mut run("rerank", model.path(), &documents));
    let shown: Vec<&str> = printed.lines().map(|line| line.split_at(13).1).collect();
    assert_eq!(shown, ["hello", "a dog runs", "on the mat"], "{printed}");
    assert!(printed.starts_with("  1  0.5844  hello"), "{printed}");

    let file = model.path().join("documents.txt");
    std::fs::write(&file, "on the mat\n\n  \nhello\na dog runs\n").unwrap();
    let from_file = ["the cat sat", "--json", "-k", "2", "--file", file.to_str().unwrap()];
    let hits = lines(&succeeds(&mut run("rerank", model.path(), &from_file)));
    assert_eq!(documents_of(&hits), ["hello", "a dog runs"]);
    assert!((hits[0]["score"].as_f64().unwrap() - 0.584386).abs() < 1e-5, "{hits:?}");
    // The query by its name, and all documents in their order.
    let named = ["--query", "the cat sat", "--json", "on the mat", "hello", "a dog runs"];
    for mut command in [run("rerank", model.path(), &named), example_of("rerank", model.path(), &named)] {
        let all = lines(&succeeds(&mut command));
        assert_eq!(documents_of(&all), &named[3..]);
        assert_eq!(all[1], hits[0]);
    }

    let said = notes(&mut run("rerank", model.path(), &["hello", FOX, "a"]));
    assert_eq!(said, "note: 1 of 2 texts was cut at the model's maximum length (--max-length)\n");
    fails(&mut run("rerank", model.path(), &["the cat sat"]), "standard input: no document");
    fails(&mut run("rerank", model.path(), &["a", "b", "-k", "0"]), "expected a whole number, at least 1");
    fails(&mut run("rerank", model.path(), &["a", "--file", "no.txt"]), "no.txt: No such file");
    fails(
        &mut run("rerank", model.path(), &["a", "b", "--file", "no.txt"]),
        "documents both as arguments (`b`) and by",
    );
    fails(&mut run("rerank", model.path(), &[]), "no query: give one by --query");
    fails(&mut run("rerank", Path::new("./nope"), &["a", "b"]), "./nope");
    fails(program("rerank").args(["a", "b"]), "--model");
    let two = folder(2, json!({}));
    let said = two.path().display().to_string();
    fails(&mut run("rerank", two.path(), &["a", "b"]), &said);
    fails(&mut run("rerank", &fixture("tiny-bert"), &["a", "b"]), "this is not a sequence classifier");
}

#[test]
fn classify_prints_the_labels_of_texts_and_pairs() {
    let model = folder(3, json!({"id2label": {"0": "no", "1": "maybe", "2": "yes"}}));
    let printed = succeeds(&mut run("classify", model.path(), &["the cat sat on the mat", "hello world"]));
    let want = "the cat sat on the mat\n   0.6722  no\n   0.1765  maybe\n   0.1513  yes\nhello world\n   0.8203  no\n";
    assert!(printed.starts_with(want), "{printed}");
    let said = lines(&succeeds(&mut run(
        "classify",
        model.path(),
        &["the cat sat", "--pair", "on the mat", "--json", "--top-k", "1"],
    )));
    assert_eq!((&said[0]["text"], &said[0]["pair"]), (&"the cat sat".into(), &"on the mat".into()));
    assert_eq!(said[0]["labels"].as_array().unwrap().len(), 1);
    assert!((said[0]["labels"][0]["score"].as_f64().unwrap() - 0.44882038).abs() < 1e-5, "{said:?}");

    let said = notes(&mut run("classify", model.path(), &["a", "--max-length", "3", "the cat sat", FOX]));
    assert_eq!(said, "note: 2 of 3 texts were cut at 3 tokens (--max-length)\n");
    let file = model.path().join("texts.txt");
    std::fs::write(&file, "\n \n").unwrap();
    fails(&mut run("classify", model.path(), &["--file", file.to_str().unwrap()]), "texts.txt: no text");
    std::fs::write(&file, b"\0o\0n\0e\0\n").unwrap();
    for command in ["classify", "fill-mask", "rerank"] {
        let arguments = ["--file", file.to_str().unwrap()];
        let arguments = if command == "rerank" { &["a", arguments[0], arguments[1]][..] } else { &arguments };
        fails(&mut run(command, model.path(), arguments), "texts.txt: the text is in UTF-16, expected UTF-8");
    }
    fails(&mut run("classify", model.path(), &[]), "standard input: no text");
    fails(&mut run("classify", model.path(), &["a", "--batch-size", "0"]), "at least 1");
    fails(&mut run("classify", model.path(), &["a", "--max-length", "99999"]), "--max-length is 99999");
    fails(&mut run("classify", folder(0, json!({})).path(), &["a"]), "no head that classifies texts or tokens");
}

#[test]
fn classify_finds_entities_with_a_head_for_tokens() {
    let folder = fixture("token_classifier");
    let model = folder.join("bert");
    let want: Value = serde_json::from_str(&std::fs::read_to_string(folder.join("bert.json")).unwrap()).unwrap();
    let text = want["texts"][0].as_str().unwrap();
    for (strategy, arguments) in [
        ("simple", &["--json"][..]),
        ("none", &["--json", "--aggregation", "none"]),
        ("max", &["--json", "--aggregation", "max"]),
    ] {
        for mut command in [run("classify", &model, arguments), example_of("classify", &model, arguments)] {
            let said = lines(&succeeds(command.arg(text)));
            assert_eq!(said[0]["text"], text);
            let (found, wanted) = (said[0]["entities"].as_array().unwrap(), want[strategy][0].as_array().unwrap());
            assert_eq!(found.len(), wanted.len());
            for (found, wanted) in found.iter().zip(wanted) {
                let (found, wanted) = (found.as_object().unwrap(), wanted.as_object().unwrap());
                assert_eq!(found.len(), wanted.len());
                for (key, value) in wanted.iter().filter(|(key, _)| *key != "score") {
                    assert_eq!(&found[key], value, "{key}");
                }
                assert!((found["score"].as_f64().unwrap() - wanted["score"].as_f64().unwrap()).abs() < 2e-5);
            }
        }
    }
    let table = succeeds(&mut run("classify", &model, &[text]));
    assert!(table.starts_with("Zoë Müller lives in Zürich.\n   0.7615  MISC  Zoë Mü  0..6\n"), "{table}");
    // Windows of 12 tokens.
    let long = want["long"][0].as_str().unwrap();
    let cut = ["--max-length", "12", long];
    let said = notes(&mut run("classify", &model, &cut));
    assert_eq!(said, "note: 1 of 1 text was cut at 12 tokens (--max-length; --stride reads all of a text)\n");
    let whole = [&["--json", "--stride", "4"], &cut[..]].concat();
    assert_eq!(notes(&mut run("classify", &model, &whole)), "");
    let said = lines(&succeeds(&mut run("classify", &model, &whole)));
    let ends = |entities: &Value| entities.as_array().unwrap().iter().map(|e| e["end"].clone()).collect::<Vec<_>>();
    assert_eq!(ends(&said[0]["entities"]), ends(&want["simple, 12, 4"][0]));
    let none = ["a", "--stride", "4", "--aggregation", "none"];
    fails(&mut run("classify", &model, &none), "stride = 4 is not allowed: expected none without aggregation");
    fails(&mut run("classify", &model, &["a", "--aggregation", "last"]), "[possible values: none, simple,");
    fails(&mut run("classify", &model, &["a", "--pair", "b"]), "--pair is not for this model: it classifies tokens");
    let text_classifier = self::folder(2, json!({}));
    let said = "--aggregation is not for this model: it classifies texts";
    fails(&mut run("classify", text_classifier.path(), &["a", "--aggregation", "max"]), said);
    fails(&mut run("classify", text_classifier.path(), &["a", "--stride", "1"]), "--stride is not for this model");
    fails(&mut run("classify", &fixture("encoders/bert_mlm"), &["a"]), "no head that classifies texts or tokens");
}

#[test]
fn fill_mask_takes_the_same_mask_for_every_model() {
    let model = folder(0, json!({}));
    let text = "the [MASK] sat on the [MASK]";
    let printed = succeeds(&mut run("fill-mask", model.path(), &["-k", "1", text]));
    assert_eq!(printed, format!("{text}\n  mask 1\n   0.0432  text\n  mask 2\n   0.0444  ##x\n"));
    let said =
        lines(&succeeds(&mut run("fill-mask", model.path(), &["--json", "-k", "3", "the [MASK] sat on the mat"])));
    let best = &said[0]["masks"][0];
    assert_eq!((&best[0]["token"], &best[0]["id"]), (&"7".into(), &46.into()));
    assert_eq!(best.as_array().unwrap().len(), 3);

    fails(&mut run("fill-mask", model.path(), &[text, "the cat"]), "`the cat` has no mask: write [MASK]");
    let with_labels = folder(1, json!({"id2label": {"0": "LABEL_0"}}));
    fails(&mut run("fill-mask", with_labels.path(), &[text]), "no head for masked");

    // A model whose mask token is another.
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        let path = model.path().join(file);
        let renamed = std::fs::read_to_string(&path).unwrap().replace("[MASK]", "<mask>");
        std::fs::write(&path, renamed).unwrap();
    }
    for text in [text, "the <mask> sat on the <mask>"] {
        let again = succeeds(&mut run("fill-mask", model.path(), &["-k", "1", text]));
        assert_eq!(again.split_once('\n').unwrap().1, printed.split_once('\n').unwrap().1);
    }
}

#[cfg(unix)]
#[test]
fn the_commands_survive_a_reader_that_leaves_and_a_full_disk() {
    use crate::programs::{fails_on_a_full_disk, reader_leaves};
    let [cross, labels, masked] =
        [folder(1, json!({"id2label": {"0": "LABEL_0"}})), folder(2, json!({})), folder(0, json!({}))];
    let commands = || {
        [
            run("rerank", cross.path(), &["a", "b"]),
            run("classify", labels.path(), &["a", "--json"]),
            run("fill-mask", masked.path(), &["a [MASK]"]),
        ]
    };
    commands().iter_mut().for_each(reader_leaves);
    commands().iter_mut().for_each(fails_on_a_full_disk);
}

/// A head whose weights are NaN is named, and no score is printed.
#[test]
fn damaged_heads_are_named() {
    // The sigmoid of an infinity would be 1.
    for (number, settings) in
        [(f32::NAN, json!({})), (f32::INFINITY, json!({"problem_type": "multi_label_classification"}))]
    {
        let model = folder(2, settings);
        let path = model.path().join("model.safetensors");
        let mut tensors = candle_core::safetensors::load(&path, &candle_core::Device::Cpu).unwrap();
        let bias = candle_core::Tensor::full(number, 2, &candle_core::Device::Cpu).unwrap();
        tensors.insert("classifier.bias".to_string(), bias);
        candle_core::safetensors::save(&tensors, &path).unwrap();
        fails(&mut run("classify", model.path(), &["a"]), "NaN or an infinity in `classifier.bias`");
    }
}
