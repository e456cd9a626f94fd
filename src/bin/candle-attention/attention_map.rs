//! Attention maps of a sentence encoder: one head in the terminal, one layer as a picture, all layers as an HTML page.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use super::shared::model::Model;
use super::shared::output::{Kind, Output, check_distinct};
use super::shared::program::Command;
use super::shared::{Result, print};
use candle_attention::encoder::{MapOptions, Text};
use candle_attention::visualize::TerminalColor;
use clap::Parser;

/// Shows the attention weights of a text or of a pair of texts, by default of one head in the terminal.
///
/// Example: attention_map --html map.html "The cat sat on the mat."
#[derive(Parser)]
#[command(name = "attention_map", verbatim_doc_comment)]
pub struct AttentionMap {
    #[command(flatten)]
    model: Model,
    /// The text
    text: String,
    /// A second text, encoded together with the first as a cross-encoder does
    #[arg(long, value_name = "TEXT")]
    pair: Option<String>,
    /// The layer, counted from 0 [default: 0; with --html all layers]
    #[arg(long)]
    layer: Option<usize>,
    /// The head, counted from 0 [default: 0; in files all heads]
    #[arg(long)]
    head: Option<usize>,
    /// Write an HTML page to explore layers and heads
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the heads of the layer as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write the heads of the layer as PNG (in a build with `--features png`)
    #[arg(long, value_name = "FILE")]
    png: Option<PathBuf>,
}

impl Command for AttentionMap {
    fn run(self) -> Result<()> {
        attention_map(&self)
    }
}

fn attention_map(arguments: &AttentionMap) -> Result<()> {
    if arguments.png.is_some() && !cfg!(feature = "png") {
        return Err("--png: this program was built without it (build with `--features png`)".into());
    }
    let output = |path: &Option<PathBuf>, kind| path.as_deref().map(|path| Output::new(path, kind, &[])).transpose();
    let html = output(&arguments.html, Kind::Html)?;
    let svg = output(&arguments.svg, Kind::Svg)?;
    let png = output(&arguments.png, Kind::Png)?;
    check_distinct(&[&html, &svg, &png].into_iter().flatten().collect::<Vec<_>>())?;
    let encoder = arguments.model.load(arguments.model.folder()?.as_deref())?;
    let layer = arguments.layer.unwrap_or(0);
    let written = arguments.html.is_some() || arguments.svg.is_some() || arguments.png.is_some();
    let mut options = MapOptions::default();
    options.prompt_name = arguments.model.prompt_name.as_deref();
    if arguments.layer.is_some() || arguments.html.is_none() {
        options = options.with_layers(&[layer]);
    }
    if let Some(head) = arguments.head.or((!written).then_some(0)) {
        options = options.with_heads(&[head]);
    }
    let first = arguments.text.as_str();
    let text = arguments.pair.as_deref().map_or(Text::One(first), |second| Text::Pair(first, second));
    let maps = encoder.attention(text, &options)?;

    if let Some(output) = html {
        output.write(maps.html()?.as_bytes())?;
    }
    if let Some(output) = svg {
        output.write(maps.svg(layer)?.as_bytes())?;
    }
    #[cfg(feature = "png")]
    if let Some(output) = png {
        output.write(&maps.png(layer, 2.0)?)?;
    }
    if !written {
        let color = TerminalColor::detect(std::io::stdout().is_terminal());
        let columns = console::Term::stdout().size_checked().map_or(100, |(_, columns)| usize::from(columns));
        let mut out = print::stdout();
        out.write_all(maps.terminal(layer, arguments.head.unwrap_or(0), color, columns)?.as_bytes())?;
        out.flush()?;
    }
    Ok(())
}
