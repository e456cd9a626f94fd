//! The example `search`.

use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use candle_attention::checkpoint::Checkpoint;
use candle_attention_text::search::Index;
use candle_attention_text::{EncodeOptions, SentenceEncoder};
use candle_core::{DType, Device, Tensor};

use crate::common::fixture;
use crate::models::lines;
use crate::models::tiny;
use crate::programs::{fails, program, succeeds};

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

    /// The files with saved embeddings beside the file, one for each model.
    fn caches(&self) -> Vec<PathBuf> {
        let files = std::fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().path());
        let mut caches: Vec<PathBuf> =
            files.filter(|path| path.to_str().unwrap().contains("notes.txt.search-")).collect();
        caches.sort();
        caches
    }

    /// The only file with saved embeddings.
    fn cache(&self) -> PathBuf {
        let caches = self.caches();
        assert_eq!(caches.len(), 1, "{caches:?}");
        caches[0].clone()
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
        let mut seen = HashSet::new();
        let lines: Vec<&str> =
            text.lines().map(str::trim).filter(|line| !line.is_empty() && seen.insert(*line)).collect();
        let mut index = Index::new(&lines, 24, checkpoint.metadata()["model"].clone()).unwrap();
        index.load_cached(self.cache()).unwrap()
    }
}

/// The largest change of a score by rounding to f16.
const ROUNDED: f64 = 1e-3;

