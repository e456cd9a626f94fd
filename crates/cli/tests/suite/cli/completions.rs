//! Completion, asked of the shells themselves, where they are installed.

use std::process::Command;

use super::Scratch;
use crate::programs::succeeds;

/// The typed words, all that a shell has to offer, and what it must not offer.
const CASES: [(&str, &[&str], &[&str]); 11] = [
    ("attention-", &["attention-map"], &["encode"]),
    ("encode --prec", &["--precision"], &["--prompt"]),
    ("attention-map --ht", &["--html"], &["--precision"]),
    ("--threads 2 fill-mask --top", &["--top-k"], &["--html"]),
    ("encode --precision u", &["ubinary", "uint8"], &["float32", "texts.txt"]),
    ("encode --as ", &["query", "document"], &["texts.txt"]),
    ("attend --dtype ", &["bf16", "q8_0"], &["texts.txt"]),
    ("search --device ", &["cpu"], &["texts.txt"]),
    ("encode --file ", &["texts.txt"], &["query"]),
    ("train --output ", &["all-MiniLM-L6-v2"], &["texts.txt"]),
    ("train --steps ", &[], &["texts.txt", "all-MiniLM-L6-v2"]),
];

/// A folder with the script of a shell; nothing where the shell is not installed, or fails at what it needs.
fn folder_for(shell: &str, needs: &str) -> Option<Scratch> {
    Command::new(shell).args(["-c", needs]).status().ok().filter(|status| status.success())?;
    let scratch = Scratch::new();
    let script = succeeds(&mut scratch.run(&["completions", shell]));
    std::fs::write(scratch.path("_candle-attention"), script).unwrap();
    Some(scratch)
}

/// Asks a shell by a script of its own that gets what is typed as its first argument.
fn check(shell: &str, needs: &str, options: &[&str], script: &str) {
    let Some(scratch) = folder_for(shell, needs) else { return };
    for (typed, offered, others) in CASES {
        let mut command = Command::new(shell);
        command.current_dir(scratch.path(".")).args(options).args(["-c", script]);
        // The argument after a script is its name in bash and zsh.
        let said = succeeds(command.args((shell != "fish").then_some(shell)).arg(format!("candle-attention {typed}")));
        let offers = |word: &&str| said.split_ascii_whitespace().any(|found| *found.trim_end_matches('/') == **word);
        assert!(offered.iter().all(offers) && !others.iter().any(offers), "{shell}: {typed}: {said}");
    }
}

#[test]
fn bash_completes() {
    // As readline does: the words of the line up to the cursor; the function, and directories where it asks for them.
    let script = r#"
        source ./_candle-attention
        compopt() { [[ $2 == plusdirs ]] && plusdirs=1; }
        read -ra COMP_WORDS <<< "$1"
        [[ $1 == *' ' ]] && COMP_WORDS+=("")
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        called=$(complete -p candle-attention | sed 's/.* -F \([^ ]*\) .*/\1/')
        $called candle-attention "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}"
        [[ -z $plusdirs ]] || compgen -d -- "${COMP_WORDS[COMP_CWORD]}"
    "#;
    // Bash 3 of macOS completes no folders.
    check("bash", "((BASH_VERSINFO[0] >= 4))", &["--norc", "--noprofile"], script);
}

#[test]
fn fish_completes() {
    check("fish", "true", &["--no-config"], "source ./_candle-attention; complete -C $argv[1]");
}

/// zsh completes on a terminal only.
#[test]
fn zsh_completes() {
    let script = r#"
        zmodload zsh/zpty
        zpty terminal zsh -f -i
        zpty -w terminal 'fpath=($PWD $fpath); autoload -Uz compinit; compinit -u -D; LISTMAX=0; stty columns 200'
        zpty -w terminal 'bindkey "^I" list-choices; bindkey "^X" accept-line; PS1=; print -r read""y'
        zpty -r -m terminal before '*ready*'
        zpty -w -n terminal "$1"$'\t\C-a: \C-e; print -r do""ne\C-x'
        zpty -r -m terminal offered '*done*'
        print -r -- "$offered" | sed 's/\x1b\[[0-9;?]*[A-Za-z]//g'
    "#;
    check("zsh", "zmodload zsh/zpty", &["-f"], script);
}
