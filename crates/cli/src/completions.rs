//! Completion scripts for shells.

use std::io::Write;

use clap::Parser;
use clap_complete::Shell;

use super::shared::{Result, print};

/// Print the completion script for a shell.
#[derive(Parser)]
#[command(
    name = "completions",
    after_help = "Examples:
  candle-attention completions bash > candle-attention.bash
  candle-attention completions fish > candle-attention.fish"
)]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    /// Prints the script for a program.
    pub fn run(self, mut program: clap::Command) -> Result<()> {
        // Into memory first: `generate` panics where it cannot write.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut program, "candle-attention", &mut script);
        let mut out = print::stdout();
        out.write_all(&script)?;
        Ok(out.flush()?)
    }
}
