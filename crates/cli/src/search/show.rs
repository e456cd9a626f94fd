//! Printing hits: lines for people, JSON for programs.

use std::io::Write;

use clap::builder::styling::{AnsiColor, Style};
use serde_json::{Value, json};

use super::super::shared::Result;
use super::super::shared::print::{self, one_line, plain};
use super::hits::Hit;
use super::passages::LineRange;
use super::sources::{Corpus, Passage};

/// How hits are printed.
pub struct Show<'a> {
    pub corpus: &'a Corpus,
    /// Whether the query stands above its hits.
    pub titled: bool,
    /// Whether the name of a hit's file stands before its line number.
    pub named: bool,
}

/// The most columns of a passage, and of a query, that are shown.
const MAX_COLUMNS: usize = 1000;

// The colors of the parts of a hit.
const BOLD: Style = Style::new().bold();
const SCORE: Style = AnsiColor::Cyan.on_default();
const FILE: Style = AnsiColor::Magenta.on_default();
const LINES: Style = AnsiColor::Green.on_default();

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
    also: Vec<Value>,
}

impl Show<'_> {
    /// Prints the hits of a query as lines.
    pub fn print(&self, query: &str, hits: &[Hit]) -> Result<()> {
        let mut text = String::new();
        if self.titled {
            text += &format!("{BOLD}{}{BOLD:#}\n", one_line(query, MAX_COLUMNS));
        }
        for hit in hits {
            let (first, last) = hit.passages[0].lines;
            let lines = if first == last { first.to_string() } else { format!("{first}-{last}") };
            let file =
                if self.named { format!("{FILE}{}{FILE:#}:", self.file(hit.passages[0])) } else { String::new() };
            let (score, shown, more) = (hit.score, shown(hit), hit.passages.len() - 1);
            let also = if more > 0 { format!(" (and {more} more)") } else { String::new() };
            text += &format!("{SCORE}{score:>6.3}{SCORE:#} {file}{LINES}{lines}{LINES:#}  {shown}{also}\n");
        }
        write(&text)
    }

    /// Prints the hits of a query as JSON.
    pub fn print_json(&self, query: &str, hits: &[Hit]) -> Result<()> {
        let mut out = print::stdout();
        for (rank, hit) in (1..).zip(hits) {
            let place = |passage: &Passage| json!({ "file": self.file(*passage), "lines": passage.lines });
            let hit = JsonHit {
                query,
                rank,
                score: hit.score,
                file: self.file(hit.passages[0]),
                lines: hit.passages[0].lines,
                text: hit.text,
                window: (hit.window != hit.text).then_some(hit.window),
                also: hit.passages[1..].iter().map(place).collect(),
            };
            print::json(&mut out, &hit)?;
        }
        Ok(out.flush()?)
    }

    /// Prints the names of the files of passages.
    pub fn print_files<'a>(&self, passages: impl Iterator<Item = &'a Passage>) -> Result<()> {
        write(&passages.map(|passage| format!("{FILE}{}{FILE:#}\n", self.file(*passage))).collect::<String>())
    }

    fn file(&self, passage: Passage) -> String {
        plain(self.corpus.documents[passage.document as usize].display())
    }
}

/// Prints a text with colors, or without them where standard output is no terminal or the environment says so
/// (`NO_COLOR`, `CLICOLOR_FORCE`, `TERM`). Asking for them has a console of Windows understand them.
fn write(text: &str) -> Result<()> {
    let is_colored = anstream::AutoStream::auto(std::io::stdout()).current_choice() != anstream::ColorChoice::Never;
    let bare = anstream::adapter::strip_str(text).to_string();
    let mut out = print::stdout();
    out.write_all(if is_colored { text.as_bytes() } else { bare.as_bytes() })?;
    Ok(out.flush()?)
}

/// The text of a hit; of a text that is longer than a window, the best one.
fn shown(hit: &Hit) -> String {
    let (before, after) = hit.text.split_once(hit.window).unwrap_or_default();
    let start = if before.is_empty() { "" } else { "… " };
    let window = one_line(hit.window, MAX_COLUMNS);
    let end = if after.is_empty() || window.ends_with('…') { "" } else { " …" };
    format!("{start}{window}{end}")
}
