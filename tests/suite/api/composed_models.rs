//! The examples that compose a model around the layer, against transformers (`tests/golden/compose.py`).

// Each example compiles what the programs share as a module of its own.
#![allow(clippy::duplicate_mod)]

#[path = "../../../examples/generate.rs"]
#[allow(dead_code)]
mod generate;
#[path = "../../../examples/gpt.rs"]
#[allow(dead_code)]
mod gpt;
#[path = "../../../examples/t5.rs"]
#[allow(dead_code)]
mod t5;
#[allow(dead_code)]
#[path = "../../../examples/tokens/mod.rs"]
mod tokens;
#[path = "../../../examples/vit_block.rs"]
#[allow(dead_code)]
mod vit_block;

use std::collections::BTreeMap;
use std::process::Command;

use candle_attention::checkpoint::Checkpoint;
use candle_attention::{ComputeType, KvCache, PaddedIds};
use candle_core::{D, DType, Device, Tensor};
use candle_nn::{AdamW, Optimizer, VarMap};
use generate::Decoder;
use generate::tokens::Config;
use gpt::Gpt;
use t5::T5;

use crate::common::programs::{example, fails, succeeds};
use crate::common::{Golden, LAYER, assert_close, fixture, says};

/// The rows of padded ids `(b, s)`.
fn rows(golden: &Golden) -> Vec<Vec<u32>> {
    let ids = golden.get("ids").to_dtype(DType::U32).unwrap().to_vec2::<u32>().unwrap();
    let lengths = golden.get("lengths").to_vec1::<i64>().unwrap();
    ids.into_iter().zip(lengths).map(|(row, length)| row[..length as usize].to_vec()).collect()
}

fn generated(golden: &Golden) -> Vec<Vec<u32>> {
    golden.get("generated").to_dtype(DType::U32).unwrap().to_vec2().unwrap()
}

/// Rows as the examples read and print them.
fn written(rows: &[Vec<u32>]) -> Vec<String> {
    rows.iter().map(|row| row.iter().map(u32::to_string).collect::<Vec<_>>().join(",")).collect()
}

/// The decoder of a folder.
fn decoder(folder: &str) -> Decoder {
    let folder = fixture(folder);
    let checkpoint = Checkpoint::open(&folder).unwrap();
    Decoder::load(&Config::from_folder(&folder).unwrap(), &checkpoint, ComputeType::default(), &Device::Cpu).unwrap()
}

/// Row `i` of `(b, s, n)`, its first `length` tokens.
fn tokens(all: &Tensor, i: usize, length: usize) -> Tensor {
    all.get(i).unwrap().narrow(0, 0, length).unwrap()
}

#[test]
fn qwen3_equals_the_one_of_transformers() {
    let golden = Golden::open("compose/qwen3/golden.safetensors");
    let (model, rows, generated) = (decoder("compose/qwen3"), rows(&golden), generated(&golden));
    let want = golden.get("logits");
    let logits = model.forward(&rows, &mut model.caches()).unwrap();
    for (i, row) in rows.iter().enumerate() {
        assert_close(&format!("row {i}"), &tokens(&logits, i, row.len()), &tokens(&want, i, row.len()), LAYER);
    }

    // In chunks of 4, of which the shorter rows have fewer tokens or none.
    let mut caches = model.caches();
    for start in (0..9).step_by(4) {
        let chunk = |row: &Vec<u32>| row[start.min(row.len())..(start + 4).min(row.len())].to_vec();
        let chunks: Vec<Vec<u32>> = rows.iter().map(chunk).collect();
        let logits = model.forward(&chunks, &mut caches).unwrap();
        for (i, chunk) in chunks.iter().enumerate().filter(|(_, chunk)| !chunk.is_empty()) {
            let want = want.get(i).unwrap().narrow(0, start, chunk.len()).unwrap();
            assert_close(&format!("row {i} from {start}"), &tokens(&logits, i, chunk.len()), &want, LAYER);
        }
    }

    // Token by token, each row at its own place.
    let (mut caches, mut new) = (model.caches(), rows.clone());
    for step in 0..12 {
        let logits = model.forward(&new, &mut caches).unwrap();
        let best = logits.argmax(D::Minus1).unwrap().to_vec2::<u32>().unwrap();
        for (i, (row, generated)) in new.iter_mut().zip(&generated).enumerate() {
            assert_eq!(best[i][row.len() - 1], generated[step], "row {i}, step {step}");
            *row = vec![generated[step]];
        }
        if step == 11 {
            assert_close("last", &logits.squeeze(1).unwrap(), &golden.get("last_logits"), LAYER);
        }
    }
}

