//! Printing hits: lines for people, JSON for programs.

use std::io::Write;

use super::super::shared::print::one_line;
use super::super::shared::{Result, print};
use super::hits::Hit;
use super::sources::{Place, Source};

/// The columns of a line that are shown.
const WIDTH: usize = 200;
/// The columns of a window of a long line that are shown: all of it for most models.
const WINDOW_WIDTH: usize = 1000;

/// How hits are printed.
pub struct Show {
    pub json: bool,
    /// Lines before and after a hit.
    pub context: usize,
    /// Whether the query stands above its hits.
    pub titled: bool,
    /// Whether the name of a hit's file stands before its line number.
    pub named: bool,
}

#[derive(serde::Serialize)]
struct JsonHit<'a> {
    query: &'a str,
    rank: usize,
    score: f32,
    file: String,
    lines: Vec<usize>,
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
    line: usize,
}

impl Show {
    /// Prints the hits of a query.
    pub fn print(&self, query: &str, hits: &[Hit]) -> Result<()> {
        let mut out = print::stdout();
        if !self.json && self.titled {
            writeln!(out, "{}", one_line(query, WIDTH))?;
        }
        for (rank, hit) in (1..).zip(hits) {
            if self.json {
                print::json(&mut out, &self.json_hit(query, rank, hit))?;
                continue;
            }
            if self.context > 0 && rank > 1 {
                writeln!(out, "--")?;
            }
            self.print_hit(&mut out, hit)?;
        }
        out.flush()?;
        if hits.is_empty() {
            print::note(format_args!("no line is near enough to `{}`", one_line(query, WIDTH)));
        }
        Ok(())
    }

    fn print_hit(&self, out: &mut impl Write, hit: &Hit) -> Result<()> {
        let place = hit.places[0];
        let context = context(hit.source, place, self.context);
        for (number, line) in context.iter().filter(|(number, _)| *number < place.number) {
            writeln!(out, "       {:>6}- {}", number, one_line(line, WIDTH))?;
        }
        let at = match self.named {
            true => format!("{}:{}", file(hit.source, place), place.number),
            false => format!("{:>6}", place.number),
        };
        writeln!(out, "{:>6.3} {at}  {}{}", hit.score, shown(hit), others(hit))?;
        for (number, line) in context.iter().filter(|(number, _)| *number > place.number) {
            writeln!(out, "       {:>6}- {}", number, one_line(line, WIDTH))?;
        }
        Ok(())
    }

    fn json_hit<'a>(&self, query: &'a str, rank: usize, hit: &'a Hit) -> JsonHit<'a> {
        let place = hit.places[0];
        let in_file = hit.places.iter().filter(|other| other.document == place.document);
        let elsewhere = hit.places.iter().filter(|other| other.document != place.document);
        let similar = elsewhere.map(|place| (hit.source, *place)).chain(hit.similar.iter().copied());
        let context = context(hit.source, place, self.context).into_iter();
        JsonHit {
            query,
            rank,
            score: hit.score,
            file: file(hit.source, place),
            lines: in_file.map(|place| place.number).collect(),
            text: hit.text,
            window: (hit.window.len() < hit.text.len()).then_some(hit.window),
            context: context.map(|(line, text)| JsonLine { line, text }).collect(),
            similar: similar.map(|(of, place)| JsonPlace { file: file(of, place), line: place.number }).collect(),
        }
    }
}

/// The part of a line that was found, with an ellipsis where it goes on.
fn shown(hit: &Hit) -> String {
    if hit.window.len() == hit.text.len() {
        return one_line(hit.text, WIDTH);
    }
    let start = if hit.text.starts_with(hit.window) { "" } else { "… " };
    let end = if hit.text.ends_with(hit.window) { "" } else { " …" };
    format!("{start}{}{end}", one_line(hit.window, WINDOW_WIDTH))
}

/// How many other lines say the same, and nearly the same.
fn others(hit: &Hit) -> String {
    match (hit.places.len() - 1, hit.similar.len()) {
        (0, 0) => String::new(),
        (equal, 0) => format!(" (and {equal} more)"),
        (0, similar) => format!(" (and {similar} similar)"),
        (equal, similar) => format!(" (and {equal} more, {similar} similar)"),
    }
}

fn file(source: &Source, place: Place) -> String {
    print::plain(source.documents[place.document].path.display())
}

/// The lines around a place, with their numbers.
fn context(source: &Source, place: Place, count: usize) -> Vec<(usize, &str)> {
    if count == 0 {
        return Vec::new();
    }
    let first = place.number.saturating_sub(count).max(1);
    let lines = (1..).zip(source.documents[place.document].text.lines());
    lines.skip(first - 1).take_while(|(number, _)| *number <= place.number.saturating_add(count)).collect()
}
