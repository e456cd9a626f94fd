//! The command `quantize`: what it measures, prints and writes, and what it refuses.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use candle_attention::ComputeType;
use candle_attention_text::{EncodeOptions, SentenceEncoder, int8_weights, load_int8};
use candle_core::{Device, Tensor};
use serde_json::Value;

use crate::common::{assert_within, fixture};
use crate::programs::{copy_folder, fails, program, succeeds};

const TEXTS: &str = "a cat sat\n\nthe dog ran\nthe cat and the dog\na mat\n";

/// A temporary folder with texts.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        std::fs::write(folder.path("texts.txt"), TEXTS).unwrap();
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The command with the tiny BERT.
    fn quantize(&self, more: &[&str]) -> Command {
        self.quantize_model(&fixture("tiny-bert"), more)
    }

    fn quantize_model(&self, model: &Path, more: &[&str]) -> Command {
        let mut command = program("quantize");
        command.current_dir(self.0.path()).arg(model).args(["--file", "texts.txt"]).args(more);
        command
    }
}

fn embeddings(encoder: &SentenceEncoder) -> Tensor {
    encoder.encode(&["a cat sat on the mat", "the dog"], &EncodeOptions::default()).unwrap()
}

fn open(folder: &Path) -> SentenceEncoder {
    SentenceEncoder::from_folder(folder, ComputeType::default(), &Device::Cpu).unwrap()
}

#[test]
fn quantize_measures_each_projection_and_writes_int8() {
    let folder = Folder::new();
    let printed = succeeds(&mut folder.quantize(&["--output", "made/int8"]));
    assert!(printed.contains("encoder.layer.1.attention.self.{query,key,value}"), "{printed}");
    assert!(printed.contains("encoder.layer.0.intermediate.dense "), "{printed}");
    // Per layer one for queries, keys and values, one for the output, two of the feed-forward part; and the words.
    assert!(printed.contains("\n9 of 9 projections in int8: cosine to f32 0.99"), "{printed}");
    assert!(printed.contains("on 2 other texts") && printed.contains("made/int8: written, "), "{printed}");
    let int8 = load_int8(fixture("tiny-bert"), |_| true, |_| false).unwrap();
    assert_within("int8", &embeddings(&open(&folder.path("made/int8"))), &embeddings(&int8), 0.0);
}

/// The fewest projections are kept with which the loss is small enough, those that lose most alone.
#[test]
fn what_loses_too_much_is_kept() {
    let folder = Folder::new();
    let report = |more: &[&str]| -> Value {
        let printed = succeeds(&mut folder.quantize(&[&["--json"], more].concat()));
        assert_eq!(printed.lines().count(), 1);
        serde_json::from_str(&printed).unwrap()
    };
    let loss = |row: &Value| row["loss"].as_f64().unwrap();
    let all = report(&[]);
    let total = 1.0 - all["mean_cosine"].as_f64().unwrap();
    assert!(total > 0.0 && all["least_cosine"].as_f64().unwrap() <= 1.0 - total, "{all}");
    assert!(all["projections"].as_array().unwrap().iter().all(|row| loss(row) > 0.0 && row["kept"] == false), "{all}");

    let max_loss = (total / 3.0).to_string();
    let some = report(&["--max-loss", &max_loss, "--output", "some"]);
    let (kept, int8): (Vec<&Value>, Vec<&Value>) =
        some["projections"].as_array().unwrap().iter().partition(|row| row["kept"] == true);
    assert!(!kept.is_empty() && !int8.is_empty(), "{some}");
    let least_kept = kept.iter().copied().map(loss).fold(f64::MAX, f64::min);
    assert!(int8.iter().all(|row| loss(row) <= least_kept), "{some}");
    let names = |rows: &[&Value]| -> BTreeSet<String> {
        let names = rows.iter().flat_map(|row| row["weights"].as_array().unwrap());
        names.map(|name| name.as_str().unwrap().to_string()).collect()
    };
    assert_eq!(&names(&kept) | &names(&int8), int8_weights(fixture("tiny-bert")).unwrap().into_iter().collect());
    let (is_int8, kept) = (names(&int8), names(&kept));
    let want = load_int8(fixture("tiny-bert"), |name| is_int8.contains(name), |name| kept.contains(name)).unwrap();
    let written = open(&folder.path("some"));
    assert_within("some", &embeddings(&written), &embeddings(&want), 0.0);
    let bytes = |key: &str| some["written"][key].as_u64().unwrap();
    assert!(bytes("bytes_after") < bytes("bytes_before"), "{some}");
    assert_eq!(bytes("bytes_after"), folder.path("some/model.safetensors").metadata().unwrap().len());
    let config = std::fs::read_to_string(folder.path("some/config.json")).unwrap();
    let module = kept.first().unwrap().strip_suffix(".weight").unwrap();
    assert!(config.contains(&format!("\"{module}\"")), "{config}");
}

