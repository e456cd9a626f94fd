//! The heads of a layer side by side, as SVG.

use std::fmt::Write;

use quick_xml::escape::escape;

use crate::error::Result;
use crate::visualize::colormap;
use crate::visualize::colormap::{color, level};
use crate::visualize::label::{fit, width};
use crate::visualize::maps::{AttentionMaps, LayerMaps};

/// Colours that are told apart.
const LEVELS: usize = 48;
/// Cells on a side; of more tokens a cell is the largest weight of a block.
const CELLS: usize = 64;
/// Names are written where a cell has this many pixels, at most this many columns of them.
const NAMED: usize = 8;
const LABEL: usize = 14;
/// Between heads, and around all.
const GAP: usize = 14;
const MARGIN: usize = 16;
const FONT: &str = "ui-monospace, 'DejaVu Sans Mono', 'Noto Sans Mono', monospace";

/// Where everything stands, in pixels.
struct Sheet {
    /// Tokens that share a cell.
    block: usize,
    cell: usize,
    /// Of a head, in cells.
    rows: usize,
    columns: usize,
    /// Heads beside each other.
    across: usize,
    /// Font size of names; 0 where there is no room for them.
    font: f64,
    left: usize,
    top: usize,
}

impl Sheet {
    fn new(maps: &AttentionMaps, heads: usize) -> Self {
        let longest = maps.queries.len().max(maps.keys.len());
        let block = longest.div_ceil(CELLS);
        let (rows, columns) = (maps.queries.len().div_ceil(block), maps.keys.len().div_ceil(block));
        let cell = (208 / rows.max(columns)).clamp(3, 16);
        let font = if block == 1 && cell >= NAMED { (cell as f64 * 0.85).min(11.0) } else { 0.0 };
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
    /// The heads of a layer as an SVG picture on white, at most six beside each other, queries down and keys across. All
    /// have one scale: colour goes by the square root of a weight's share of the layer's largest. Of more than 64 tokens, a
    /// cell is the largest weight of a block of them.
    ///
    /// # Errors
    /// A layer that is not there.
    pub fn svg(&self, layer: usize) -> Result<String> {
        let layer = self.layer(layer)?;
        let sheet = Sheet::new(self, layer.heads.len());
        let (wide, high) = sheet.size(layer.heads.len());
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
            self.write_head(&mut svg, &sheet, layer, at, largest);
        }
        write_scale(&mut svg, sheet.left, high - MARGIN - 34, largest);
        svg.push_str("</svg>\n");
        Ok(svg)
    }

    fn write_head(&self, svg: &mut String, sheet: &Sheet, layer: &LayerMaps, at: usize, largest: f32) {
        let (x, y) = sheet.corner(at);
        let (wide, high) = (sheet.columns * sheet.cell, sheet.rows * sheet.cell);
        // Lines of the cells' width: shorter to write than rectangles.
        let _ = write!(
            svg,
            "<g transform=\"translate({x} {y}) scale({})\" shape-rendering=\"crispEdges\"><g transform=\"translate(0 .5)\">",
            sheet.cell
        );
        for (level, path) in self.paths(sheet, self.of_head(layer, at), largest).iter().enumerate().skip(1) {
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
        if at.is_multiple_of(sheet.across) {
            write_names(
                svg,
                sheet,
                &self.queries,
                |middle| format!("translate({} {})", x - 5, y as f64 + middle),
                "end",
            );
        }
        if at < sheet.across {
            let place = |middle: f64| format!("translate({} {}) rotate(-90)", x as f64 + middle, y - 5);
            write_names(svg, sheet, &self.keys, place, "start");
        }
    }

    /// For each level, the runs of cells that have it.
    fn paths(&self, sheet: &Sheet, weights: &[f32], largest: f32) -> Vec<String> {
        let mut paths = vec![String::new(); LEVELS];
        for row in 0..sheet.rows {
            let mut levels = vec![0; sheet.columns];
            for weights in weights.chunks(self.keys.len()).skip(row * sheet.block).take(sheet.block) {
                for (shown, block) in levels.iter_mut().zip(weights.chunks(sheet.block)) {
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

/// One name a cell, or the first and last number where there is no room.
fn write_names(svg: &mut String, sheet: &Sheet, names: &[String], place: impl Fn(f64) -> String, anchor: &str) {
    let middle = |i: usize, font: f64| (i as f64 + 0.5) * sheet.cell as f64 + font * 0.35;
    if sheet.font > 0.0 {
        let _ = writeln!(svg, "<g font-size=\"{:.1}\" text-anchor=\"{anchor}\">", sheet.font);
        for (i, name) in names.iter().enumerate() {
            let name = fit(name, LABEL);
            let _ = writeln!(svg, "<text transform=\"{}\">{}</text>", place(middle(i, sheet.font)), escape(name));
        }
    } else {
        let _ = writeln!(svg, "<g font-size=\"9\" text-anchor=\"{anchor}\">");
        let last = names.len() - 1;
        for (cell, name) in [(0, 0), (last / sheet.block, last)] {
            let _ = writeln!(svg, "<text transform=\"{}\">{name}</text>", place(middle(cell, 9.0)));
        }
    }
    svg.push_str("</g>\n");
}

/// Which colour is how much.
fn write_scale(svg: &mut String, x: usize, y: usize, largest: f32) {
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