/// Continuous batching: requests are prefilled alone, join those that are running, and leave when they are done. The
/// second layer has a window of 5 tokens.
#[test]
fn requests_join_and_leave_a_running_qwen3() {
    let golden = Golden::open("compose/qwen3/golden.safetensors");
    let (model, rows, generated) = (decoder("compose/qwen3"), rows(&golden), generated(&golden));
    let kinds: [fn() -> Vec<KvCache>; 3] = [
        || vec![KvCache::growing(), KvCache::growing()],
        || vec![KvCache::growing(), KvCache::rotating(5)],
        || vec![KvCache::fixed(24), KvCache::rotating(7)],
    ];
    for caches in kinds {
        let (mut batch, mut running) = (caches(), Vec::new());
        for step in 0..20 {
            if let Some(i) = [0, 3, 7].into_iter().position(|start| start == step) {
                let mut own = caches();
                let best = model.forward(&rows[i..=i], &mut own).unwrap().argmax(D::Minus1).unwrap();
                assert_eq!(best.to_vec2::<u32>().unwrap()[0][rows[i].len() - 1], generated[i][0]);
                batch.iter_mut().zip(&own).for_each(|(cache, own)| cache.append_sequences(own).unwrap());
                running.push((i, 1));
            }
            let last: Vec<Vec<u32>> = running.iter().map(|&(i, count)| vec![generated[i][count - 1]]).collect();
            let logits = model.forward(&last, &mut batch).unwrap().squeeze(1).unwrap();
            let best = logits.argmax(D::Minus1).unwrap().to_vec1::<u32>().unwrap();
            for (at, (i, count)) in running.iter_mut().enumerate() {
                assert_eq!(best[at], generated[*i][*count], "row {i}, token {count}");
                if *count == 11 {
                    let want = golden.get("last_logits").get(*i).unwrap();
                    assert_close("the last", &logits.get(at).unwrap(), &want, LAYER);
                }
                *count += 1;
            }
            let left: Vec<usize> = (0..running.len()).filter(|&at| running[at].1 < 12).collect();
            if left.is_empty() {
                break;
            }
            batch.iter_mut().for_each(|cache| cache.select_sequences(&left).unwrap());
            running = left.into_iter().map(|at| running[at]).collect();
        }
        assert!(running.iter().all(|(_, count)| *count == 12), "{running:?}");
    }
}

#[test]
fn t5_equals_the_one_of_transformers() {
    for name in ["t5", "t5_gated"] {
        let folder = fixture(&format!("compose/{name}"));
        let golden = Golden::open(&format!("compose/{name}/golden.safetensors"));
        let (model, rows, generated) = (T5::load(&folder).unwrap(), rows(&golden), generated(&golden));
        let padded = PaddedIds::new(&rows, 0, &Device::Cpu).unwrap();
        let (hidden, want) = (model.encode(&padded).unwrap(), golden.get("hidden"));
        for (i, row) in rows.iter().enumerate() {
            assert_close(name, &tokens(&hidden, i, row.len()), &tokens(&want, i, row.len()), LAYER);
        }
        // The decoder reads its start token and what it has generated, in chunks of any size.
        let ids = Tensor::new(generated.clone(), &Device::Cpu).unwrap().narrow(1, 0, 11).unwrap();
        let ids = Tensor::cat(&[&ids.narrow(1, 0, 1).unwrap().zeros_like().unwrap(), &ids], 1).unwrap();
        for size in [1, 5, 12] {
            let mut caches = model.caches(&hidden).unwrap();
            for start in (0..12).step_by(size) {
                let n = size.min(12 - start);
                let chunk = ids.narrow(1, start, n).unwrap();
                let logits = model.decode(&chunk, &padded.lengths, &mut caches).unwrap();
                let want = golden.get("logits").narrow(1, start, n).unwrap();
                assert_close(&format!("{name} from {start}"), &logits, &want, LAYER);
            }
        }
        let said = succeeds(example("t5").arg(folder).args(["--count", "12"]).args(written(&rows)));
        assert_eq!(said.lines().collect::<Vec<_>>(), written(&generated));
    }
}

