//! The command `prune`: what it prints, draws and writes, who can load it, and what it refuses.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use candle_attention::checkpoint::Checkpoint;
use candle_attention_text::{EncodeOptions, SentenceEncoder};
use candle_core::{DType, Device, Tensor};

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

    /// The command with the tiny BERT, without timing.
    fn prune(&self, more: &[&str]) -> Command {
        self.prune_model(&fixture("tiny-bert"), more)
    }

    fn prune_model(&self, model: &Path, more: &[&str]) -> Command {
        let mut command = program("prune");
        command.current_dir(self.0.path()).arg("--model").arg(model).args(["--file", "texts.txt"]);
        if !more.contains(&"--runs") {
            command.args(["--runs", "0"]);
        }
        command.args(more);
        command
    }

    /// A copy of the tiny BERT.
    fn model(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        copy_folder(&fixture("tiny-bert"), &path);
        path
    }
}

fn embeddings(model: &Path) -> Tensor {
    let encoder = SentenceEncoder::from_folder(model, DType::F32, &Device::Cpu).unwrap();
    encoder.encode(&["a cat sat on the mat", "the dog"], &EncodeOptions::default()).unwrap()
}

#[test]
fn prune_ranks_heads_measures_the_cost_and_writes_the_pruned_model() {
    let folder = Folder::new();
    for by in ["gradient", "ablation", "entropy"] {
        let smaller = folder.path(by);
        // Timed once: a row takes a second.
        let runs = if by == "entropy" { "1" } else { "0" };
        let mut prune = folder.prune(&["--by", by, "--output", by, "--share", "0.5", "--runs", runs]);
        let printed = succeeds(&mut prune);
        assert!(printed.contains("least important: L") && printed.contains("100%"), "{printed}");
        assert_eq!(printed.contains("time of the whole"), by == "entropy", "{printed}");
        let counts: Vec<&str> = printed
            .lines()
            .filter(|line| line.contains('%'))
            .filter_map(|line| line.split_whitespace().nth(1))
            .collect();
        assert!(counts.windows(2).all(|pair| pair[0] != pair[1]), "each number of heads once: {counts:?}");
        let config = std::fs::read_to_string(smaller.join("config.json")).unwrap();
        assert!(config.contains("pruned_heads"), "{config}");
        assert!(printed.contains("written without 4 of 8 heads") && printed.contains("MB saved"), "{printed}");
        assert!(printed.contains("who can load it: candle-attention, and transformers before 5"), "{printed}");
        embeddings(&smaller);
    }
    // A share that is no tenth has a row of its own, also without --output.
    let printed = succeeds(&mut folder.prune(&["--share", "0.4"]));
    assert!(printed.contains("   38%      5"), "{printed}");
}

/// The masked model has the tensors and the config.json of the whole one, and the embeddings of the pruned one.
#[test]
fn a_masked_model_is_one_that_every_library_loads() {
    let folder = Folder::new();
    succeeds(&mut folder.prune(&["--share", "0.5", "--output", "smaller"]));
    let printed = succeeds(&mut folder.prune(&["--share", "0.5", "--output", "made/masked", "--masked"]));
    assert!(printed.contains("4 of 8 heads zeroed") && printed.contains("sentence-transformers"), "{printed}");
    let (whole, masked) = (fixture("tiny-bert"), folder.path("made/masked"));
    assert_within("masked", &embeddings(&masked), &embeddings(&folder.path("smaller")), 1e-6);
    let read = |folder: &Path, file: &str| std::fs::read(folder.join(file)).unwrap();
    for file in ["config.json", "tokenizer.json", "modules.json", "1_Pooling/config.json"] {
        assert_eq!(read(&masked, file), read(&whole, file), "{file}");
    }
    let stored = |folder: &Path| -> BTreeMap<String, (Vec<usize>, DType)> {
        let checkpoint = Checkpoint::open(folder).unwrap();
        let stored = |name: &str| checkpoint.tensor(name, &Device::Cpu).unwrap();
        checkpoint.names().map(|name| (name.into(), (stored(name).dims().to_vec(), stored(name).dtype()))).collect()
    };
    assert_eq!(stored(&masked), stored(&whole));
}