fn on(model: &Path, arguments: &[&str]) -> Command {
    let mut command = program("search");
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
    // `hello world` and `hello\tworld!` are one hit.
    assert_eq!(said.lines().count(), 2 + 2 * 3);
    assert!(said.contains("hello world (and 1 similar)"), "{said}");

    let json = |said: &str| -> Vec<serde_json::Value> {
        said.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let said = succeeds(&mut notes.search(&["--json", "the cat sat", "hello world"]));
    let hits = json(&said);
    assert_eq!(hits.len(), 6);
    let first = serde_json::json!({"query": "the cat sat", "rank": 1, "lines": [3, 5], "text": "the cat sat"});
    for (key, value) in first.as_object().unwrap() {
        assert_eq!(&hits[0][key], value);
    }
    assert!((hits[0]["score"].as_f64().unwrap() - 1.0).abs() < ROUNDED);
    assert_eq!((&hits[3]["query"], &hits[3]["lines"]), (&"hello world".into(), &[1].as_slice().into()));
    let similar = serde_json::json!([{"file": notes.file(), "line": 4}]);
    assert_eq!((&hits[3]["file"], &hits[3]["similar"]), (&serde_json::json!(notes.file()), &similar));
    let unfolded = json(&succeeds(&mut notes.search(&["--json", "--no-fold", "hello world"])));
    assert_eq!(unfolded.len(), 4);

    // Without --model, the embedded one.
    let embedded = succeeds(program("search").args(["-k", "1", "the cat sat", "--file"]).arg(notes.file()));
    assert_eq!(embedded, " 1.000      3  the cat sat (and 1 more)\n");
    // Queries from standard input; lines from standard input, which are kept only where told.
    let (queries, _) = both(&mut notes.search(&["--json"]), "the cat sat\n\nhello world\n");
    assert_eq!(queries, said);
    assert_eq!(notes.caches().len(), 2, "one of the embedded model");
    let (titled, _) = both(&mut notes.search(&["-k", "1"]), "the cat sat\nhello world\n");
    assert_eq!(titled.lines().step_by(2).collect::<Vec<_>>(), ["the cat sat", "hello world"]);
    let text = std::fs::read_to_string(notes.file()).unwrap();
    let queries = ["--json", "the cat sat", "hello world"];
    let said = said.replace(notes.file().to_str().unwrap(), "-");
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
    assert!(notes.caches().is_empty());
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

    // Another model, dtype or prompt has a file of its own, and the first one stays.
    let (first, bytes) = (notes.cache(), std::fs::read(notes.cache()).unwrap());
    let other = tiny();
    let weights = other.path().join("tokenizer_config.json");
    std::fs::write(&weights, std::fs::read_to_string(&weights).unwrap() + "\n").unwrap();
    let mut command = on(other.path(), &query);
    let (said, note) = both(command.arg("--file").arg(notes.file()), "");
    assert_eq!((said.as_str(), note.as_str()), (quiet(&notes).as_str(), ""));
    assert_eq!(both(&mut notes.search(&["--dtype", "f64", "a"]), "").1, "");
    assert_eq!(notes.caches().len(), 3);
    assert_eq!(std::fs::read(&first).unwrap(), bytes);
    notes.caches().iter().filter(|path| **path != first).for_each(|path| std::fs::remove_file(path).unwrap());
    // A file that is damaged, even by one bit of one number.
    let mut flipped = bytes.clone();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    flipped[8 + header + 101] ^= 0x80;
    std::fs::write(&first, flipped).unwrap();
    assert_eq!(quiet_again(&notes, &query, "does not match its checksum; embedding anew"), said);
    for damage in [&b""[..], &bytes[..5000]] {
        std::fs::write(&first, damage).unwrap();
        assert_eq!(quiet_again(&notes, &query, "not a valid safetensors file"), said);
    }
    // What is no index is kept.
    std::fs::write(&first, "something else").unwrap();
    let (kept, note) = both(&mut notes.search(&query), "");
    assert!(kept == said && note.contains("not saved") && note.contains("is not a search index"), "{note}");
    assert_eq!(std::fs::read(&first).unwrap(), b"something else");
    // Where nothing can be written, searching goes on.
    std::fs::remove_file(&first).unwrap();
    std::fs::create_dir(&first).unwrap();
    assert_eq!(quiet_again(&notes, &query, "embeddings are not saved"), said);
}

/// A file that the user names for the embeddings is not taken from another model.
#[test]
fn a_named_cache_belongs_to_one_model() {
    let notes = Notes::new("hello world\nthe cat sat\n");
    let cache = notes.0.path().join("kept.safetensors");
    let search = |more: &[&str]| {
        let mut command = notes.search(more);
        command.arg("--cache").arg(&cache);
        command
    };
    succeeds(&mut search(&["the cat"]));
    let bytes = std::fs::read(&cache).unwrap();
    fails(
        &mut search(&["the cat", "--dtype", "f64"]),
        "kept.safetensors: was made with another model, dtype or prompt",
    );
    assert_eq!(std::fs::read(&cache).unwrap(), bytes);
    fails(search(&["a", "--file", "Cargo.toml"]).arg("--json"), "cannot share one --cache");
}

/// What stands at the end of a line that the model cannot take whole is found, and shown.
#[test]
fn long_lines_are_searched_in_windows() {
    let sentence = |i: usize| format!("The weather in the park was fine on day {i} of the year. ");
    let filler = |range: std::ops::Range<usize>| range.map(sentence).collect::<String>();
    let secret = "The secret password of the vault is swordfish.";
    let long = format!("{}{secret} {}", filler(0..60), filler(60..90));
    let notes = Notes::new(format!("I like dogs.\n{long}\nStocks fell sharply today.\n"));
    let mut command = program("search");
    command.args(["--json", "-k", "2", "What is the password of the vault?", "--file"]).arg(notes.file());
    let (said, note) = both(&mut command, "");
    assert_eq!(note, "", "nothing was cut");
    let hits: Vec<serde_json::Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((hits.len(), &hits[0]["lines"]), (2, &serde_json::json!([2])), "a line is one hit: {said}");
    let window = hits[0]["window"].as_str().unwrap();
    assert!(window.contains(secret) && window.len() < long.len() / 4 && hits[0]["text"] == long.trim(), "{window}");
    let shown =
        succeeds(program("search").args(["-k", "1", "the secret password of the vault", "--file"]).arg(notes.file()));
    assert!(shown.contains(secret) && shown.contains("     2  … ") && shown.trim_end().ends_with(" …"), "{shown}");
    // A query that is too long is said to be.
    let query = filler(0..40);
    let note = both(program("search").args(["-k", "1", &query, "--file"]).arg(notes.file()), "").1;
    assert_eq!(note, "note: 1 of 1 text was cut at 128 tokens (--max-length)\n");
}

#[test]
fn files_and_folders_are_searched_together() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::create_dir_all(path("docs/deep/.git")).unwrap();
    std::fs::write(path("docs/one.txt"), "\u{feff}The rent is due on Friday.\nI like dogs.\n").unwrap();
    std::fs::write(path("docs/deep/two.md"), "The rent is due on a Friday!\r\nStocks fell.\n").unwrap();
    std::fs::write(path("docs/deep/.git/hidden.txt"), "The rent, hidden.\n").unwrap();
    std::fs::write(path("docs/image.png"), b"\x89PNG\0\xff").unwrap();
    std::fs::write(path("other.txt"), "before\nThe rent is due on Friday.\nafter\n").unwrap();
    let search = |more: &[&str]| {
        let mut command = program("search");
        command.current_dir(&folder).args(["--file", "docs", "--file", "other.txt"]).args(more);
        both(&mut command, "")
    };
    let (said, note) = search(&["-k", "1", "-C", "1", "When is the rent due?"]);
    assert_eq!(note, "note: docs: skipped 1 file without text in UTF-8\n");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    let best = "docs/one.txt:1  The rent is due on Friday. (and 2 similar)";
    assert!(lines[0].ends_with(best) && lines[1].trim_start() == "2- I like dogs.", "{said}");
    // Each has its own saved embeddings, and they are not searched themselves.
    let kept = |folder: &str, start: &str| {
        let files = std::fs::read_dir(path(folder)).unwrap().map(|entry| entry.unwrap().file_name());
        files.filter(|name| name.to_str().unwrap().starts_with(start)).count()
    };
    assert_eq!((kept("docs", ".search-"), kept(".", "other.txt.search-")), (1, 1));
    assert_eq!(search(&["-k", "1", "-C", "1", "When is the rent due?"]), (said, note));
    // A threshold, also one that nothing reaches.
    let (said, _) = search(&["--min-score", "0.4", "When is the rent due?"]);
    assert_eq!(said.lines().count(), 1, "{said}");
    let (said, note) = search(&["--min-score", "0.999", "zebra"]);
    assert!(said.is_empty() && note.contains("note: no line is near enough to `zebra`"), "{note}");
    let search = |more: &[&str]| {
        let mut command = program("search");
        command.current_dir(&folder).args(more).stdin(Stdio::null());
        command
    };
    std::fs::create_dir(path("empty")).unwrap();
    fails(&mut search(&["a", "--file", "empty"]), "empty: no line to search");
    fails(&mut search(&["a", "--file", "docs", "--file", "docs"]), "docs: is given twice");
    fails(&mut search(&["a", "--file", "docs", "--min-score", "2"]), "expected a number from -1 to 1");
    fails(&mut search(&["a", "--file", "docs", "-C", "x"]), "invalid value 'x'");
}