/// Trained from nothing, frozen, and written as a GPT-2 with the names and shapes that transformers gives it. What is
/// read again, the attention by `Checkpoint::attention`, computes the same. `tests/golden/gpt_check.py` has
/// transformers load what the example has written.
#[test]
fn gpt_is_trained_frozen_and_written_as_gpt2() {
    let text: Vec<u8> = b"the cat sat on the mat and the dog sat on the log. ".repeat(20);
    let (json, variables) = (gpt::config(16, 2, 2, 16), VarMap::new());
    let model = Gpt::new(&json, &variables).unwrap();
    let scalar = |loss: Tensor| loss.to_scalar::<f32>().unwrap();
    let pieces = |step| tokens::pieces(&text, 4, 16, step).unwrap();
    let held = pieces(0);
    let mut optimizer = AdamW::new_lr(variables.all_vars(), 1e-2).unwrap();
    let before = model.frozen().unwrap();
    let loss_before = scalar(before.loss(&held, false).unwrap());
    for step in 0..40 {
        let grads = model.loss(&pieces(step), true).unwrap().backward().unwrap();
        for (name, variable) in variables.data().lock().unwrap().iter() {
            assert!(grads.get(variable).is_some(), "{name} has no gradient");
        }
        optimizer.step(&grads).unwrap();
    }
    let frozen = model.frozen().unwrap();
    let loss = scalar(frozen.loss(&held, false).unwrap());
    assert!(loss < loss_before - 1.0, "{loss_before} before, {loss} after");
    // The first copy is a snapshot; dropout is for training only.
    assert_eq!(scalar(before.loss(&held, false).unwrap()), loss_before);
    let ids = held.narrow(1, 0, 16).unwrap();
    let logits = frozen.forward(&ids, false).unwrap();
    assert_close("frozen", &logits, &model.forward(&ids, false).unwrap(), LAYER);

    let folder = tempfile::tempdir().unwrap();
    tokens::save_model(folder.path(), &json, model.tensors(&variables).unwrap()).unwrap();
    let read = Gpt::load(folder.path()).unwrap();
    assert_close("read", &read.forward(&ids, false).unwrap(), &logits, LAYER);

    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let shape = |name: &str| checkpoint.tensor(name, &Device::Cpu).unwrap().dims().to_vec();
    let written: BTreeMap<String, Vec<usize>> = checkpoint.names().map(|name| (name.into(), shape(name))).collect();
    let wanted = std::fs::read_to_string(fixture("compose/gpt2/shapes.json")).unwrap();
    assert_eq!(written, serde_json::from_str::<BTreeMap<_, _>>(&wanted).unwrap());
    // Keys that transformers writes too have its values, but for dropout and tokens.
    let theirs = std::fs::read_to_string(fixture("compose/gpt2/config.json")).unwrap();
    let theirs: serde_json::Value = serde_json::from_str(&theirs).unwrap();
    for (key, value) in json.as_object().unwrap() {
        let own = key.ends_with("_pdrop") || key.ends_with("_token_id");
        assert!(own || theirs[key] == *value, "{key} is {value}, {} in transformers", theirs[key]);
    }
}

