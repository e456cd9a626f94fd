//! How the tests run the program.

use std::process::Command;

pub use crate::common::programs::*;

/// The program `candle-attention` with a subcommand.
pub fn program(subcommand: &str) -> Command {
    let mut command = without_environment(Command::new(env!("CARGO_BIN_EXE_candle-attention")));
    command.arg(subcommand);
    command
}
