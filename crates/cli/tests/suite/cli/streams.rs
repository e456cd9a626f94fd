//! Every command with a reader that goes away, and on a full disk.

use std::process::{Command, Output, Stdio};

use super::Scratch;

/// One line for each command that prints.
fn printing() -> Vec<Vec<String>> {
    let weights = concat!(env!("CARGO_MANIFEST_DIR"), "/../../weights");
    let lines = [
        "--version",
        "--help",
        "encode a b",
        "encode --json a b",
        "encode --file texts.txt",
        "encode --against notes.txt a",
        "search rent notes.txt",
        "search --json rent notes.txt",
        "search -l rent .",
        &format!("inspect {weights}"),
        &format!("inspect {weights} --json"),
        "attention-map cat",
        "attention-map cat --html -",
        "attention-map cat --svg -",
        "rerank --model ms-marco-MiniLM-L6-v2 who cat dog",
        "rerank --model ms-marco-MiniLM-L6-v2 who --file notes.txt --json",
        "classify --model distilbert-base-uncased-finetuned-sst-2-english film",
        "classify --model bert-base-NER film",
        "fill-mask --model bert-base-uncased [MASK]",
        "attend --model all-MiniLM-L6-v2 --prefix encoder.layer.0.attention --input in.safetensors --output out.safetensors",
        "prune --model all-MiniLM-L6-v2 --file texts.txt --limit 6 --runs 0",
        "quantize all-MiniLM-L6-v2 --file texts.txt --limit 6",
        "bench --dtype int8",
        "completions bash",
        "man",
    ];
    lines.iter().map(|line| line.split(' ').map(str::to_string).collect()).collect()
}

fn run(scratch: &Scratch, line: &[String], change: impl FnOnce(&mut Command)) -> Output {
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    let mut command = scratch.run(&line);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    change(&mut command);
    command.output().unwrap()
}

#[test]
fn a_closed_pipe_is_no_error() {
    let scratch = Scratch::new();
    for line in printing() {
        // The reading end is closed before the program starts.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = run(&scratch, &line, |command| {
            command.stdout(writer);
        });
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !stderr.contains("panic"), "{line:?}: {:?} {stderr}", output.status);
    }
    // A command that writes files goes on.
    assert!(scratch.path("out.safetensors").exists());
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let prune = "prune --model all-MiniLM-L6-v2 --file texts.txt --limit 6 --runs 0 --output pruned";
    let line: Vec<String> = prune.split(' ').map(str::to_string).collect();
    let output = run(&scratch, &line, |command| {
        command.stdout(writer);
    });
    assert!(output.status.success() && scratch.path("pruned/model.safetensors").exists());
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_one_line() {
    let scratch = Scratch::new();
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    for line in printing() {
        let output = run(&scratch, &line, |command| {
            command.stdout(full());
        });
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line:?}: {stderr}");
        // Before it there may be notes, such as of texts that were cut.
        let lines: Vec<&str> = stderr.lines().filter(|line| !line.starts_with("note: ")).collect();
        assert_eq!(lines, ["error: standard output: No space left on device (os error 28)"], "{line:?}");
        // Nor does it matter where errors and notes go.
        let both = run(&scratch, &line, |command| {
            command.stdout(full()).stderr(full());
        });
        assert_eq!(both.status.code(), Some(2), "{line:?}");
    }
    let mut wrong = scratch.run(&["encode", "--model", "nope", "a"]);
    assert_eq!(wrong.stderr(full()).status().unwrap().code(), Some(2));
}

/// Texts and names of files can neither move the cursor nor turn the direction of writing.
#[test]
fn texts_and_names_do_not_control_the_terminal() {
    let scratch = Scratch::new();
    const EVIL: &str = "rent\u{202e}\u{2066}\u{9b}\u{1b}]0;\u{7f}größe";
    let name = format!("{EVIL}.txt");
    std::fs::write(scratch.path(&name), format!("{EVIL}\nA cat sat.\n")).unwrap();
    let lines: [&[&str]; 12] = [
        &["encode", EVIL, "b"],
        &["encode", "--json", EVIL],
        &["encode", "--file", &name],
        &["encode", "--file", &name, "--output", &format!("{EVIL}.npy")],
        &["search", "rent", &name],
        &["search", "--json", EVIL, &name],
        &["rerank", "--model", "ms-marco-MiniLM-L6-v2", EVIL, "--file", &name],
        &["rerank", "--model", "ms-marco-MiniLM-L6-v2", "a", EVIL, "--json"],
        &["classify", "--model", "bert-base-NER", EVIL],
        &["classify", "--model", "distilbert-base-uncased-finetuned-sst-2-english", "--json", EVIL],
        &["fill-mask", "--model", "bert-base-uncased", "--json", &format!("{EVIL} [MASK]")],
        &["encode", "--file", &format!("missing {EVIL}")],
    ];
    for line in lines {
        let output = scratch.run(line).output().unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        let controls = |c: char| c != '\n' && c.is_control() || ['\u{202e}', '\u{2066}'].contains(&c);
        assert!(said.contains("rent") && !said.contains(controls), "{line:?}: {said:?}");
        assert_eq!(output.status.success(), !line.last().unwrap().starts_with("missing"), "{line:?}: {said}");
        if line.contains(&"--json") {
            let parsed: serde_json::Value = serde_json::from_str(said.lines().next().unwrap()).unwrap();
            assert!(said.is_ascii() && parsed.to_string().contains("größe"), "{said}");
        }
    }
}

/// No program uses a macro that panics on a closed pipe.
#[test]
fn what_is_printed_goes_through_one_place() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    let (mut folders, mut files) = (vec![std::path::PathBuf::from(folder)], 0);
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    folders.push(examples.into());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
                let panics: Vec<&str> = code
                    .filter(|line| ["println!(", "print!(", "dbg!("].iter().any(|word| line.contains(word)))
                    .collect();
                assert!(panics.is_empty(), "{} prints by a macro that panics: {panics:?}", path.display());
                files += 1;
            }
        }
    }
    assert!(files > 20);
}