#[test]
fn quantize_rejects_wrong_input_and_writes_nothing() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path("there")).unwrap();
    std::fs::write(folder.path("blank.txt"), "\n \n").unwrap();
    std::fs::write(folder.path("one.txt"), "a cat\n").unwrap();
    let quantize = |more: &[&str]| folder.quantize(&[more, &["--output", "new"]].concat());
    fails(&mut folder.quantize(&["--output", "there"]), "there: exists already");
    fails(&mut quantize(&["--max-loss", "2"]), "--max-loss is 2, expected 0 to 1");
    fails(&mut quantize(&["--max-loss", "NaN"]), "--max-loss is NaN, expected 0 to 1");
    fails(&mut quantize(&["--max-loss", "0"]), "--max-loss 0: each projection in int8 loses more");
    fails(&mut quantize(&["--limit", "1"]), "--limit is 1, expected at least 2 texts");
    fails(&mut quantize(&["--batch-size", "0"]), "at least 1");
    fails(&mut quantize(&["--device", "cuda"]), "--device");
    for (file, wrong) in [("no.txt", "no.txt: "), ("blank.txt", "no text"), ("one.txt", "1 text, expected at least 2")]
    {
        let mut command = program("quantize");
        command.arg(fixture("tiny-bert")).arg("--file").arg(folder.path(file)).arg("--output").arg(folder.path("new"));
        fails(&mut command, wrong);
    }
    let inside = fixture("tiny-bert").join("int8").display().to_string();
    fails(&mut folder.quantize(&["--output", &inside]), "the model that is quantized");
    fails(&mut folder.quantize_model(&folder.path("nope"), &["--output", "new"]), "nope");
    // `..` after a folder that does not exist is an error: once the folder is made, the path leads into the model.
    copy_folder(&fixture("tiny-bert"), &folder.path("model"));
    let into = ["--output", "nowhere/../model/int8"];
    fails(&mut folder.quantize_model(&folder.path("model"), &into), "is not the name of a folder to make");
    assert!(!folder.path("nowhere").exists() && !folder.path("model/int8").exists());

    let damaged = folder.path("damaged");
    copy_folder(&fixture("tiny-bert"), &damaged);
    let path = damaged.join("model.safetensors");
    let mut tensors = candle_core::safetensors::load(&path, &Device::Cpu).unwrap();
    let name = "encoder.layer.1.output.dense.bias";
    tensors.insert(name.to_string(), Tensor::full(f32::NAN, 24, &Device::Cpu).unwrap());
    candle_core::safetensors::save(&tensors, &path).unwrap();
    fails(&mut folder.quantize_model(&damaged, &["--output", "new"]), "NaN or an infinity in");
    succeeds(&mut folder.quantize(&["--output", "int8/."]));
    fails(&mut folder.quantize_model(&folder.path("int8"), &["--output", "new"]), "int8 already");
    assert!(!folder.path("new").exists());
}
