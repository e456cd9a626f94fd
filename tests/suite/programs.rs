//! How the tests run the examples as programs.

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
    let mut command = Command::new(path);
    command.env_remove("HF_HUB_OFFLINE").env_remove("TRANSFORMERS_OFFLINE").env_remove("HF_TOKEN");
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
