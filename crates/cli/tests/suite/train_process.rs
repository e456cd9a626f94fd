//! The command `train` as a process that is interrupted, or whose output nobody takes.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};

use crate::programs::{program, succeeds};
use crate::train_program::Folder;

/// A process whose standard error is read line by line.
struct Process {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStderr>>,
}

impl Process {
    fn start(command: &mut Command) -> Self {
        command.stdout(Stdio::null()).stderr(Stdio::piped());
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

/// A run is interrupted, killed and resumed, and then has the weights of one that was not.
#[test]
fn an_interrupted_run_goes_on_as_if_nothing_had_happened() {
    let want = Folder::new();
    let arguments = ["--steps", "300", "--save-every", "20"];
    succeeds(&mut want.train("text.txt", &arguments));

    let folder = Folder::new();
    let train = || folder.train("text.txt", &arguments);
    let mut process = Process::start(&mut train());
    process.wait_for("step 20: loss ");
    process.interrupt();
    let (status, said) = process.end();
    assert_eq!(status.code(), Some(130), "{said}");
    assert!(
        said.contains("error: interrupted after step ") && said.contains("model.run: the same command goes on"),
        "{said}"
    );
    assert!(folder.path("model.run/run.safetensors").exists() && !folder.path("model").exists());
    let mut process = Process::start(&mut train());
    process.wait_for("step 120: loss ");
    process.child.kill().unwrap();
    process.end();
    let mut process = Process::start(&mut train());
    process.wait_for("60 texts, ");
    let (status, said) = process.end();
    assert!(status.success() && said.contains("step 300: loss "), "{said}");
    for file in ["model/model.safetensors", "model/tokenizer.json"] {
        assert!(std::fs::read(folder.path(file)).unwrap() == std::fs::read(want.path(file)).unwrap(), "{file}");
    }
}

/// A closed pipe is no error, a full disk is one on standard output, and nobody panics.
#[test]
fn what_is_printed_may_be_lost_but_the_model_is_written() {
    let folder = Folder::new();
    let mut process = folder.measured();
    let mut child = process.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop((child.stdout.take(), child.stderr.take()));
    assert!(child.wait().unwrap().success());
    assert!(folder.path("model/model.safetensors").exists());
    succeeds(program("encode").arg("--model").arg(folder.path("model")).arg("a cat"));
    if !cfg!(target_os = "linux") {
        return;
    }
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let folder = Folder::new();
    let output = folder.measured().stdout(full()).stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("error: standard output: No space left on device"), "{said}");
    assert!(folder.path("model/model.safetensors").exists());
    assert!(Folder::new().measured().stdout(Stdio::null()).stderr(full()).status().unwrap().success());
}
