//! Printing hits: lines for people, JSON for programs.

use std::io::Write;

use clap::builder::styling::{AnsiColor, Style};

use super::super::shared::Result;
use super::super::shared::print::{self, one_line, plain};
use super::hits::{Hit, Place};

/// How hits are printed.
pub struct Show {
    pub form: Form,
    /// Lines before and after a hit.
    pub context: usize,
    /// The columns of a passage that are shown.
    pub max_columns: usize,
    /// Whether the query stands above its hits.
    pub titled: bool,
    /// Whether the name of a hit's file stands before its line number.
    pub named: bool,
    pub styles: Styles,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Form {
    Text,
    Json,
    /// The names of the files alone.
    Files,
}

/// The colors of the parts of a hit.
#[derive(Default)]
pub struct Styles {
    query: Style,
    score: Style,
    file: Style,
    lines: Style,
    window: Style,
    context: Style,
}

impl Styles {
    /// For standard output: with colors where the user wants them, by the option and by what the environment says
    /// (`NO_COLOR`, `CLICOLOR_FORCE`, `TERM`).
    pub fn new(color: clap::ColorChoice) -> Self {
        let choice = match color {
            clap::ColorChoice::Auto => anstream::ColorChoice::Auto,
            clap::ColorChoice::Always => anstream::ColorChoice::Always,
            clap::ColorChoice::Never => anstream::ColorChoice::Never,
        };
        // It also has a console of Windows understand colors.
        if anstream::AutoStream::new(std::io::stdout(), choice).current_choice() == anstream::ColorChoice::Never {
            return Self::default();
        }
        Self {
            query: Style::new().bold(),
            score: AnsiColor::Cyan.on_default(),
            file: AnsiColor::Magenta.on_default(),
            lines: AnsiColor::Green.on_default(),
            window: Style::new().bold(),
            context: Style::new().dimmed(),
        }
    }
}

#[derive(serde::Serialize)]
struct JsonHit<'a> {
    query: &'a str,
    rank: usize,
    score: f32,
    file: String,
    lines: (usize, usize),
    text: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    context: Vec<JsonLine<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    similar: Vec<JsonPlace>,
}

#[derive(serde::Serialize)]
struct JsonLine<'a> {
    line: usize,
    text: &'a str,
}

#[derive(serde::Serialize)]
struct JsonPlace {
    file: String,
    lines: (usize, usize),
}

impl Show {
    /// Prints the hits of a query.
    pub fn print(&self, query: &str, hits: &[Hit]) -> Result<()> {
        let mut out = print::stdout();
        let Styles { query: style, .. } = self.styles;
        if self.form == Form::Text && self.titled {
            writeln!(out, "{style}{}{style:#}", one_line(query, self.max_columns))?;
        }
        // One below the other, where there are line numbers only.
        let lines: Vec<String> = hits.iter().map(|hit| lines(hit.place)).collect();
        let width = if self.named { 0 } else { lines.iter().map(String::len).max().unwrap_or(0) };
        for ((rank, hit), lines) in (1..).zip(hits).zip(lines) {
            match self.form {
                Form::Json => print::json(&mut out, &self.json_hit(query, rank, hit))?,
                Form::Files => writeln!(out, "{0}{1}{0:#}", self.styles.file, file(hit.place))?,
                Form::Text => {
                    let between = if self.context > 0 && rank > 1 { "--\n" } else { "" };
                    write!(out, "{between}")?;
                    self.print_hit(&mut out, hit, &format!("{lines:>width$}"))?;
                }
            }
        }
        Ok(out.flush()?)
    }

    fn print_hit(&self, out: &mut impl Write, hit: &Hit, lines: &str) -> Result<()> {
        let Styles { score, file: name, lines: number, context: style, .. } = self.styles;
        let shown = |(number, line): &(usize, &str)| {
            let width = lines.len();
            format!("       {style}{number:>width$}- {}{style:#}\n", one_line(line, self.max_columns))
        };
        let (context, (first, last)) = (self.context(hit), hit.place.passage.lines);
        let before: String = context.iter().filter(|(number, _)| *number < first).map(shown).collect();
        let after: String = context.iter().filter(|(number, _)| *number > last).map(shown).collect();
        write!(out, "{before}")?;
        write!(out, "{score}{:>6.3}{score:#} ", hit.score)?;
        if self.named {
            write!(out, "{name}{}{name:#}:", file(hit.place))?;
        }
        write!(out, "{number}{lines}{number:#}  {}{}\n{after}", self.shown(hit), others(hit))?;
        Ok(())
    }

    /// A passage with its best window set off; of a passage of more than the columns that are shown, this window.
    fn shown(&self, hit: &Hit) -> String {
        let (text, style) = (&hit.place.passage.text, self.styles.window);
        let Some((before, after)) = text.split_once(hit.window).filter(|_| hit.window != text) else {
            return one_line(text, self.max_columns);
        };
        if console::measure_text_width(&plain(text)) <= self.max_columns {
            return format!("{}{style}{}{style:#}{}", plain(before), plain(hit.window), plain(after));
        }
        let start = if before.is_empty() { "" } else { "… " };
        let window = one_line(hit.window, self.max_columns);
        let end = if after.is_empty() || window.ends_with('…') { "" } else { " …" };
        format!("{start}{window}{end}")
    }

    fn json_hit<'a>(&self, query: &'a str, rank: usize, hit: &'a Hit) -> JsonHit<'a> {
        let similar = |place: &Place| JsonPlace { file: file(*place), lines: place.passage.lines };
        let text = hit.place.passage.text.as_str();
        JsonHit {
            query,
            rank,
            score: hit.score,
            file: file(hit.place),
            lines: hit.place.passage.lines,
            text,
            window: (hit.window != text).then_some(hit.window),
            context: self.context(hit).into_iter().map(|(line, text)| JsonLine { line, text }).collect(),
            similar: hit.similar.iter().map(similar).collect(),
        }
    }

    /// The lines of a hit and those around it, with their numbers.
    fn context<'a>(&self, hit: &Hit<'a>) -> Vec<(usize, &'a str)> {
        if self.context == 0 {
            return Vec::new();
        }
        let (document, (first, last)) = (hit.place.passage.document, hit.place.passage.lines);
        let first = first.saturating_sub(self.context).max(1);
        let lines = (1..).zip(hit.place.source.documents[document].text.lines());
        lines.skip(first - 1).take_while(|(number, _)| *number <= last.saturating_add(self.context)).collect()
    }
}

/// How many other passages say nearly the same.
fn others(hit: &Hit) -> String {
    match hit.similar.len() {
        0 => String::new(),
        similar => format!(" (and {similar} similar)"),
    }
}

fn lines(place: Place) -> String {
    match place.passage.lines {
        (first, last) if first == last => first.to_string(),
        (first, last) => format!("{first}-{last}"),
    }
}

fn file(place: Place) -> String {
    plain(place.file().display())
}
