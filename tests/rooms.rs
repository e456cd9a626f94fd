//! The rooms of `src`: what may import what, and how long a file may be.
//!
//! A room is a module at the crate's root. Each room builds on the rooms before it and on nothing else, so that a reader
//! can take them one after the other, and a change in a room cannot break a room below. The same holds for the files of
//! one room: their imports form no circle. This test reads the sources as text; unit tests inside `src` are left out,
//! because a test may compare with a room above its own.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The rooms from the ground up. `error`, `macros`, `io`, `tensor` and `weights` need no attention; `kernels` work on
/// slices and addresses; `ops`, `mask`, `position` and `config` describe a call; `sdpa` computes it and `attention` makes
/// a layer of it; `families` and `checkpoint` load layers, `lora` adapts them, `norm` has the norms between them; the rest uses whole models.
const ORDER: [&str; 23] = [
    "error",
    "macros",
    "io",
    "tensor",
    "weights",
    "kernels",
    "ragged",
    "ops",
    "mask",
    "position",
    "config",
    "sdpa",
    "attention",
    "families",
    "checkpoint",
    "lora",
    "norm",
    "pruning",
    "visualize",
    "encoder",
    "search",
    "train",
    // The program, a crate of its own, uses all of them.
    "bin",
];

/// The longest file, in lines.
const MAX_LINES: usize = 400;

/// A file's path inside the crate, such as `["mask", "lower"]` for `src/mask/lower.rs`.
type Module = Vec<String>;

struct Source {
    lines: usize,
    /// What each `use` binds: the name (`*` for all names) and the full path behind it.
    bindings: Vec<(String, Module)>,
    /// Full paths that the file depends on. What it only re-exports is no dependency.
    paths: BTreeSet<Module>,
}

fn sources() -> BTreeMap<Module, Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut folders, mut files) = (vec![root.clone()], Vec::new());
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
    let modules: BTreeSet<Module> = files.iter().map(|path| module_of(path, &root)).collect();
    files.iter().map(|path| read(path, &root, &modules)).collect()
}

fn module_of(path: &Path, root: &Path) -> Module {
    let path: PathBuf = path.strip_prefix(root).unwrap().with_extension("");
    let mut module: Module = path.iter().map(|part| part.to_str().unwrap().to_string()).collect();
    if module.last().is_some_and(|name| name == "mod" || name == "lib") {
        module.pop();
    }
    module
}

fn read(path: &Path, root: &Path, modules: &BTreeSet<Module>) -> (Module, Source) {
    let text = std::fs::read_to_string(path).unwrap();
    let module = module_of(path, root);
    let code = flattened(&without_tests(&without_comments(&text)));
    let mut source = Source { lines: text.lines().count(), bindings: Vec::new(), paths: BTreeSet::new() };
    let mut rest = String::new();
    for statement in code.split_inclusive(';') {
        let Some(at) = find_word(statement, "use") else {
            rest.push_str(statement);
            continue;
        };
        let (before, tree) = (&statement[..at], statement[at + 3..].trim_end_matches(';'));
        rest.push_str(before);
        let visibility = before.rsplit(['}', '{', ']', '\n']).next().unwrap_or("").trim();
        for (name, path) in expand(tree) {
            let Some(path) = absolute(&path, &module, modules) else { continue };
            if !visibility.starts_with("pub") {
                source.paths.insert(path.clone());
            }
            source.bindings.push((name, path));
        }
    }
    let paths = paths_in(&rest).into_iter().filter_map(|path| absolute(&path, &module, modules));
    source.paths.extend(paths);
    (module, source)
}

/// The text without comments and without what stands in string and character literals.
fn without_comments(text: &str) -> String {
    let (mut code, bytes, mut i) = (String::new(), text.as_bytes(), 0);
    let until = |from: usize, end: &str| text[from..].find(end).map_or(text.len(), |at| from + at + end.len());
    while i < bytes.len() {
        let word = i > 0 && (bytes[i - 1].is_ascii_alphanumeric() || bytes[i - 1] == b'_');
        let hashes = bytes[i + 1..].iter().take_while(|&&byte| byte == b'#').count();
        if text[i..].starts_with("//") {
            i = until(i, "\n") - 1;
        } else if text[i..].starts_with("/*") {
            i = until(i, "*/");
        } else if bytes[i] == b'r' && !word && bytes.get(i + 1 + hashes) == Some(&b'"') {
            i = until(i + 2 + hashes, &format!("\"{}", "#".repeat(hashes)));
        } else if bytes[i] == b'"' {
            i += 1;
            while i < bytes.len() && bytes[i] != b'"' {
                i += if bytes[i] == b'\\' { 2 } else { 1 };
            }
            i += 1;
        } else if bytes[i] == b'\'' && bytes.get(i + 1) == Some(&b'\\') {
            i = until(i + 3, "'");
        } else if bytes[i] == b'\'' && text[i + 1..].chars().nth(1) == Some('\'') {
            i = until(i + 1, "'").max(i + 3);
        } else {
            let end = (i + 1..=text.len()).find(|&end| text.is_char_boundary(end)).unwrap();
            code.push_str(&text[i..end]);
            i = end;
        }
    }
    code
}