#[test]
fn the_program_gpt_trains_and_writes() {
    let folder = tempfile::tempdir().unwrap();
    let (text, model, logits) =
        (folder.path().join("text.txt"), folder.path().join("model"), folder.path().join("logits.safetensors"));
    std::fs::write(&text, "the cat sat on the mat and the dog sat on the log. ".repeat(40)).unwrap();
    let said = succeeds(example("gpt").args([&text, &model]).args(["--steps", "2"]).arg("--logits").arg(&logits));
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with("step 1: loss ") && lines[1].starts_with("step 2: loss "), "{said}");
    assert!(lines[1].contains("held out ") && lines[3].starts_with("The ") && lines[3].len() > 100, "{said}");
    let logits = Checkpoint::open(logits).unwrap();
    let ids = logits.tensor("ids", &Device::Cpu).unwrap();
    let want = Gpt::load(&model).unwrap().forward(&ids, false).unwrap();
    assert_close("logits", &logits.tensor("logits", &Device::Cpu).unwrap(), &want, LAYER);
    // The same model may be written again. What is another's is refused before the training, and nothing new is left.
    let path = |name: &str| folder.path().join(name);
    succeeds(example("gpt").args([&text, &model]).args(["--steps", "1"]));
    std::fs::create_dir(path("other")).unwrap();
    std::fs::write(path("other/notes.txt"), "notes").unwrap();
    fails(example("gpt").args([&text, &path("other")]), "other: holds other files");
    fails(example("gpt").args([&text, &text]), "text.txt: is a file, expected a folder");
    fails(example("gpt").args([&text, &path("new")]).arg("--logits").arg(&text), "text.txt: exists and is not");
    std::fs::write(&text, "short").unwrap();
    fails(example("gpt").args([&text, &path("new")]), "a part of the text has");
    fails(example("gpt").arg("/no/such/text").arg(path("new")), "/no/such/text: No such file");
    assert!(!path("new").exists());
}

#[test]
fn vit_block_equals_the_one_of_transformers() {
    let file = "compose/vit/golden.safetensors";
    let golden = Golden::open(file);
    let (embeddings, block) = vit_block::load(&fixture("compose/vit")).unwrap();
    let embedded = embeddings.forward(&golden.get("pixels")).unwrap();
    assert_close("embeddings", &embedded, &golden.get("embedded"), LAYER);
    assert_close("block", &block.forward(&embedded).unwrap(), &golden.get("output"), LAYER);

    let said = succeeds(example("vit_block").arg(fixture("compose/vit")).arg(fixture(file)));
    assert_eq!(said, "pixels [2, 3, 12, 12] → patches [2, 10, 24]\n");
}

/// A copy of a fixture whose config.json has another value at a key.
fn with_key(name: &str, key: &str, value: serde_json::Value) -> tempfile::TempDir {
    let (from, to) = (fixture(name), tempfile::tempdir().unwrap());
    std::fs::copy(from.join("model.safetensors"), to.path().join("model.safetensors")).unwrap();
    let json = std::fs::read_to_string(from.join("config.json")).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&json).unwrap();
    json[key] = value;
    std::fs::write(to.path().join("config.json"), json.to_string()).unwrap();
    to
}

/// The program that writes, with a model of random weights.
fn generate(arguments: &[&str]) -> Command {
    let mut command = example("generate");
    command.arg(fixture("gguf/qwen3.gguf")).args(arguments);
    command
}

/// Prompts of unequal length are written as each alone, and a seed chooses the same tokens again.
#[test]
fn the_program_writes_alone_and_in_a_batch() {
    let alone = |prompt: &str| succeeds(&mut generate(&[prompt, "--raw", "--count", "9"]));
    let prompts = ["hello world", "The cat sat on the mat, and it's warm.", "x"];
    let together = succeeds(&mut generate(&[&prompts[..], &["--raw", "--count", "9"]].concat()));
    let each: Vec<String> = prompts.iter().map(|prompt| format!("{prompt}\n{}\n", alone(prompt).trim_end())).collect();
    assert_eq!(together.trim_end(), each.join("\n").trim_end());
    let sampled = |seed: &str| {
        succeeds(&mut generate(&[
            "hello",
            "--raw",
            "--count",
            "9",
            "--temperature",
            "2",
            "--top-p",
            "0.9",
            "--seed",
            seed,
        ]))
    };
    assert_eq!(sampled("1"), sampled("1"));
    assert!((2..6).any(|seed| sampled(&seed.to_string()) != sampled("1")));
}

