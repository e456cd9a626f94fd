//! The texts that are searched: files, the text files of folders, or standard input.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use candle_attention::Error;
use candle_attention::io::{is_present, read_limited};
use candle_attention_text::{EncodeOptions, SentenceEncoder};
use ignore::WalkBuilder;
use ignore::overrides::OverrideBuilder;
use ignore::types::TypesBuilder;
use rayon::prelude::*;

use super::super::shared::{Result, about, bar, print, read};
use super::passages::{By, LineRange, passages};

/// The options for what of a folder is searched.
#[derive(clap::Args)]
pub struct Walk {
    /// Of folders, search only the files that match, or with `!` in front those that do not, as `-g '*.md'`; may be
    /// given several times [default: all]
    #[arg(short, long, value_name = "GLOB")]
    glob: Vec<String>,
    /// Of folders, search only files of this type, by ripgrep's names of types, as `-t md`; may be given several
    /// times [default: all]
    #[arg(short = 't', long = "type", value_name = "TYPE")]
    types: Vec<String>,
    /// Of folders, also search hidden files
    #[arg(short = '.', long)]
    hidden: bool,
    /// Of folders, also search what .gitignore and .ignore name
    #[arg(long)]
    no_ignore: bool,
    /// What a passage is [default: a paragraph in .md, .markdown, .rst, .adoc, .org, .tex, .html and .xml, and where
    /// lines are wrapped; a line elsewhere]. What has less than 120 bytes goes with the next, but for lines of .txt
    #[arg(long, value_enum)]
    by: Option<By>,
}

/// The most bytes of all ignore files of a search, and the most braces in one: the crate `ignore` makes a program of
/// each line, by recursion where braces are nested, and also reads what never ends.
const MAX_IGNORE: (u64, usize) = (1 << 16, 100);

/// All that is searched.
#[derive(Default)]
pub struct Corpus {
    pub documents: Vec<Document>,
    /// The distinct texts, each with its number.
    texts: HashMap<String, u32>,
    /// The passages of each text.
    pub passages: Vec<Vec<Passage>>,
}

/// A text file.
pub struct Document {
    pub path: PathBuf,
    pub text: String,
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
                    Ok(Ok(text)) => corpus.add(Document { path, text }, self.by),
                    Ok(Err(reason)) => skipped.push((format!("{}: {reason}", path.display()), reason.contains("NUL"))),
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
        let (mut globs, mut types) = (OverrideBuilder::new("."), TypesBuilder::new());
        for glob in &self.glob {
            globs.add(glob).map_err(|e| format!("--glob {glob}: {e}"))?;
        }
        types.add_defaults();
        for name in &self.types {
            types.select(name);
        }
        let types = types.build().map_err(|e| format!("--type: {e}"))?;
        let mut walk = WalkBuilder::new(folder);
        walk.standard_filters(false).hidden(!self.hidden).types(types).overrides(globs.build()?);
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
            if bytes.iter().filter(|byte| **byte == b'{').count() > MAX_IGNORE.1 {
                return Err(Error::file(path, format!("more than {} braces", MAX_IGNORE.1)));
            }
        }
    }
    Ok(())
}

impl Corpus {
    fn add(&mut self, document: Document, by: Option<By>) {
        let number = self.documents.len() as u32;
        for (lines, text) in passages(&document.path, &document.text, by) {
            let text = *self.texts.entry(text).or_insert(self.passages.len() as u32) as usize;
            self.passages.resize_with(self.passages.len().max(text + 1), Vec::new);
            self.passages[text].push(Passage { document: number, lines });
        }
        self.documents.push(document);
    }

    /// The distinct texts by their numbers.
    pub fn texts(&self) -> Vec<&str> {
        let mut texts = vec![""; self.texts.len()];
        self.texts.iter().for_each(|(text, number)| texts[*number as usize] = text);
        texts
    }
}

/// The parts of the texts that fit into the model; of a short text, all of it.
pub struct Windows<'a> {
    pub texts: Vec<&'a str>,
    /// The number of the text of each window.
    pub text_of: Vec<u32>,
}

impl<'a> Windows<'a> {
    pub fn new(texts: &[&'a str], encoder: &SentenceEncoder, options: &EncodeOptions) -> Result<Self> {
        let bar = bar::bar(texts.len(), "reading", "passages")?;
        let windows_of = |text: &&'a str| {
            let windows = encoder.windows(text, options)?;
            bar.inc(1);
            Ok(windows.into_iter().map(|range| &text[range]).filter(|window| !window.is_empty()).collect())
        };
        let split: candle_attention::Result<Vec<Vec<&str>>> = texts.par_iter().map(windows_of).collect();
        let split = split?;
        let text_of = (0..).zip(&split).flat_map(|(number, parts)| parts.iter().map(move |_| number)).collect();
        bar.finish_and_clear();
        Ok(Self { texts: split.concat(), text_of })
    }
}
