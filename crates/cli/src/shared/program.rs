//! The entry point of each program: runs a command, prints its error as one line, and chooses the exit code.

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use super::{Result, print};

/// A command with its arguments.
pub trait Command {
    /// Runs the command.
    fn run(self) -> Result<()>;
}

/// The exit code after an interrupt (Ctrl-C), as that of a program which the interrupt ends: 128 and the number of the
/// signal.
pub const INTERRUPTED: u8 = 130;

/// The error of a command that saved its work after an interrupt.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Interrupted(pub String);

/// The end of a search that found nothing: exit code 1 and no further line, as of grep.
#[derive(Debug, thiserror::Error)]
#[error("no hit")]
pub struct NoHit;

/// Parses the arguments of a program that has one command, and runs it.
pub fn main<C: Command + clap::Parser>() -> ExitCode {
    run(|| match C::try_parse() {
        Ok(command) => command.run(),
        Err(mut mistake) if mistake.use_stderr() => {
            // That an unknown option could be a value behind `--` is mostly wrong.
            mistake.remove(clap::error::ContextKind::Suggested);
            mistake.exit()
        }
        // Help and version.
        Err(answer) => Ok(print::named(answer.print(), "standard output")?),
    })
}

/// Runs a program. An error is one line on standard error, and exit code 2. A reader of standard output that has closed
/// it, such as `head`, is no error.
pub fn run(main: impl FnOnce() -> Result<()>) -> ExitCode {
    let flush = || print::named(std::io::stdout().flush(), "standard output");
    match main().and_then(|()| Ok(flush()?)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_closed_pipe(error.as_ref()) => ExitCode::SUCCESS,
        Err(error) if error.is::<NoHit>() => ExitCode::FAILURE,
        Err(error) => {
            let message = match error.downcast_ref::<candle_attention::Error>() {
                Some(error) => name_option(error, |field| ENCODING.contains(&field).then_some(field)),
                None => error.to_string(),
            };
            print::to_stderr(format_args!("error: {}", message.lines().next().unwrap_or("unknown")));
            ExitCode::from(if error.is::<Interrupted>() { INTERRUPTED } else { 2 })
        }
    }
}

/// The fields of encoding that options of the same names set.
const ENCODING: [&str; 2] = ["max_length", "truncate_dim"];

/// The message of an error. One about a field names the option that sets it, by its name without hyphens.
pub fn name_option(error: &candle_attention::Error, option: impl Fn(&'static str) -> Option<&'static str>) -> String {
    if let candle_attention::Error::Config { field, value, allowed } = error
        && let Some(option) = option(field)
    {
        return format!("--{} is {value}, expected {allowed}", option.replace('_', "-"));
    }
    error.to_string()
}

fn is_closed_pipe(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<std::io::Error>().map(std::io::Error::kind) == Some(ErrorKind::BrokenPipe)
}
