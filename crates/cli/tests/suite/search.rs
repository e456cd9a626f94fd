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

/// A folder to search, with a cache folder of its own.
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
        // On macOS the cache folder is in the home folder.
        command.env("XDG_CACHE_HOME", self.0.path().join("cache")).env("HOME", self.0.path().join("cache"));
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

    /// The files with saved embeddings.
    fn caches(&self) -> Vec<PathBuf> {
        let walk = ignore::Walk::new(self.0.path().join("cache")).filter_map(Result::ok);
        let mut files: Vec<PathBuf> = walk.map(|entry| entry.into_path()).filter(|path| path.is_file()).collect();
        files.sort();
        files
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
    assert_eq!((found.len(), found[0]), (2, " 1.000 3  the cat sat (and 1 similar)"));
    // Without --model, the embedded one.
    assert_eq!(succeeds(&mut folder.search(&["-k1", "the cat sat", "notes.txt"])), format!("{}\n", found[0]));
    // With several queries, each stands above its hits; control characters stay off the terminal.
    let titled = succeeds(&mut folder.tiny(&["notes.txt", "-e", "dog", "-e", "hello world"]));
    assert!(!titled.contains('\u{1b}') && titled.starts_with("dog\n") && titled.contains("\nhello world\n"));
    assert_eq!(titled.lines().count(), 2 + 2 * 3, "`hello world` and `hello\tworld!` are one hit: {titled}");
    folder.write("queries", "dog\n\nhello world\n");
    assert_eq!(succeeds(&mut folder.tiny(&["-f", "queries", "notes.txt"])), titled);
    assert_eq!(run(&mut folder.tiny(&["notes.txt", "-f", "-"]), "dog\nhello world\n").1, titled);
    // White space is the query's own.
    folder.write("spaced", " dog \r\n");
    let hits = folder.hits(&["-f", "spaced", "notes.txt"]);
    assert_eq!(hits[0]["query"], " dog ");
    assert_eq!(hits, folder.hits(&["-e", " dog ", "notes.txt"]));
    // The name of a file as a query.
    for query in [["-e", "hello world", "notes.txt"], ["--", "hello world", "notes.txt"]] {
        let said = succeeds(folder.tiny(&["-k1"]).args(query));
        assert_eq!(said, " 1.000 1  hello world (and 1 similar)\n");
    }
    // Standard input; without one, the current folder.
    assert_eq!(run(&mut folder.tiny(&["the cat sat", "-k", "2"]), NOTES), (0, said.clone(), String::new()));
    assert_eq!(run(&mut folder.tiny(&["-k2", "-e", "the cat sat", "-"]), NOTES).1, said);
    let said = succeeds(&mut folder.tiny(&["the cat sat", "-k", "1"]));
    assert_eq!(said, " 1.000 notes.txt:3  the cat sat (and 1 similar)\n");
}

