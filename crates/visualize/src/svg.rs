//! The heads of a layer side by side, as an SVG picture.

use std::fmt::Write;

use candle_attention::Result;
use quick_xml::escape::escape;

use crate::maps::{AttentionMaps, LayerMaps};
use crate::tokens::{Axis, TokenMarks, fit, width};

/// Number of color levels.
const LEVELS: usize = 48;
/// Maximum number of cells per side; with more tokens, a cell shows the largest weight of a block of tokens.
const CELLS: usize = 128;
/// The pixels of a cell: as many as a label needs, and at most. In a head of more than `HEAD` pixels cells are smaller,
/// and not each has a label.
const LABELED: usize = 11;
const MAX_CELL: usize = 16;
const HEAD: usize = 720;
/// The pixels of a picture of several heads side by side: wider ones would be shown smaller, with labels too small.
const WIDE: usize = 1040;
/// Maximum length of a label, in columns.
const LABEL: usize = 14;
/// Colors of the labels of special tokens and of the second text.
const SPECIAL: &str = "#64748b";
const SECOND: &str = "#7e22ce";
/// Pixels between heads, and around the picture.
const GAP: usize = 14;
const MARGIN: usize = 16;
const FONT: &str = "ui-monospace, 'DejaVu Sans Mono', 'Noto Sans Mono', monospace";

/// The arrangement of a picture, in pixels.
struct Arrangement {
    /// Number of tokens per cell and side.
    block: usize,
    cell: usize,
    /// Number of cells per label.
    step: usize,
    /// Number of rows of cells per head.
    rows: usize,
    /// Number of columns of cells per head.
    columns: usize,
    /// Number of heads per line.
    across: usize,
    /// Font size of labels.
    font: f64,
    left: usize,
    top: usize,
}

impl Arrangement {
    fn new(maps: &AttentionMaps, heads: usize) -> Self {
        let longest = maps.queries.len().max(maps.keys.len());
        let block = longest.div_ceil(CELLS);
        let (rows, columns) = (maps.queries.len().div_ceil(block), maps.keys.len().div_ceil(block));
        let cell = (208 / rows.max(columns)).max((HEAD / rows.max(columns)).min(LABELED)).clamp(1, MAX_CELL);
        let step = LABELED.div_ceil(cell);
        let font = ((cell * step) as f64 * 0.85).min(11.0);
        let room = |axis: &Axis| {
            let columns = labels(axis, block * step).iter().map(|(name, _)| width(name)).max().unwrap_or(0);
            (columns as f64 * font * 0.62) as usize + 8
        };
        let title = if maps.subtitle().is_empty() { 30 } else { 46 };
        let across = (heads as f64 * rows as f64 / columns as f64).sqrt().ceil() as usize;
        let left = MARGIN + room(&maps.queries);
        let fit = WIDE.saturating_sub(left) / (columns * cell + GAP);
        let across = across.min(fit).clamp(1, heads.min(6));
        Self { block, cell, step, rows, columns, across, font, left, top: MARGIN + title + room(&maps.keys) }
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
        (wide.max(self.left + 260), bottom + self.rows * self.cell + 18 + 66 + MARGIN)
    }
}

