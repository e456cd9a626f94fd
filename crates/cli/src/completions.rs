//! Completion scripts for shells.

use std::io::Write;

use clap::{Arg, Command, Parser, ValueHint};
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

/// The name of the program.
const PROGRAM: &str = "candle-attention";

impl Completions {
    /// Prints the script for a program.
    pub fn run(self, program: Command) -> Result<()> {
        // Into memory first: `generate` panics where it cannot write.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut with_hints(program), PROGRAM, &mut script);
        let script = String::from_utf8(script)?;
        let mut out = print::stdout();
        out.write_all(if self.shell == Shell::Bash { matching(&script) } else { script }.as_bytes())?;
        Ok(out.flush()?)
    }
}

/// A program whose arguments with a value all have possible values, or a hint at what completes them.
pub fn with_hints(program: Command) -> Command {
    let with_hint = |arg: Arg| {
        if arg.get_action().takes_values() {
            let hint = hint(&arg);
            arg.value_hint(hint)
        } else {
            arg
        }
    };
    program.mut_args(with_hint).mut_subcommands(with_hints)
}

/// The completion of a value, by its name in the help. A value whose type is a path has the hint `AnyPath` already.
fn hint(arg: &Arg) -> ValueHint {
    let name = arg.get_value_names().and_then(|names| names.first());
    let name = name.map_or_else(|| arg.get_id().as_str().to_uppercase(), |name| name.to_string());
    match name.as_str() {
        "FILE" => ValueHint::FilePath,
        "FOLDER" => ValueHint::DirPath,
        _ if name.contains("FOLDER") || name.contains("PATH") => ValueHint::AnyPath,
        _ if arg.get_value_hint() == ValueHint::AnyPath => ValueHint::AnyPath,
        _ => ValueHint::Other,
    }
}

/// The script for bash with the same names of commands where it finds the command and where it completes its options.
/// For a program with a hyphen clap_complete writes two of them (<https://github.com/clap-rs/clap/issues/6421>).
fn matching(script: &str) -> String {
    let (completed, found) = (PROGRAM.replace('-', "__subcmd__"), PROGRAM.replace('-', "__"));
    script.replace(&format!("{completed}__subcmd__"), &format!("{found}__subcmd__"))
}
