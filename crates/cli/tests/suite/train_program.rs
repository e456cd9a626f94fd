//! The command `train`: what it writes and measures, and what it says to a mistake.

use std::path::PathBuf;
use std::process::Command;

use crate::common::fixture;
use crate::programs::{fails, program, succeeds};

/// A temporary folder with a text and the outputs of runs.
pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        let words = ["cat", "sofa", "bank", "river", "stock", "trait", "crate", "piano"];
        let line = |i: usize| format!("the {} and a {} {i}\n", words[i % 8], words[i * 5 % 7]);
        std::fs::write(folder.path("text.txt"), (0..60).map(line).collect::<String>()).unwrap();
        std::fs::write(folder.path("held.txt"), (60..80).map(line).collect::<String>()).unwrap();
        folder
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A run of a tiny model.
    pub fn train(&self, text: &str, arguments: &[&str]) -> Command {
        let mut command = program("train");
        command.arg("--text").arg(self.path(text)).arg("--output").arg(self.path("model"));
        command.arg("--teacher").arg(fixture("tiny-bert"));
        command
            .args("--vocab-size 80 --hidden-size 8 --heads 2 --layers 1 --batch-size 8 --max-positions 16".split(' '));
        command.args(["--max-length", "16"]).args(arguments);
        command
    }

    /// Four steps, and a measurement.
    pub fn measured(&self) -> Command {
        let mut command = self.train("text.txt", &["--steps", "4", "--save-every", "2", "--eval"]);
        command.arg(self.path("held.txt"));
        command
    }
}

/// `train` trains and measures; `encode` runs the model that it writes.
#[test]
fn train_writes_a_model_that_encode_runs() {
    let folder = Folder::new();
    std::fs::write(folder.path("empty.txt"), "\n").unwrap();
    let output = folder.measured().output().unwrap();
    let [said, last] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(output.status.success() && last.ends_with("run, the saved run, may be deleted\n"), "{last}");
    assert!(
        said.contains("20 texts held back") && said.contains("Spearman") && said.contains("nearest of 20"),
        "{said}"
    );
    // The model alone is measured.
    let mut measure = program("train");
    measure.arg("--output").arg(folder.path("model")).arg("--eval").arg(folder.path("held.txt"));
    assert_eq!(succeeds(measure.arg("--teacher").arg(fixture("tiny-bert"))), said);
    fails(&mut folder.measured(), "model: exists already, and is not replaced");
    let said = succeeds(program("encode").arg("--model").arg(folder.path("model")).args(["a cat", "the river"]));
    assert!(said.contains("2 texts, 8 numbers each"), "{said}");

    std::fs::remove_dir_all(folder.path("model")).unwrap();
    let other = "run.safetensors: is of a run that had other texts or another teacher";
    fails(&mut folder.train("held.txt", &["--steps", "4"]), other);
    fails(&mut folder.train("empty.txt", &[]), "empty.txt: no text: every line is blank, or there is none");
    let mut unknown = program("train");
    unknown.arg("--text").arg(folder.path("text.txt")).arg("--output").arg(folder.path("model"));
    fails(unknown.args(["--teacher", "/no/teacher"]), "/no/teacher");
    fails(program("train").args(["--output", "model"]), "--text");
}
