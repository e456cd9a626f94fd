//! The heads of a layer side by side, as an SVG picture.

use std::fmt::Write;

use quick_xml::escape::escape;

use crate::error::Result;
use crate::visualize::colormap;
use crate::visualize::colormap::{color, level};
use crate::visualize::label::{fit, width};
use crate::visualize::maps::{AttentionMaps, LayerMaps};

/// Number of color levels.
const LEVELS: usize = 48;
/// Maximum number of cells per side; with more tokens, a cell shows the largest weight of a block of tokens.
const CELLS: usize = 64;
/// Labels are written if a cell has at least this many pixels.
const LABELED_CELL: usize = 8;
/// Maximum length of a label, in columns.
const LABEL: usize = 14;
/// Pixels between heads, and around the picture.
const GAP: usize = 14;
const MARGIN: usize = 16;
const FONT: &str = "ui-monospace, 'DejaVu Sans Mono', 'Noto Sans Mono', monospace";

/// The arrangement of a picture, in pixels.
struct Arrangement {
    /// Number of tokens per cell and side.
    block: usize,
    cell: usize,
    /// Number of rows of cells per head.
    rows: usize,
    /// Number of columns of cells per head.
    columns: usize,
    /// Number of heads per line.
    across: usize,
    /// Font size of labels; 0 if there is no room for them.
    font: f64,
    left: usize,
    top: usize,
}

impl Arrangement {
    fn new(maps: &AttentionMaps, heads: usize) -> Self {
        let longest = maps.queries.len().max(maps.keys.len());
        let block = longest.div_ceil(CELLS);
        let (rows, columns) = (maps.queries.len().div_ceil(block), maps.keys.len().div_ceil(block));
        let cell = (208 / rows.max(columns)).clamp(3, 16);
        let font = if block == 1 && cell >= LABELED_CELL { (cell as f64 * 0.85).min(11.0) } else { 0.0 };
        let room = |names: &[String]| {
            let columns = names.iter().map(|name| width(name).min(LABEL)).max().unwrap_or(0);
            if font > 0.0 { (columns as f64 * font * 0.62) as usize + 8 } else { 28 }
        };
        let across = (heads as f64 * rows as f64 / columns as f64).sqrt().ceil() as usize;
        let across = across.clamp(1, heads.min(6));
        Self {
            block,
            cell,
            rows,
            columns,
            across,
            font,
            left: MARGIN + room(&maps.queries),
            top: MARGIN + 30 + room(&maps.keys),
        }
    }

    fn corner(&self, head: usize) -> (usize, usize) {
        let (column, row) = (head % self.across, head / self.across);
        let down = self.rows * self.cell + GAP + 18;
        (self.left + column * (self.columns * self.cell + GAP), self.top + row * down)
    }

    fn size(&self, heads: usize) -> (usize, usize) {
        let (right, _) = self.corner(self.across - 1);
        let (_, bottom) = self.corner(heads - 1);
        let wide = right + self.columns * self.cell + MARGIN;
        (wide.max(self.left + 260), bottom + self.rows * self.cell + 18 + 52 + MARGIN)
    }
}