/// Where the item ends that begins `code`: after its closing brace or its semicolon.
fn end_of_item(code: &str) -> usize {
    let mut depth = 0usize;
    for (i, c) in code.char_indices() {
        depth = match c {
            '{' => depth + 1,
            '}' => depth.saturating_sub(1),
            _ => depth,
        };
        if depth == 0 && (c == ';' || c == '}') {
            return i + 1;
        }
    }
    code.len()
}

/// The code without items that only a test build has.
fn without_tests(code: &str) -> String {
    let (mut kept, mut rest) = (String::new(), code);
    while let Some(at) = ["#[cfg(test)]", "#[cfg(all(test"].iter().filter_map(|attribute| rest.find(attribute)).min() {
        kept.push_str(&rest[..at]);
        rest = &rest[at + end_of_item(&rest[at..])..];
    }
    kept + rest
}

/// The code with modules written inside a file counted as the file itself: their `super` is its `self`.
fn flattened(code: &str) -> String {
    let (mut flat, mut rest) = (String::new(), code);
    while let Some(at) = find_word(rest, "mod") {
        let body = at + end_of_item(&rest[at..]);
        flat.push_str(&rest[..at]);
        flat.push_str(&rest[at..body].replace("super::", "self::").replace("self::self::", "self::super::"));
        rest = &rest[body..];
    }
    flat + rest
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Where `word` stands by itself.
fn find_word(code: &str, word: &str) -> Option<usize> {
    code.match_indices(word)
        .map(|(at, _)| at)
        .find(|&at| !code[..at].ends_with(is_name) && code[at + word.len()..].starts_with(char::is_whitespace))
}

/// The names that a `use` tree binds, each with its path as written.
fn expand(tree: &str) -> Vec<(String, Vec<String>)> {
    let tree = tree.trim();
    if let Some((prefix, group)) = tree.split_once('{') {
        let prefix: Vec<String> = prefix.split("::").map(|part| part.trim().to_string()).collect();
        let prefix = &prefix[..prefix.len() - 1];
        let group = &group[..group.rfind('}').unwrap_or(group.len())];
        let (mut depth, mut parts) = (0, vec![String::new()]);
        for c in group.chars() {
            depth += i32::from(c == '{') - i32::from(c == '}');
            if c == ',' && depth == 0 {
                parts.push(String::new());
            } else {
                parts.last_mut().unwrap().push(c);
            }
        }
        let parts = parts.iter().filter(|part| !part.trim().is_empty()).flat_map(|part| expand(part));
        return parts.map(|(name, path)| (name, [prefix, &path[..]].concat())).collect();
    }
    let (path, alias) = tree.split_once(" as ").map_or((tree, None), |(path, alias)| (path, Some(alias)));
    let mut path: Vec<String> = path.split("::").map(|part| part.trim().to_string()).collect();
    if path.last().is_some_and(|name| name == "self") {
        path.pop();
    }
    let name = alias.map_or_else(|| path.last().cloned().unwrap_or_default(), |alias| alias.trim().to_string());
    vec![(name, path)]
}

/// Paths of two or more parts, as written.
fn paths_in(code: &str) -> Vec<Vec<String>> {
    let words: Vec<&str> = code.split(|c| !is_name(c) && c != ':').filter(|word| word.contains("::")).collect();
    words.iter().map(|word| word.split("::").map(str::to_string).collect()).collect()
}

/// A path from the crate's root, `None` for one of another crate or of an item in scope.
fn absolute(path: &[String], module: &[String], modules: &BTreeSet<Module>) -> Option<Module> {
    let path: Vec<String> = path.iter().filter(|part| !part.is_empty()).cloned().collect();
    let mut base = module.to_vec();
    let mut at = 0;
    match path.first()?.as_str() {
        "crate" => (base, at) = (Vec::new(), 1),
        "self" | "super" => {
            at = usize::from(path[0] == "self");
            while path.get(at).is_some_and(|part| part == "super") {
                base.pop();
                at += 1;
            }
        }
        first => {
            let child = [module, &[first.to_string()]].concat();
            if !modules.contains(&child) {
                return None;
            }
        }
    }
    Some([base, path[at..].to_vec()].concat())
}

/// The file that defines what a path names: re-exports are followed.
fn resolve(path: &[String], sources: &BTreeMap<Module, Source>, depth: usize) -> Module {
    let known = (0..=path.len()).rev().find(|&n| sources.contains_key(&path[..n])).unwrap_or(0);
    let module = path[..known].to_vec();
    let (Some(name), true) = (path.get(known), depth < 8) else { return module };
    let bindings = &sources[&module].bindings;
    match bindings.iter().find(|(bound, _)| bound == name) {
        Some((_, target)) => {
            let whole = [&target[..], &path[known + 1..]].concat();
            resolve(&whole, sources, depth + 1)
        }
        None => module,
    }
}

fn show(module: &[String]) -> String {
    if module.is_empty() { "lib".to_string() } else { module.join("::") }
}

fn is_test(module: &[String]) -> bool {
    module.iter().any(|name| name == "tests")
}

/// Each file with the files that it depends on.
fn dependencies() -> BTreeMap<Module, BTreeSet<Module>> {
    let sources = sources();
    let files = sources.iter().filter(|(module, _)| !module.is_empty() && !is_test(module));
    let resolved = files.map(|(module, source)| {
        let targets = source.paths.iter().map(|path| resolve(path, &sources, 0));
        (module.clone(), targets.filter(|target| target != module && !is_test(target)).collect())
    });
    resolved.collect()
}

#[test]
fn every_room_has_a_place_in_the_order() {
    let rooms: BTreeSet<String> = sources().into_keys().filter_map(|module| module.first().cloned()).collect();
    let order = ORDER.map(str::to_string).into_iter().collect();
    assert_eq!(rooms, order, "rooms of src on the left, ORDER on the right");
}

#[test]
fn rooms_use_only_rooms_before_them() {
    let floor = |module: &[String]| module.first().and_then(|room| ORDER.iter().position(|name| name == room));
    let mut wrong = Vec::new();
    for (module, targets) in dependencies() {
        for target in targets {
            // What the crate's root defines is for users: a room names the room.
            if floor(&target).is_none_or(|target| Some(target) > floor(&module)) {
                wrong.push(format!("{} uses {}", show(&module), show(&target)));
            }
        }
    }
    assert!(wrong.is_empty(), "imports that go up:\n{}", wrong.join("\n"));
}

#[test]
fn files_of_a_room_form_no_circle() {
    let dependencies = dependencies();
    let mut wrong = BTreeSet::new();
    for start in dependencies.keys() {
        let inside = |module: &Module| module.first() == start.first();
        // The shortest way back, breadth first.
        let mut queue = std::collections::VecDeque::from([vec![start.clone()]]);
        let mut seen = BTreeSet::new();
        while let Some(way) = queue.pop_front() {
            let Some(targets) = dependencies.get(way.last().unwrap()) else { continue };
            if targets.contains(start) {
                // A circle is named once, from its first file.
                if way.iter().min() == Some(start) {
                    let names: Vec<String> = way.iter().chain([start]).map(|module| show(module)).collect();
                    wrong.insert(names.join(" → "));
                }
                break;
            }
            for target in targets.iter().filter(|target| inside(target)) {
                if seen.insert(target.clone()) {
                    queue.push_back([&way[..], std::slice::from_ref(target)].concat());
                }
            }
        }
    }
    assert!(wrong.is_empty(), "circles:\n{}", wrong.into_iter().collect::<Vec<_>>().join("\n"));
}

#[test]
fn no_file_is_too_long() {
    let long = sources().into_iter().filter(|(_, source)| source.lines > MAX_LINES);
    let long: Vec<String> = long.map(|(module, source)| format!("{}: {} lines", show(&module), source.lines)).collect();
    assert!(long.is_empty(), "files of more than {MAX_LINES} lines:\n{}", long.join("\n"));
}