#[test]
fn the_model_card_is_written_anew() {
    let folder = Folder::new();
    let model = folder.model("whole");
    std::fs::write(model.join("README.md"), "---\nlicense: mit\n---\n# A tiny model\n\nIt is small.\n").unwrap();
    succeeds(&mut folder.prune_model(&model, &["--share", "0.25", "--output", "smaller"]));
    let card = std::fs::read_to_string(folder.path("smaller/README.md")).unwrap();
    assert!(card.starts_with("---\nlicense: mit\n---\n# "), "{card}");
    for part in [
        "without 2 of its 8 attention heads",
        "| Layer | Heads",
        "by gradient, on 2 texts",
        "on 2 other texts",
        "## Who can load it",
        "--masked",
        "## Model card of ",
        "It is small.",
    ] {
        assert!(card.contains(part), "{part}: {card}");
    }
    // Without a card of its own.
    succeeds(&mut folder.prune(&["--output", "masked", "--masked", "--by-layer", "--by", "entropy"]));
    let card = std::fs::read_to_string(folder.path("masked/README.md")).unwrap();
    assert!(card.starts_with("# ") && card.contains("by entropy, normalized within each layer"), "{card}");
}

#[test]
fn prune_rejects_wrong_input_and_writes_nothing() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path("there")).unwrap();
    fails(&mut folder.prune(&["--output", "there"]), "there: exists already");
    fails(&mut folder.prune(&["--share", "1.5"]), "--share is 1.5, expected 0 to 1");
    fails(&mut folder.prune(&["--limit", "1"]), "--limit is 1, expected at least 2 texts");
    let inside = fixture("tiny-bert").join("smaller").display().to_string();
    fails(&mut folder.prune(&["--output", &inside]), "the model that is pruned");
    fails(&mut folder.prune(&["--masked"]), "--output");
    fails(&mut folder.prune(&["--batch-size", "0"]), "at least 1");
    fails(&mut folder.prune_model(&folder.path("nope"), &[]), "nope");
    fails(
        program("prune").arg("--file").arg(folder.path("texts.txt")).arg("--output").arg(folder.path("none")),
        "--output needs --model",
    );
    let left = std::fs::read_dir(folder.0.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    assert_eq!(left.collect::<BTreeSet<_>>(), ["texts.txt", "there"].map(String::from).into());
}

#[test]
fn damaged_weights_are_named() {
    let folder = Folder::new();
    let model = folder.model("damaged");
    let path = model.join("model.safetensors");
    let mut tensors = candle_core::safetensors::load(&path, &Device::Cpu).unwrap();
    let name = "encoder.layer.1.output.dense.bias";
    tensors.insert(name.to_string(), Tensor::full(f32::NAN, 24, &Device::Cpu).unwrap());
    candle_core::safetensors::save(&tensors, &path).unwrap();
    for by in ["gradient", "ablation", "entropy"] {
        let output = folder.prune_model(&model, &["--by", by, "--output", "smaller"]).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(&format!("NaN or an infinity in `{name}`")), "{by}: {stderr}");
        assert!(!folder.path("smaller").exists());
    }
}

/// A reader that leaves does not stop the writing of the model, and a full disk is an error.
#[cfg(unix)]
#[test]
fn prune_writes_although_nobody_reads_what_it_prints() {
    use crate::programs::{fails_on_a_full_disk, reader_leaves};
    let folder = Folder::new();
    reader_leaves(&mut folder.prune(&["--output", "smaller"]));
    embeddings(&folder.path("smaller"));
    reader_leaves(&mut folder.prune(&[]));
    fails_on_a_full_disk(&mut folder.prune(&[]));
}
