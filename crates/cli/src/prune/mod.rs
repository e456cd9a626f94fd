//! Ranks the attention heads of a sentence encoder, measures what pruning costs and saves, and writes the model without
//! them.

mod measure;
mod write;

use std::io::Write;
use std::path::PathBuf;

use candle_attention_text::ImportanceMethod;
use candle_core::DType;
use clap::{Parser, ValueEnum};
use measure::{Texts, measure, print_importance};

use super::shared::model::{Batches, Model, examples};
use super::shared::output::{check_new_folder, check_outside};
use super::shared::program::Command;
use super::shared::{Result, print, read};

/// Rank the attention heads of a sentence encoder by their importance on your texts, and prune the least important.
///
/// Every second text ranks the heads. The other texts measure the quality: the cosine between the embeddings of the
/// pruned and of the whole model. With 400 texts that takes about a minute for the embedded model and minutes for
/// larger ones, most of them to measure time; --runs 0 does not.
///
/// Who can load what --output writes: with --masked every library that loads the whole model, such as
/// sentence-transformers, because the model keeps its size and its config.json; the pruned heads are zeros. Without it
/// the model is smaller, and this program and transformers before 5 load it: its config.json has `pruned_heads`.
#[derive(Parser)]
#[command(
    name = "prune",
    mut_arg("dtype", |arg| arg.help("Compute in f32, f64, f16 or bf16 [default: f32]")),
    after_help = examples("Examples:
  candle-attention prune --file texts.txt --model sentence-transformers/all-MiniLM-L6-v2 \\
      --share 0.25 --output smaller --runs 0
  candle-attention prune --file texts.txt --model sentence-transformers/all-MiniLM-L6-v2 \\
      --by entropy --runs 1 --masked --output masked")
)]
pub struct Prune {
    #[command(flatten)]
    model: Model,
    #[command(flatten)]
    batches: Batches,
    /// A file of texts, one per line; `-` is standard input; blank lines are skipped
    #[arg(long)]
    file: PathBuf,
    /// How the importance of a head is measured
    #[arg(long, value_enum, default_value_t = By::Gradient)]
    by: By,
    /// Compare heads within their layer only: divide the scores of each layer by their norm [default: heads of all
    /// layers are compared]
    #[arg(long)]
    by_layer: bool,
    /// The share of heads to prune, from 0 to 1: it gets a row of its own, and --output prunes it [default: 0.25 with
    /// --output]
    #[arg(long)]
    share: Option<f64>,
    /// Write the pruned model to this folder, which must not exist [default: no model is written]
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// Keep the size of the written model, and write zeros for the pruned heads, so that every library loads it
    /// [default: the written model is smaller]
    #[arg(long, requires = "output")]
    masked: bool,
    /// Read at most this many texts
    #[arg(long, default_value_t = 400)]
    limit: usize,
    /// The number of times that a row is timed, each for at least a second; the median is reported; 0 measures no time
    #[arg(long, default_value_t = 5)]
    runs: usize,
}

#[derive(Clone, Copy, ValueEnum)]
enum By {
    /// How fast the embedding changes when the head is scaled: one forward and one backward pass
    Gradient,
    /// How far the embedding moves without the head: one forward pass per head
    Ablation,
    /// How focused the head is: one forward pass
    Entropy,
}

impl By {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |by| by.get_name().to_string())
    }

    fn method(self) -> ImportanceMethod {
        match self {
            Self::Gradient => ImportanceMethod::Gradient,
            Self::Ablation => ImportanceMethod::Ablation,
            Self::Entropy => ImportanceMethod::Entropy,
        }
    }
}

/// The share that --output prunes without --share.
const DEFAULT_SHARE: f64 = 0.25;

impl Command for Prune {
    fn run(self) -> Result<()> {
        if let Some(share) = self.share.filter(|share| !(0.0..=1.0).contains(share)) {
            return Err(format!("--share is {share}, expected 0 to 1").into());
        }
        self.output.as_deref().map_or(Ok(()), check_new_folder)?;
        let texts = read::first_texts(&self.file, self.limit)?;
        let folder = self.model.folder()?;
        if folder.is_none() && self.output.is_some() {
            return Err(
                "--output needs --model: the embedded model has no folder (in this repository it is the folder \
                        `weights`)"
                    .into(),
            );
        }
        if let (Some(folder), Some(output)) = (&folder, &self.output) {
            check_outside(output, folder, "pruned")?;
        }
        // Gradients of f16 would vanish.
        let compute_type = self.model.compute.dtype.unwrap_or(DType::F32.into());
        let encoder = self.model.load(folder.as_deref(), compute_type)?;
        // A reader that leaves must not stop the writing of the model.
        let mut out = if self.output.is_some() { print::stdout_beside_files() } else { print::stdout() };

        let all: usize = encoder.heads().iter().sum();
        let share = self.share.or(self.output.as_ref().map(|_| DEFAULT_SHARE));
        let chosen = share.map(|share| (share * all as f64).round() as usize);
        let [rank, judge] = read::halves(&texts);
        let options = self.batches.options(self.model.prompt_name.as_deref());
        let importance = Texts { texts: &rank, options }.importance(&encoder, self.by.method())?;
        let importance = if self.by_layer { importance.normalized_by_layer() } else { importance };
        print_importance(&mut out, &importance)?;
        out.flush()?;
        let judge = Texts { texts: &judge, options };
        let cosine = measure(&mut out, &encoder, &importance, &judge, chosen, self.runs)?;
        out.flush()?;
        if let (Some(folder), Some(output), Some(chosen)) = (folder, &self.output, chosen) {
            let (rank, judge) = (rank.len(), judge.texts.len());
            let card = write::Card { options: &self, folder: &folder, all, rank, judge, cosine };
            write::write(&mut out, output, &importance.least_important(chosen), &card)?;
        }
        Ok(out.flush()?)
    }
}
