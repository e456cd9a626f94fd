//! The example `search`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use candle_attention::checkpoint::Checkpoint;
use candle_attention::search::{Index, Lines};

use super::{ROUNDED, lines};
use crate::common::fixture;
use crate::encoder::tiny;
use crate::programs::{example, fails, succeeds};

/// A file of lines in a temporary folder.
struct Notes(tempfile::TempDir);

impl Notes {
    fn new(text: impl AsRef<[u8]>) -> Self {
        let notes = Self(tempfile::tempdir().unwrap());
        std::fs::write(notes.file(), text).unwrap();
        notes
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("notes.txt")
    }

    fn cache(&self) -> PathBuf {
        self.0.path().join("notes.txt.search.safetensors")
    }

    fn search(&self, arguments: &[&str]) -> Command {
        let mut command = on(&fixture("tiny-bert"), arguments);
        command.arg("--file").arg(self.file());
        command
    }

    /// Number of vectors in the cache file, which must be complete.
    fn kept(&self) -> usize {
        let checkpoint = Checkpoint::open(self.cache()).unwrap();
        let text = std::fs::read_to_string(self.file()).unwrap();
        let lines = Lines::new(&text);
        let mut index = Index::new(&lines.texts, 24, checkpoint.metadata()["model"].clone()).unwrap();
        index.load_cached(self.cache()).unwrap()
    }
}

fn on(model: &Path, arguments: &[&str]) -> Command {
    let mut command = example("search");
    command.arg("--model").arg(model).args(arguments).stdin(Stdio::null());
    command
}

/// Standard output and standard error of a run that succeeds.
#[track_caller]
fn both(command: &mut Command, input: &str) -> (String, String) {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    assert!(output.status.success(), "{}", text(output.stderr));
    (text(output.stdout), text(output.stderr))
}

