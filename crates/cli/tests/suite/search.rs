//! The command `search`.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use candle_attention_text::{EncodeOptions, SentenceEncoder};
use candle_core::{DType, Device, Tensor};
use serde_json::{Value, json};

use crate::common::fixture;
use crate::models::{lines, tiny};
use crate::programs::{fails, program, succeeds};

/// The largest change of a score by rounding to f16.
const ROUNDED: f64 = 1e-3;

/// A folder to search.
pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new(files: &[(&str, &str)]) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        files.iter().for_each(|(name, text)| folder.write(name, text));
        folder
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join("folder").join(name)
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        std::fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        std::fs::write(self.path(name), text).unwrap();
    }

    /// A search in this folder with the embedded model.
    pub fn search(&self, arguments: &[&str]) -> Command {
        let mut command = program("search");
        command.current_dir(self.path("")).args(arguments).stdin(Stdio::null());
        command
    }

    /// A search in this folder with a tiny model.
    fn tiny(&self, arguments: &[&str]) -> Command {
        let mut command = self.search(arguments);
        command.arg("--model").arg(fixture("tiny-bert"));
        command
    }

    /// The hits of a search with `--json`.
    #[track_caller]
    fn hits(&self, arguments: &[&str]) -> Vec<Value> {
        parsed(&succeeds(self.tiny(arguments).arg("--json")))
    }
}

