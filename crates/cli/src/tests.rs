//! Tests of the help of every command.

use candle_attention_cli::completions::with_hints;
use clap::{Arg, ArgAction, Command, CommandFactory, ValueHint};

use super::Program;

fn commands() -> Vec<Command> {
    Program::command().get_subcommands().cloned().collect()
}

/// A shell completes each value from a list, by names of files, or not at all.
#[test]
fn every_value_is_completed() {
    fn check(command: &Command) {
        for arg in command.get_arguments().filter(|arg| arg.get_action().takes_values()) {
            let (is_listed, hint) = (!arg.get_possible_values().is_empty(), arg.get_value_hint());
            assert!(is_listed || hint != ValueHint::Unknown, "{} {}", command.get_name(), arg.get_id());
        }
        command.get_subcommands().for_each(check);
    }
    let program = with_hints(Program::command());
    check(&program);
    for (command, id, hint) in [
        ("encode", "file", ValueHint::FilePath),
        ("encode", "output", ValueHint::FilePath),
        ("encode", "model", ValueHint::AnyPath),
        ("encode", "texts", ValueHint::Other),
        ("encode", "batch_size", ValueHint::Other),
        ("inspect", "checkpoint", ValueHint::AnyPath),
        ("train", "output", ValueHint::DirPath),
    ] {
        let mut args = program.find_subcommand(command).unwrap().get_arguments();
        assert_eq!(args.find(|arg| arg.get_id() == id).unwrap().get_value_hint(), hint, "{command} {id}");
    }
}

#[test]
fn the_arguments_fit_together() {
    Program::command().debug_assert();
}

/// Every argument is described, and its default stands in its description or as its value.
#[test]
fn every_option_has_a_text_and_a_default() {
    for command in commands().into_iter().chain([Program::command()]) {
        assert!(command.get_about().is_some(), "{}", command.get_name());
        for arg in command.get_arguments() {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            let name = format!("{} {}", command.get_name(), arg.get_id());
            assert!(help.len() > 8, "{name}: `{help}`");
            assert!(says_default(arg, &help), "{name} has no default: `{help}`");
        }
    }
}

fn says_default(arg: &Arg, help: &str) -> bool {
    let is_flag = !matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    let is_file = ["FILE", "FOLDER", "TEXT", "PATH"]
        .iter()
        .any(|word| arg.get_value_names().is_some_and(|names| names.iter().any(|name| name.as_str().contains(word))));
    is_flag
        || is_file
        || arg.is_positional()
        || arg.is_required_set()
        || !arg.get_default_values().is_empty()
        || help.contains("[default")
}

#[test]
fn every_help_has_two_examples() {
    for command in commands() {
        let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let start = format!("  candle-attention {} ", command.get_name());
        let examples = after.lines().filter(|line| line.starts_with(&start)).count();
        assert!(after.starts_with("Examples:\n") && examples >= 2, "{}: {after}", command.get_name());
    }
}