impl AttentionMaps {
    /// The heads of a layer as an SVG picture on white, at most six per line, with queries downwards and keys to the right.
    /// All heads share one scale: the color depends on the square root of a weight's ratio to the largest of the layer. With
    /// more than 64 tokens, a cell shows the largest weight of a block of tokens.
    ///
    /// # Errors
    /// [`Error::Value`](crate::Error::Value) for a layer that was not added.
    pub fn svg(&self, layer: usize) -> Result<String> {
        let layer = self.layer(layer)?;
        let layout = Arrangement::new(self, layer.heads.len());
        let (wide, high) = layout.size(layer.heads.len());
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{wide}\" height=\"{high}\" viewBox=\"0 0 {wide} {high}\" \
             font-family=\"{FONT}\" font-size=\"11\" fill=\"#1f2937\">\n\
             <rect width=\"{wide}\" height=\"{high}\" fill=\"#fff\"/>\n"
        );
        let room = (wide - 2 * MARGIN) as f64 / (13.0 * 0.62);
        let name = format!("layer {}", layer.layer);
        let title = if self.title.is_empty() { name } else { format!("{name}: {}", self.title) };
        let _ = writeln!(
            svg,
            "<text x=\"{MARGIN}\" y=\"{}\" font-size=\"13\" font-weight=\"bold\">{}</text>",
            MARGIN + 10,
            escape(fit(&title, room as usize))
        );
        let largest = colormap::largest(&layer.weights);
        for at in 0..layer.heads.len() {
            self.write_head(&mut svg, &layout, layer, at, largest);
        }
        write_legend(&mut svg, layout.left, high - MARGIN - 34, largest);
        svg.push_str("</svg>\n");
        Ok(svg)
    }

    fn write_head(&self, svg: &mut String, layout: &Arrangement, layer: &LayerMaps, at: usize, largest: f32) {
        let (x, y) = layout.corner(at);
        let (wide, high) = (layout.columns * layout.cell, layout.rows * layout.cell);
        // Cells are stroked lines as wide as a cell: shorter to write than rectangles.
        let _ = write!(
            svg,
            "<g transform=\"translate({x} {y}) scale({})\" shape-rendering=\"crispEdges\"><g transform=\"translate(0 .5)\">",
            layout.cell
        );
        for (level, path) in self.paths(layout, self.of_head(layer, at), largest).iter().enumerate().skip(1) {
            if !path.is_empty() {
                let [r, g, b] = color(&colormap::LIGHT, level as f32 / (LEVELS - 1) as f32);
                let _ = write!(svg, "<path stroke=\"#{r:02x}{g:02x}{b:02x}\" d=\"{path}\"/>");
            }
        }
        svg.push_str("</g></g>\n");
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{wide}\" height=\"{high}\" fill=\"none\" stroke=\"#94a3b8\"/>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">head {}</text>",
            x + wide / 2,
            y + high + 14,
            layer.heads[at]
        );
        if at.is_multiple_of(layout.across) {
            write_labels(
                svg,
                layout,
                &self.queries,
                |middle| format!("translate({} {})", x - 5, y as f64 + middle),
                "end",
            );
        }
        if at < layout.across {
            let place = |middle: f64| format!("translate({} {}) rotate(-90)", x as f64 + middle, y - 5);
            write_labels(svg, layout, &self.keys, place, "start");
        }
    }

    /// Per level, the path of all runs of cells with that level.
    fn paths(&self, layout: &Arrangement, weights: &[f32], largest: f32) -> Vec<String> {
        let mut paths = vec![String::new(); LEVELS];
        for row in 0..layout.rows {
            let mut levels = vec![0; layout.columns];
            for weights in weights.chunks(self.keys.len()).skip(row * layout.block).take(layout.block) {
                for (shown, block) in levels.iter_mut().zip(weights.chunks(layout.block)) {
                    let level = level(colormap::largest(block), largest);
                    *shown = (*shown).max((level * (LEVELS - 1) as f32).round() as usize);
                }
            }
            let mut column = 0;
            for run in levels.chunk_by(|a, b| a == b) {
                let _ = write!(paths[run[0]], "M{column} {row}h{}", run.len());
                column += run.len();
            }
        }
        paths
    }
}

/// Writes one label per cell, or the first and last index if there is no room.
fn write_labels(svg: &mut String, layout: &Arrangement, names: &[String], place: impl Fn(f64) -> String, anchor: &str) {
    let middle = |i: usize, font: f64| (i as f64 + 0.5) * layout.cell as f64 + font * 0.35;
    if layout.font > 0.0 {
        let _ = writeln!(svg, "<g font-size=\"{:.1}\" text-anchor=\"{anchor}\">", layout.font);
        for (i, name) in names.iter().enumerate() {
            let name = fit(name, LABEL);
            let _ = writeln!(svg, "<text transform=\"{}\">{}</text>", place(middle(i, layout.font)), escape(name));
        }
    } else {
        let _ = writeln!(svg, "<g font-size=\"9\" text-anchor=\"{anchor}\">");
        let last = names.len() - 1;
        for (cell, name) in [(0, 0), (last / layout.block, last)] {
            let _ = writeln!(svg, "<text transform=\"{}\">{name}</text>", place(middle(cell, 9.0)));
        }
    }
    svg.push_str("</g>\n");
}

/// Writes the legend of the colors.
fn write_legend(svg: &mut String, x: usize, y: usize, largest: f32) {
    let wide = 192;
    svg.push_str("<defs><linearGradient id=\"scale\">");
    for (i, [r, g, b]) in colormap::LIGHT.iter().enumerate() {
        let at = i as f32 / (colormap::LIGHT.len() - 1) as f32;
        let _ = write!(svg, "<stop offset=\"{at}\" stop-color=\"#{r:02x}{g:02x}{b:02x}\"/>");
    }
    let _ = writeln!(
        svg,
        "</linearGradient></defs>\n<rect x=\"{x}\" y=\"{y}\" width=\"{wide}\" height=\"10\" fill=\"url(#scale)\" \
         stroke=\"#94a3b8\"/>\n<g font-size=\"10\" text-anchor=\"middle\">"
    );
    for level in [0.0, 0.25, 0.5, 0.75, 1.0f32] {
        let (x, weight) = (x as f32 + level * wide as f32, level * level * largest);
        let _ = write!(svg, "<text x=\"{x}\" y=\"{}\">{weight:.3}</text>", y + 23);
    }
    svg.push_str("</g>\n");
}
