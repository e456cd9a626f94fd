//! What is searched: files, the text files of folders, or standard input.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use candle_attention_text::search::Index;
use candle_attention_text::{EncodeOptions, SentenceEncoder};
use ignore::WalkBuilder;
use ignore::overrides::OverrideBuilder;
use ignore::types::TypesBuilder;
use rayon::prelude::*;

use super::super::shared::{Result, bar, print, read};
use super::passages::{By, Passage, passages};

/// The options for what of a folder is searched.
#[derive(clap::Args, Debug)]
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
    /// What a passage is [default: a paragraph in .md, .markdown, .rst, .adoc, .org and .tex, and in .txt, names
    /// without an extension and standard input if most of their lines are wrapped; a line elsewhere]
    #[arg(long, value_enum)]
    by: Option<By>,
}

/// A file, a folder or standard input, as the user named it.
pub struct Source {
    pub path: PathBuf,
    pub documents: Vec<Document>,
    pub passages: Vec<Passage>,
}

/// A text file.
pub struct Document {
    pub path: PathBuf,
    pub text: String,
}

impl Walk {
    /// Reads what is searched. A file that two paths lead to is in the first one only.
    pub fn read(&self, paths: &[PathBuf]) -> Result<Vec<Source>> {
        let (mut known, mut skipped, mut sources) = (HashSet::new(), Vec::new(), Vec::new());
        for path in paths {
            let mut source = Source { path: path.clone(), documents: Vec::new(), passages: Vec::new() };
            for path in if path.is_dir() { self.files(path)? } else { vec![path.clone()] } {
                if !known.insert(path.canonicalize().unwrap_or_else(|_| path.clone())) {
                    continue;
                }
                match read::text_or_reason(&path)? {
                    Ok(text) => {
                        let of = source.documents.len();
                        source.passages.extend(passages(of, &path, &text, self.by));
                        source.documents.push(Document { path, text });
                    }
                    Err(_) if is_index(&path) => {}
                    Err(reason) => skipped.push((path, reason)),
                }
            }
            sources.push(source);
        }
        let (files, reason) = match &skipped[..] {
            [] => return Ok(sources),
            [(path, reason)] => (path.display().to_string(), reason.as_str()),
            more => (print::count(more.len(), "file"), "not text in UTF-8"),
        };
        if sources.iter().all(|source| source.documents.is_empty()) {
            return Err(format!("{files}: {reason}, and there is nothing else to search").into());
        }
        print::note(format_args!("skipped {files}: {reason}"));
        Ok(sources)
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
        walk.standard_filters(!self.no_ignore).hidden(!self.hidden).types(types).overrides(globs.build()?);
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

/// Whether a file that is not text is one of saved embeddings, which earlier versions kept beside what they searched.
fn is_index(path: &Path) -> bool {
    path.is_file() && Index::check_writable(path).is_ok()
}

/// The distinct passages of a source, and the windows of them that are embedded.
pub struct Corpus<'a> {
    /// Each distinct text, with its passages.
    pub texts: Vec<(&'a str, Vec<&'a Passage>)>,
    /// Parts of texts that fit into the model; of a short text, all of it.
    pub windows: Vec<&'a str>,
    /// The text of each window.
    pub text_of: Vec<usize>,
}

impl<'a> Corpus<'a> {
    pub fn new(source: &'a Source, encoder: &SentenceEncoder, options: &EncodeOptions) -> Result<Self> {
        let (mut texts, mut known) = (Vec::new(), HashMap::new());
        for passage in &source.passages {
            let index = *known.entry(passage.text.as_str()).or_insert(texts.len());
            if index == texts.len() {
                texts.push((passage.text.as_str(), Vec::new()));
            }
            texts[index].1.push(passage);
        }
        let bar = bar::bar(texts.len(), "reading", "passages")?;
        let windows_of = |&(text, _): &(&'a str, _)| {
            let windows = encoder.windows(text, options)?;
            bar.inc(1);
            Ok(windows.into_iter().map(|range| &text[range]).filter(|window| !window.is_empty()).collect())
        };
        let split: Vec<Vec<&str>> =
            texts.par_iter().map(windows_of).collect::<candle_attention::Result<Vec<Vec<&str>>>>()?;
        bar.finish_and_clear();
        let text_of = split.iter().enumerate().flat_map(|(text, windows)| windows.iter().map(move |_| text)).collect();
        Ok(Self { texts, windows: split.concat(), text_of })
    }
}
