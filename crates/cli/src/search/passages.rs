//! Passages: the parts of a document that are searched, each as one text.
//!
//! A line of wrapped prose is half a sentence, so prose is searched by paragraphs, whose lines are joined. A parser of
//! Markdown was rejected: reStructuredText, LaTeX and plain texts need the same few rules.

use std::path::Path;

/// What a passage is.
#[derive(Clone, Copy, Debug, Default, PartialEq, clap::ValueEnum)]
pub enum By {
    /// A line
    #[default]
    Line,
    /// Lines up to a blank one; in prose also an item of a list, a row of a table, or a block of code
    Paragraph,
    /// A heading of Markdown with all that follows it; a paragraph in a file without headings
    Section,
}

/// A part of a document.
#[derive(Debug)]
pub struct Passage {
    /// The index of its document.
    pub document: usize,
    /// Its first and its last line, from 1.
    pub lines: (usize, usize),
    /// Its lines, without the spaces around them, joined by spaces, and after a heading by a colon.
    pub text: String,
}

/// The extensions of prose.
const MARKUP: [&str; 6] = ["md", "markdown", "rst", "adoc", "org", "tex"];
/// Those of texts that may be prose. Standard input and files such as `README` have none.
const PLAIN: [&str; 3] = ["txt", "text", ""];

/// Lines are wrapped at a width from the first to the second, in characters.
const WIDTHS: (usize, usize) = (60, 160);

/// The passages of a document that are not blank.
pub fn passages(document: usize, path: &Path, text: &str, by: Option<By>) -> Vec<Passage> {
    let extension = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    let is_one_of = |names: &[&str]| names.contains(&extension.as_str());
    let (is_markup, is_plain) = (is_one_of(&MARKUP), is_one_of(&PLAIN));
    let is_prose = is_markup || is_plain;
    let default = || if is_markup || is_plain && is_wrapped(text) { By::Paragraph } else { By::Line };
    let mut splitter = Splitter { document, by: by.unwrap_or_else(default), is_prose, ..Splitter::default() };
    for (number, line) in (1..).zip(text.lines()) {
        splitter.line(number, line.trim());
    }
    match splitter.by {
        By::Section => splitter.sections(),
        _ => splitter.passages,
    }
}

/// Whether a text is wrapped: after most lines, the next word would not have fit, and does not begin with a capital,
/// unless all are capitals.
fn is_wrapped(text: &str) -> bool {
    let (length, (least, most)) = (|line: &str| line.chars().count(), WIDTHS);
    let width = text.lines().map(length).filter(|length| *length <= most).max().unwrap_or(0).max(least);
    let (mut wraps, mut breaks) = (0, 0);
    for (line, next) in text.lines().zip(text.lines().skip(1)) {
        let (Some(word), Some(first)) = (next.split_whitespace().next(), next.trim_start().chars().next()) else {
            continue;
        };
        if line.trim().is_empty() {
            continue;
        }
        breaks += 1;
        // A fifth less: people wrap less exactly than editors.
        let is_full = length(line) <= most && 5 * (length(line) + 1 + length(word)) > 4 * width;
        let is_shouted = || line.chars().rfind(|c| c.is_alphabetic()).is_some_and(char::is_uppercase);
        wraps += usize::from(is_full && first.is_alphabetic() && (!first.is_uppercase() || is_shouted()));
    }
    2 * wraps > breaks
}

/// Splits the lines of a document.
#[derive(Default)]
struct Splitter<'a> {
    document: usize,
    by: By,
    is_prose: bool,
    passages: Vec<Passage>,
    /// The passages that begin with a heading.
    headings: Vec<usize>,
    /// Whether the next line belongs to the last passage.
    is_open: bool,
    /// Whether the last passage is headings only: what follows belongs to it, also after a blank line.
    is_heading: bool,
    /// The mark that opened a block of code.
    fence: Option<&'a str>,
}

