//! Passages: the parts of a document that are searched, each as one text.
//!
//! A line of wrapped prose is half a sentence, so prose is searched by paragraphs, whose lines are joined. Parsers of
//! Markdown and HTML were rejected: reStructuredText, LaTeX and plain texts need the same few rules, and a file with
//! tags is searched as it stands, so that nothing in it is lost.

use std::path::Path;

/// The unit of a passage.
#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
pub enum By {
    /// A line
    Line,
    /// Lines up to a blank one; in prose also an item of a list or a row of a table
    Paragraph,
}

/// The first and the last line of a passage, from 1.
pub type LineRange = (u32, u32);

/// The extensions of prose.
const MARKUP: [&str; 6] = ["md", "markdown", "rst", "adoc", "org", "tex"];
/// The extensions of plain texts. Standard input and files such as `README` have none.
const PLAIN: [&str; 3] = ["txt", "text", ""];

/// The starts of lines of comments.
const COMMENTS: [&str; 6] = ["///", "//!", "//", "#", "--", ";"];

/// The least length of a passage, in bytes. A shorter one is taken together with what follows it.
const MIN_BYTES: usize = 120;

/// Lines are wrapped at a width from the first to the second, in characters.
const WIDTHS: (usize, usize) = (60, 160);

/// The lines and the text of each passage of a document.
pub fn passages(path: &Path, text: &str, by: Option<By>) -> Vec<(LineRange, String)> {
    let extension = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    let is_markup = MARKUP.contains(&extension.as_str());
    let mut splitter = Splitter::default();
    match by {
        Some(By::Line) => (1..).zip(text.lines()).for_each(|(number, line)| splitter.line(number, line, 0)),
        None if !is_markup => splitter.blocks(text, PLAIN.contains(&extension.as_str())),
        _ => (1..).zip(text.lines()).for_each(|(number, line)| splitter.prose(number, line)),
    }
    splitter.flush();
    let alone = splitter.heading.map(|(number, heading)| ((number, number), heading));
    splitter.found.into_iter().chain(alone).collect()
}

/// Splits a document.
#[derive(Default)]
struct Splitter {
    found: Vec<(LineRange, String)>,
    /// The heading of the passage, with its line.
    heading: Option<(u32, String)>,
    /// The passage that is not complete yet.
    text: String,
    lines: LineRange,
    /// Whether this is in a block of code, where `# …` is no heading.
    is_code: bool,
}

impl Splitter {
    /// Adds a line to the passage, unless it has neither letters nor digits.
    fn add(&mut self, number: u32, line: &str) {
        if line.contains(char::is_alphanumeric) {
            self.lines = (if self.text.is_empty() { number } else { self.lines.0 }, number);
            self.text.extend([line, " "]);
        }
    }

    /// Ends the passage here, if it is long enough.
    fn end(&mut self) {
        if self.text.len() >= MIN_BYTES {
            self.flush();
        }
    }

    /// Ends the passage here.
    fn flush(&mut self) {
        let text = std::mem::take(&mut self.text).split_whitespace().collect::<Vec<_>>().join(" ");
        match self.heading.take_if(|_| !text.is_empty()) {
            _ if text.is_empty() => {}
            Some((number, heading)) => self.found.push(((number, self.lines.1), format!("{heading}: {text}"))),
            None => self.found.push((self.lines, text)),
        }
    }

    /// The next passage is under this heading, and under the headings right before it.
    fn title(&mut self, number: u32, title: &str) {
        self.flush();
        match &mut self.heading {
            Some((_, heading)) => heading.extend([": ", title]),
            None => self.heading = Some((number, title.to_string())),
        }
    }

    /// A line that is a passage of its own if it has so many bytes.
    fn line(&mut self, number: u32, line: &str, least: usize) {
        self.add(number, line.trim());
        if self.text.len() > least {
            self.flush();
        }
    }

    /// A line of prose.
    fn prose(&mut self, number: u32, line: &str) {
        let line = line.trim().trim_start_matches(['>', ' ']);
        if line.starts_with("```") || line.starts_with("~~~") {
            self.is_code = !self.is_code;
            self.end();
        } else if !line.contains(char::is_alphanumeric) {
            self.end();
        } else if !self.is_code && is_heading(line) {
            self.title(number, line.trim_matches(['#', ' ']));
        } else {
            if begins_block(line) {
                self.end();
            }
            self.add(number, line);
        }
    }

    /// A text that may be prose in parts, which is told by how its lines are wrapped.
    fn blocks<'a>(&mut self, text: &'a str, is_plain: bool) {
        let comment = |line: &str| COMMENTS.into_iter().find(|mark| !is_plain && line.trim_start().starts_with(mark));
        let (mut number, mut rest) = (1, text);
        while !rest.is_empty() {
            // A block ends at a blank line, and where a comment begins or ends.
            let mark = comment(rest.lines().next().unwrap_or_default());
            let belongs = |line: &&str| !line.trim().is_empty() && comment(line) == mark;
            let length: usize = rest.split_inclusive('\n').take_while(belongs).map(str::len).sum();
            let (block, after) = rest.split_at(length.max(rest.find('\n').map_or(rest.len(), |end| end + 1)));
            let bare = |line: &'a str| line.trim().trim_start_matches(mark.unwrap_or("\n")).trim();
            let is_prose = is_wrapped(block.lines().map(bare));
            for line in block.lines() {
                if is_prose {
                    self.prose(number, bare(line))
                } else {
                    self.line(number, line, if is_plain { 0 } else { MIN_BYTES })
                }
                number += 1;
            }
            self.end();
            rest = after;
        }
    }
}

/// Whether lines are wrapped: after most of them, the next word would not have fit, and does not begin with a capital,
/// unless all are capitals.
fn is_wrapped<'a>(lines: impl Iterator<Item = &'a str> + Clone) -> bool {
    let (length, (least, most)) = (|line: &str| line.chars().count(), WIDTHS);
    let width = lines.clone().map(length).filter(|length| *length <= most).max().unwrap_or(0).max(least);
    let (mut wraps, mut breaks) = (0, 0);
    for (line, next) in lines.clone().zip(lines.skip(1)) {
        let (Some(word), Some(first)) = (next.split_whitespace().next(), next.chars().next()) else { continue };
        breaks += 1;
        // A fifth less: people wrap less exactly than editors.
        let is_full = length(line) <= most && 5 * (length(line) + 1 + length(word)) > 4 * width;
        let is_shouted = || line.chars().rfind(|c| c.is_alphabetic()).is_some_and(char::is_uppercase);
        wraps += usize::from(is_full && first.is_alphabetic() && (!first.is_uppercase() || is_shouted()));
    }
    2 * wraps > breaks
}

/// Whether a line is a heading as `## Heading`.
fn is_heading(line: &str) -> bool {
    let rest = line.trim_start_matches('#');
    (1..=6).contains(&(line.len() - rest.len())) && rest.starts_with(' ')
}

/// Whether a line begins an item of a list, or is a row of a table.
fn begins_block(line: &str) -> bool {
    let digits = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let is_numbered = digits.len() < line.len() && [". ", ") "].iter().any(|end| digits.starts_with(end));
    is_numbered || ["- ", "* ", "+ ", "|"].iter().any(|start| line.starts_with(start))
}
