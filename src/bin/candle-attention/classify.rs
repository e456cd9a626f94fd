//! Classifies texts or pairs of texts by a model with a classification head.

use std::io::Write;
use std::path::PathBuf;

use super::shared::head_model::HeadModel;
use super::shared::program::Command;
use super::shared::{Result, print, read};
use candle_attention::encoder::{Label, Text, TextClassifier};
use clap::Parser;

/// Classify texts, or pairs of texts.
///
/// Prints the most probable labels of each text. The model has a head for sequence classification, such as one for
/// sentiment, or with --pair one that reads two texts together.
#[derive(Parser)]
#[command(
    name = "classify",
    after_help = "Examples:
  candle-attention classify --model sentiment \"A warm, funny film.\" \"A waste of time.\"
  candle-attention classify --model sentiment --file texts.txt --top-k 1 --json"
)]
pub struct Classify {
    #[command(flatten)]
    model: HeadModel,
    /// The texts to classify
    texts: Vec<String>,
    /// Read the texts from a file, one per line; `-` is standard input; blank lines are skipped [default: texts are
    /// arguments]
    #[arg(long, conflicts_with = "texts")]
    file: Option<PathBuf>,
    /// A second text, which the model reads after each of the texts [default: none]
    #[arg(long, value_name = "TEXT")]
    pair: Option<String>,
    /// The number of labels to print per text, the most probable first
    #[arg(short = 'k', long, allow_negative_numbers = true, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    top_k: u32,
    /// Print one {"text": …, "labels": [{"label": …, "score": …}]} per line, in input order [default: a table]
    #[arg(long)]
    json: bool,
}

#[derive(serde::Serialize)]
struct Line<'a> {
    text: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pair: Option<&'a str>,
    labels: Vec<Scored<'a>>,
}

#[derive(serde::Serialize)]
struct Scored<'a> {
    label: &'a str,
    score: f32,
}

/// The columns of a text that are shown.
const WIDTH: usize = 90;
/// The columns of a label that are shown.
const LABEL: usize = 60;

impl Command for Classify {
    fn run(self) -> Result<()> {
        let texts = read::texts_given(&self.texts, self.file.as_deref(), "text")?;
        let pair = self.pair.as_deref();
        let opened = self.model.open(|folder, dtype, device| TextClassifier::from_folder(folder, dtype, device))?;
        let read = |text| pair.map_or(Text::One(text), |pair| Text::Pair(text, pair));
        let inputs: Vec<Text> = texts.iter().map(|text| read(text)).collect();
        let classified = opened.run(texts.len(), |model, options| model.classify(&inputs, options))?;
        let mut out = print::stdout();
        for (text, labels) in texts.iter().zip(&classified) {
            let labels: &[Label] = &labels[..labels.len().min(self.top_k as usize)];
            if self.json {
                let labels = labels.iter().map(|Label { label, score, .. }| Scored { label, score: *score }).collect();
                writeln!(out, "{}", serde_json::to_string(&Line { text, pair, labels })?)?;
                continue;
            }
            writeln!(out, "{}", print::one_line(text, WIDTH))?;
            for Label { label, score, .. } in labels {
                writeln!(out, "  {score:>7.4}  {}", print::one_line(label, LABEL))?;
            }
        }
        Ok(out.flush()?)
    }
}
