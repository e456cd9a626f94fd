//! What is searched: the lines of files, of all text files in a folder, or of standard input.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_attention_text::{EncodeOptions, SentenceEncoder};
use rayon::prelude::*;
use walkdir::{DirEntry, WalkDir};

use super::super::shared::{Result, about, bar, print, read};

/// A file, a folder or standard input, as the user named it.
pub struct Source {
    pub path: PathBuf,
    pub is_folder: bool,
    pub documents: Vec<Document>,
}

/// A text file.
pub struct Document {
    pub path: PathBuf,
    pub text: String,
}

impl Source {
    pub fn read(path: &Path) -> Result<Self> {
        let is_folder = path.is_dir();
        let documents = match is_folder {
            true => folder(path)?,
            false => vec![Document { path: path.to_path_buf(), text: read::text(path)? }],
        };
        if documents.iter().all(|document| document.text.trim().is_empty()) {
            return Err(about(path, &"no line to search").into());
        }
        Ok(Self { path: path.to_path_buf(), is_folder, documents })
    }
}

/// The text files in a folder and the folders in it, in the order of their names, without hidden ones.
fn folder(path: &Path) -> Result<Vec<Document>> {
    let hidden = |entry: &DirEntry| entry.depth() > 0 && entry.file_name().to_string_lossy().starts_with('.');
    let (mut documents, mut skipped) = (Vec::new(), 0);
    for entry in WalkDir::new(path).sort_by_file_name().into_iter().filter_entry(|entry| !hidden(entry)) {
        let entry = entry.map_err(|e| about(path, &e))?;
        if !entry.file_type().is_file() {
            continue;
        }
        // A file that is not a text is not an error among others.
        match read::text(entry.path()) {
            Ok(text) if !text.contains('\0') => documents.push(Document { path: entry.into_path(), text }),
            _ => skipped += 1,
        }
    }
    if skipped > 0 {
        let files = print::count(skipped, "file");
        print::note(format_args!("{}: skipped {files} without text in UTF-8", path.display()));
    }
    Ok(documents)
}

/// Where a line is.
#[derive(Clone, Copy)]
pub struct Place {
    pub document: usize,
    /// From 1.
    pub number: usize,
}

/// The distinct lines of a source, and the windows of them that are embedded.
pub struct Corpus<'a> {
    pub lines: Vec<(&'a str, Vec<Place>)>,
    /// Parts of lines that fit into the model; of a short line, all of it.
    pub windows: Vec<&'a str>,
    /// The line of each window.
    pub line_of: Vec<usize>,
}

impl<'a> Corpus<'a> {
    pub fn new(source: &'a Source, encoder: &SentenceEncoder, options: &EncodeOptions) -> Result<Self> {
        let lines = distinct_lines(&source.documents);
        let bar = bar::bar(lines.len(), "splitting", "lines")?;
        let windows_of = |&(line, _): &(&'a str, _)| {
            let windows = encoder.windows(line, options)?;
            bar.inc(1);
            Ok(windows.into_iter().map(|range| &line[range]).filter(|window| !window.is_empty()).collect())
        };
        let split: Vec<Vec<&str>> =
            lines.par_iter().map(windows_of).collect::<candle_attention::Result<Vec<Vec<&str>>>>()?;
        bar.finish_and_clear();
        let line_of = split.iter().enumerate().flat_map(|(line, windows)| windows.iter().map(move |_| line)).collect();
        Ok(Self { lines, windows: split.concat(), line_of })
    }
}

/// Each distinct line that is not blank, without the spaces around it, with its places.
fn distinct_lines(documents: &[Document]) -> Vec<(&str, Vec<Place>)> {
    let (mut lines, mut known) = (Vec::new(), HashMap::new());
    for (document, Document { text, .. }) in documents.iter().enumerate() {
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() {
                continue;
            }
            let index = *known.entry(line).or_insert_with(|| {
                lines.push((line, Vec::new()));
                lines.len() - 1
            });
            lines[index].1.push(Place { document, number });
        }
    }
    lines
}
