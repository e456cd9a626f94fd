//! Sentence embeddings: prints a table of similarities, or with `--json` one JSON object per line.

use std::io::{BufWriter, Write};
use std::path::PathBuf;

use super::shared::model::{Batches, Model};
use super::shared::print::one_line;
use super::shared::program::Command;
use super::shared::{Result, bar, read};
use candle_core::{DType, Tensor};
use clap::Parser;
use indicatif::ProgressBar;

/// Computes sentence embeddings, and prints how similar the sentences are.
///
/// Example: encode "A cat sleeps." "A kitten naps." "Stocks fell."
///          encode --model sentence-transformers/all-MiniLM-L6-v2 "A cat sleeps." "A kitten naps." "Stocks fell."
#[derive(Parser)]
#[command(name = "encode", verbatim_doc_comment)]
pub struct Encode {
    #[command(flatten)]
    model: Model,
    #[command(flatten)]
    batches: Batches,
    /// The texts to encode
    texts: Vec<String>,
    /// Read the texts from a file, one per line; `-` is standard input
    #[arg(long, conflicts_with = "texts")]
    file: Option<PathBuf>,
    /// Print one {"text": …, "embedding": […]} per line, in input order
    #[arg(long)]
    json: bool,
}

impl Command for Encode {
    fn run(self) -> Result<()> {
        encode(&self)
    }
}

fn encode(arguments: &Encode) -> Result<()> {
    let texts = texts(arguments)?;
    let encoder = arguments.model.load(arguments.model.folder()?.as_deref())?;
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();

    let options = arguments.batches.options(arguments.model.prompt_name.as_deref());
    let bar = if texts.len() > options.batch_size {
        bar::bar(texts.len(), "encoding", "texts")?
    } else {
        ProgressBar::hidden()
    };
    let on_progress = |done: usize, _: usize| bar.set_position(done as u64);
    let embeddings = encoder.encode(&texts, &options.with_on_progress(&on_progress))?.to_dtype(DType::F32)?;
    bar.finish_and_clear();

    if arguments.json {
        print_json(&texts, &embeddings)
    } else {
        print_similarities(&texts, &embeddings, arguments.model.name())
    }
}

fn texts(arguments: &Encode) -> Result<Vec<String>> {
    let texts: Vec<String> = match &arguments.file {
        None => arguments.texts.clone(),
        Some(path) => read::text(path)?.lines().map(str::to_string).collect(),
    };
    if texts.is_empty() {
        return Err("no text: give texts as arguments, or a file with --file".into());
    }
    Ok(texts)
}

#[derive(serde::Serialize)]
struct Line<'a> {
    text: &'a str,
    embedding: Vec<f32>,
}

fn print_json(texts: &[&str], embeddings: &Tensor) -> Result<()> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    for (i, text) in texts.iter().enumerate() {
        let line = serde_json::to_string(&Line { text, embedding: embeddings.get(i)?.to_vec1()? })?;
        writeln!(out, "{line}")?;
    }
    Ok(out.flush()?)
}

/// The most texts that are shown as a square table.
const TABLE: usize = 10;
/// The characters of a text that are shown.
const WIDTH: usize = 44;

fn print_similarities(texts: &[&str], embeddings: &Tensor, model: &str) -> Result<()> {
    let lengths = embeddings.sqr()?.sum_keepdim(1)?.sqrt()?.maximum(1e-12)?;
    let unit = embeddings.broadcast_div(&lengths)?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    writeln!(out, "{} texts, {} numbers each by {model}; cosine similarity:", texts.len(), embeddings.dim(1)?)?;
    if texts.len() <= TABLE {
        write!(out, "{:WIDTH$}", "")?;
        (1..=texts.len()).try_for_each(|i| write!(out, "{i:>7}"))?;
        writeln!(out)?;
        for (i, row) in unit.matmul(&unit.t()?)?.to_vec2::<f32>()?.iter().enumerate() {
            write!(
                out,
                "{:<WIDTH$}",
                format!("{:>2} {}", i + 1, one_line(texts[i], WIDTH)).chars().take(WIDTH).collect::<String>()
            )?;
            row.iter().try_for_each(|similarity| write!(out, "{similarity:>7.3}"))?;
            writeln!(out)?;
        }
        return Ok(out.flush()?);
    }
    // Too many for a table: each text with the text most similar to it.
    for (i, text) in texts.iter().enumerate() {
        let row = unit.narrow(0, i, 1)?.matmul(&unit.t()?)?.squeeze(0)?.to_vec1::<f32>()?;
        let others = row.iter().enumerate().filter(|(j, _)| *j != i);
        if let Some((nearest, similarity)) = others.max_by(|a, b| a.1.total_cmp(b.1)) {
            writeln!(out, "{:<WIDTH$} {similarity:>6.3}  {}", one_line(text, WIDTH), one_line(texts[nearest], WIDTH))?;
        }
    }
    Ok(out.flush()?)
}