/// As of grep: 0 with a hit, 1 without, 2 after an error.
#[test]
fn exit_codes_and_mistakes() {
    let folder = Folder::new(&[("a.txt", "one\ntwo\n"), ("b.md", "three\n"), ("empty/none.txt", " \n")]);
    folder.write("latin.txt", b"one\ntwo \xff\n");
    assert_eq!(run(&mut folder.tiny(&["a", "a.txt", "--min-score", "-1"]), "").0, 0);
    for option in ["--json", "--no-fold"] {
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
    fails(&mut folder.tiny(&["a", ".", "-t", "nope"]), "--type: unrecognized file type: nope");
    fails(&mut folder.tiny(&["a", ".", "-g", "{"]), "--glob {: ");
    fails(&mut folder.tiny(&["a", "a.txt", "--batch-size", "0"]), "expected a whole number, at least 1");
    fails(&mut folder.tiny(&["a", "a.txt", "--prompt-name", "no"]), "prompt_name is no");
    fails(folder.search(&["a", "a.txt", "--model"]).arg("/no/folder"), "a folder that exists, or a hub id");
    assert!(folder.caches().len() <= 2, "{:?}", folder.caches());
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
    assert_eq!(files(&["-rni", "-n"]), files(&[]), "as one is used to type for grep");
    assert_eq!(files(&["-g", "*e.txt"]), ("one.txt".into(), String::new()));
    assert_eq!(files(&["-g", "!*.{md,txt,png}"]), ("zero.rs".into(), String::new()));
    assert_eq!(files(&["-t", "rust", "-t", "md"]), ("deep/two.md zero.rs".into(), String::new()));
    assert_eq!(
        files(&["-t", "txt", "--no-ignore"]).0,
        ".hidden.txt one.txt target/made.txt",
        "as ripgrep: of a type, hidden ones too"
    );
    assert_eq!(files(&["--hidden", "-g", "!.git", "-g", "!*.{md,rs,png}"]).0, ".gitignore .hidden.txt one.txt");
    assert_eq!(files(&["-k", "1", "-t", "rust", "-t", "md"]), ("deep/two.md".into(), String::new()), "the best file");
    // A file is searched once, and a file that is named is searched whatever is ignored.
    assert_eq!(folder.hits(&["rent", "one.txt", "target/made.txt", ".", "-t", "md", "--no-fold"]).len(), 3);
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
fn passages_are_lines_paragraphs_or_sections() {
    let wrapped = "this line of the text has the width at which an editor wraps\nits lines, which it does again after these words of\nit, and so on.\n";
    let folder = Folder::new(&[("page.md", PAGE), ("page.rs", PAGE), ("wrapped.txt", wrapped), ("list.txt", NOTES)]);
    let passages = |arguments: &[&str]| {
        let hits = folder.hits(&[&["-k", "99", "--no-fold", "rent"], arguments].concat());
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
            15,
            15,
            "Name: A long name in a table, which goes on and on until the row is as long as a passage has to be to \
             stand for itself; Number: 2",
        ),
        (
            17,
            18,
            "a quotation that is long enough alone, because somebody said a lot and never came to an end before the \
             hundred and twentieth letter",
        ),
        (21, 23, "# no heading, but a comment make all"),
        (25, 27, "Underlined: This is the end of the page."),
    ];
    assert_eq!(passages(&["page.md"]), of(&paragraphs));
    let sections = passages(&["page.md", "--by", "section"]);
    let ranges: Vec<(u64, u64)> = sections.iter().map(|(first, last, _)| (*first, *last)).collect();
    assert_eq!(ranges, [(1, 23), (25, 27)]);
    assert!(
        sections[0].2.starts_with(paragraphs[0].2) && sections[0].2.ends_with("a comment make all"),
        "{sections:?}"
    );
    assert_eq!(passages(&["page.rs", "--by", "line"]).len(), 18, "all but those without a word");
    let first = &passages(&["page.rs"])[0];
    assert!((first.0, first.1) == (1, 7) && first.2.starts_with("# Title ## Renting The rent is due on"), "{first:?}");
    assert_eq!(passages(&["list.txt"]).len(), 5, "lines that are not wrapped");
    assert_eq!(passages(&["wrapped.txt"]), [(1, 3, wrapped.trim().replace('\n', " "))]);
    assert_eq!(passages(&["wrapped.txt", "--by", "line"]).len(), 3);
    // Wrapped lines are joined, in any file, and those of a comment too.
    folder.write("wrapped.log", format!("12:00 start\n\n{wrapped}\n12:01 another line of the log\n"));
    let joined = wrapped.trim().replace('\n', " ");
    assert_eq!(passages(&["wrapped.log"])[0], (1, 5, format!("12:00 start {joined}")));
    let comment: String = wrapped.lines().map(|line| format!("// {line}\n")).collect();
    folder.write("wrapped.rs", format!("{comment}fn another_function_of_the_file() {{}}\n"));
    assert_eq!(passages(&["wrapped.rs"])[0], (1, 3, joined));
    let html = "<HEAD><title>no</title>\n</HEAD><body><!-- <p>\n-->\n<h2>The heading</h2>\n<p>One <b>bold</b>, long\nparagraph &amp; its end, which is put off until there are as many letters as a passage has to have, and then some more<p>\nThe next paragraph of the page<script>if (a > b) { '</p>' }\n</script></body>";
    folder.write("page.html", html);
    let tagged = [
        (
            4,
            6,
            "The heading One bold, long paragraph & its end, which is put off until there are as many letters as a \
             passage has to have, and then some more"
                .to_string(),
        ),
        (7, 7, "The next paragraph of the page".to_string()),
    ];
    assert_eq!(passages(&["page.html"]), tagged);
    // Context is of lines.
    let hit = &folder.hits(&[paragraphs[0].2, "page.md", "-k1", "-C2"])[0];
    let context: Vec<u64> =
        hit["context"].as_array().unwrap().iter().map(|line| line["line"].as_u64().unwrap()).collect();
    assert_eq!((hit["lines"][1].as_u64(), context), (Some(7), (1..=9).collect()));
    let said = succeeds(&mut folder.tiny(&[paragraphs[1].2, "page.md", "-k1", "-C2"]));
    let starts: Vec<&str> = said
        .lines()
        .map(|line| line.split(['-', ' ']).find(|part| !part.is_empty() && !part.contains('.')).unwrap())
        .collect();
    assert_eq!(starts, ["7", "8", "9", "11", "12"], "{said}");
}

/// How many passages are like a hit does not depend on the number of hits.
#[test]
fn near_equal_passages_are_one_hit() {
    let text =
        "the cat sat on the mat\nhello world\nThe cat sat, on the mat!\nthe cat sat on a the mat\na dog\nhello world\n";
    let folder = Folder::new(&[("a.txt", text), ("b.txt", "the cat sat on the mat\n")]);
    let similar = json!([{"file": "b.txt", "lines": [1, 1]}, {"file": "a.txt", "lines": [3, 3]}, {"file": "a.txt", "lines": [4, 4]}]);
    for k in ["1", "2", "9"] {
        let hit = &folder.hits(&["-k", k, "the cat sat on the mat", "a.txt", "b.txt"])[0];
        let want = json!({"query": "the cat sat on the mat", "rank": 1, "file": "a.txt", "lines": [1, 1], "text": "the cat sat on the mat"});
        want.as_object().unwrap().iter().for_each(|(key, value)| assert_eq!(&hit[key], value));
        assert!((hit["score"].as_f64().unwrap() - 1.0).abs() < ROUNDED);
        let mut found = hit["similar"].as_array().unwrap().clone();
        found.sort_by_key(|place| (place["file"] == "a.txt", place["lines"].to_string()));
        assert_eq!(Value::from(found), similar, "-k {k}");
    }
    assert_eq!(folder.hits(&["--no-fold", "the cat", "a.txt", "b.txt"]).len(), 7);
}

#[test]
fn hits_are_colored_on_demand_and_cut() {
    let folder = Folder::new(&[("notes.txt", NOTES)]);
    let said = succeeds(&mut folder.tiny(&["--color", "always", "-k1", "the cat sat"]));
    assert_eq!(
        said,
        "\u{1b}[36m 1.000\u{1b}[0m \u{1b}[35mnotes.txt\u{1b}[0m:\u{1b}[32m3\u{1b}[0m  the cat sat (and 1 similar)\n"
    );
    assert!(!succeeds(folder.tiny(&["the cat sat"]).env("CLICOLOR", "1")).contains('\u{1b}'));
    let forced = succeeds(folder.tiny(&["-k1", "the cat sat"]).env("CLICOLOR_FORCE", "1"));
    assert_eq!(forced, said);
    assert_eq!(
        succeeds(&mut folder.tiny(&["-M", "6", "-k1", "the cat sat", "notes.txt"])),
        " 1.000 3  the c… (and 1 similar)\n"
    );
}

#[test]
fn embeddings_are_saved_in_the_users_cache_folder() {
    let texts = lines(300);
    let folder = Folder::new(&[("notes.txt", &texts.join("\n"))]);
    let query = ["--json", "the cat", "notes.txt"];
    let without = succeeds(&mut folder.tiny(&["--json", "the cat", "notes.txt", "--no-cache"]));
    assert!(folder.caches().is_empty());
    let quiet = || {
        let (code, said, note) = run(&mut folder.tiny(&query), "");
        assert_eq!((code, note.as_str()), (0, ""));
        said
    };
    assert_eq!(quiet(), without);
    let caches = folder.caches();
    let written = || std::fs::metadata(&caches[0]).unwrap().modified().unwrap();
    let first = written();
    assert_eq!((quiet(), caches.len(), written()), (without, 1, first), "the second run embeds nothing");

    // Another content: what is new is found, what is gone is not.
    folder.write("notes.txt", [&texts[50..], &["the cat".to_string()]].concat().join("\n"));
    let said = quiet();
    assert!(said.contains("\"lines\":[251,251],\"text\":\"the cat\"") && written() != first, "{said}");
    // Another model, dtype or prompt has a file of its own; other files, folders and ways to split have not.
    let (bytes, other) = (std::fs::read(&caches[0]).unwrap(), tiny());
    let settings = other.path().join("tokenizer_config.json");
    std::fs::write(&settings, std::fs::read_to_string(&settings).unwrap() + "\n").unwrap();
    assert_eq!(succeeds(folder.search(&query).arg("--model").arg(other.path())), said);
    succeeds(folder.tiny(&query).args(["--dtype", "f64"]));
    folder.write("copy/notes.txt", texts.join("\n"));
    for choice in [&["copy"][..], &[".", "-t", "txt"], &["-g", "n*", "."], &["copy/notes.txt", "--by", "line"]] {
        succeeds(folder.tiny(&["the cat"]).args(choice));
    }
    assert_eq!(folder.caches().len(), 3);
    let file = folder.caches().into_iter().find(|path| std::fs::read(path).unwrap() == bytes);
    let file = file.expect("nothing was added");
    // A file with damage, even to one bit of one number, is made and saved anew.
    let mut flipped = bytes.clone();
    flipped[5000] ^= 0x80;
    for damage in [&flipped[..], b"", &bytes[..5000], &bytes[1..]] {
        std::fs::write(&file, damage).unwrap();
        assert_eq!(quiet(), said);
        let mended = std::fs::metadata(&file).unwrap().modified().unwrap();
        assert_eq!((quiet(), std::fs::metadata(&file).unwrap().modified().unwrap()), (said.clone(), mended));
    }
    #[cfg(unix)]
    for path in folder.caches()[0].ancestors().take(4) {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, if path.is_dir() { 0o700 } else { 0o600 }, "{}", path.display());
    }
    // Where nothing can be written, searching goes on.
    let (code, found, note) = run(folder.tiny(&query).env("XDG_CACHE_HOME", &file).env("HOME", &file), "");
    assert_eq!((code, found, note), (0, said, String::new()));
}

