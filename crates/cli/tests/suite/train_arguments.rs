//! The arguments of the command `train`: what is refused before any work, what is done otherwise than asked, and the
//! help.

use std::process::Command;

use candle_attention::checkpoint::Checkpoint;

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

/// A run with the text of the folder, without settings of the output and the run.
fn short(folder: &Folder, steps: &str) -> Command {
    let mut command = program("train");
    command.arg("--text").arg(folder.path("text.txt"));
    command.args("--hidden-size 8 --heads 2 --layers 1 --batch-size 8".split(' ')).args(["--steps", steps]);
    command
}

#[test]
fn the_run_is_beside_the_output_and_can_be_prolonged() {
    let folder = Folder::new();
    let run = |steps: &str| {
        let mut command = short(&folder, steps);
        command.arg("--output").arg(folder.path("model"));
        command
    };
    let said = notes(&mut run("2"));
    // Nobody asked for 9,000 tokens of so few words.
    assert!(
        said.contains("note: the texts give a vocabulary of ") && said.contains("less than --vocab-size 9000"),
        "{said}"
    );
    assert!(said.contains("step 2: mean loss of the last 2 steps "), "{said}");
    assert!(folder.path("model.run/run.safetensors").exists() && !folder.path("model.run/target").exists());
    assert!(notes(&mut run("2")).contains("step 2 of 2"));
    let weights = || std::fs::read(folder.path("model/model.safetensors")).unwrap();
    let before = weights();
    let said = notes(&mut run("6"));
    assert!(
        said.contains("note: the run of 2 steps is prolonged to 6: the learning rate goes on as that of 6"),
        "{said}"
    );
    assert!(said.contains("step 2 of 6") && said.contains("step 6: mean loss of the last 6 steps "), "{said}");
    assert_ne!(weights(), before);
    fails(&mut run("5"), "run.safetensors: is of another run: steps was 6, now 5, and a run cannot be shortened");
    fails(run("6").args(["--seed", "1"]), "run.safetensors: is of another run: seed was 0, now 1");
    let mut other = run("6");
    other.arg("--run").arg(folder.path("other.run")).args(["--seed", "1"]);
    fails(&mut other, "model: holds the model of another run, with other settings, texts or teacher");
    // Another model in the same place of work has a run of its own.
    succeeds(short(&folder, "2").args(["--seed", "1", "--output"]).arg(folder.path("other/")));
    assert!(folder.path("other/model.safetensors").exists() && folder.path("other.run").exists());
}

/// Everything is refused before the folder of the run is made.
#[test]
fn an_output_that_is_something_else_is_refused() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path("teacher")).unwrap();
    damaged_teacher(&folder.path("teacher"));
    std::fs::write(folder.path("file"), "mine").unwrap();
    let run = |output: &str| {
        let mut command = short(&folder, "2");
        command.arg("--output").arg(folder.path(output)).arg("--teacher").arg(folder.path("teacher"));
        command
    };
    let mut command = short(&folder, "2");
    command.arg("--output").arg(folder.path("model")).env("HF_HUB_OFFLINE", "1");
    fails(command.args(["--teacher", "no-owner/no-name"]), "no-owner/no-name: no such folder, and as a hub id: ");
    fails(&mut run("teacher"), "teacher: the model cannot be written to ");
    fails(&mut run("teacher/student"), "teacher/student: the model cannot be written to ");
    fails(run("model").arg("--run").arg(folder.path("teacher/run")), "teacher/run: the run cannot be in ");
    fails(run("model").arg("--run").arg(folder.path("model")), "cannot be in the one of the model");
    fails(run("model").arg("--run").arg(folder.path("model/run")), "cannot be in the one of the model");
    fails(run("model").arg("--run").arg(folder.path("file")), "file: is a file, expected a folder");
    fails(&mut run("file"), "file: is a file, expected a folder");
    fails(&mut run("file/model"), "file/model: ");
    fails(run("model").arg("--plot").arg(folder.path("text.txt")), "text.txt: exists and is not an SVG picture");
    std::fs::create_dir(folder.path("empty")).unwrap();
    let mut command = run("empty");
    fails(command.arg("--plot").arg(folder.path("empty/curve.svg")), "cannot be in the folder of the model");
    #[cfg(target_os = "linux")]
    fails(short(&folder, "2").args(["--output", "/proc/model"]), "/proc/model");
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(folder.path("teacher"), folder.path("link")).unwrap();
        fails(&mut run("link"), "link: the model cannot be written to ");
    }
    // The folder of the texts.
    let here = folder.path("");
    let mut command = short(&folder, "2");
    command.arg("--run").arg(Folder::new().path("run")).arg("--output").arg(&here);
    fails(&mut command, "is a folder that this run did not make");
    std::fs::create_dir(folder.path("work")).unwrap();
    std::fs::write(folder.path("work/record.json"), "{\"mine\": 1}").unwrap();
    fails(run("model").arg("--run").arg(folder.path("work")), "work: is a folder that no run made");
    std::fs::write(folder.path("work/lock"), "").unwrap();
    fails(run("model").arg("--run").arg(folder.path("work")), "work/record.json: is not the record of a run");
    for made in ["model", "model.run", "run", "file.run", "teacher.run"] {
        assert!(!folder.path(made).exists(), "{made}");
    }
    assert_eq!(folder.text("file"), "mine");
}