pub fn parsed(lines: &str) -> Vec<Value> {
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The exit code, standard output and standard error of a run with this standard input.
#[track_caller]
fn run(command: &mut Command, input: &str) -> (i32, String, String) {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

const NOTES: &str = "hello world\n\nthe cat sat\nhello\tworld!\nthe cat sat\na\u{1b}[2Jdog\n";

#[test]
fn the_query_comes_first_and_then_paths() {
    let folder = Folder::new(&[("notes.txt", NOTES), ("hello world", "a dog\n")]);
    let said = succeeds(&mut folder.tiny(&["the cat sat", "notes.txt", "-k", "2"]));
    let found: Vec<&str> = said.lines().collect();
    assert_eq!((found.len(), found[0]), (2, " 1.000 3  the cat sat (and 1 more)"));
    // Without --model, the embedded one.
    assert_eq!(succeeds(&mut folder.search(&["-k1", "the cat sat", "notes.txt"])), format!("{}\n", found[0]));
    // With several queries, each stands above its hits; control characters stay off the terminal.
    let titled = succeeds(&mut folder.tiny(&["notes.txt", "-e", "dog", "-e", "hello world"]));
    assert!(!titled.contains('\u{1b}') && titled.starts_with("dog\n") && titled.contains("\nhello world\n"));
    assert_eq!(titled.lines().count(), 2 + 2 * 4, "both lines `the cat sat` are one hit: {titled}");
    folder.write("queries", "dog\n\nhello world\n");
    assert_eq!(succeeds(&mut folder.tiny(&["-f", "queries", "notes.txt"])), titled);
    assert_eq!(run(&mut folder.tiny(&["notes.txt", "-f", "-"]), "dog\nhello world\n").1, titled);
    // White space is the query's own.
    folder.write("spaced", " dog \r\n");
    let hits = folder.hits(&["-f", "spaced", "notes.txt"]);
    assert_eq!(hits[0]["query"], " dog ");
    assert_eq!(hits, folder.hits(&["-e", " dog ", "notes.txt"]));
    // The name of a file as a query.
    let said_of_file = succeeds(&mut folder.tiny(&["-k1", "-e", "hello world", "notes.txt"]));
    assert_eq!(said_of_file, " 1.000 1  hello world\n");
    fails(&mut folder.tiny(&["--", "hello world", "notes.txt"]), "if it is the query: -e hello world");
    // Standard input; without one, the current folder.
    assert_eq!(run(&mut folder.tiny(&["the cat sat", "-k", "2"]), NOTES), (0, said.clone(), String::new()));
    assert_eq!(run(&mut folder.tiny(&["-k2", "-e", "the cat sat", "-"]), NOTES).1, said);
    let said = succeeds(&mut folder.tiny(&["the cat sat", "-k", "1"]));
    assert_eq!(said, " 1.000 notes.txt:3  the cat sat (and 1 more)\n");
}

/// As of grep: 0 with a hit, 1 without, 2 after an error.
#[test]
fn exit_codes_and_mistakes() {
    let folder = Folder::new(&[("a.txt", "one\ntwo\n"), ("b.md", "three\n"), ("empty/none.txt", " \n")]);
    folder.write("latin.txt", b"one\ntwo \xff\n");
    assert_eq!(run(&mut folder.tiny(&["a", "a.txt", "--min-score", "-1"]), "").0, 0);
    for option in ["--json", "-l"] {
        let (code, said, note) = run(&mut folder.tiny(&["zebra", "--min-score", "0.9999", "a.txt", option]), "");
        assert_eq!((code, said.as_str(), note.as_str()), (1, "", "note: nothing is near enough to `zebra`\n"));
    }
    assert_eq!(run(&mut folder.tiny(&["-e", "one", "-e", "zebra", "--min-score", "0.9999", "a.txt"]), "").0, 0);
    for empty in [&["zebra"][..], &["zebra", "empty"]] {
        let none = "note: there is no text to search\n".to_string();
        assert_eq!(run(&mut folder.tiny(empty), ""), (1, String::new(), none));
    }
    // The arguments that a shell makes of `search *`.
    fails(
        &mut folder.tiny(&["a.txt", "b.md", "zebra"]),
        "a.txt exists, and the query comes first; if it is the query: -e a.txt",
    );
    fails(&mut folder.tiny(&["zebra", "no.txt"]), "no.txt: No such file");
    fails(&mut folder.tiny(&[]), "no query: expected QUERY [PATH]…");
    fails(&mut folder.tiny(&[" ", "a.txt"]), "a query is blank");
    fails(&mut folder.tiny(&["-f", "-", "-"]), "standard input cannot hold both");
    fails(&mut folder.tiny(&["-f", "no.txt"]), "no.txt: No such file");
    fails(&mut folder.tiny(&["a", "latin.txt"]), "latin.txt: line 2 is not UTF-8, and there is nothing else to search");
    folder.write("wide.txt", b"o\0n\0e\0\n\0");
    let wide = "wide.txt: the text is in UTF-16, expected UTF-8";
    fails(&mut folder.tiny(&["a", "wide.txt"]), wide);
    fails(&mut folder.tiny(&["-f", "wide.txt", "a.txt"]), wide);
    let (code, _, said) = run(&mut folder.tiny(&["a", "-"]), "o\0n\0e\0\n\0");
    assert!(code == 2 && said.contains("the text is in UTF-16"), "{said}");
    assert_eq!(run(&mut folder.tiny(&["a", "a.txt", "wide.txt"]), "").2, format!("note: skipped {wide}\n"));
    fails(&mut folder.tiny(&["a", "a.txt", "-k", "0"]), "expected a whole number, at least 1");
    fails(&mut folder.tiny(&["a", "a.txt", "--min-score", "2"]), "expected a number from -1 to 1");
    fails(&mut folder.tiny(&["a", ".", "-g", "{"]), "--glob {: ");
    fails(&mut folder.tiny(&["a", "a.txt", "--batch-size", "0"]), "expected a whole number, at least 1");
    fails(&mut folder.tiny(&["a", "a.txt", "--prompt-name", "no"]), "prompt_name is no");
    fails(folder.search(&["a", "a.txt", "--model"]).arg("/no/folder"), "a folder that exists, or a hub id");
    fails(&mut folder.tiny(&["a", "a.txt", "--no-cache"]), "unexpected argument '--no-cache'");
}

#[test]
fn folders_are_walked_as_by_ripgrep() {
    let rent = "The rent is due on Friday.\n";
    let folder = Folder::new(&[
        (".git/config", rent),
        (".hidden.txt", rent),
        (".gitignore", "target\n"),
        ("target/made.txt", rent),
        ("deep/two.md", rent),
        ("one.txt", rent),
        ("zero.rs", rent),
    ]);
    folder.write("image.png", b"\x89PNG\0\xff");
    folder.write("latin.txt", b"\xff");
    let files = |arguments: &[&str]| {
        let (code, said, note) = run(folder.tiny(&["rent", ".", "-l"]).args(arguments), "");
        let mut files: Vec<String> = said.lines().map(|file| file.replace('\\', "/")).collect();
        files.sort();
        assert_eq!(code, 0);
        (files.join(" "), note)
    };
    let note = "note: skipped latin.txt: line 1 is not UTF-8\n".to_string();
    assert_eq!(files(&[]), ("deep/two.md one.txt zero.rs".into(), note.clone()), "without a word of image.png");
    assert_eq!(files(&["-g", "*e.txt"]), ("one.txt".into(), String::new()));
    assert_eq!(files(&["-g", "!*.{md,txt,png}"]), ("zero.rs".into(), String::new()));
    assert_eq!(files(&["-g", "*.rs", "-g", "*.md"]), ("deep/two.md zero.rs".into(), String::new()));
    assert_eq!(files(&["-g", "!latin.txt", "--no-ignore"]).0, "deep/two.md one.txt target/made.txt zero.rs");
    assert_eq!(files(&["--hidden", "-g", "!.git", "-g", "!*.{md,rs,png}"]).0, ".gitignore .hidden.txt one.txt");
    assert_eq!(files(&["-k", "1", "-g", "*.rs", "-g", "*.md"]), ("deep/two.md".into(), String::new()), "the best file");
    // A file is searched once, and a file that is named is searched whatever is ignored.
    let hits = folder.hits(&["rent", "one.txt", "target/made.txt", ".", "-g", "*.md"]);
    assert_eq!((hits.len(), hits[0]["also"].as_array().unwrap().len()), (1, 2), "{hits:?}");
}

const PAGE: &str = "\
# Title

## Renting
The rent is due
on Friday, or
on Monday, and whoever pays later than that
is asked for a small fee by the owner of the house and of the garden.

* one item of the list,
  which has two lines that together are longer than the least length of a passage, so that it stands alone
* `another` item of the same list, which is in one line and also longer than the least length of a passage is, namely so

| Name | Number |
|---|---|
| A long name in a table, which goes on and on until the row is as long as a passage has to be to stand for itself | 2 |

> a quotation that is
> long enough alone, because somebody said a lot and never came to an end before the hundred and twentieth letter

```sh
# no heading, but a comment

make all
```
Underlined
==========
This is the end of the page.
";

#[test]
fn passages_are_lines_or_paragraphs() {
    let wrapped = "this line of the text has the width at which an editor wraps\nits lines, which it does again after these words of\nit, and so on.\n";
    let folder = Folder::new(&[("page.md", PAGE), ("page.rs", PAGE), ("wrapped.txt", wrapped), ("list.txt", NOTES)]);
    let passages = |arguments: &[&str]| {
        let hits = folder.hits(&[&["-k", "99", "rent"], arguments].concat());
        let mut found: Vec<(u64, u64, String)> = hits
            .iter()
            .map(|hit| {
                let line = |i: usize| hit["lines"][i].as_u64().unwrap();
                (line(0), line(1), hit["text"].as_str().unwrap().to_string())
            })
            .collect();
        found.sort();
        found
    };
    let of = |found: &[(u64, u64, &str)]| -> Vec<(u64, u64, String)> {
        found.iter().map(|&(first, last, text)| (first, last, text.to_string())).collect()
    };
    let paragraphs = [
        (
            1,
            7,
            "Title: Renting: The rent is due on Friday, or on Monday, and whoever pays later than that is asked for a \
             small fee by the owner of the house and of the garden.",
        ),
        (
            9,
            10,
            "* one item of the list, which has two lines that together are longer than the least length of a passage, \
             so that it stands alone",
        ),
        (
            11,
            11,
            "* `another` item of the same list, which is in one line and also longer than the least length of a \
             passage is, namely so",
        ),
        (
            13,
            15,
            "| Name | Number | | A long name in a table, which goes on and on until the row is as long as a passage has \
             to be to stand for itself | 2 |",
        ),
        (
            17,
            18,
            "a quotation that is long enough alone, because somebody said a lot and never came to an end before the \
             hundred and twentieth letter",
        ),
        (21, 27, "# no heading, but a comment make all Underlined This is the end of the page."),
    ];
    assert_eq!(passages(&["page.md"]), of(&paragraphs));
    assert_eq!(passages(&["page.rs", "--by", "line"]).len(), 18, "all but those without a word");
    let first = &passages(&["page.rs"])[0];
    assert!((first.0, first.1) == (1, 7) && first.2.starts_with("# Title ## Renting The rent is due on"), "{first:?}");
    assert_eq!(passages(&["list.txt"]).len(), 4, "lines that are not wrapped, one of them twice");
    assert_eq!(passages(&["wrapped.txt"]), [(1, 3, wrapped.trim().replace('\n', " "))]);
    assert_eq!(passages(&["wrapped.txt", "--by", "line"]).len(), 3);
    // Wrapped lines are joined, in any file, and those of a comment too.
    folder.write("wrapped.log", format!("12:00 start\n\n{wrapped}\n12:01 another line of the log\n"));
    let joined = wrapped.trim().replace('\n', " ");
    assert_eq!(passages(&["wrapped.log"])[0], (1, 5, format!("12:00 start {joined}")));
    let comment: String = wrapped.lines().map(|line| format!("// {line}\n")).collect();
    folder.write("wrapped.rs", format!("{comment}fn another_function_of_the_file() {{}}\n"));
    assert_eq!(passages(&["wrapped.rs"])[0], (1, 3, joined));
}

/// Texts with tags stand in no format that this program knows: nothing of them is lost.
#[test]
fn files_with_tags_are_searched_as_they_stand() {
    let texts = [
        ("feed.xml", "<rss><item><![CDATA[The rent is due in May.]]></item></rss>"),
        ("less.html", "<p>if a < b then the rent is due. <b>ok</b></p>"),
        ("script.xml", "<script src=\"x\"/><p>The rent is due.</p>"),
        ("capitals.htm", "<SCRIPT>x</script><p>The rent is due.</p>"),
        ("attribute.html", "<p title=\"a > b\">The rent is due.</p>"),
        ("no_end_of_head.html", "<!doctype html><html><head><title>x</title><body><p>The rent is due."),
        ("head.html", "<HEAD><title>x</title></HEAD><p>The rent is due.</p>"),
        ("style.svg", "<style:style xmlns:style=\"x\"/><text>The rent is due.</text>"),
        ("heart.xhtml", "x <3 you and the rent > all"),
    ];
    let folder = Folder::new(&texts);
    let hits = folder.hits(&["rent", ".", "-k", "99"]);
    assert_eq!(hits.len(), texts.len());
    for (name, text) in texts {
        let hit = hits.iter().find(|hit| hit["file"] == name).unwrap();
        assert_eq!((&hit["text"], &hit["lines"]), (&json!(text), &json!([1, 1])), "{name}");
    }
}

/// Passages with the same text are one hit, whatever the number of hits.
#[test]
fn equal_passages_are_one_hit() {
    let text =
        "the cat sat on the mat\nhello world\nThe cat sat, on the mat!\nthe  cat sat on the mat \na dog\nhello world\n";
    let folder = Folder::new(&[("a.txt", text), ("b.txt", "the cat sat on the mat\n")]);
    for k in ["1", "2", "9"] {
        let hit = &folder.hits(&["-k", k, "the cat sat on the mat", "a.txt", "b.txt"])[0];
        let want = json!({"query": "the cat sat on the mat", "rank": 1, "file": "a.txt", "lines": [1, 1], "text": "the cat sat on the mat"});
        want.as_object().unwrap().iter().for_each(|(key, value)| assert_eq!(&hit[key], value));
        assert!((hit["score"].as_f64().unwrap() - 1.0).abs() < ROUNDED);
        let also = json!([{"file": "a.txt", "lines": [4, 4]}, {"file": "b.txt", "lines": [1, 1]}]);
        assert_eq!(hit["also"], also, "-k {k}");
    }
    assert_eq!(folder.hits(&["the cat", "a.txt", "b.txt"]).len(), 4);
    // A file is named once, by its best hit, and a query names only files that no query before it named.
    let files = |arguments: &[&str]| succeeds(folder.tiny(&["a.txt", "b.txt", "-l"]).args(arguments));
    assert_eq!(files(&["-e", "the cat sat on the mat"]), "a.txt\nb.txt\n");
    assert_eq!(files(&["-k1", "-e", "the cat sat on the mat", "-e", "a dog"]), "a.txt\nb.txt\n");
}

#[test]
fn hits_are_colored_on_demand() {
    let folder = Folder::new(&[("notes.txt", NOTES)]);
    let said = succeeds(folder.tiny(&["-k1", "the cat sat"]).env("CLICOLOR_FORCE", "1"));
    assert_eq!(
        said,
        "\u{1b}[36m 1.000\u{1b}[0m \u{1b}[35mnotes.txt\u{1b}[0m:\u{1b}[32m3\u{1b}[0m  the cat sat (and 1 more)\n"
    );
    assert!(!succeeds(folder.tiny(&["the cat sat"]).env("CLICOLOR", "1")).contains('\u{1b}'));
    assert!(
        !succeeds(folder.tiny(&["the cat sat"]).env("CLICOLOR_FORCE", "1").env("NO_COLOR", "1")).contains('\u{1b}')
    );
}

/// Ctrl-C while passages are embedded ends the program with one line, and leaves nothing behind.
#[test]
#[cfg(unix)]
fn an_interrupt_ends_a_search() {
    let folder = Folder::new(&[("lines.txt", &lines(30_000).join("\n"))]);
    for wait in [500, 100, 20, 1] {
        let child = folder.tiny(&["the cat"]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(wait));
        assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
        let output = child.wait_with_output().unwrap();
        // It may come before the program handles it: then the system ends the program, or the shell that runs the tests
        // has it ignored.
        let said = String::from_utf8(output.stderr).unwrap();
        if output.status.code() == Some(130) {
            assert_eq!(said, "error: interrupted\n");
        } else {
            assert!(output.status.success() || output.status.code().is_none(), "{said}");
        }
    }
    assert_eq!(std::fs::read_dir(folder.path("")).unwrap().count(), 1);
}

/// Files of a clone or an archive are data, also those that say what is not to be searched.
#[test]
#[cfg(unix)]
fn ignore_files_are_read_within_limits() {
    let fifo = |path: &std::path::Path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    let braces = format!("{}{}", "{".repeat(20_000), "}".repeat(20_000));
    type Make<'a> = &'a dyn Fn(&std::path::Path);
    let write: [(Make, &str); 4] = [
        (&|path| fifo(path), "not a regular file"),
        (&|path| std::os::unix::fs::symlink("/dev/zero", path).unwrap(), "not a regular file"),
        (&|path| std::fs::write(path, &braces).unwrap(), "more than 100 braces"),
        (&|path| std::fs::write(path, "*a*b*c\n".repeat(100_000)).unwrap(), "expected at most 65536"),
    ];
    for (make, reason) in write {
        for name in [".gitignore", ".ignore"] {
            let folder = Folder::new(&[
                ("one.txt", "the cat\n"),
                ("deep/two.txt", "the cat sat\n"),
                ("deep/in/three.txt", "a cat\n"),
            ]);
            std::fs::create_dir(folder.path(".git")).unwrap();
            make(&folder.path("deep").join(name));
            for (path, files, outcome) in [
                (".", "one.txt\n", "its folder is skipped"),
                ("deep/in", "deep/in/three.txt\n", "no ignore file is read"),
            ] {
                let (code, said, note) = run(&mut folder.tiny(&["cat", path, "-l"]), "");
                assert_eq!((code, said.as_str()), (0, files), "{note}");
                assert!(note.contains(name) && note.contains(reason) && note.contains(outcome), "{note}");
            }
            assert_eq!(run(&mut folder.tiny(&["cat", ".", "--no-ignore", "-l"]), "").1.lines().count(), 3);
        }
    }
}

/// As by grep: a note, and the others are searched.
#[test]
#[cfg(unix)]
fn files_of_a_folder_that_cannot_be_read_are_skipped() {
    let folder = Folder::new(&[("one.txt", "the cat\n"), ("two.txt", "the cat sat\n"), ("three.txt", "a dog\n")]);
    // Reading from its start is an error, for everybody.
    if std::fs::read("/proc/self/mem").is_ok() || !std::path::Path::new("/proc/self/mem").exists() {
        return;
    }
    let list = ["one.txt", "/proc/self/mem"];
    fails(folder.tiny(&["cat"]).args(list), "/proc/self/mem: Input/output error");
    let (code, said, note) = run(&mut folder.tiny(&["cat", "one.txt", "/proc/self", "-g", "mem", "-l"]), "");
    assert_eq!((code, said.as_str()), (0, "one.txt\n"));
    assert!(note.contains("note: skipped /proc/self/mem: Input/output error"), "{note}");
}

/// Neither the time nor the memory of many lines grows faster than their number.
#[test]
fn many_lines() {
    let folder = Folder::new(&[("lines.txt", &"the cat\n".repeat(300_000))]);
    let start = std::time::Instant::now();
    assert_eq!(succeeds(&mut folder.tiny(&["-k", "1000000", "cat"])).lines().count(), 1);
    let json = folder.hits(&["-k", "1000000", "cat"]);
    assert_eq!((json.len(), json[0]["also"].as_array().unwrap().len()), (1, 299_999));
    // Blank lines, before each of which a comment could begin, and hits that are all another text.
    let numbers: String = (0..16_000).map(|number| format!("{number:05}\n")).collect();
    let folder =
        Folder::new(&[("blank.rs", &format!("{}// the cat\n", "\n".repeat(1_000_000))), ("lines.txt", &numbers)]);
    assert_eq!(folder.hits(&["cat", "blank.rs"])[0]["lines"], json!([1_000_001, 1_000_001]));
    assert_eq!(succeeds(&mut folder.tiny(&["-k", "1000000", "cat", "lines.txt"])).lines().count(), 16_000);
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    // A device that never ends is no text from its start.
    #[cfg(unix)]
    fails(&mut folder.tiny(&["cat", "/dev/zero"]), "/dev/zero: line 1 holds a NUL byte");
}

/// The end of a line that the model cannot take whole is found, and shown.
#[test]
fn long_lines_are_searched_in_windows() {
    let sentence = |i: usize| format!("The weather in the park was fine on day {i} of the year. ");
    let filler = |range: std::ops::Range<usize>| range.map(sentence).collect::<String>();
    let secret = "The secret password of the vault is swordfish.";
    let long = format!("{}{secret} {}", filler(0..60), filler(60..90));
    let folder = Folder::new(&[("notes.txt", &format!("I like dogs.\n{long}\nStocks fell sharply today.\n"))]);
    let question = "What is the password of the vault?";
    let (_, said, note) = run(&mut folder.search(&["--json", "-k", "2", question, "notes.txt"]), "");
    let trial = "note: the embedded model is for trying out; --help says how to get a better one\n";
    assert_eq!(note, trial, "nothing was cut");
    let hits = parsed(&said);
    assert_eq!((hits.len(), &hits[0]["lines"]), (2, &json!([2, 2])), "a passage is one hit: {said}");
    let window = hits[0]["window"].as_str().unwrap();
    assert!(window.contains(secret) && window.len() < long.len() / 4 && hits[0]["text"] == long.trim(), "{window}");
    // On a terminal, only this window.
    let shown = succeeds(&mut folder.search(&["-k1", question, "notes.txt"]));
    assert!(shown.contains("  … ") && shown.contains(window) && shown.ends_with(" …\n"), "{shown}");
    assert!(shown.len() < window.len() + 30, "{shown}");
    // A query that is too long is said to be.
    let query = filler(0..40);
    let note = run(&mut folder.search(&["-k", "1", &query, "notes.txt"]), "").2;
    assert_eq!(note, format!("{trial}note: 1 of 1 text was cut at 128 tokens (--max-length)\n"));
}

/// Queries and lines get the model's own prompts.
#[test]
fn queries_and_documents_have_their_prompts() {
    let texts = Folder::new(&[("notes.txt", "the cat sleeps\na dog\n")]);
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
    let said = succeeds(texts.search(&["--json", "a cat", "--model"]).arg(folder.path()));
    let scores: Vec<f64> = parsed(&said).iter().map(|hit| hit["score"].as_f64().unwrap()).collect();
    assert_eq!(scores.len(), 2);
    for (score, want) in scores.iter().zip(want) {
        assert!((score - f64::from(want)).abs() < ROUNDED, "{scores:?}, expected {want}");
    }
}

/// A name of a file with a line break does not look like a message of the program.
#[test]
#[cfg(unix)]
fn names_with_line_breaks_stay_in_their_line() {
    let folder = Folder::new(&[("one.txt", "the cat\n")]);
    folder.write("a\nerror: b.txt", b"\xff");
    let (code, _, note) = run(&mut folder.tiny(&["cat", "."]), "");
    assert_eq!((code, note.as_str()), (0, "note: skipped a error: b.txt: line 1 is not UTF-8\n"));
    let (code, _, error) = run(&mut folder.tiny(&["cat", "a\nerror: b.txt"]), "");
    let want = "error: a error: b.txt: line 1 is not UTF-8, and there is nothing else to search\n";
    assert_eq!((code, error.as_str()), (2, want));
    assert_eq!(run(&mut folder.tiny(&["cat", "no\nerror: c"]), "").2.lines().count(), 1);
}