#[test]
fn search_prints_the_nearest_lines() {
    let notes = Notes::new("hello world\n\nthe cat sat\nhello\tworld!\nthe cat sat\na\u{1b}[2Jdog\n");
    let said = succeeds(&mut notes.search(&["the cat sat", "-k", "2"]));
    let found: Vec<&str> = said.lines().collect();
    assert_eq!((found.len(), found[0]), (2, " 1.000      3  the cat sat (and 1 more)"));
    // Control characters stay off the terminal; with several queries, each stands above its lines.
    let said = succeeds(&mut notes.search(&["dog", "hello world"]));
    assert!(!said.contains('\u{1b}') && said.starts_with("dog\n") && said.contains("\nhello world\n"), "{said}");
    assert_eq!(said.lines().count(), 2 + 2 * 4);

    let json = |said: &str| -> Vec<serde_json::Value> {
        said.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let said = succeeds(&mut notes.search(&["--json", "the cat sat", "hello world"]));
    let hits = json(&said);
    assert_eq!(hits.len(), 8);
    let first = serde_json::json!({"query": "the cat sat", "rank": 1, "lines": [3, 5], "text": "the cat sat"});
    for (key, value) in first.as_object().unwrap() {
        assert_eq!(&hits[0][key], value);
    }
    assert!((hits[0]["score"].as_f64().unwrap() - 1.0).abs() < ROUNDED);
    assert_eq!((&hits[4]["query"], &hits[4]["lines"]), (&"hello world".into(), &[1].as_slice().into()));

    // Without --model, the embedded one.
    let embedded = succeeds(example("search").args(["-k", "1", "the cat sat", "--file"]).arg(notes.file()));
    assert_eq!(embedded, " 1.000      3  the cat sat (and 1 more)\n");
    // Queries from standard input; lines from standard input, which are kept only where told.
    let (queries, _) = both(&mut notes.search(&["--json"]), "the cat sat\n\nhello world\n");
    assert_eq!(queries, said);
    let (titled, _) = both(&mut notes.search(&["-k", "1"]), "the cat sat\nhello world\n");
    assert_eq!(titled.lines().step_by(2).collect::<Vec<_>>(), ["the cat sat", "hello world"]);
    let text = std::fs::read_to_string(notes.file()).unwrap();
    let queries = ["--json", "the cat sat", "hello world"];
    assert_eq!(both(&mut on(&fixture("tiny-bert"), &queries), &text).0, said);
    let cache = notes.0.path().join("lines.safetensors");
    for _ in 0..2 {
        let mut command = on(&fixture("tiny-bert"), &queries);
        assert_eq!(both(command.arg("--file").arg("-").arg("--cache").arg(&cache), &text).0, said);
        assert!(cache.exists());
    }
}

#[test]
fn search_keeps_embeddings_beside_the_file() {
    let texts = lines(300);
    let notes = Notes::new(texts.join("\n"));
    let query = ["--json", "the cat"];
    let without = succeeds(&mut notes.search(&["--json", "the cat", "--no-cache"]));
    assert!(!notes.cache().exists());
    let quiet = |notes: &Notes| {
        let (said, note) = both(&mut notes.search(&query), "");
        assert_eq!(note, "");
        said
    };
    assert_eq!(quiet(&notes), without);
    let written = || std::fs::metadata(notes.cache()).unwrap().modified().unwrap();
    let first = written();
    assert_eq!(quiet(&notes), without);
    assert_eq!(written(), first, "the second run embeds nothing");

    // Another file: what is new is found, what is gone is not.
    std::fs::write(notes.file(), [&texts[50..], &["the cat".to_string()]].concat().join("\n")).unwrap();
    assert!(quiet(&notes).contains("\"lines\":[251],\"text\":\"the cat\""));
    assert_eq!(notes.kept(), 251);
    assert_ne!(written(), first);

    // Another model, dtype or prompt; a file that is damaged.
    let other = tiny();
    let weights = other.path().join("tokenizer_config.json");
    std::fs::write(&weights, std::fs::read_to_string(&weights).unwrap() + "\n").unwrap();
    let mut command = on(other.path(), &query);
    let (said, note) = both(command.arg("--file").arg(notes.file()), "");
    assert_eq!(said, quiet_again(&notes, &query, "made with another model"));
    assert!(note.starts_with("note: ") && note.contains("made with another model, dtype or prompt; embedding anew"));
    assert!(both(&mut notes.search(&["--dtype", "f64", "a"]), "").1.contains("made with another model, dtype"));
    for damage in [&b""[..], &std::fs::read(notes.cache()).unwrap()[..5000]] {
        std::fs::write(notes.cache(), damage).unwrap();
        assert_eq!(quiet_again(&notes, &query, "not a valid safetensors file"), said);
    }
    // What is no index is kept.
    std::fs::write(notes.cache(), "something else").unwrap();
    let (kept, note) = both(&mut notes.search(&query), "");
    assert!(kept == said && note.contains("not saved") && note.contains("is not a search index"), "{note}");
    assert_eq!(std::fs::read(notes.cache()).unwrap(), b"something else");
    // Where nothing can be written, searching goes on.
    std::fs::remove_file(notes.cache()).unwrap();
    std::fs::create_dir(notes.cache()).unwrap();
    assert_eq!(quiet_again(&notes, &query, "embeddings are not saved"), said);
}

/// The output of a run that prints `part` to standard error; a second run prints nothing there if the first could write.
#[track_caller]
fn quiet_again(notes: &Notes, query: &[&str], part: &str) -> String {
    let (said, note) = both(&mut notes.search(query), "");
    assert!(note.starts_with("note: ") && note.contains(part), "`{note}` does not say `{part}`");
    if notes.cache().is_file() {
        assert_eq!(both(&mut notes.search(query), ""), (said.clone(), String::new()));
    }
    said
}

#[test]
fn killed_search_keeps_its_progress_and_resumes() {
    let notes = Notes::new(lines(60_000).join("\n"));
    let mut kept = 0;
    for _ in 0..4 {
        let mut child = notes.search(&["--save-every", "0", "the cat"]).stdout(Stdio::null()).spawn().unwrap();
        let size = || std::fs::metadata(notes.cache()).map(|file| file.len()).unwrap_or(0);
        let before = size();
        while size() == before {
            assert_eq!(child.try_wait().unwrap(), None, "it was done before it could be killed");
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let now = notes.kept();
        assert!(kept < now && now < 60_000, "{kept} before, {now} now");
        kept = now;
    }
    let went_on = succeeds(&mut notes.search(&["--json", "the cat"]));
    assert_eq!(notes.kept(), 60_000);
    assert_eq!(went_on, succeeds(&mut notes.search(&["--json", "the cat", "--no-cache"])));
}

#[test]
fn mistakes_are_one_clear_error() {
    let notes = Notes::new("one\ntwo\n");
    let tiny = fixture("tiny-bert");
    fails(&mut on(&tiny, &[]), "no query: give one as an argument");
    fails(&mut on(&tiny, &["a"]), "-: no line to search");
    fails(&mut on(&tiny, &["a", "--file", "no.txt"]), "no.txt: No such file");
    fails(&mut notes.search(&["a", "-k", "0"]), "0 is not in 1..");
    fails(&mut notes.search(&["a", "--batch-size", "0"]), "batch_size = 0");
    fails(&mut notes.search(&["a", "--prompt-name", "no"]), "prompt_name is no");
    fails(&mut notes.search(&["a", "--cache", "x.safetensors", "--no-cache"]), "cannot be used with");
    fails(&mut notes.search(&["a", "--cache", "notes.txt"]), "expected a name that ends in .safetensors");
    fails(&mut notes.search(&["a", "--cache", "/no/folder/x.safetensors"]), "its folder does not exist");
    let weights = tiny.join("model.safetensors");
    fails(
        &mut notes.search(&["a", "--cache", weights.to_str().unwrap()]),
        "is not a search index, and its content would be lost",
    );
    fails(
        on(Path::new("/no/such/folder"), &["a"]).arg("--file").arg(notes.file()),
        "a folder that exists, or a hub id",
    );
    fails(&mut Notes::new("").search(&["a"]), "notes.txt: no line to search");
    fails(&mut Notes::new(b"one\ntwo \xFF\n").search(&["a"]), "notes.txt: line 2 is not UTF-8");
    fails(&mut example("search"), "no query");
    assert!(!notes.cache().exists());
}
