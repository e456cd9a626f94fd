//! Search: against brute force in f64, what a cache may and may not do, a process killed while it works.

use std::cell::RefCell;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use candle_attention::Error;
use candle_attention::checkpoint::Checkpoint;
use candle_attention::encoder::{EncodeOptions, SentenceEncoder, fingerprint};
use candle_attention::search::{Index, Lines, check_place};
use candle_core::{DType, Device, Tensor};

use crate::common::{fixture, says};
use crate::encoder::tiny;
use crate::examples::{example, fails, succeeds};

/// What f16 may move a score by.
const ROUNDED: f64 = 1e-3;

fn encoder() -> SentenceEncoder {
    SentenceEncoder::from_folder(fixture("tiny-bert"), DType::F32, &Device::Cpu).unwrap()
}

/// Lines that are all different, of words that the tiny model knows and letters.
fn lines(count: usize) -> Vec<String> {
    let words = ["cat", "hello", "world", "dog", "the", "a", "sat", "mat", "on", "is"];
    let word = |n: usize| words[n % words.len()];
    (0..count).map(|i| format!("{} {} {} {i:x} {}", word(i), word(i / 7), word(i / 31), word(i * i / 3))).collect()
}

fn borrowed(texts: &[String]) -> Vec<&str> {
    texts.iter().map(String::as_str).collect()
}

