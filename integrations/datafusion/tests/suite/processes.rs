//! The program `embed` as a process.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// For how long a test waits for a program.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// Sends SIGINT.
pub fn interrupt(child: &Child) {
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
}

pub fn wait(child: &mut Child) -> i32 {
    let started = Instant::now();
    loop {
        match child.try_wait().unwrap() {
            Some(status) => return status.code().unwrap_or(-1),
            None if started.elapsed() > PATIENCE => {
                child.kill().unwrap();
                panic!("the program does not end");
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// `embed` over the files of a folder, with further arguments.
pub fn command(input: &Path, output: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_embed"));
    command.arg("--input").arg(input.join("*.parquet")).args(["--column", "text", "--output"]).arg(output).args(args);
    command
}

/// Runs `embed` to its end.
pub fn embed(input: &Path, output_folder: &Path, args: &[&str]) -> Output {
    output(&mut command(input, output_folder, args))
}

/// Runs a program to its end.
pub fn output(command: &mut Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let errors = std::thread::spawn(move || read(&mut stderr));
    wait(&mut child);
    let stdout = read(&mut stdout);
    Output { status: child.wait().unwrap(), stdout, stderr: errors.join().unwrap() }
}

/// Begins to run `embed`.
pub fn spawn(input: &Path, output: &Path, args: &[&str]) -> Child {
    command(input, output, args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn read(from: &mut impl Read) -> Vec<u8> {
    let mut content = Vec::new();
    from.read_to_end(&mut content).unwrap();
    content
}

/// Waits until a running `embed` has finished a file, and returns the lines of its standard error from then on.
pub fn first_file(child: &mut Child) -> Receiver<String> {
    let (send, lines) = channel();
    let stderr = BufReader::new(child.stderr.take().unwrap());
    std::thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
    loop {
        let line: String = lines.recv_timeout(PATIENCE).unwrap();
        if line.starts_with("1 of ") {
            return lines;
        }
    }
}

/// Waits for the end of a running `embed` and returns its exit code and its standard output.
pub fn finish(mut child: Child) -> (i32, String) {
    let code = wait(&mut child);
    (code, String::from_utf8(read(child.stdout.as_mut().unwrap())).unwrap())
}

/// Asserts that a program succeeded, and returns its standard output.
pub fn succeeded(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Asserts that a program failed with exit code 2, and returns the last line of its standard error.
pub fn failed(output: &Output) -> String {
    let stderr = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    let line = stderr.lines().last().unwrap();
    assert!(line.starts_with("embed: "), "{stderr}");
    line.to_string()
}
