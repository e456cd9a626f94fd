//! What the help of every command says.

use clap::{Arg, ArgAction, Command, CommandFactory};

use super::Program;

fn commands() -> Vec<Command> {
    Program::command().get_subcommands().cloned().collect()
}

#[test]
fn the_arguments_fit_together() {
    Program::command().debug_assert();
}

/// Every argument is described, and its default stands in its description or as its value.
#[test]
fn every_option_has_a_text_and_a_default() {
    for command in commands() {
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
