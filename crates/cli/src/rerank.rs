//! Scores documents by their relevance to a query, which a cross-encoder reads together with each.

use std::io::Write;
use std::path::{Path, PathBuf};

use candle_attention::ComputeType;
use candle_attention_text::{CrossEncoder, EncodeOptions};
use candle_core::Device;
use clap::Parser;

use super::shared::head_model::{HeadModel, WIDTH};
use super::shared::model::examples;
use super::shared::program::Command;
use super::shared::{Result, positive, print, read};

/// Sort documents by their relevance to a query.
///
/// The model reads the query and each document together, and scores the pair: slower than `search`, and better. It is a
/// cross-encoder: a model with a classification head of one label, or a causal language model that answers `yes` or
/// `no`.
#[derive(Parser)]
#[command(
    name = "rerank",
    after_help = examples("Examples:
  candle-attention rerank --model cross-encoder/ms-marco-MiniLM-L6-v2 \"Who sleeps?\" \"A cat sleeps.\" \"Stocks fell.\"
  candle-attention rerank --model cross-encoder/ms-marco-MiniLM-L6-v2 --query \"Who sleeps?\" \\
      --file texts.txt --top-k 3 --json")
)]
pub struct Rerank {
    #[command(flatten)]
    model: HeadModel,
    /// What a document has to do with the query, for a model that takes instructions [default: the model's own default]
    #[arg(long, value_name = "TEXT", conflicts_with = "prompt_name")]
    prompt: Option<String>,
    /// The name of one of the model's prompts [default: the model's own default]
    #[arg(long, value_name = "NAME")]
    prompt_name: Option<String>,
    /// The query [default: the first of the arguments]
    #[arg(long, value_name = "TEXT")]
    query: Option<String>,
    /// The documents; without --query, the query before them
    documents: Vec<String>,
    /// Read the documents from a file, one per line; `-` is standard input; blank lines are skipped [default: documents
    /// are arguments]
    #[arg(long)]
    file: Option<PathBuf>,
    /// The number of documents to print, the best first [default: 10 in a table; with --json all, in the order given]
    #[arg(short = 'k', long, allow_negative_numbers = true, value_parser = positive::<u32>)]
    top_k: Option<u32>,
    /// Print one {"document": …, "score": …} per line: all in the order given, or with --top-k the best first
    /// [default: a table]
    #[arg(long)]
    json: bool,
}

#[derive(serde::Serialize)]
struct Hit<'a> {
    document: &'a str,
    score: f32,
}

/// The documents in a table.
const TOP: u32 = 10;

/// A model that gives one score.
fn load(folder: &Path, compute_type: ComputeType, device: &Device) -> candle_attention::Result<CrossEncoder> {
    let model = CrossEncoder::from_folder(folder, compute_type, device)?;
    // Scores of no pairs: whether the model has any.
    model.scores(&[], &EncodeOptions::default())?;
    Ok(model)
}

impl Command for Rerank {
    fn run(mut self) -> Result<()> {
        let query = match self.query.take() {
            Some(query) => query,
            None if self.documents.is_empty() => return Err("no query: give one by --query".into()),
            None => self.documents.remove(0),
        };
        if let (Some(file), Some(document)) = (&self.file, self.documents.first()) {
            let (file, document) = (file.display(), print::one_line(document, WIDTH));
            return Err(format!("documents both as arguments (`{document}`) and by --file {file}: give one").into());
        }
        let documents = read::texts_given(&self.documents, self.file.as_slice(), "document")?;
        let documents = read::borrowed(&documents);
        let opened = self.model.open(load)?;
        let mut ranked = opened.run(documents.len(), |model, options| {
            let mut options = *options;
            (options.prompt, options.prompt_name) = (self.prompt.as_deref(), self.prompt_name.as_deref());
            model.rank(&query, &documents, &options)
        })?;
        let mut out = print::stdout();
        if self.json {
            match self.top_k {
                Some(top) => ranked.truncate(top as usize),
                None => ranked.sort_by_key(|hit| hit.index),
            }
            for hit in ranked {
                print::json(&mut out, &Hit { document: documents[hit.index], score: hit.score })?;
            }
            return Ok(out.flush()?);
        }
        for (rank, hit) in (1..).zip(ranked.iter().take(self.top_k.unwrap_or(TOP) as usize)) {
            writeln!(out, "{rank:>3} {:>7.4}  {}", hit.score, print::one_line(documents[hit.index], WIDTH))?;
        }
        Ok(out.flush()?)
    }
}
