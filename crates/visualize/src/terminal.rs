//! A head as lines of text for a terminal: one row per query, two columns per key.

use std::fmt::Write;

use candle_attention::Result;

use crate::maps::AttentionMaps;
use crate::svg;
use crate::svg::{color, level};
use crate::tokens::{fit, letters, width};

/// The colors that a terminal can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TerminalColor {
    /// No colors: shades ` ░▒▓█`.
    None,
    /// The 256 indexed colors that most terminals have.
    Ansi256,
    /// 24-bit colors.
    TrueColor,
}

impl TerminalColor {
    /// The colors that the environment asks for: none if `NO_COLOR` is set, and none if `is_terminal` is false unless
    /// `CLICOLOR_FORCE` is set; 24-bit colors if `COLORTERM` is `truecolor` or `24bit`.
    pub fn detect(is_terminal: bool) -> Self {
        let wanted = anstyle_query::clicolor_force() || is_terminal && anstyle_query::term_supports_ansi_color();
        if !wanted || anstyle_query::no_color() {
            Self::None
        } else if anstyle_query::truecolor() {
            Self::TrueColor
        } else {
            Self::Ansi256
        }
    }

    fn cell(self, level: f32) -> String {
        let [r, g, b] = color(&svg::DARK, level);
        match self {
            Self::None => [" ", "░", "▒", "▓", "█"][(level * 4.0).round() as usize].repeat(2),
            Self::TrueColor => format!("\x1b[48;2;{r};{g};{b}m  "),
            Self::Ansi256 => format!("\x1b[48;5;{}m  ", nearest([r, g, b])),
        }
    }

    fn end(self) -> &'static str {
        if self == Self::None { "" } else { "\x1b[0m" }
    }
}

/// The index of the nearest of the 256 colors: of the 6·6·6 cube or of the grays.
fn nearest(rgb: [u8; 3]) -> u8 {
    let cube = |step: u8| if step == 0 { 0 } else { 55 + 40 * step };
    let distance =
        |other: [u8; 3]| -> i32 { rgb.iter().zip(other).map(|(&a, b)| (i32::from(a) - i32::from(b)).pow(2)).sum() };
    let step = |value: u8| (0..6).min_by_key(|&step| (i32::from(value) - i32::from(cube(step))).abs()).unwrap_or(0);
    let [r, g, b] = rgb.map(step);
    let gray = (0..24u8).min_by_key(|&step| distance([8 + 10 * step; 3])).unwrap_or(0);
    if distance([8 + 10 * gray; 3]) < distance([cube(r), cube(g), cube(b)]) {
        232 + gray
    } else {
        16 + 36 * r + 6 * g + b
    }
}

/// Maximum length of the label of a query, in columns, and of a key, in lines.
const LABEL: usize = 14;

/// Weights of the legend, as levels of color: with shades alone there are no others.
const LEGEND: [f32; 5] = [0.0, 0.25, 0.5, 0.75, 1.0];

impl AttentionMaps {
    /// A head for a terminal with `columns` columns. Each row ends with the largest weight and its key. Keys that do
    /// not fit side by side follow below. The last line is the legend: some weights, each beside its color. `##` marks
    /// a token that continues a word; a line and a bar come before the tokens of the second text of a pair.
    ///
    /// # Errors
    /// [`Error::Value`](candle_attention::Error::Value) for a layer or head that was not added.
    pub fn terminal(&self, layer: usize, head: usize, color: TerminalColor, columns: usize) -> Result<String> {
        let weights = self.weights(layer, head)?;
        let largest = svg::largest_weight(weights);
        let names: Vec<String> = self.queries.labels().iter().map(|name| fit(name, LABEL)).collect();
        let keys: Vec<String> = self.keys.labels().iter().map(|name| fit(name, LABEL)).collect();
        let left = names.iter().map(|name| width(name)).max().unwrap_or(0);
        // Label, space, cells, bar, two spaces, weight, space, label.
        let room = (columns.saturating_sub(left + 1 + 10 + LABEL) / 2).max(8);

        let mut text = format!("layer {layer}, head {head}: rows look at columns\n");
        match self.subtitle() {
            none if none.is_empty() => {}
            subtitle => text.extend([&fit(&subtitle, columns.max(40)), "\n"]),
        }
        let starts: Vec<usize> = (0..keys.len()).step_by(room).collect();
        for &start in &starts {
            let end = (start + room).min(keys.len());
            let bar = |key: usize| if self.keys.border() == Some(key) { "│" } else { "" };
            write_keys(&mut text, &keys[start..end], left, |i| bar(start + i));
            for (query, (name, row)) in names.iter().zip(weights.chunks(keys.len())).enumerate() {
                if self.queries.border() == Some(query) {
                    let _ = writeln!(text, "{} second text", "─".repeat(left));
                }
                let _ = write!(text, "{}{name} ", " ".repeat(left - width(name)));
                for (key, &weight) in row.iter().enumerate().take(end).skip(start) {
                    if !bar(key).is_empty() {
                        text.extend([color.end(), bar(key)]);
                    }
                    text.push_str(&color.cell(level(weight, largest)));
                }
                text.push_str(color.end());
                if end == keys.len() {
                    let most = svg::largest_weight(row);
                    let key = row.iter().position(|&weight| weight == most).unwrap_or(0);
                    let _ = write!(text, "  {most:.4} {}", keys[key]);
                }
                text.truncate(text.trim_end_matches(' ').len());
                text.push('\n');
            }
        }
        text.push_str(&" ".repeat(left));
        for level in LEGEND {
            let _ = write!(text, " {}{} {:.4}", color.cell(level), color.end(), level * level * largest);
        }
        text.push('\n');
        Ok(text)
    }
}

/// Writes the labels of keys downwards, ending on the same line, with what `before` puts before each.
fn write_keys(text: &mut String, names: &[String], left: usize, before: impl Fn(usize) -> &'static str) {
    let names: Vec<_> = names.iter().map(|name| letters(name)).collect();
    let height = names.iter().map(Vec::len).max().unwrap_or(0);
    for line in 0..height {
        text.push_str(&" ".repeat(left + 1));
        for (i, name) in names.iter().enumerate() {
            let (letter, wide) = match (line + name.len()).checked_sub(height) {
                Some(at) => (name[at].0.as_str(), name[at].1),
                None => ("", 0),
            };
            text.extend([before(i), letter]);
            text.push_str(&" ".repeat(2usize.saturating_sub(wide)));
        }
        text.truncate(text.trim_end_matches(' ').len());
        text.push('\n');
    }
}
