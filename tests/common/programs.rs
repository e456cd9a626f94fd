//! How the tests run the program and the examples.

use std::path::Path;
use std::process::{Command, Output};

/// The command that runs an example, which `cargo test` built beside this test.
pub fn example(name: &str) -> Command {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().and_then(Path::parent).unwrap();
    let path = folder.join("examples").join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    assert!(
        path.exists(),
        "{} is not built: run `cargo test` without a filter on targets, or `cargo build --examples`",
        path.display()
    );
    without_environment(Command::new(path))
}

/// Copies a folder with all that is in it.
pub fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() { copy_folder(&path, &target) } else { assert!(std::fs::copy(&path, &target).is_ok()) }
    }
}

/// Without the settings of whoever runs the tests.
pub fn without_environment(mut command: Command) -> Command {
    command
        .env_remove("CANDLE_ATTENTION_MODEL")
        .env_remove("HF_HUB_OFFLINE")
        .env_remove("TRANSFORMERS_OFFLINE")
        .env_remove("HF_TOKEN");
    command
}

/// Asserts exit code 0 and returns the standard output.
#[track_caller]
pub fn succeeds(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

/// Asserts exit code 2, nothing on standard output, and an error on standard error that contains `part`.
#[track_caller]
pub fn fails(command: &mut Command, part: &str) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let stderr = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(2), "{stderr}");
    assert!(stdout.is_empty(), "{}", String::from_utf8_lossy(&stdout));
    assert!(stderr.starts_with("error: ") && stderr.contains(part), "`{stderr}` does not contain `{part}`");
}

/// Runs a command whose reader leaves before anything is printed, as `| head -0` does: exit code 0, and no word about
/// it.
#[cfg(unix)]
#[track_caller]
pub fn reader_leaves(command: &mut Command) {
    use std::process::Stdio;
    let mut running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(running.stdout.take());
    let output = running.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(!stderr.contains("panicked") && !stderr.contains("error"), "{stderr}");
}

/// Asserts that a command whose standard output is on a full disk has exit code 2 and says so.
#[cfg(unix)]
#[track_caller]
pub fn fails_on_a_full_disk(command: &mut Command) {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = command.stdout(full).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("error: standard output: No space left"), "{stderr}");
}
