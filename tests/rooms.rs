//! What cargo cannot see: the order of the rooms inside a package, circles between files, the length of files, the
//! width of comments, and paths in documents.
//!
//! A room is a module at the root of a package. Each room builds on the rooms before it and on nothing else, so that a
//! reader can take them one after the other. This test reads the sources of the layer and of the text encoders as text;
//! unit tests are left out, because a test may compare with a room above its own.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

/// The rooms of the layer from the ground up.
const LAYER: [&str; 19] = [
    "macros",
    "error",
    "tensor",
    "weights",
    "kernels",
    "ragged",
    "ops",
    "mask",
    "position",
    "config",
    "norm",
    "sdpa",
    "attention",
    "pruning",
    "io",
    "families",
    "checkpoint",
    "lora",
    "lib",
];

/// The rooms of the text encoders from the ground up.
const TEXT: [&str; 23] = [
    "default_dtype",
    "families",
    "model",
    "gguf",
    "model_files",
    "folder",
    "hash",
    "router",
    "kind",
    "text",
    "hub",
    "constructors",
    "prompts",
    "heads",
    "tasks",
    "sentence",
    "sparse",
    "multi_vector",
    "m3",
    "pruning",
    "quantized",
    "search",
    "lib",
];

/// The longest file, in lines.
const MAX_LINES: usize = 600;

/// The folders of what the feature `checkpoints` adds to the layer.
const CHECKPOINTS: [&str; 4] = ["src/io", "src/families", "src/checkpoint", "src/lora"];

/// A folder, folders in it that are not counted, and the most lines, without in-file tests: whoever needs more deletes
/// first.
const MOST_LINES: [(&str, &[&str], usize); 7] = [
    ("crates/kernels/src", &[], 12_995),
    ("src", &CHECKPOINTS, 24_113),
    ("src", &[], 39_770),
    ("crates/visualize/src", &[], 1_103),
    ("crates/text/src", &[], 16_236),
    ("crates/train/src", &[], 1_065),
    ("crates/cli/src", &[], 5_179),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The Rust files below a folder of the repository.
fn sources(folder: &str) -> Vec<PathBuf> {
    let (mut folders, mut files) = (vec![root().join(folder)], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// The lines of code, without comments and without what follows `#[cfg(test)]`, which ends a file.
fn code(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

#[test]
fn rooms_use_only_rooms_before_them() {
    for (folder, rooms) in [("src", LAYER.as_slice()), ("crates/text/src", &TEXT)] {
        let floor = |room: &str| rooms.iter().position(|name| *name == room);
        let mut wrong = Vec::new();
        for path in sources(folder) {
            let inside = path.strip_prefix(root().join(folder)).unwrap();
            let own = inside.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs");
            assert!(floor(own).is_some(), "{folder}: {own}: not in the order of rooms");
            if inside.iter().any(|part| part.to_str().unwrap().contains("test")) {
                continue;
            }
            for used in code(&path).split("crate::").skip(1) {
                let used: String = used.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                if floor(&used).is_some_and(|used| Some(used) > floor(own)) {
                    wrong.push(format!("{} uses {used}", inside.display()));
                }
            }
        }
        assert!(wrong.is_empty(), "{folder}: imports that go up:\n{}", wrong.join("\n"));
    }
}

/// The most circles between the files of a package: groups of files that use each other's items, in one room of the
/// layer and of the text encoders, anywhere in the others.
const MOST_CIRCLES: [(&str, bool, usize); 6] = [
    ("crates/kernels/src", false, 0),
    ("src", true, 6),
    ("crates/visualize/src", false, 0),
    ("crates/text/src", true, 0),
    ("crates/train/src", false, 0),
    ("crates/cli/src", false, 0),
];

/// The names in a piece of code.
fn names(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|name| !name.is_empty())
}

/// The names in a piece of code that are no modules of a path.
fn ends_of_paths(code: &str) -> impl Iterator<Item = &str> {
    code.split_inclusive("::").filter(|part| !part.is_empty()).flat_map(|part| {
        let all: Vec<&str> = names(part).collect();
        let kept = all.len() - usize::from(part.ends_with("::") && !all.is_empty());
        all.into_iter().take(kept)
    })
}

/// The names of the items that a file makes public, inside of its package at least.
fn public_items(code: &str) -> HashSet<&str> {
    const KEYWORDS: [&str; 7] = ["fn", "struct", "enum", "trait", "type", "const", "static"];
    fn item(line: &str) -> Option<&str> {
        let mut words =
            names(line).skip_while(|word| !KEYWORDS.contains(word)).skip_while(|word| KEYWORDS.contains(word));
        words.next()
    }
    code.lines().filter(|line| line.starts_with("pub") && !line.contains(" use ")).filter_map(item).collect()
}

/// The names of all items that a file imports from its room, without those that it only hands on. Without a room it is
/// the package.
fn imported_names<'a>(code: &'a str, room: &str) -> HashSet<&'a str> {
    let root = if room.is_empty() { "crate::".to_string() } else { format!("crate::{room}::") };
    let statements = code.split(';').filter_map(|part| part.rsplit_once("\nuse ").map(|(_, import)| import));
    let own = statements.filter(|import| [&root, "super::", "self::"].iter().any(|root| import.starts_with(root)));
    let inline = code.split(&root).skip(1);
    let path = |code: &str| code.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':').unwrap_or(code.len());
    own.flat_map(ends_of_paths).chain(inline.flat_map(|code| ends_of_paths(&code[..path(code)]))).collect()
}