fn filled<'a>(texts: &'a [&'a str], encoder: &SentenceEncoder) -> Index<'a> {
    let mut index = Index::new(texts, encoder.embedding_size(), "tiny").unwrap();
    assert_eq!(index.embed(encoder, &EncodeOptions::default(), |_| Ok(())).unwrap(), texts.len());
    index
}

/// The product of each row with the query at length 1, in f64.
fn brute_force(rows: &Tensor, query: &[f32]) -> Vec<f64> {
    let rows = rows.to_dtype(DType::F64).unwrap().to_vec2::<f64>().unwrap();
    let length = query.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    let product = |row: &Vec<f64>| row.iter().zip(query).map(|(a, &b)| a * f64::from(b)).sum::<f64>() / length;
    rows.iter().map(product).collect()
}

#[test]
fn order_and_scores_are_those_of_brute_force() {
    // A model that does not normalise: the cosine is not its product.
    let folder = tiny();
    let modules = std::fs::read_to_string(folder.path().join("modules.json")).unwrap();
    let mut modules: Vec<serde_json::Value> = serde_json::from_str(&modules).unwrap();
    modules.pop();
    std::fs::write(folder.path().join("modules.json"), serde_json::to_string(&modules).unwrap()).unwrap();
    let encoder = SentenceEncoder::from_folder(folder.path(), DType::F32, &Device::Cpu).unwrap();
    let texts = lines(2500);
    let texts = borrowed(&texts);
    let index = filled(&texts, &encoder);
    let path = folder.path().join("kept/index.safetensors");
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    index.save(&path).unwrap();
    let kept = Checkpoint::open(&path).unwrap().tensor("embeddings", &Device::Cpu).unwrap();
    let exact = encoder.encode(&texts, &EncodeOptions::default()).unwrap();
    let lengths = exact.to_dtype(DType::F64).unwrap().sqr().unwrap().sum_keepdim(1).unwrap().sqrt().unwrap();
    assert!((lengths.get(0).unwrap().to_vec1::<f64>().unwrap()[0] - 1.0).abs() > 0.1);
    let exact = exact.to_dtype(DType::F64).unwrap().broadcast_div(&lengths).unwrap();
    let mut worst = 0f64;
    for text in ["the cat", "hello world", "zebra"] {
        let query = encoder.encode(&[text], &EncodeOptions::default()).unwrap().get(0).unwrap();
        let query = query.to_vec1::<f32>().unwrap();
        let (kept, exact) = (brute_force(&kept, &query), brute_force(&exact, &query));
        for top_k in [0, 1, 10, 2499, 2500, 4000] {
            let found = index.search(&query, top_k).unwrap();
            assert_eq!(found.len(), top_k.min(texts.len()));
            let mut want: Vec<usize> = (0..texts.len()).collect();
            want.sort_by(|&a, &b| kept[b].total_cmp(&kept[a]));
            for (hit, &want) in found.iter().zip(&want) {
                // Another text only where f32 cannot tell the two apart.
                assert!((kept[hit.index] - kept[want]).abs() < 1e-6, "{text}: {hit:?}, want text {want}");
                assert!((f64::from(hit.score) - kept[hit.index]).abs() < 1e-6, "{text}: {hit:?}");
                worst = worst.max((f64::from(hit.score) - exact[hit.index]).abs());
            }
            let mut seen: Vec<usize> = found.iter().map(|hit| hit.index).collect();
            seen.sort();
            seen.dedup();
            assert_eq!(seen.len(), found.len());
        }
    }
    println!("f16 moves a score by {worst:e} at most, {} numbers", encoder.embedding_size());
    assert!(worst < ROUNDED);
    let itself = encoder.encode(&texts[77..78], &EncodeOptions::default()).unwrap().get(0).unwrap();
    assert_eq!(index.search(&itself.to_vec1().unwrap(), 1).unwrap()[0].index, 77);
    says(index.search(&[1.0; 23], 1), &["the embedding of the query has shape [23], expected (24)"]);
    says(index.search(&[f32::NAN; 24], 1), &["the embedding of the query is not finite"]);
    says(Index::new(&texts, 0, "tiny"), &["the size of an embedding is 0"]);
    assert!(Index::new(&texts, 24, "tiny").unwrap().search(&[1.0; 24], 5).unwrap().is_empty());
}

#[test]
fn only_what_is_new_is_embedded() {
    let (encoder, folder) = (encoder(), tempfile::tempdir().unwrap());
    let path = folder.path().join("index.safetensors");
    let texts = lines(1500);
    let texts = borrowed(&texts);
    let before = filled(&texts[..1200], &encoder);
    before.save(&path).unwrap();

    // The first 100 are gone, 300 are new.
    let mut index = Index::new(&texts[100..], 24, "tiny").unwrap();
    assert_eq!(index.reuse(&path).unwrap(), 1100);
    assert_eq!(index.missing(), (1100..1400).collect::<Vec<_>>());
    let counts = RefCell::new(Vec::new());
    let on_progress = |done: usize, all: usize| counts.borrow_mut().push((done, all));
    let options = EncodeOptions::default().with_batch_size(100).with_progress(&on_progress);
    let mut chunks = Vec::new();
    let after = |index: &Index| {
        chunks.push(index.len());
        Ok(())
    };
    assert_eq!(index.embed(&encoder, &options, after).unwrap(), 300);
    assert_eq!((*counts.borrow()).clone(), [(100, 300), (200, 300), (300, 300)]);
    assert_eq!(chunks, [1400]);
    assert_eq!(index.embed(&encoder, &options, |_| panic!("nothing to do")).unwrap(), 0);
    assert_eq!((counts.borrow().len(), index.missing().len()), (3, 0));

    // What was taken over and what was added give what one run gives.
    let whole = filled(&texts[100..], &encoder);
    let query = encoder.encode(&["the cat"], &EncodeOptions::default()).unwrap().get(0).unwrap().to_vec1().unwrap();
    assert_eq!(index.search(&query, 1400).unwrap(), whole.search(&query, 1400).unwrap());
    // An error of the caller's ends it, and what was embedded stays.
    let mut stopped = Index::new(&texts, 24, "tiny").unwrap();
    let stop = |_: &Index| Err(Error::Tokenizer("enough".to_string()));
    says(stopped.embed(&encoder, &options, stop), &["enough"]);
    assert_eq!(stopped.len(), 1024);
}

#[test]
fn a_file_that_is_no_index_is_named_and_nothing_is_taken_over() {
    let (encoder, folder) = (encoder(), tempfile::tempdir().unwrap());
    let path = folder.path().join("index.safetensors");
    let texts = ["one", "two", "three"];
    let index = filled(&texts, &encoder);
    index.save(&path).unwrap();
    let good = std::fs::read(&path).unwrap();
    let fails = |bytes: &[u8], model: &str, parts: &[&str]| {
        std::fs::write(&path, bytes).unwrap();
        let mut index = Index::new(&texts, 24, model).unwrap();
        says(index.reuse(&path), &[&["index.safetensors"], parts].concat());
        assert!(index.is_empty());
    };
    (0..good.len()).for_each(|length| fails(&good[..length], "tiny", &["not a whole safetensors file"]));
    fails(&[&good[..], b"more"].concat(), "tiny", &["not a whole safetensors file"]);
    fails(&[0xFF; 4096], "tiny", &["not a whole safetensors file"]);
    fails(&good, "large", &["made with another model"]);
    let mut nan = good.clone();
    // The last number; the keys of three texts follow.
    let end = nan.len() - 3 * 16;
    nan[end - 2..end].copy_from_slice(&[0, 0x7E]);
    fails(&nan, "tiny", &["is not of length 1"]);
    let replaced = |from: &str, to: &str| {
        let text: Vec<u8> = good.clone();
        let at = text.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
        [&text[..at], to.as_bytes(), &text[at + from.len()..]].concat()
    };
    fails(&replaced("index 1", "index 9"), "tiny", &["not a search index"]);
    fails(&replaced("\"keys\"", "\"keyz\""), "tiny", &["keys"]);
    fails(&replaced("[3,16]", "[6,08]"), "tiny", &["not a whole"]);
    fails(&replaced("[3,24]", "[4,18]"), "tiny", &["`embeddings` is F16 [4, 18]"]);
    fails(&replaced("\"F16\"", "\"I16\""), "tiny", &["`embeddings` is I16"]);
    says(Index::new(&texts, 24, "tiny").unwrap().reuse(folder.path().join("no")), &["no: No such file"]);

    // A damaged index may be written over, other tensors may not.
    std::fs::write(&path, &good[..100]).unwrap();
    index.save(&path).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), good);
    let weights = folder.path().join("model.safetensors");
    std::fs::copy(fixture("tiny-bert/model.safetensors"), &weights).unwrap();
    says(index.save(&weights), &["model.safetensors: holds other tensors"]);
    says(check_place(folder.path()), &["is a folder"]);
    says(check_place(folder.path().join("no/index.safetensors")), &["its folder does not exist"]);
    check_place("index.safetensors").unwrap();
    let mut left: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["index.safetensors", "model.safetensors"]);
}

