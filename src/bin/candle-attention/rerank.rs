//! Sorts documents by their relevance to a query, which a cross-encoder reads together with each.

use std::io::Write;
use std::path::PathBuf;

use super::shared::head_model::HeadModel;
use super::shared::program::Command;
use super::shared::{Result, print, read};
use candle_attention::encoder::CrossEncoder;
use clap::Parser;

/// Sort documents by their relevance to a query.
///
/// The model reads the query and each document together, and scores the pair: slower than `search`, and better. It is a
/// cross-encoder, a model with a classification head of one label.
#[derive(Parser)]
#[command(
    name = "rerank",
    after_help = "Examples:
  candle-attention rerank --model cross-encoder \"Who sleeps?\" \"A cat sleeps.\" \"Stocks fell.\"
  candle-attention rerank --model cross-encoder \"Who sleeps?\" --file texts.txt --top-k 3 --json"
)]
pub struct Rerank {
    #[command(flatten)]
    model: HeadModel,
    /// The query
    query: String,
    /// The documents
    documents: Vec<String>,
    /// Read the documents from a file, one per line; `-` is standard input; blank lines are skipped [default: documents are
    /// arguments]
    #[arg(long, conflicts_with = "documents")]
    file: Option<PathBuf>,
    /// The number of documents to print, the best first
    #[arg(short = 'k', long, allow_negative_numbers = true, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    top_k: u32,
    /// Print one {"rank": …, "score": …, "index": …, "document": …} per line; `index` counts documents from 0 [default: a
    /// table]
    #[arg(long)]
    json: bool,
}

#[derive(serde::Serialize)]
struct Hit<'a> {
    rank: usize,
    score: f32,
    index: usize,
    document: &'a str,
}

/// The columns of a document that are shown.
const WIDTH: usize = 90;

impl Command for Rerank {
    fn run(self) -> Result<()> {
        let documents = read::texts_given(&self.documents, self.file.as_deref(), "document")?;
        let documents: Vec<&str> = documents.iter().map(String::as_str).collect();
        let opened = self.model.open(|folder, dtype, device| CrossEncoder::from_folder(folder, dtype, device))?;
        let ranked = opened.run(documents.len(), |model, options| model.rank(&self.query, &documents, options))?;
        let mut out = print::stdout();
        for (rank, hit) in (1..).zip(ranked.iter().take(self.top_k as usize)) {
            let document = documents[hit.index];
            match self.json {
                true => {
                    let hit = Hit { rank, score: hit.score, index: hit.index, document };
                    writeln!(out, "{}", serde_json::to_string(&hit)?)?;
                }
                false => writeln!(out, "{rank:>3} {:>7.4}  {}", hit.score, print::one_line(document, WIDTH))?,
            }
        }
        Ok(out.flush()?)
    }
}