/// The output of a run that prints `part` to standard error; a second run prints nothing there if the first could
/// write.
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
        let size = || notes.caches().first().map_or(0, |path| std::fs::metadata(path).map_or(0, |file| file.len()));
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
    fails(&mut notes.search(&["a", " "]), "a query is blank");
    fails(&mut on(&tiny, &["a"]), "standard input: no line to search");
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
    fails(&mut program("search"), "no query");
    assert!(notes.caches().is_empty());
}

/// Queries and lines get the model's own prompts.
#[test]
fn queries_and_documents_have_their_prompts() {
    let notes = Notes::new("the cat sleeps\na dog\n");
    let folder = tiny();
    let prompts = r#"{"prompts": {"query": "the text ", "document": "cat "}, "default_prompt_name": "query"}"#;
    std::fs::write(folder.path().join("config_sentence_transformers.json"), prompts).unwrap();
    let encoder = SentenceEncoder::from_folder(folder.path(), DType::F32, &Device::Cpu).unwrap();
    let options = EncodeOptions::default();
    let numbers = |embeddings: Tensor| embeddings.to_vec2::<f32>().unwrap();
    let query = numbers(encoder.encode_query(&["a cat"], &options).unwrap()).remove(0);
    let documents = numbers(encoder.encode_document(&["the cat sleeps", "a dog"], &options).unwrap());
    let mut want: Vec<f32> =
        documents.iter().map(|document| query.iter().zip(document).map(|(a, b)| a * b).sum()).collect();
    want.sort_by(|a, b| b.total_cmp(a));
    let said = succeeds(on(folder.path(), &["--json", "a cat", "--file"]).arg(notes.file()));
    let hits = said.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let scores: Vec<f64> = hits.map(|hit| hit["score"].as_f64().unwrap()).collect();
    assert_eq!(scores.len(), 2);
    for (score, want) in scores.iter().zip(want) {
        assert!((score - f64::from(want)).abs() < ROUNDED, "{scores:?}, expected {want}");
    }
    // Another prompt is another index.
    succeeds(on(folder.path(), &["--prompt-name", "query", "a cat", "--file"]).arg(notes.file()));
    assert_eq!(notes.caches().len(), 2);
}