#[test]
fn missing_files_and_keys_are_errors() {
    for program in ["t5", "vit_block"] {
        fails(example(program).args(["/no/such/folder", "1"]), "/no/such/folder: no such folder");
        fails(example(program).args(["Cargo.toml", "1"]), "Cargo.toml: is a file, expected a model folder");
    }
    fails(example("t5").arg(fixture("compose/t5")).arg("5,x"), "`x` is not a token id");
    fails(example("t5").arg(fixture("compose/t5")).arg("99999"), "row 1: id 99999, expected less than ");
    fails(example("t5").arg(fixture("compose/qwen3")).arg("1"), "`model_type` is \"qwen3\", expected \"t5\"");
    fails(example("vit_block").arg(fixture("compose/qwen3")).arg("x"), "`model_type` is \"qwen3\", expected \"vit\"");

    fails(example("generate").args(["/no/such/folder", "x"]), "/no/such/folder");
    fails(example("generate").args(["Cargo.toml", "x"]), "Cargo.toml: not a folder, expected a model folder");
    fails(example("generate").arg(fixture("compose/qwen3")).arg("x"), "tokenizer.json: no such file");
    let said = "`model_type` is \"bert\", expected llama, mistral, qwen2, qwen3, gemma2, gemma3_text";
    fails(example("generate").arg(fixture("gguf/bert.gguf")).arg("x"), said);
    fails(&mut generate(&["x", "--temperature=-1"]), "expected a number from 0");
    let load = |folder: &tempfile::TempDir| {
        let (config, weights) = (Config::from_folder(folder.path()).unwrap(), Checkpoint::open(folder.path()).unwrap());
        Decoder::load(&config, &weights, ComputeType::default(), &Device::Cpu).map(|_| ())
    };
    let deeper = with_key("compose/qwen3", "num_hidden_layers", 7.into());
    says(load(&deeper), &["`layer_types` is a list of 2, expected 7 entries"]);
    let negative = with_key("compose/qwen3", "num_hidden_layers", (-3).into());
    says(load(&negative), &["config.json: `num_hidden_layers` is -3, expected a whole number from 0"]);
    let gelu = with_key("compose/qwen3", "hidden_act", "gelu".into());
    says(load(&gelu), &["config.json: `hidden_act` is \"gelu\", expected \"silu\""]);
    let no_eps = with_key("compose/vit", "layer_norm_eps", serde_json::Value::Null);
    fails(example("vit_block").arg(no_eps.path()).arg("x"), "config.json: `layer_norm_eps` is null, expected a number");
    std::fs::write(no_eps.path().join("config.json"), "{\"model_type\":").unwrap();
    for program in ["generate", "t5", "vit_block"] {
        fails(example(program).arg(no_eps.path()).arg("1"), "config.json: EOF while parsing");
    }

    let images = no_eps.path().join("images.safetensors");
    let pixels = Tensor::zeros((1, 3, 20, 20), DType::F32, &Device::Cpu).unwrap();
    candle_core::safetensors::save(&std::collections::HashMap::from([("pixels", pixels)]), &images).unwrap();
    let said = "images.safetensors: `pixels` has shape [1, 3, 20, 20], expected (b, 3, 12, 12)";
    fails(example("vit_block").arg(fixture("compose/vit")).arg(&images), said);
    let golden = fixture("compose/qwen3/golden.safetensors");
    fails(example("vit_block").arg(fixture("compose/vit")).arg(golden), "golden.safetensors does not hold it");
}

#[cfg(unix)]
#[test]
fn the_programs_survive_a_reader_that_leaves_and_a_full_disk() {
    use crate::common::programs::{fails_on_a_full_disk, reader_leaves};
    let pixels = fixture("compose/vit/golden.safetensors");
    let commands = || {
        let [mut t5, mut vit] = ["t5", "vit_block"].map(example);
        t5.arg(fixture("compose/t5")).arg("1,2");
        vit.arg(fixture("compose/vit")).arg(&pixels);
        [generate(&["hello", "world", "--raw", "--count", "4"]), t5, vit]
    };
    commands().iter_mut().for_each(reader_leaves);
    commands().iter_mut().for_each(fails_on_a_full_disk);
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.txt");
    std::fs::write(&text, "the cat sat on the mat and the dog sat on the log. ".repeat(40)).unwrap();
    let gpt = |output: &str| {
        let mut command = example("gpt");
        command.arg(&text).arg(folder.path().join(output)).args(["--steps", "1"]);
        command
    };
    reader_leaves(&mut gpt("model"));
    Gpt::load(&folder.path().join("model")).unwrap();
    fails_on_a_full_disk(&mut gpt("other"));
}
