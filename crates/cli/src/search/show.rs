//! Printing hits: lines for people, JSON for programs.

use std::io::Write;

use clap::builder::styling::{AnsiColor, Style};
use serde_json::{Value, json};

use super::super::shared::Result;
use super::super::shared::print::{self, one_line, plain};
use super::Search;
use super::hits::Hit;
use super::passages::LineRange;
use super::sources::{Corpus, Passage};

/// How hits are printed.
pub struct Show<'a> {
    pub options: &'a Search,
    pub corpus: &'a Corpus,
    /// Whether the query stands above its hits.
    pub titled: bool,
    /// Whether the name of a hit's file stands before its line number.
    pub named: bool,
    pub colored: bool,
}

// The colors of the parts of a hit.
const BOLD: Style = Style::new().bold();
const DIMMED: Style = Style::new().dimmed();
const SCORE: Style = AnsiColor::Cyan.on_default();
const FILE: Style = AnsiColor::Magenta.on_default();
const LINES: Style = AnsiColor::Green.on_default();

/// Whether standard output is to have colors, by the option and by what the environment says (`NO_COLOR`,
/// `CLICOLOR_FORCE`, `TERM`). It also has a console of Windows understand them.
pub fn is_colored(color: clap::ColorChoice) -> bool {
    let choice = match color {
        clap::ColorChoice::Auto => anstream::ColorChoice::Auto,
        clap::ColorChoice::Always => anstream::ColorChoice::Always,
        clap::ColorChoice::Never => anstream::ColorChoice::Never,
    };
    anstream::AutoStream::new(std::io::stdout(), choice).current_choice() != anstream::ColorChoice::Never
}

#[derive(serde::Serialize)]
struct JsonHit<'a> {
    query: &'a str,
    rank: usize,
    score: f32,
    file: String,
    lines: LineRange,
    text: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    context: Vec<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    similar: Vec<Value>,
}

impl Show<'_> {
    /// Prints the hits of a query.
    pub fn print(&self, query: &str, hits: &[Hit]) -> Result<()> {
        let mut out = print::stdout();
        let (mut text, Search { json, files_with_matches, context, .. }) = (String::new(), self.options);
        if !json && !files_with_matches && self.titled {
            text += &format!("{BOLD}{}{BOLD:#}\n", self.one_line(query));
        }
        // One below the other, where there are line numbers only.
        let width = hits.iter().map(|hit| lines(hit.passage).len()).max().filter(|_| !self.named).unwrap_or(0);
        for (rank, hit) in (1..).zip(hits) {
            if *json {
                print::json(&mut out, &self.json_hit(query, rank, hit))?;
            } else if *files_with_matches {
                text += &format!("{FILE}{}{FILE:#}\n", self.file(hit.passage));
            } else {
                text += if *context > 0 && rank > 1 { "--\n" } else { "" };
                text += &self.text_hit(hit, &format!("{:>width$}", lines(hit.passage)));
            }
        }
        if self.colored {
            write!(out, "{text}")?
        } else {
            write!(out, "{}", anstream::adapter::strip_str(&text))?
        }
        Ok(out.flush()?)
    }

    fn text_hit(&self, hit: &Hit, lines: &str) -> String {
        let around = |is_wanted: &dyn Fn(u32) -> bool| -> String {
            let wanted = self.context(hit).into_iter().filter(|(number, _)| is_wanted(*number));
            let width = lines.len();
            let line = |(number, line)| format!("       {DIMMED}{number:>width$}- {}{DIMMED:#}\n", self.one_line(line));
            wanted.map(line).collect()
        };
        let (first, last) = hit.passage.lines;
        let (before, after) = (around(&|number| number < first), around(&|number| number > last));
        let file = if self.named { format!("{FILE}{}{FILE:#}:", self.file(hit.passage)) } else { String::new() };
        let similar = Some(hit.similar.len()).filter(|count| *count > 0).map(|count| format!(" (and {count} similar)"));
        let (score, shown, similar) = (hit.score, self.shown(hit), similar.unwrap_or_default());
        format!("{before}{SCORE}{score:>6.3}{SCORE:#} {file}{LINES}{lines}{LINES:#}  {shown}{similar}\n{after}")
    }

    /// A passage with its best window set off; of a passage of more than the columns that are shown, this window.
    fn shown(&self, hit: &Hit) -> String {
        let text = hit.text;
        let Some((before, after)) = text.split_once(hit.window).filter(|_| hit.window != text) else {
            return self.one_line(text);
        };
        if console::measure_text_width(&plain(text)) <= self.columns() {
            return format!("{}{BOLD}{}{BOLD:#}{}", plain(before), plain(hit.window), plain(after));
        }
        let start = if before.is_empty() { "" } else { "… " };
        let window = self.one_line(hit.window);
        let end = if after.is_empty() || window.ends_with('…') { "" } else { " …" };
        format!("{start}{window}{end}")
    }

    fn json_hit<'a>(&'a self, query: &'a str, rank: usize, hit: &'a Hit) -> JsonHit<'a> {
        let similar = |passage: &Passage| json!({ "file": self.file(*passage), "lines": passage.lines });
        let context = self.context(hit).into_iter().map(|(line, text)| json!({ "line": line, "text": text }));
        JsonHit {
            query,
            rank,
            score: hit.score,
            file: self.file(hit.passage),
            lines: hit.passage.lines,
            text: hit.text,
            window: (hit.window != hit.text).then_some(hit.window),
            context: context.collect(),
            similar: hit.similar.iter().map(similar).collect(),
        }
    }

    /// The lines of a hit and those around it, with their numbers.
    fn context(&self, hit: &Hit) -> Vec<(u32, &str)> {
        if self.options.context == 0 {
            return Vec::new();
        }
        let (first, last) = hit.passage.lines;
        let first = first.saturating_sub(self.options.context).max(1);
        let lines = (1..).zip(self.corpus.documents[hit.passage.document as usize].text.lines());
        lines
            .skip(first as usize - 1)
            .take_while(|(number, _)| *number <= last.saturating_add(self.options.context))
            .collect()
    }

    /// The columns of a passage that are shown.
    fn columns(&self) -> usize {
        if self.options.max_columns == 0 { usize::MAX } else { self.options.max_columns }
    }

    fn one_line(&self, text: &str) -> String {
        one_line(text, self.columns())
    }

    fn file(&self, passage: Passage) -> String {
        plain(self.corpus.documents[passage.document as usize].path.display())
    }
}

fn lines(passage: Passage) -> String {
    match passage.lines {
        (first, last) if first == last => first.to_string(),
        (first, last) => format!("{first}-{last}"),
    }
}