impl<'a> Splitter<'a> {
    fn line(&mut self, number: usize, line: &'a str) {
        if self.by == By::Line || !self.is_prose {
            if !line.is_empty() {
                self.add(number, line);
            }
            self.is_open = self.by != By::Line && !line.is_empty();
            return;
        }
        let line = line.trim_start_matches(['>', ' ']);
        if let Some(mark) = self.fence {
            if line.starts_with(mark) && line.trim_start_matches(&mark[..1]).is_empty() {
                (self.fence, self.is_open) = (None, false);
            } else if !line.is_empty() {
                self.add(number, line);
            }
        } else if let Some(mark) = fence(line) {
            (self.fence, self.is_open) = (Some(mark), self.is_heading);
        } else if is_underline(line) && self.is_open && self.is_one_line() {
            self.heading();
        } else if line.chars().all(|c| c.is_ascii_punctuation() || c.is_whitespace()) {
            self.is_open = self.is_heading;
        } else if is_heading(line) {
            self.is_open &= self.is_heading;
            self.add(number, line.trim_matches(['#', ' ']));
            self.heading();
        } else {
            self.is_open &= self.is_heading || !begins_block(line);
            self.add(number, line);
        }
    }

    /// Adds a line to the last passage or, if it is not open, begins one.
    fn add(&mut self, number: usize, line: &str) {
        match self.passages.last_mut().filter(|_| self.is_open) {
            Some(passage) => {
                passage.lines.1 = number;
                passage.text.push_str(if self.is_heading { ": " } else { " " });
                passage.text.push_str(line);
            }
            None => {
                let (document, text) = (self.document, line.to_string());
                self.passages.push(Passage { document, lines: (number, number), text });
            }
        }
        (self.is_open, self.is_heading) = (true, false);
    }

    fn is_one_line(&self) -> bool {
        self.passages.last().is_some_and(|passage| passage.lines.0 == passage.lines.1)
    }

    /// The last passage is a heading so far.
    fn heading(&mut self) {
        self.is_heading = true;
        let last = self.passages.len() - 1;
        if self.headings.last() != Some(&last) {
            self.headings.push(last);
        }
    }

    /// The passages from each heading to the next one as one.
    fn sections(self) -> Vec<Passage> {
        if self.headings.is_empty() {
            return self.passages;
        }
        let mut sections: Vec<Passage> = Vec::new();
        for (index, passage) in self.passages.into_iter().enumerate() {
            match sections.last_mut().filter(|_| self.headings.binary_search(&index).is_err()) {
                Some(section) => {
                    section.lines.1 = passage.lines.1;
                    section.text.push(' ');
                    section.text.push_str(&passage.text);
                }
                None => sections.push(passage),
            }
        }
        sections
    }
}

/// The mark that opens a block of code, if a line does: three or more backticks or tildes.
fn fence(line: &str) -> Option<&str> {
    let first = line.get(..1).filter(|first| ["`", "~"].contains(first))?;
    let (mark, rest) = line.split_at(line.len() - line.trim_start_matches(first).len());
    (mark.len() >= 3 && !rest.contains('`')).then_some(mark)
}

/// Whether a line underlines a heading, as in reStructuredText and in Markdown.
fn is_underline(line: &str) -> bool {
    let first = line.get(..1).unwrap_or_default();
    line.len() >= 3 && ["=", "-", "~", "^"].contains(&first) && line.trim_start_matches(first).is_empty()
}

/// Whether a line is a heading as `## Heading`.
fn is_heading(line: &str) -> bool {
    let rest = line.trim_start_matches('#');
    (1..=6).contains(&(line.len() - rest.len())) && rest.starts_with(' ')
}

/// Whether a line begins an item of a list or is a row of a table.
fn begins_block(line: &str) -> bool {
    let digits = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let is_numbered = digits.len() < line.len() && [". ", ") "].iter().any(|end| digits.starts_with(end));
    is_numbered || ["- ", "* ", "+ ", "|"].iter().any(|start| line.starts_with(start))
}