#[test]
fn sizes_that_are_too_large_are_errors() {
    let folder = Folder::new();
    for (option, field) in [
        ("--vocab-size", "vocab_size"),
        ("--hidden-size", "hidden_size"),
        ("--layers", "num_hidden_layers"),
        ("--intermediate-size", "intermediate_size"),
        ("--max-positions", "max_position_embeddings"),
        ("--batch-size", "batch_size"),
    ] {
        for number in ["99999999999", "18446744073709551615"] {
            let mut command = program("train");
            command.arg("--text").arg(folder.path("text.txt")).arg("--output").arg(folder.path("model"));
            fails(command.args([option, number]), &format!("{field} = {number} is not allowed"));
        }
    }
    let mut command = short(&folder, "2");
    command.arg("--output").arg(folder.path("model"));
    fails(
        command.args(["--warmup-steps", "1"]),
        "warmup_steps = 1 is not allowed: expected at most 0, a tenth of the 2",
    );
    assert!(!folder.path("model.run").exists());
}

#[test]
fn a_damaged_teacher_is_named_and_nothing_of_it_is_kept() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path("teacher")).unwrap();
    damaged_teacher(&folder.path("teacher"));
    let mut command = short(&folder, "2");
    command.arg("--output").arg(folder.path("model")).arg("--teacher").arg(folder.path("teacher"));
    fails(&mut command, "teacher: NaN or an infinity in `embeddings.LayerNorm.bias`");
    assert!(!folder.path("model.run").exists() && !folder.path("model").exists());
}

#[test]
fn texts_that_cannot_be_used_are_named() {
    let folder = Folder::new();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path(name), bytes).unwrap();
    write("empty.txt", b"\n\n");
    write("one.txt", b"one\n");
    write("two.txt", b"one\ntwo\n");
    write("latin.txt", b"one\ncaf\xe9\n");
    let eval = |eval: &str| {
        let mut command = short(&folder, "2");
        command.arg("--output").arg(folder.path("model")).arg("--teacher").arg(fixture("tiny-bert"));
        command.arg("--eval").arg(folder.path(eval));
        command
    };
    fails(&mut eval("text.txt"), "text.txt: all of its texts are held back for measuring, none is left to train on");
    fails(&mut eval("empty.txt"), "empty.txt: holds no text, expected one text per line");
    fails(&mut eval("two.txt"), "two.txt: holds 2 texts, expected at least 3, to compare pairs");
    fails(&mut eval("latin.txt"), "latin.txt: line 2 is not UTF-8");
    write("wide.txt", b"\xff\xfeo\0n\0e\0\n\0");
    for mut command in [eval("wide.txt"), folder.train("wide.txt", &[])] {
        fails(&mut command, "wide.txt: the text is in UTF-16, expected UTF-8");
    }
    fails(&mut folder.train("none.txt", &[]), "none.txt: No such file");
    fails(&mut folder.train("one.txt", &[]), "one.txt: holds 1 text, expected at least 2");
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
    assert!(options.len() > 20, "{help}");
    for option in options {
        let (name, text) = option.split_once('\n').unwrap_or((option, ""));
        let text = format!("{name} {text}");
        assert!(text.split_whitespace().count() > 4, "{option}");
        let needs_none = ["text ", "output ", "static"].iter().any(|needed| name.starts_with(needed));
        assert!(needs_none || text.contains("[default: ") || name.starts_with("help"), "{option}");
    }

    let folder = Folder::new();
    std::fs::rename(folder.path("text.txt"), folder.path("texts.txt")).unwrap();
    std::fs::rename(folder.path("held.txt"), folder.path("held_back.txt")).unwrap();
    std::fs::create_dir(folder.path("sentence-transformers")).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink(fixture("tiny-bert"), folder.path("sentence-transformers/all-MiniLM-L6-v2")).unwrap();
    let examples = examples.replace("\\\n", " ");
    let lines: Vec<&str> =
        examples.lines().filter_map(|line| line.trim().strip_prefix("candle-attention train")).collect();
    assert_eq!(lines.len(), 2, "{help}");
    #[cfg(unix)]
    for line in lines {
        succeeds(train().current_dir(folder.path("")).args(line.split_whitespace()));
    }
    #[cfg(unix)]
    for model in ["words", "student"] {
        let weights = Checkpoint::open(folder.path(model)).unwrap();
        assert!(weights.metadata().contains_key("candle_attention_run"), "{model}");
    }
}
