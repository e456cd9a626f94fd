//! Help, version, completions and man pages.

use std::path::Path;
use std::process::Command;

use super::Scratch;
use crate::programs::{fails, succeeds};

/// The names of all commands, from the help of the program.
fn commands(scratch: &Scratch) -> Vec<String> {
    let help = succeeds(&mut scratch.run(&["--help"]));
    let list = help.split("Commands:").nth(1).unwrap().split("\n\n").next().unwrap().to_string();
    let names = list.lines().filter_map(|line| line.strip_prefix("  ")).filter(|line| !line.starts_with(' '));
    names.filter_map(|line| line.split(' ').next()).filter(|name| *name != "help").map(str::to_string).collect()
}

/// The examples of every help run as they stand there, one after the other in one folder.
#[test]
#[cfg(unix)]
fn the_examples_of_every_help_run() {
    let scratch = Scratch::new();
    let program = Path::new(env!("CARGO_BIN_EXE_candle-attention")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let names = commands(&scratch);
    assert!(names.len() >= 9, "{names:?}");
    for name in names {
        let help = succeeds(&mut scratch.run(&[&name, "--help"]));
        // A long one goes on in the next line.
        let help = help.replace("\\\n", " ");
        let examples: Vec<&str> = help.lines().filter(|line| line.starts_with("  candle-attention ")).collect();
        assert!(examples.len() >= 2, "{name}: {help}");
        for example in examples {
            let mut shell = Command::new("sh");
            let output =
                shell.current_dir(scratch.path(".")).env("PATH", &path).args(["-c", example]).output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{example}\n{stderr}");
        }
    }
}

/// An installed program has no folder of documents; what a build lacks is named only where it says how to get it.
#[test]
fn help_names_what_this_build_has() {
    let scratch = Scratch::new();
    for name in commands(&scratch) {
        let help = succeeds(&mut scratch.run(&[&name, "--help"]));
        let mut absent = vec!["docs/"];
        absent.extend((!cfg!(feature = "cuda")).then_some("cuda"));
        absent.extend((!cfg!(feature = "metal")).then_some("metal"));
        absent.extend(cfg!(feature = "hub").then_some("--features hub"));
        assert!(absent.iter().all(|word| !help.contains(word)), "{name}: {absent:?}: {help}");
    }
    let list = succeeds(&mut scratch.run(&["--help"]));
    let described = list.lines().filter(|line| line.starts_with("  ") && !line.trim_start().starts_with('-'));
    assert!(described.clone().count() > 12 && described.clone().all(|line| !line.ends_with('.')), "{list}");
}

#[test]
fn version_completions_and_man_pages() {
    let scratch = Scratch::new();
    assert_eq!(
        succeeds(&mut scratch.run(&["--version"])),
        concat!("candle-attention ", env!("CARGO_PKG_VERSION"), "\n")
    );
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = succeeds(&mut scratch.run(&["completions", shell]));
        assert!(script.contains("attention-map") && script.contains("min-score"), "{shell}");
    }
    fails(&mut scratch.run(&["completions", "cmd"]), "invalid value 'cmd'");
    assert!(succeeds(&mut scratch.run(&["man"])).contains(".TH candle-attention 1"));
    let said = succeeds(&mut scratch.run(&["man", "--output", "man1"]));
    let pages = commands(&scratch).len() + 2;
    assert_eq!(said, format!("man1: {pages} pages\n"));
    let page = std::fs::read_to_string(scratch.path("man1/candle-attention-search.1")).unwrap();
    assert!(page.contains("min\\-score") && page.contains("[default: 10]"), "{page}");
    fails(&mut scratch.run(&["man", "--output", "man1"]), "man1: exists already");
    succeeds(&mut scratch.run(&["man", "--output", "share/man1/."]));
    assert_eq!(std::fs::read_dir(scratch.path("share/man1")).unwrap().count(), pages);
    fails(&mut scratch.run(&["nope"]), "unrecognized subcommand 'nope'");
}