impl AttentionMaps {
    /// The heads of a layer as an SVG picture on white, as many per line as leave labels readable and at most six, with
    /// queries downwards and keys to the right. All heads share one scale: the color depends on the square root of a
    /// weight's ratio to the largest of the layer. `##` marks a token that continues a word. Up to 65 tokens each have
    /// their label, of more of them each second or third. With more than 128 tokens, a cell shows the largest weight of
    /// a block of tokens. Where not each token has a label, it begins with the number of the token.
    ///
    /// # Errors
    /// [`Error::Value`](candle_attention::Error::Value) for a layer that was not added.
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
        if !self.subtitle().is_empty() {
            let room = (wide - 2 * MARGIN) as f64 / (11.0 * 0.62);
            let (y, subtitle) = (MARGIN + 26, fit(&self.subtitle(), room as usize));
            let _ = writeln!(svg, "<text x=\"{MARGIN}\" y=\"{y}\" fill=\"{SPECIAL}\">{}</text>", escape(subtitle));
        }
        let largest = largest_weight(&layer.weights);
        for at in 0..layer.heads.len() {
            self.write_head(&mut svg, &layout, layer, at, largest);
        }
        write_legend(&mut svg, layout.left, high - MARGIN - 48, largest);
        self.write_caption(&mut svg, &layout, high - MARGIN);
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
        for (level, path) in self.paths(layout, self.head_weights(layer, at), largest).iter().enumerate().skip(1) {
            if !path.is_empty() {
                let [r, g, b] = color(&LIGHT, level as f32 / (LEVELS - 1) as f32);
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
        // Where the second text starts.
        let start = |axis: &Axis| Some(axis.border()? as f64 * layout.cell as f64 / layout.block as f64);
        let down = start(&self.queries).map(|from| format!("M{x} {}h{wide}", y as f64 + from));
        let across = start(&self.keys).map(|from| format!("M{} {y}v{high}", x as f64 + from));
        for path in down.into_iter().chain(across) {
            let _ = writeln!(svg, "<path d=\"{path}\" stroke=\"{SECOND}\" stroke-dasharray=\"4 3\"/>");
        }
        if at.is_multiple_of(layout.across) {
            let place = |middle: f64| format!("translate({} {})", x - 5, y as f64 + middle);
            write_labels(svg, layout, &self.queries, place, "end");
        }
        if at < layout.across {
            let place = |middle: f64| format!("translate({} {}) rotate(-90)", x as f64 + middle, y - 5);
            write_labels(svg, layout, &self.keys, place, "start");
        }
    }

    /// Writes what the marks of the labels mean, those that there are.
    fn write_caption(&self, svg: &mut String, layout: &Arrangement, y: usize) {
        let any = |mark: fn(&TokenMarks) -> bool| self.queries.any(mark) || self.keys.any(mark);
        let block = match layout.block {
            1 => None,
            block => Some(format!("one cell: the largest of {block} × {block} weights")),
        };
        let named = layout.block * layout.step;
        let marks = [
            any(|marks| marks.special).then(|| format!("<tspan fill=\"{SPECIAL}\">gray: special</tspan>")),
            any(|marks| marks.second).then(|| format!("<tspan fill=\"{SECOND}\">violet: second text</tspan>")),
            any(|marks| marks.continues).then(|| "##: continues a word".to_string()),
            block,
            (named > 1).then(|| format!("one name for {named} tokens")),
        ];
        let marks: Vec<String> = marks.into_iter().flatten().collect();
        if marks.is_empty() {
            return;
        }
        let _ = writeln!(svg, "<text x=\"{}\" y=\"{y}\" font-size=\"10\">{}</text>", layout.left, marks.join(" · "));
    }

    /// Per level, the path of all runs of cells with that level.
    fn paths(&self, layout: &Arrangement, weights: &[f32], largest: f32) -> Vec<String> {
        let mut paths = vec![String::new(); LEVELS];
        for row in 0..layout.rows {
            let mut levels = vec![0; layout.columns];
            for weights in weights.chunks(self.keys.len()).skip(row * layout.block).take(layout.block) {
                for (shown, block) in levels.iter_mut().zip(weights.chunks(layout.block)) {
                    let level = level(largest_weight(block), largest);
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

/// The label of the first of each `block` tokens, with its color.
fn labels(axis: &Axis, block: usize) -> Vec<(String, Option<&'static str>)> {
    let named = axis.labels().into_iter().zip(&axis.marks).enumerate().step_by(block);
    let label = |(i, (name, marks)): (usize, (String, &TokenMarks))| {
        let name = if block > 1 { format!("{i} {name}") } else { name };
        let color = if marks.special { Some(SPECIAL) } else { marks.second.then_some(SECOND) };
        (fit(&name, LABEL), color)
    };
    named.map(label).collect()
}

fn write_labels(svg: &mut String, layout: &Arrangement, axis: &Axis, place: impl Fn(f64) -> String, anchor: &str) {
    let _ = writeln!(svg, "<g font-size=\"{:.1}\" text-anchor=\"{anchor}\">", layout.font);
    for (i, (name, color)) in labels(axis, layout.block * layout.step).iter().enumerate() {
        let middle = ((i * layout.step) as f64 + 0.5) * layout.cell as f64 + layout.font * 0.35;
        let fill = color.map_or(String::new(), |color| format!(" fill=\"{color}\""));
        let _ = writeln!(svg, "<text transform=\"{}\"{fill}>{}</text>", place(middle), escape(name));
    }
    svg.push_str("</g>\n");
}

/// Writes the legend of the colors.
fn write_legend(svg: &mut String, x: usize, y: usize, largest: f32) {
    let wide = 192;
    svg.push_str("<defs><linearGradient id=\"scale\">");
    for (i, [r, g, b]) in LIGHT.iter().enumerate() {
        let at = i as f32 / (LIGHT.len() - 1) as f32;
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

/// Equidistant colors from weight 0 to the largest weight, interpolated linearly.
pub(crate) type Colormap = [[u8; 3]; 6];

/// For a white background.
pub(crate) const LIGHT: Colormap =
    [[255, 255, 255], [214, 230, 244], [147, 196, 222], [74, 151, 201], [24, 100, 170], [8, 45, 100]];
/// For a black background.
pub(crate) const DARK: Colormap =
    [[22, 27, 34], [27, 58, 92], [28, 106, 143], [47, 163, 163], [143, 214, 148], [250, 245, 180]];

/// The color at `level`, from 0 to 1.
pub(crate) fn color(colormap: &Colormap, level: f32) -> [u8; 3] {
    let position = level.clamp(0.0, 1.0) * (colormap.len() - 1) as f32;
    let low = (position as usize).min(colormap.len() - 2);
    let fraction = position - low as f32;
    std::array::from_fn(|i| {
        let (a, b) = (f32::from(colormap[low][i]), f32::from(colormap[low + 1][i]));
        (a + (b - a) * fraction).round() as u8
    })
}

/// The level of a weight: the square root of its ratio to the largest, because most weights are small compared with it.
pub(crate) fn level(weight: f32, largest: f32) -> f32 {
    if largest > 0.0 { (weight / largest).clamp(0.0, 1.0).sqrt() } else { 0.0 }
}

/// The largest of the weights.
pub(crate) fn largest_weight(weights: &[f32]) -> f32 {
    weights.iter().copied().fold(0.0, f32::max)
}