/// Ctrl-C while passages are embedded: what is done is saved, and the same command embeds the rest.
#[test]
#[cfg(unix)]
fn an_interrupted_search_goes_on() {
    const LINES: usize = 30_000;
    let folder = Folder::new(&[("lines.txt", &lines(LINES).join("\n"))]);
    let query = ["the cat", "lines.txt", "--json"];
    let (mut before, mut wait) = (0, Duration::from_millis(250));
    while before < 1000 {
        let child = folder.tiny(&query).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(wait);
        let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(kill.success() && wait < Duration::from_secs(60), "{said}");
        if output.status.success() {
            // It came before the program handles it, where the shell that runs the tests has it ignored.
            std::fs::remove_dir_all(folder.0.path().join("cache")).unwrap();
            (before, wait) = (0, wait * 3 / 2);
            continue;
        }
        if said.is_empty() || said == "error: interrupted\n" {
            // Nothing was embedded yet.
            wait = wait * 3 / 2;
            continue;
        }
        let (start, end) = ("error: interrupted after ", " passages; the same command goes on from there\n");
        assert!(said.starts_with(start) && said.ends_with(end) && said.lines().count() == 1, "{said}");
        assert_eq!(output.status.code(), Some(130));
        let numbers: Vec<usize> = said.split(' ').filter_map(|word| word.parse().ok()).collect();
        let (done, missing) = (numbers[0], numbers[1]);
        assert!(done > 0 && missing + before == LINES, "{said}, {before} before");
        before += done;
    }
    assert_eq!(succeeds(&mut folder.tiny(&query)), succeeds(folder.tiny(&query).arg("--no-cache")));
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

/// Neither the time nor the memory of many equal lines grows faster than their number.
#[test]
fn many_equal_lines() {
    let folder = Folder::new(&[("lines.txt", &"the cat\n".repeat(300_000))]);
    let start = std::time::Instant::now();
    assert_eq!(succeeds(&mut folder.tiny(&["--no-fold", "-k", "1000000", "cat"])).lines().count(), 300_000);
    assert_eq!(succeeds(&mut folder.tiny(&["-k", "1000000", "cat"])).lines().count(), 1);
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
    let shown =
        |columns| succeeds(&mut folder.search(&["-k1", question, "notes.txt", "--color=always", "-M", columns]));
    let cut = shown("1000");
    assert!(cut.contains("  … ") && cut.contains(secret) && cut.ends_with(" …\n"), "{cut}");
    // The whole passage with its best window in bold.
    let whole = shown("0");
    assert!(whole.contains(&format!("\u{1b}[1m{window}\u{1b}[0m")) && whole.contains(filler(0..9).trim()), "{whole}");
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
    let search = |more: &[&str]| succeeds(texts.search(&["--json", "a cat", "--model"]).arg(folder.path()).args(more));
    let scores: Vec<f64> = parsed(&search(&[])).iter().map(|hit| hit["score"].as_f64().unwrap()).collect();
    assert_eq!(scores.len(), 2);
    for (score, want) in scores.iter().zip(want) {
        assert!((score - f64::from(want)).abs() < ROUNDED, "{scores:?}, expected {want}");
    }
    // Another prompt is another index.
    search(&["--prompt-name", "query"]);
    assert_eq!(texts.caches().len(), 2);
}