/// The groups of files that use each other's items, directly or by way of others.
fn circles(room: &str, files: &[PathBuf]) -> Vec<Vec<usize>> {
    let codes: Vec<String> = files.iter().map(|path| format!("\n{}", code(path))).collect();
    let items: Vec<_> = codes.iter().map(|code| public_items(code)).collect();
    let mut defined: HashMap<&str, Vec<usize>> = HashMap::new();
    for (file, items) in items.iter().enumerate() {
        let module = files[file].file_stem().unwrap().to_str().unwrap();
        items.iter().chain([&module]).for_each(|item| defined.entry(item).or_default().push(file));
    }
    // Of a name that several files have, the imports do not tell which one is meant.
    let target = |name: &str| defined.get(name).filter(|files| files.len() == 1).map(|files| files[0]);
    let uses = |from: usize| imported_names(&codes[from], room).into_iter().filter_map(target).collect::<HashSet<_>>();
    let mut reached: Vec<HashSet<usize>> = (0..files.len()).map(uses).collect();
    for by in 0..files.len() {
        for from in 0..files.len() {
            if reached[from].contains(&by) {
                let more = reached[by].clone();
                reached[from].extend(more);
            }
        }
    }
    let circle = |a: usize| -> Vec<usize> {
        (0..files.len()).filter(|&b| b == a || reached[a].contains(&b) && reached[b].contains(&a)).collect()
    };
    (0..files.len())
        .map(|a| (a, circle(a)))
        .filter(|(a, all)| all.len() > 1 && all[0] == *a)
        .map(|(_, all)| all)
        .collect()
}

#[test]
fn circles_between_files_are_few() {
    for (folder, by_room, most) in MOST_CIRCLES {
        let is_test = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().contains("test"));
        let mut rooms: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
        for path in sources(folder).into_iter().filter(|path| !is_test(path)) {
            let inside = path.strip_prefix(root().join(folder)).unwrap();
            let room = inside.iter().next().filter(|_| by_room).map(|room| room.to_string_lossy().into_owned());
            rooms.entry(room.unwrap_or_default()).or_default().push(path);
        }
        let mut found = Vec::new();
        for (room, files) in &rooms {
            let name = |file: usize| files[file].strip_prefix(root()).unwrap().display().to_string();
            found.extend(
                circles(room.trim_end_matches(".rs"), files)
                    .into_iter()
                    .map(|circle| circle.into_iter().map(name).collect::<Vec<_>>().join(", ")),
            );
        }
        assert!(found.len() <= most, "{folder}: {} circles, at most {most}:\n{}", found.len(), found.join("\n"));
    }
}

#[test]
fn packages_keep_their_budgets() {
    for (folder, without, most) in MOST_LINES {
        let without: Vec<_> = without.iter().map(|folder| root().join(folder)).collect();
        let is_test = |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().ends_with("tests.rs"));
        let lines = |path: &PathBuf| {
            let text = std::fs::read_to_string(path).unwrap();
            text.split("\nmod tests {").next().unwrap().lines().count()
        };
        let counts = |path: &&PathBuf| !is_test(path) && !without.iter().any(|folder| path.starts_with(folder));
        let found: usize = sources(folder).iter().filter(counts).map(lines).sum();
        assert!(found <= most, "{folder} without {without:?}: {found} lines, at most {most}");
    }
}

/// The most files of `src` that name a mechanism, outside of families and the mechanism's own file.
const MOST_FILES_OF_MECHANISM: usize = 3;

/// A mechanism is one file: the rest of the layer asks those that it has, and knows none by name.
#[test]
fn mechanisms_are_named_in_few_files() {
    let folder = root().join("src/attention/mechanisms");
    let files: Vec<(PathBuf, String)> = sources("src")
        .into_iter()
        .filter(|path| !path.starts_with(root().join("src/families")))
        .map(|path| (path.clone(), code(&path)))
        .collect();
    let mut counted = 0;
    for (own, _) in files.iter().filter(|(path, _)| path.starts_with(&folder) && !path.ends_with("mod.rs")) {
        let name = own.file_stem().unwrap().to_str().unwrap();
        let capitalized = |word: &str| word[..1].to_uppercase() + &word[1..];
        let type_name: String = name.split('_').map(capitalized).collect();
        let spellings = [name, &type_name, &name.to_uppercase()].map(str::to_string);
        let names_it = |code: &str| spellings.iter().any(|spelling| code.contains(spelling));
        let others = files.iter().filter(|(path, code)| path != own && names_it(code));
        let others: Vec<_> = others.map(|(path, _)| path.strip_prefix(root()).unwrap().display().to_string()).collect();
        assert!(others.contains(&"src/attention/mechanisms/mod.rs".to_string()), "{name} is not in the table");
        let most = MOST_FILES_OF_MECHANISM;
        assert!(others.len() <= most, "{name}: {} files, at most {most}:\n{}", others.len(), others.join("\n"));
        counted += 1;
    }
    assert!(counted >= 10, "{counted} mechanisms found");
}

