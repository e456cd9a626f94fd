//! Attention maps of a sentence encoder: one head in the terminal, one layer as a picture, all layers as an HTML page.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use candle_attention_text::visualize::TerminalColor;
use candle_attention_text::{MapOptions, Text};
use clap::Parser;

use super::shared::model::Model;
use super::shared::output::{Kind, Output, check_distinct};
use super::shared::program::Command;
use super::shared::{Result, print};

/// Show the attention weights of a text or of a pair of texts, by default of one head in the terminal.
///
/// A text longer than the model takes is cut; the picture says where.
#[derive(Parser)]
#[command(
    name = "attention-map",
    after_help = "Examples:
  candle-attention attention-map \"The cat sat on the mat because it was warm.\"
  candle-attention attention-map --html map.html \"The cat sat on the mat because it was warm.\""
)]
pub struct AttentionMap {
    #[command(flatten)]
    model: Model,
    /// The text whose attention is shown
    text: String,
    /// A second text, encoded together with the first as a cross-encoder does
    #[arg(long, value_name = "TEXT")]
    pair: Option<String>,
    /// The layer, counted from 0 [default: that of the head with the sharpest pattern; with --html all layers]
    #[arg(long)]
    layer: Option<usize>,
    /// The head, counted from 0 [default: the one with the sharpest pattern between words; in files all heads]
    #[arg(long)]
    head: Option<usize>,
    /// Write an HTML page to explore layers and heads; `-` is standard output
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the heads of the layer as SVG; `-` is standard output
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Replace any file at --html or --svg [default: a file of another kind is an error]
    #[arg(long)]
    force: bool,
}

impl Command for AttentionMap {
    fn run(self) -> Result<()> {
        let output =
            |path: &Option<PathBuf>, kind| path.as_deref().map(|path| Output::new(path, kind, self.force)).transpose();
        let (html, svg) = (output(&self.html, Kind::Html)?, output(&self.svg, Kind::Svg)?);
        let outputs: Vec<&Output> = [&html, &svg].into_iter().flatten().collect();
        check_distinct(&outputs)?;
        if [Some(&self.text), self.pair.as_ref()].into_iter().flatten().any(|text| text.trim().is_empty()) {
            return Err("a text is blank: expected some words".into());
        }
        let folder = self.model.folder()?;
        let encoder = self.model.load(folder.as_deref(), self.model.compute.compute_type())?;
        let layers = self.layers(&encoder.heads())?;
        let mut options = MapOptions::default().with_layers(&layers);
        options.prompt_name = self.model.prompt_name.as_deref();
        if let Some(head) = self.head {
            options = options.with_heads(&[head]);
        }
        let first = self.text.as_str();
        let text = self.pair.as_deref().map_or(Text::One(first), |second| Text::Pair(first, second));
        let maps = encoder.attention(text, &options)?;
        let maps = maps.with_model(&self.model.title());
        let [layer, head] = maps.telling_head().ok_or("the model has no attention heads")?;

        // All pictures are made before one is written.
        let html = html.as_ref().map(|output| Ok((output, maps.html()?.into_bytes())));
        let svg = svg.as_ref().map(|output| Ok((output, maps.svg(layer)?.into_bytes())));
        let pictures = [html, svg].into_iter().flatten().collect::<Result<Vec<_>>>()?;
        for (output, picture) in pictures {
            output.write(&picture)?;
            if !output.is_stdout() {
                print::to_stderr(format_args!("{}: {} bytes", output.path.display(), picture.len()));
            }
        }
        if outputs.is_empty() {
            let color = TerminalColor::detect(std::io::stdout().is_terminal());
            let columns = console::Term::stdout().size_checked().map_or(100, |(_, columns)| usize::from(columns));
            let mut out = print::stdout();
            out.write_all(maps.terminal(layer, head, color, columns)?.as_bytes())?;
            out.flush()?;
        }
        Ok(())
    }
}

impl AttentionMap {
    /// The layers to look at: that of --layer, or all that have heads, and the one of --head; `heads` has the number of
    /// each layer.
    fn layers(&self, heads: &[usize]) -> Result<Vec<usize>> {
        if let Some(layer) = self.layer.filter(|layer| *layer >= heads.len()) {
            return Err(format!("--layer {layer}: the model has layers 0 to {}", heads.len().saturating_sub(1)).into());
        }
        let asked = self.layer.map_or(0..heads.len(), |layer| layer..layer + 1);
        let head = self.head.unwrap_or(0);
        let layers = asked.clone().filter(|layer| head < heads[*layer]).collect::<Vec<_>>();
        let most = heads[asked].iter().max().copied().unwrap_or(0);
        let which = self.layer.map_or("the model".to_string(), |layer| format!("layer {layer}"));
        match (layers.is_empty(), most.checked_sub(1)) {
            (false, _) => Ok(layers),
            (true, Some(last)) => Err(format!("--head {head}: {which} has heads 0 to {last}").into()),
            (true, None) => Err(format!("{which} has no attention heads").into()),
        }
    }
}
