//! Passages: the parts of a document that are searched, each as one text.
//!
//! A line of wrapped prose is half a sentence, so prose is searched by paragraphs, whose lines are joined. Parsers of
//! Markdown and HTML were rejected: reStructuredText, LaTeX and plain texts need the same few rules.

use std::borrow::Cow;
use std::path::Path;

/// The unit of a passage.
#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
pub enum By {
    /// A line
    Line,
    /// Lines up to a blank one; in prose also an item of a list, a row of a table, or a block of code
    Paragraph,
    /// A heading of Markdown with all that follows it; a paragraph in a file without headings
    Section,
}

/// The first and the last line of a passage, from 1.
pub type LineRange = (u32, u32);

/// The extensions of prose.
const MARKUP: [&str; 6] = ["md", "markdown", "rst", "adoc", "org", "tex"];
/// The extensions of plain texts. Standard input and files such as `README` have none.
const PLAIN: [&str; 3] = ["txt", "text", ""];
/// The extensions of texts with tags.
const TAGGED: [&str; 5] = ["html", "htm", "xhtml", "xml", "svg"];

/// The tags that do not end a passage.
const INLINE: &str = " a abbr b cite code em font i kbd mark samp small span strong sub sup tt u var ";
/// A form feed: what is between two is as a line of its own.
const BREAK: char = '\u{c}';
/// The starts of lines of comments.
const COMMENTS: [&str; 6] = ["///", "//!", "//", "#", "--", ";"];

/// The least length of a passage, in bytes. A shorter one is taken together with what follows it.
const MIN_BYTES: usize = 120;

/// The longest first row of a table that is put into the others, in bytes.
const MAX_COLUMNS: usize = 1000;

/// Lines are wrapped at a width from the first to the second, in characters.
const WIDTHS: (usize, usize) = (60, 160);

/// The lines and the text of each passage of a document.
pub fn passages(path: &Path, text: &str, by: Option<By>) -> Vec<(LineRange, String)> {
    let extension = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    let is_one_of = |names: &[&str]| names.contains(&extension.as_str());
    let (is_markup, is_plain, is_tagged) = (is_one_of(&MARKUP), is_one_of(&PLAIN), is_one_of(&TAGGED));
    let mut splitter = Splitter { is_section: by == Some(By::Section), ..Splitter::default() };
    let text = if is_tagged { Cow::from(without_tags(text)) } else { Cow::from(text) };
    match by {
        Some(By::Line) => (1..).zip(text.lines()).for_each(|(number, line)| splitter.line(number, line.trim(), 0)),
        None if !is_markup && !is_tagged => splitter.blocks(&text, is_plain),
        _ => {
            for (number, line) in (1..).zip(text.lines()) {
                line.split(BREAK).for_each(|part| splitter.prose(number, part.trim()));
            }
        }
    }
    splitter.flush();
    let alone = splitter.heading.map(|(number, heading)| ((number, number), heading));
    splitter.found.into_iter().chain(alone).collect()
}

/// Splits a document.
#[derive(Default)]
struct Splitter<'a> {
    found: Vec<(LineRange, String)>,
    is_section: bool,
    /// The heading of the passage, with its line.
    heading: Option<(u32, String)>,
    /// The passage that is not complete yet.
    text: String,
    lines: LineRange,
    /// Where the last part that could be a passage alone begins, in the text and as a line; and the line before it.
    last: (usize, u32, u32),
    /// The first row of the table around.
    columns: Vec<String>,
    /// The mark that opened a block of code.
    fence: Option<&'a str>,
}

impl<'a> Splitter<'a> {
    /// Adds a line to the passage.
    fn add(&mut self, number: u32, line: &str) {
        if line.contains(char::is_alphanumeric) {
            if self.last.1 == 0 {
                self.last = (self.text.len(), number, self.lines.1);
            }
            self.lines = (if self.text.is_empty() { number } else { self.lines.0 }, number);
            self.text.extend([line, " "]);
        }
    }

    /// Ends the passage here, if it is long enough and no section that goes on until the next heading.
    fn end(&mut self) {
        self.last.1 = 0;
        if !(self.is_section && self.heading.is_some()) && self.text.len() >= MIN_BYTES {
            self.flush();
        }
    }