#[test]
fn lines_are_different_and_not_blank() {
    let lines = Lines::new("\u{feff}one\r\n\n  two \n\t\none\ntwo\nthree");
    assert_eq!(lines.texts, ["one", "two", "three"]);
    assert_eq!(lines.numbers, [vec![1, 5], vec![3, 6], vec![7]]);
    assert_eq!(Lines::new(" \n"), Lines::default());
}

#[test]
fn a_fingerprint_is_that_of_what_is_loaded() {
    let own = fingerprint(fixture("tiny-bert")).unwrap();
    assert_eq!(own.len(), 64);
    let changed = |file: &str| {
        let folder = tiny();
        let mut bytes = std::fs::read(folder.path().join(file)).unwrap_or_default();
        bytes.push(b' ');
        std::fs::write(folder.path().join(file), bytes).unwrap();
        fingerprint(folder.path()).unwrap()
    };
    let files = ["model.safetensors", "tokenizer.json", "config.json", "1_Pooling/config.json", "modules.json"];
    let mut all: Vec<String> = files.map(changed).into_iter().chain([own.clone()]).collect();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), files.len() + 1);
    assert_eq!(changed("README.md"), own);
    assert_eq!(fingerprint(tiny().path()).unwrap(), own);
    says(fingerprint("/no/such/folder"), &["/no/such/folder: No such file"]);
}

/// A file of lines in a folder of its own.
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

    /// The number of vectors in the cache, which is whole.
    fn kept(&self) -> usize {
        let checkpoint = Checkpoint::open(self.cache()).unwrap();
        let text = std::fs::read_to_string(self.file()).unwrap();
        let lines = Lines::new(&text);
        let mut index = Index::new(&lines.texts, 24, checkpoint.metadata().unwrap()["model"].clone()).unwrap();
        index.reuse(self.cache()).unwrap()
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
    for damage in [&b""[..], b"garbage", &std::fs::read(notes.cache()).unwrap()[..5000]] {
        std::fs::write(notes.cache(), damage).unwrap();
        assert_eq!(quiet_again(&notes, &query, "not a whole safetensors file"), said);
    }
    // Where nothing can be written, searching goes on.
    std::fs::remove_file(notes.cache()).unwrap();
    std::fs::create_dir(notes.cache()).unwrap();
    assert_eq!(quiet_again(&notes, &query, "embeddings are not kept"), said);
}

/// The output of a run that says `part` on standard error; a second run is quiet again if it could write.
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
fn a_killed_search_leaves_what_was_done_and_goes_on() {
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
fn search_says_what_is_wrong() {
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
    fails(&mut notes.search(&["a", "--cache", weights.to_str().unwrap()]), "holds other tensors");
    fails(
        on(Path::new("/no/such/folder"), &["a"]).arg("--file").arg(notes.file()),
        "a folder that exists, or a hub id",
    );
    fails(&mut Notes::new("").search(&["a"]), "notes.txt: no line to search");
    fails(&mut Notes::new(b"one\ntwo \xFF\n").search(&["a"]), "notes.txt: line 2 is not UTF-8");
    fails(&mut example("search"), "no query");
    assert!(!notes.cache().exists());
}
