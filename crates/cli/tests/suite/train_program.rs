//! The example `train`: what it writes, measures and draws, and what it says to a mistake.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

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

    pub fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    /// A run of a tiny model.
    pub fn train(&self, text: &str, arguments: &[&str]) -> Command {
        let mut command = program("train");
        command.arg("--text").arg(self.path(text)).arg("--output").arg(self.path("model"));
        command.arg("--run").arg(self.path("run"));
        command
            .args("--vocab-size 80 --hidden-size 8 --heads 2 --layers 1 --batch-size 8 --max-positions 16".split(' '));
        command.args(["--max-length", "16"]).args(arguments);
        command
    }

    /// Four steps with a teacher.
    pub fn taught(&self) -> Command {
        let mut command = self.train("text.txt", &["--steps", "4", "--save-every", "2", "--teacher"]);
        command.arg(fixture("tiny-bert")).arg("--eval").arg(self.path("held.txt"));
        command
    }
}

/// `train` trains, measures and resumes; `encode` runs the model that it writes.
#[test]
fn train_writes_a_model_that_encode_runs() {
    let folder = Folder::new();
    std::fs::write(folder.path("empty.txt"), "\n").unwrap();
    let said = succeeds(&mut folder.taught());
    assert!(
        said.contains("20 texts held back") && said.contains("Spearman") && said.contains("nearest of 20"),
        "{said}"
    );
    // All steps are done: the same model again.
    assert_eq!(succeeds(&mut folder.taught()), said);
    let said = succeeds(program("encode").arg("--model").arg(folder.path("model")).args(["a cat", "the river"]));
    assert!(said.contains("2 texts, 8 numbers each"), "{said}");

    let other = "run.safetensors: is of another run: the texts or the teacher";
    fails(&mut folder.train("text.txt", &["--steps", "4"]), other);
    fails(&mut folder.train("empty.txt", &[]), "empty.txt: holds no text, expected one text per line");
    fails(&mut folder.train("text.txt", &["--teacher", "/no/teacher"]), "/no/teacher");
    fails(program("train").args(["--output", "model"]), "--text");
}

/// The points of the lines of one color.
fn lines(svg: &roxmltree::Document, color: &str) -> Vec<Vec<(f64, f64)>> {
    let lines = svg.descendants().filter(|node| node.has_tag_name("polyline"));
    let lines = lines.filter(|node| node.attribute("stroke") == Some(color));
    let number = |text: &str| text.parse::<f64>().unwrap();
    let point = |pair: &str| pair.split_once(',').map(|(x, y)| (number(x), number(y))).unwrap();
    lines.map(|node| node.attribute("points").unwrap().split_whitespace().map(point).collect()).collect()
}

/// The chart has the losses of the run, also of a resumed one; a target that cannot be written is an error before
/// training.
#[test]
fn train_draws_the_recorded_losses() {
    let folder = Folder::new();
    let draw = |name: &str| {
        let said = succeeds(folder.taught().arg("--plot").arg(folder.path(name)));
        (folder.text(name), said)
    };
    fails(folder.taught().arg("--plot").arg(folder.path("no/curve.svg")), "no/curve.svg: its folder does not exist");
    fails(folder.taught().arg("--plot").arg(folder.0.path()), "is a folder, expected a file to write");
    assert!(!folder.path("run").exists(), "nothing was done for a picture that cannot be written");
    let (svg, said) = draw("curve.svg");
    let document = roxmltree::Document::parse(&svg).unwrap();
    let texts: Vec<&str> = document.descendants().filter_map(|node| node.text()).map(str::trim).collect();
    for name in [
        "training step",
        "Training loss",
        "Agreement with the teacher",
        "share of texts whose nearest by the teacher is among the ten nearest",
    ] {
        assert!(texts.contains(&name), "{name}: {texts:?}");
    }

    let record: Value = serde_json::from_str(&folder.text("run/record.json")).unwrap();
    let (losses, held_back) = (record["losses"].as_array().unwrap(), record["held_back"].as_array().unwrap());
    let column = |rows: &[Value], i: usize| rows.iter().map(|row| row[i].as_f64().unwrap()).collect::<Vec<f64>>();
    assert_eq!(column(losses, 0), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(column(held_back, 0), [2.0, 4.0]);
    let last = held_back[1][1].as_f64().unwrap();
    // What is written is the model after the last step, in f16.
    let stated: f64 =
        said.split_whitespace().filter_map(|word| word.parse().ok()).find(|x: &f64| x.fract() > 0.0).unwrap();
    assert!((last - stated).abs() < 0.01, "{last}, {said}");
    // Pixels go by the numbers: four points of the loss, two of each measure.
    let (blue, red) = (lines(&document, "#1F77B4"), lines(&document, "#D6604D"));
    for (pixels, numbers) in [
        (blue.iter().find(|line| line.len() == 4).unwrap(), column(losses, 1)),
        (blue.iter().rev().find(|line| line.len() == 2 && line[0].0 < line[1].0 - 99.0).unwrap(), column(held_back, 1)),
        (red.iter().find(|line| line[0].0 < line[1].0 - 99.0).unwrap(), column(held_back, 2)),
    ] {
        assert_eq!(pixels.len(), numbers.len());
        for (at, pair) in pixels.windows(2).enumerate() {
            assert!(pair[0].0 < pair[1].0);
            // Upwards in the picture is less; a pixel may hide a small difference.
            let (up, more) = (pair[0].1 - pair[1].1, numbers[at + 1] - numbers[at]);
            assert!(up * more >= 0.0, "{pixels:?}, {numbers:?}");
        }
    }

    // The same from the record alone, and from one that is ahead of the run, as a kill may leave it.
    assert_eq!(draw("again.svg"), (svg.clone(), said));
    let mut ahead = record.clone();
    ahead["losses"].as_array_mut().unwrap().push(serde_json::json!([5, 9.9]));
    std::fs::write(folder.path("run/record.json"), ahead.to_string()).unwrap();
    assert_eq!(draw("again.svg").0, svg);
    std::fs::remove_file(folder.path("run/record.json")).unwrap();
    let output = folder.taught().arg("--plot").arg(folder.path("none.svg")).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("none.svg: the run has no record of its losses"), "{said}");
    assert!(!folder.path("none.svg").exists());
}