/// A source file, the line before the items that are counted, and the most of them. A new one needs another that leaves.
const MOST_ITEMS: [(&str, &str, usize); 2] = [
    ("src/families/family.rs", "pub(crate) struct Family {", 20),
    ("src/config.rs", "pub struct AttentionConfig {", 22),
];

#[test]
fn columns_and_fields_only_leave() {
    for (file, start, most) in MOST_ITEMS {
        let code = code(&root().join(file));
        let body = code.split_once(start).unwrap_or_else(|| panic!("{file} has no `{start}`")).1;
        let body = body.split_once("\n}").unwrap().0;
        let found = body.lines().filter(|line| line.starts_with("    pub") && line.contains(": ")).count();
        assert!((1..=most).contains(&found), "{file}: {found} after `{start}`, at most {most}");
    }
}

/// The most commands of the program.
const MOST_COMMANDS: usize = 14;

#[test]
fn no_name_is_hidden_and_commands_only_leave() {
    let hidden: usize = sources("src")
        .iter()
        .map(|path| std::fs::read_to_string(path).unwrap().matches("#[doc(hidden)]").count())
        .sum();
    assert_eq!(hidden, 0, "public names that the documentation hides");
    let main = code(&root().join("crates/cli/src/main.rs"));
    let commands = main.split_once("enum Commands {").unwrap().1.split_once("\n}").unwrap().0;
    let found = commands.lines().filter(|line| line.trim_start().starts_with(char::is_uppercase)).count();
    assert!((1..=MOST_COMMANDS).contains(&found), "{found} commands, at most {MOST_COMMANDS}");
}

#[test]
fn no_file_is_too_long() {
    for path in sources("src").into_iter().chain(sources("crates")) {
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines <= MAX_LINES, "{}: {lines} lines, at most {MAX_LINES}", path.display());
    }
}

/// The top-level folders whose paths are looked for in documents.
const FOLDERS: [&str; 9] = ["src", "crates", "tests", "docs", "examples", "weights", "benches", "fuzz", "integrations"];

/// Paths that a build or a run makes.
const MADE: [&str; 3] = ["/target/", "integrations/wasm/pkg", "fuzz/found"];

/// The Markdown files of the repository.
fn documents(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && !name.starts_with('.') && !["target", "node_modules", "fixtures"].contains(&name.as_str()) {
            found.extend(documents(&path));
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
    found
}

/// A path is relative to the root of the repository or to a folder around the document. `NAME` stands for any name.
#[test]
fn paths_in_documents_exist() {
    let mut missing = Vec::new();
    for document in documents(root()) {
        let text = std::fs::read_to_string(&document).unwrap();
        for word in text.split(|c: char| !c.is_ascii_alphanumeric() && !"_./-".contains(c)) {
            let path = word.trim_start_matches("../").split("NAME").next().unwrap().trim_end_matches(['.', '/']);
            let in_repository = path.split_once('/').is_some_and(|(folder, _)| FOLDERS.contains(&folder));
            let around = |path: &str| {
                document
                    .ancestors()
                    .skip(1)
                    .take_while(|folder| folder.starts_with(root()))
                    .any(|folder| folder.join(path).exists())
            };
            if in_repository && !around(path) && !MADE.iter().any(|made| word.contains(made)) {
                missing.push(format!("{}: {word}", document.strip_prefix(root()).unwrap().display()));
            }
        }
    }
    assert!(missing.is_empty(), "paths that do not exist:\n{}", missing.join("\n"));
}

#[test]
fn comments_fit_in_120_columns() {
    let mut long = Vec::new();
    for path in sources("src").into_iter().chain(sources("crates")) {
        let text = std::fs::read_to_string(&path).unwrap();
        for (number, line) in text.lines().enumerate() {
            let comment = line.trim_start();
            let table = comment.trim_start_matches(['/', '!', ' ']).starts_with('|');
            if comment.starts_with("//") && !table && line.chars().count() > 120 {
                long.push(format!("{}:{}", path.strip_prefix(root()).unwrap().display(), number + 1));
            }
        }
    }
    assert!(long.is_empty(), "{} comments wider than 120 columns:\n{}", long.len(), long.join("\n"));
}
