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

/// The program `candle-attention` with a subcommand.
#[cfg(feature = "cli")]
pub fn program(subcommand: &str) -> Command {
    let mut command = without_environment(Command::new(env!("CARGO_BIN_EXE_candle-attention")));
    command.arg(subcommand);
    command
}

/// Without the settings of whoever runs the tests.
fn without_environment(mut command: Command) -> Command {
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