    /// Ends the passage here.
    fn flush(&mut self) {
        self.last = (0, 0, 0);
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
            Some((_, heading)) => heading.extend([": ", title.trim()]),
            None => self.heading = Some((number, title.trim().to_string())),
        }
    }

    /// A line that is a passage of its own if it has so many bytes.
    fn line(&mut self, number: u32, line: &str, least: usize) {
        self.add(number, line);
        if self.text.len() > least {
            self.flush();
        }
    }

    /// A line of prose.
    fn prose(&mut self, number: u32, line: &'a str) {
        let line = line.trim_start_matches(['>', ' ']);
        if let Some(mark) = self.fence {
            let closes = line.starts_with(mark) && line.trim_start_matches(&mark[..1]).is_empty();
            self.fence = Some(mark).filter(|_| !closes);
            return if closes { self.end() } else { self.add(number, line) };
        }
        let is_row = line.starts_with('|');
        let is_second = [self.last.1, self.lines.1] == [number - 1; 2] && self.last.0 < self.text.len();
        if !is_row {
            self.columns.clear();
        }
        if let Some(mark) = fence(line) {
            self.end();
            self.fence = Some(mark);
        } else if is_underline(line) && is_second {
            let title = self.text.split_off(self.last.0);
            self.lines.1 = self.last.2;
            self.title(number - 1, &title);
        } else if !line.contains(|c: char| !c.is_ascii_punctuation() && !c.is_whitespace()) {
            if is_row && is_second && self.columns.is_empty() && self.text.len() - self.last.0 < MAX_COLUMNS {
                self.columns = cells(&self.text.split_off(self.last.0)).map(str::to_string).collect()
            } else {
                self.end()
            }
        } else if is_heading(line) {
            self.title(number, line.trim_matches(['#', ' ']));
        } else if is_row {
            self.end();
            let named = self.columns.iter().zip(cells(line)).filter(|(_, cell)| !cell.is_empty());
            let named = named.map(|(name, cell)| if name.is_empty() { cell.into() } else { format!("{name}: {cell}") });
            let row = named.collect::<Vec<_>>().join("; ");
            // Rows stay of the size of the file.
            self.add(number, if row.is_empty() || row.len() > 8 * line.len() { line } else { &row });
        } else {
            if begins_block(line) {
                self.end();
            }
            self.add(number, line);
        }
    }

    /// A text that may be prose in parts, which is told by how its lines are wrapped.
    fn blocks(&mut self, text: &'a str, is_plain: bool) {
        let comment = |line: &str| COMMENTS.into_iter().find(|mark| !is_plain && line.trim_start().starts_with(mark));
        let (mut number, mut rest) = (1, text);
        while !rest.is_empty() {
            // A block ends at a blank line, and where a comment begins or ends.
            let mark = comment(rest);
            let belongs = |line: &&str| !line.trim().is_empty() && comment(line) == mark;
            let length: usize = rest.split_inclusive('\n').take_while(belongs).map(str::len).sum();
            let (block, after) = rest.split_at(length.max(rest.find('\n').map_or(rest.len(), |end| end + 1)));
            let bare = |line: &'a str| line.trim().trim_start_matches(mark.unwrap_or("\n")).trim();
            let is_prose = is_wrapped(block.lines().map(bare));
            for line in block.lines() {
                if is_prose {
                    self.prose(number, bare(line))
                } else {
                    self.line(number, line.trim(), if is_plain { 0 } else { MIN_BYTES })
                }
                number += 1;
            }
            self.end();
            rest = after;
        }
    }
}

/// A text without its tags, with an empty part between two [`BREAK`]s where a passage ends, and with as many lines.
fn without_tags(text: &str) -> String {
    let (content, mut rest) = text.split_once('<').unwrap_or((text, ""));
    let mut shown = content.to_string();
    while !rest.is_empty() {
        let tag = rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '/').next().unwrap_or_default();
        let name = tag.to_lowercase();
        // The length of a content that is not shown.
        let hidden = match name.as_str() {
            "head" | "script" | "style" => rest.find(&format!("</{tag}")).unwrap_or(rest.len()),
            "" if rest.starts_with("!--") => rest.find("-->").unwrap_or(rest.len()),
            _ => 0,
        };
        let end = rest[hidden..].find('>').map_or(rest.len(), |end| hidden + end + 1);
        let (content, next) = rest[end..].split_once('<').unwrap_or((&rest[end..], ""));
        shown += match name.trim_start_matches('/') {
            "td" | "th" => " ",
            name if INLINE.contains(&format!(" {name} ")) => "",
            _ => "\u{c}\u{c}",
        };
        shown.extend(rest[..end].matches('\n').chain([content]));
        rest = next;
    }
    let entities = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&nbsp;", " "), ("&amp;", "&")];
    entities.iter().fold(shown, |text, (name, sign)| text.replace(name, sign))
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

/// The cells of a row of a table.
fn cells(row: &str) -> impl Iterator<Item = &str> {
    let row = row.trim().trim_start_matches('|');
    row.strip_suffix('|').unwrap_or(row).split('|').map(str::trim)
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

/// Whether a line begins an item of a list.
fn begins_block(line: &str) -> bool {
    let digits = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let is_numbered = digits.len() < line.len() && [". ", ") "].iter().any(|end| digits.starts_with(end));
    is_numbered || ["- ", "* ", "+ "].iter().any(|start| line.starts_with(start))
}
