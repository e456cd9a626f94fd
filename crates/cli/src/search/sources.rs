//! The texts that are searched: files, the text files of folders, or standard input.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use candle_attention::io::{is_present, read_limited};
use candle_attention::{Error, ensure};
use ignore::WalkBuilder;
use ignore::overrides::OverrideBuilder;

use super::super::shared::{Result, about, print, read};
use super::passages::{By, LineRange, passages};

/// The options for what of a folder is searched.
#[derive(clap::Args)]
pub struct Walk {
    /// Of folders, search only the files that match, or with `!` in front those that do not, as `-g '*.md'`; may be
    /// given several times [default: all]
    #[arg(short, long, value_name = "GLOB")]
    glob: Vec<String>,
    /// Of folders, also search hidden files
    #[arg(short = '.', long)]
    hidden: bool,
    /// Of folders, also search what .gitignore and .ignore name
    #[arg(long)]
    no_ignore: bool,
    /// What a passage is [default: a paragraph in .md, .markdown, .rst, .adoc, .org and .tex, and where lines are
    /// wrapped; a line elsewhere]. What has less than 120 bytes goes with the next, but for lines of .txt
    #[arg(long, value_enum)]
    by: Option<By>,
}

/// The most bytes of all ignore files of a search, and the most braces in one: the crate `ignore` makes a program of
/// each line, by recursion where braces are nested, and also reads what never ends.
const MAX_IGNORE: (u64, usize) = (1 << 16, 100);

/// All that is searched.
#[derive(Default)]
pub struct Corpus {
    /// The files.
    pub documents: Vec<PathBuf>,
    /// The distinct texts, each with its number.
    texts: HashMap<String, u32>,
    /// The passages of each text.
    pub passages: Vec<Vec<Passage>>,
}

/// A part of a document: there may be as many as half of the bytes of the documents.
#[derive(Clone, Copy)]
pub struct Passage {
    pub document: u32,
    pub lines: LineRange,
}

impl Walk {
    /// Reads what is searched, a file that two paths lead to once.
    pub fn read(&self, paths: &[PathBuf]) -> Result<Corpus> {
        let (mut known, mut skipped, mut corpus) = (HashSet::new(), Vec::new(), Corpus::default());
        for path in paths {
            let is_folder = path.is_dir();
            for path in if is_folder { self.files(path)? } else { vec![path.clone()] } {
                if !known.insert(path.canonicalize().unwrap_or_else(|_| path.clone())) {
                    continue;
                }
                match read::text_or_reason(&path) {
                    Ok(Ok(text)) => corpus.add(path, &text, self.by),
                    Ok(Err(reason)) => skipped.push((about(&path, &reason), reason.contains("NUL"))),
                    Err(error) if is_folder => skipped.push((error.to_string(), false)),
                    Err(error) => return Err(error),
                }
            }
        }
        if let ([(first, _), ..], true) = (&skipped[..], corpus.documents.is_empty()) {
            return Err(format!("{first}, and there is nothing else to search").into());
        }
        // As grep, without a word about files that are no text at all.
        skipped.retain(|(_, is_binary)| !is_binary);
        if let [(first, _), more @ ..] = &skipped[..] {
            let more = Some(more.len()).filter(|more| *more > 0).map(|more| print::count(more, "file"));
            let more = more.map_or(String::new(), |more| format!(", and {more} more"));
            print::note(format_args!("skipped {first}{more}"));
        }
        Ok(corpus)
    }

    /// The files in a folder and the folders in it, in the order of their names.
    fn files(&self, folder: &Path) -> Result<Vec<PathBuf>> {
        let mut globs = OverrideBuilder::new(".");
        for glob in &self.glob {
            globs.add(glob).map_err(|e| format!("--glob {glob}: {e}"))?;
        }
        let mut walk = WalkBuilder::new(folder);
        walk.standard_filters(false).hidden(!self.hidden).overrides(globs.build()?);
        let left = Mutex::new(MAX_IGNORE.0);
        let check = move |folder: &Path, otherwise: &str| {
            let checked = check_ignore_files(folder, &mut left.lock().unwrap_or_else(PoisonError::into_inner));
            checked.inspect_err(|error| print::note(format_args!("{error}; {otherwise}"))).is_ok()
        };
        let whole = folder.canonicalize().map_err(|e| about(folder, e))?;
        if !self.no_ignore && whole.ancestors().all(|folder| check(folder, "no ignore file is read")) {
            walk.git_ignore(true).ignore(true).parents(true).filter_entry(move |entry| {
                !entry.file_type().is_some_and(|kind| kind.is_dir()) || check(entry.path(), "its folder is skipped")
            });
        }
        let mut files = Vec::new();
        for entry in walk.sort_by_file_name(Ord::cmp).build() {
            match entry {
                Ok(entry) if entry.file_type().is_some_and(|kind| kind.is_file()) => {
                    files.push(entry.path().strip_prefix(".").unwrap_or(entry.path()).to_path_buf());
                }
                Ok(_) => {}
                Err(error) => print::note(format_args!("{error}")),
            }
        }
        Ok(files)
    }
}

/// Checks the files of a folder that the crate `ignore` reads without limits, and whatever they are.
fn check_ignore_files(folder: &Path, left: &mut u64) -> candle_attention::Result<()> {
    for path in [".gitignore", ".ignore"].map(|name| folder.join(name)) {
        if is_present(&path)? {
            let bytes = read_limited(&path, *left)?;
            *left -= bytes.len() as u64;
            let braces = bytes.iter().filter(|byte| **byte == b'{').count();
            ensure!(braces <= MAX_IGNORE.1, Error::file(path, format!("more than {} braces", MAX_IGNORE.1)));
        }
    }
    Ok(())
}

impl Corpus {
    fn add(&mut self, path: PathBuf, text: &str, by: Option<By>) {
        let document = self.documents.len() as u32;
        for (lines, text) in passages(&path, text, by) {
            let text = *self.texts.entry(text).or_insert(self.passages.len() as u32) as usize;
            self.passages.resize_with(self.passages.len().max(text + 1), Vec::new);
            self.passages[text].push(Passage { document, lines });
        }
        self.documents.push(path);
    }

    /// The distinct texts by their numbers.
    pub fn texts(&self) -> Vec<&str> {
        let mut texts = vec![""; self.texts.len()];
        self.texts.iter().for_each(|(text, number)| texts[*number as usize] = text);
        texts
    }
}
