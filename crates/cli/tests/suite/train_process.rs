//! The command `train` as a process that is interrupted, that meets another one, or whose output nobody takes.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};

use serde_json::Value;

use crate::common::fixture;
use crate::programs::{fails, program, succeeds};
use crate::train_program::Folder;

/// A process whose standard error is read line by line.
struct Process {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStderr>>,
}

impl Process {
    /// Starts a process that prints its progress at every step.
    fn start(command: &mut Command) -> Self {
        command.args(["--progress-seconds", "0"]).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Reads up to a line that begins so.
    #[track_caller]
    fn wait_for(&mut self, start: &str) {
        let mut said = Vec::new();
        for line in self.lines.by_ref() {
            said.push(line.unwrap());
            if said[said.len() - 1].starts_with(start) {
                return;
            }
        }
        panic!("no line begins with `{start}`: {said:?}");
    }

    /// Sends Ctrl-C.
    fn interrupt(&self) {
        let sent = Command::new("kill").args(["-INT", &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits for the end; what was printed since.
    fn end(mut self) -> (ExitStatus, String) {
        let said: Vec<String> = self.lines.map(Result::unwrap).collect();
        (self.child.wait().unwrap(), said.join("\n"))
    }
}

/// A run is interrupted twice and saved at every moment, and then has the weights and the record of one that was not.
#[test]
fn an_interrupted_run_goes_on_as_if_nothing_had_happened() {
    let want = Folder::new();
    let arguments = ["--steps", "150", "--save-every", "70"];
    succeeds(&mut want.train("text.txt", &arguments));

    let folder = Folder::new();
    let train = |save_seconds: &str| {
        let mut command = folder.train("text.txt", &arguments);
        command.args(["--save-seconds", save_seconds]);
        command
    };
    for (save_seconds, line) in
        [("60", "training: 5 of 150 steps, mean loss of the last 5 steps"), ("0", "training: 65 of 150")]
    {
        let mut process = Process::start(&mut train(save_seconds));
        process.wait_for(line);
        process.interrupt();
        let (status, said) = process.end();
        assert_eq!(status.code(), Some(130), "{said}");
        assert!(
            said.contains("error: interrupted after step ") && said.contains("run: the same command goes on"),
            "{said}"
        );
        assert!(folder.path("run/run.safetensors").exists() && !folder.path("model").exists());
    }
    let output = train("0").args(["--progress-seconds", "0"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("step 150: mean loss of the last 50 steps "), "{said}");
    for file in ["model/model.safetensors", "model/tokenizer.json"] {
        assert!(std::fs::read(folder.path(file)).unwrap() == std::fs::read(want.path(file)).unwrap(), "{file}");
    }
    let record = |folder: &Folder| serde_json::from_str::<Value>(&folder.text("run/record.json")).unwrap();
    let (got, want) = (record(&folder), record(&want));
    for column in ["losses", "held_back"] {
        assert_eq!(got[column], want[column], "{column}");
    }
    assert_eq!(got["losses"].as_array().unwrap().len(), 75);
}

/// What the teacher has encoded before an interrupt is kept.
#[test]
fn an_interrupt_while_the_teacher_encodes_ends_at_once() {
    let folder = Folder::new();
    let line = |i: usize| format!("the cat {i} and a sofa and {} rivers behind the bank of {}\n", i % 97, i % 89);
    std::fs::write(folder.path("long.txt"), (0..30_000).map(line).collect::<String>()).unwrap();
    let train = || folder.train("long.txt", &["--steps", "2", "--teacher"]);
    let mut process = Process::start(train().arg(fixture("tiny-bert")));
    process.wait_for("encoding with the teacher: 256 of 30000 texts, ");
    process.interrupt();
    let (status, said) = process.end();
    assert_eq!(status.code(), Some(130), "{said}");
    assert!(said.contains("error: interrupted; the same command goes on with what "), "{said}");
    let names = std::fs::read_dir(folder.path("run")).unwrap().map(|entry| entry.unwrap().file_name());
    let kept = names.filter(|name| name.to_string_lossy().starts_with("teacher-")).count();
    assert!((1..30).contains(&kept), "{kept}");
    // The same command does not encode them again.
    let mut process = Process::start(train().arg(fixture("tiny-bert")));
    process.wait_for(&format!("encoding with the teacher: {} of 30000 texts, ", 256 * (kept + 1)));
    process.interrupt();
    process.end();
}

#[test]
fn a_second_process_is_refused() {
    let folder = Folder::new();
    let arguments = ["--steps", "100000"];
    let mut first = Process::start(&mut folder.train("text.txt", &arguments));
    first.wait_for("training: 1 of 100000");
    fails(&mut folder.train("text.txt", &arguments), "run: another process is training this run");
    first.interrupt();
    let (status, said) = first.end();
    assert_eq!(status.code(), Some(130), "{said}");
    // After a kill, the lock is no more.
    let mut killed = Process::start(&mut folder.train("text.txt", &arguments));
    killed.wait_for("training: ");
    killed.child.kill().unwrap();
    killed.end();
    let mut again = Process::start(&mut folder.train("text.txt", &arguments));
    again.wait_for("training: ");
    again.interrupt();
    assert_eq!(again.end().0.code(), Some(130));
}

/// A closed pipe is no error, a full disk is one on standard output, and nobody panics.
#[test]
fn what_is_printed_may_be_lost_but_the_model_is_written() {
    let folder = Folder::new();
    let mut process = folder.taught();
    let mut child = process.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop((child.stdout.take(), child.stderr.take()));
    assert!(child.wait().unwrap().success());
    assert!(folder.path("model/model.safetensors").exists());
    succeeds(program("encode").arg("--model").arg(folder.path("model")).arg("a cat"));
    if !cfg!(target_os = "linux") {
        return;
    }
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let output = folder.taught().stdout(full()).stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("error: standard output: No space left on device"), "{said}");
    let status = folder.taught().args(["--progress-seconds", "0"]).stdout(Stdio::null()).stderr(full()).status();
    assert!(status.unwrap().success());
    // A picture on a full disk.
    let output = folder.taught().args(["--plot", "/dev/full"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("error: /dev/full: No space left on device"), "{said}");
    // A picture on standard output, once, and nothing else.
    let said = succeeds(folder.taught().args(["--plot", "-"]));
    assert!(
        said.starts_with("<svg") && said.matches("<svg").count() == 1 && said.trim_end().ends_with("</svg>"),
        "{said}"
    );
}
